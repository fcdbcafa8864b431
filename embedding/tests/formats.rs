//! Banks of embedding tables, of every on-disk format, that must keep opening: docs/testing.md, "Formats".
//!
//! `fixtures/format-<n>` has a bank's files and, as text, its rows as bits. `write_a_fixture` makes one.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use common::{initial_of, rows_of, small_options};
use embank::{Bank, Initializer, Missing, Optimizer, TableConfig};
use embank_kv::inspect::{VerifyOptions, summary, verify};

const KEYS: [u64; 5] = [0, 1, 7, 1 << 40, u64::MAX];
const UNTOUCHED: [u64; 2] = [3, 1 << 60];
const BLOB: &[u8] = b"step 2";

/// A table of each optimizer and of each initializer.
fn configs() -> [(&'static str, TableConfig); 4] {
    let adagrad = Optimizer::Adagrad { lr: 0.5, eps: 1e-8, initial_accumulator: 0.25 };
    [
        ("plain", TableConfig::new(1).initializer(Initializer::Zeros)),
        (
            "sgd",
            TableConfig::new(3)
                .optimizer(Optimizer::sgd(0.5))
                .initializer(Initializer::Constant(1.5))
                .staleness_bound(Some(4)),
        ),
        ("adagrad", TableConfig::new(8).optimizer(adagrad).seed(7)),
        (
            "normal",
            TableConfig::new(5).initializer(Initializer::Normal { mean: 0.0, std: 0.1 }).seed(9),
        ),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The metadata format that this build writes.
fn version() -> u32 {
    let frame = embank_kv::metadata::encode(&());
    u32::from_le_bytes(frame[8..12].try_into().unwrap())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else if entry.file_name() != "LOCK" {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Rows that were put and trained, rows that were not, and what a gradient makes of the state that came along.
fn listing(bank: &Bank) -> String {
    let mut text = String::new();
    for (name, config) in configs() {
        let table = bank.open_table(name).unwrap();
        assert_eq!(table.config(), config, "{name}");
        let mut list = |what: &str, values: &[f32]| {
            let bits: Vec<String> =
                values.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
            writeln!(text, "{name} {what} {}", bits.join(" ")).unwrap();
        };
        list("rows", &rows_of(&table, &KEYS));
        list("initial", &initial_of(&table, &UNTOUCHED));
        if !matches!(config.optimizer, Optimizer::None) {
            let gradients = vec![0.5; KEYS.len() * table.dim()];
            table.apply_gradients(&KEYS, &gradients).unwrap();
            list("trained", &rows_of(&table, &KEYS));
        }
        let mut absent = vec![0.0; table.dim()];
        assert!(table.peek(&[2], &mut absent, Missing::Error).is_err(), "{name}: it was deleted");
    }
    text
}

#[test]
fn banks_of_every_fixture_open_with_their_tables() {
    let (mut there, mut found) = (Vec::new(), false);
    for entry in fs::read_dir(folder()).unwrap() {
        there.push(entry.unwrap().path());
    }
    for fixture in there {
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture.join("bank"), dir.path());
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        assert_eq!(bank.recovered().unwrap().blob, BLOB);
        assert_eq!(bank.tables().len(), configs().len());
        let expected = fs::read_to_string(fixture.join("rows.txt")).unwrap();
        assert_eq!(listing(&bank), expected, "{}", fixture.display());
        bank.checkpoint(b"and on").unwrap();
        drop(bank);
        assert!(verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap().is_clean());
        drop(Bank::open(dir.path(), small_options()).unwrap());
        found |= fixture.ends_with(format!("format-{}", version()));
    }
    assert!(
        found,
        "the metadata format is {} now: write a fixture of it (docs/testing.md, \"Formats\")",
        version()
    );
}

#[test]
#[ignore = "writes files: run it when the format has changed"]
fn write_a_fixture() {
    let fixture = folder().join(format!("format-{}", version()));
    assert!(!fixture.exists(), "{} is there: a fixture never changes", fixture.display());
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    for (name, config) in configs() {
        let table = bank.table(name, config.clone()).unwrap();
        let keys = [&KEYS[..], &[2]].concat();
        let values: Vec<f32> =
            (0..keys.len() * table.dim()).map(|i| i as f32 / 8.0 - 1.0).collect();
        table.put(&keys, &values).unwrap();
        if !matches!(config.optimizer, Optimizer::None) {
            table.apply_gradients(&keys, &vec![0.125; values.len()]).unwrap();
        }
        table.delete(&[2]).unwrap();
        bank.checkpoint(BLOB).unwrap();
    }
    drop(bank);
    copy(dir.path(), &fixture.join("bank"));
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    fs::write(fixture.join("rows.txt"), listing(&bank)).unwrap();
    assert_eq!(summary(&fixture.join("bank")).unwrap().checkpoints.len(), 2);
}
