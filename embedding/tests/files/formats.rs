//! Tests that this build opens banks of every on-disk format: docs/testing.md, "Formats".
//!
//! `fixtures/format-<n>` and `fixtures/format-<n>-descriptor-<m>` each hold a bank's files, and its
//! rows as the hexadecimal bits of each value. n is the version of the metadata format. m is the
//! version of table descriptors: 1 in names without m. `write_a_fixture` makes a fixture.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::fixture::copy;
use crate::common::{initial_of, rows_of, small_options};
use embank::{Adagrad, Bank, Fans, Ftrl, Initializer, Missing, Optimizer, Sgd, TableConfig};
use embank_kv::inspect::{VerifyOptions, summary, verify};

const KEYS: [u64; 5] = [0, 1, 7, 1 << 40, u64::MAX];
const UNTOUCHED: [u64; 2] = [3, 1 << 60];
const BLOB: &[u8] = b"step 2";

/// The version of table descriptors that this build writes.
const DESCRIPTOR: u32 = 2;

/// Returns the tables of a fixture: one per optimizer and initializer that this version of
/// descriptors supports.
fn configs(descriptor: u32) -> Vec<(&'static str, TableConfig)> {
    let mut configs = configs_of_descriptor_1();
    if descriptor >= 2 {
        configs.extend(configs_of_descriptor_2());
    }
    configs
}

fn configs_of_descriptor_2() -> Vec<(&'static str, TableConfig)> {
    let fans = Fans { fan_in: None, fan_out: Some(1000) };
    let momentum = Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01, ..Sgd::new(0.1) };
    let decaying = Adagrad { lr_decay: 0.1, weight_decay: 0.01, ..Adagrad::new(0.1) };
    let truncated = Initializer::TruncatedNormal { mean: 0.5, std: 0.1, low: 0.4, high: 0.9 };
    vec![
        ("momentum", TableConfig::new(3).optimizer(Optimizer::Sgd(momentum))),
        ("decaying", TableConfig::new(9).optimizer(Optimizer::Adagrad(decaying))),
        (
            "row-wise",
            TableConfig::new(9)
                .optimizer(Optimizer::row_wise_adagrad(0.1))
                .initializer(Initializer::XavierUniform { gain: 2.0, fans }),
        ),
        (
            "adam",
            TableConfig::new(4)
                .optimizer(Optimizer::adam(0.1))
                .initializer(truncated)
                .clip_row_norm(Some(0.5)),
        ),
        (
            "adamw",
            TableConfig::new(4)
                .optimizer(Optimizer::adamw(0.1))
                .initializer(Initializer::XavierNormal { gain: 1.0, fans }),
        ),
        (
            "ftrl",
            TableConfig::new(4)
                .optimizer(Optimizer::Ftrl(Ftrl { beta: 1.0, l1: 0.1, l2: 0.2, ..Ftrl::new(0.1) }))
                .initializer(Initializer::Zeros),
        ),
    ]
}

fn configs_of_descriptor_1() -> Vec<(&'static str, TableConfig)> {
    let adagrad =
        Optimizer::Adagrad(Adagrad { eps: 1e-8, initial_accumulator: 0.25, ..Adagrad::new(0.5) });
    vec![
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

/// Returns the version of the metadata format that this build writes.
fn version() -> u32 {
    let frame = embank_kv::metadata::encode(&());
    u32::from_le_bytes(frame[8..12].try_into().unwrap())
}

/// Lists three kinds of values as text: rows that were put and trained, initial values of missing
/// rows, and rows after one more gradient. The last kind depends on the stored state.
fn listing(bank: &Bank, configs: &[(&str, TableConfig)]) -> String {
    let mut text = String::new();
    for (name, config) in configs {
        let table = bank.open_table(name).unwrap();
        assert_eq!(table.config(), *config, "{name}");
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
        let name = fixture.file_name().unwrap().to_str().unwrap();
        let descriptor = name.split_once("-descriptor-").map_or(1, |(_, m)| m.parse().unwrap());
        let configs = configs(descriptor);
        assert_eq!(bank.tables().len(), configs.len());
        let expected = fs::read_to_string(fixture.join("rows.txt")).unwrap();
        assert_eq!(listing(&bank, &configs), expected, "{}", fixture.display());
        bank.checkpoint(b"and on").unwrap();
        drop(bank);
        assert!(verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap().is_clean());
        drop(Bank::open(dir.path(), small_options()).unwrap());
        found |= fixture.ends_with(own_name());
    }
    assert!(found, "write a fixture of {} (docs/testing.md, \"Formats\")", own_name());
}

/// Returns the name of the fixture with the formats that this build writes.
fn own_name() -> String {
    format!("format-{}-descriptor-{DESCRIPTOR}", version())
}

#[test]
#[ignore = "writes files: run it when the format has changed"]
fn write_a_fixture() {
    let fixture = folder().join(own_name());
    assert!(!fixture.exists(), "{} is there: a fixture never changes", fixture.display());
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    let configs = configs(DESCRIPTOR);
    for (name, config) in configs.clone() {
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
    fs::write(fixture.join("rows.txt"), listing(&bank, &configs)).unwrap();
    assert_eq!(summary(&fixture.join("bank")).unwrap().checkpoints.len(), 2);
}
