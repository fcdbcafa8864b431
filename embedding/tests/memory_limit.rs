//! Tests the default memory budget, and the warning about a larger budget, in a control group with
//! a memory limit.
//!
//! The test runs its own binary again as the process with the limit. An environment variable gives
//! that process a directory with the files of such a control group.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "common/told.rs"]
mod told;

use std::fs;
use std::path::Path;
use std::process::Command;

use embank::{Bank, BankOptions, TableConfig};

const ROLE: &str = "EMBANK_TEST_MEMORY_LIMIT";
const SYSTEM_ROOT: &str = "EMBANK_SYSTEM_ROOT";
const MIB: u64 = 1 << 20;

fn set_limit(root: &Path, bytes: u64) {
    let files = [
        ("proc/self/cgroup", "0::/box\n".to_owned()),
        ("proc/self/mountinfo", "35 24 0:30 / /groups rw - cgroup2 cgroup2 rw\n".to_owned()),
        ("groups/box/memory.max", format!("{bytes}\n")),
    ];
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Checks default, budget and warning in the process with the limit. Returns at once in an ordinary
/// run of the tests, which does not set the variable.
#[test]
fn limited() {
    let Ok(dir) = std::env::var(ROLE) else { return };
    let (dir, root) = (Path::new(&dir), std::env::var(SYSTEM_ROOT).unwrap());
    told::listen();

    set_limit(root.as_ref(), 64 * MIB);
    assert_eq!(BankOptions::default().memory_budget_bytes, 16 * MIB);
    assert_eq!(embank_kv::StoreOptions::default().memory_budget_bytes, 16 * MIB);
    let bank = Bank::open(dir.join("small"), BankOptions::default()).unwrap();
    assert_eq!(bank.stats().memory_budget_bytes, 16 * MIB);
    assert_eq!(bank.stats().memory_budget_warning, None);

    let options = BankOptions { memory_budget_bytes: 65 * MIB, ..BankOptions::default() };
    let bank = Bank::open(dir.join("large"), options).unwrap();
    let warning = bank.stats().memory_budget_warning.unwrap();
    for number in ["68157440", "67108864"] {
        assert!(warning.contains(number), "{warning}");
    }
    let told = told::told().clone();
    assert_eq!(told, [format!("WARN bank {:?}: {warning}", bank.path())]);

    // A process needs far more than 4,096 bytes, but the bank still opens.
    set_limit(root.as_ref(), 4096);
    let bank = Bank::open(dir.join("least"), BankOptions::default()).unwrap();
    bank.table("t", TableConfig::new(4)).unwrap().put(&[1], &[0.5; 4]).unwrap();
    bank.checkpoint(b"").unwrap();
}

/// Shows that a memory limit lowers the default budget, and that a larger budget causes a warning.
/// In an earlier version the default was 1 GiB even under a smaller limit.
#[test]
fn a_limit_of_memory_makes_the_default_smaller_and_a_larger_budget_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "limited", "--nocapture"])
        .env(ROLE, dir.path().join("banks"))
        .env(SYSTEM_ROOT, dir.path().join("root"))
        .status();
    assert!(ran.unwrap().success());
}
