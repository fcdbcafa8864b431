//! Tests the error when the system refuses the address space that a memory budget reserves.
//!
//! The test runs its own binary again in a process with a limited address space.

#![cfg(all(target_os = "linux", not(miri)))]

mod common;

use std::process::Command;

use common::options;
use embank_kv::{Error, Store};

const ROLE: &str = "EMBANK_TEST_ADDRESS_SPACE";

/// Runs in the process with the limited address space. Does nothing in an ordinary run of the
/// tests.
#[test]
fn limited() {
    let Ok(dir) = std::env::var(ROLE) else { return };
    let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: 1 << 30 };
    // SAFETY: the call reads a local variable, and only lowers a limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let error = Store::open(dir.as_ref(), &options(2 << 30)).unwrap_err();
    assert!(matches!(error, Error::AddressSpaceRefused { .. }), "{error}");
    for part in ["2.5 times", "memory budget", "vm.overcommit_memory", "ulimit -v"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    drop(Store::open(dir.as_ref(), &options(64 << 20)).expect("a budget that fits"));
}

/// Regression test: the error about refused address space did not say how much a budget reserves,
/// or which system settings limit the address space.
#[test]
fn the_error_names_the_address_space_and_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "limited", "--nocapture"])
        .env(ROLE, dir.path().join("bank"))
        .status();
    assert!(ran.unwrap().success());
}
