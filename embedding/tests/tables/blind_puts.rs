//! Tests that blind puts leave rows of the cold tier unread, and that the count of rows is exact
//! after `compact`.

use crate::common;
use embank::{Admission, BankOptions, ColdTier, TableConfig, Tracking};

const ROWS: u64 = 150_000;
/// Keys that the bank does not have before the blind put, behind those that it has.
const NEW: u64 = 500;

fn values(keys: &[u64], version: f32) -> Vec<f32> {
    keys.iter().flat_map(|&key| [key as f32, version]).collect()
}

#[test]
fn a_blind_put_leaves_rows_of_the_cold_tier_unread() {
    let options = BankOptions {
        memory_budget_bytes: 4 << 20,
        cold_tier: ColdTier::OnCompact,
        ..BankOptions::default()
    };
    let bank = common::new_bank_with(options);
    let table = common::table(&bank.bank, TableConfig::new(2));
    let all: Vec<u64> = (0..ROWS).collect();
    for keys in all.chunks(5_000) {
        table.put(keys, &values(keys, 0.0)).unwrap();
    }
    bank.bank.compact().unwrap();
    let before = bank.bank.stats().store;
    assert_eq!(before.tiers, 2);
    assert!(before.cold_parts > 0, "{before:?}");
    // Of rows of the cold tier and new ones, in one batch. A repeated key has its last row.
    let mut keys: Vec<u64> = (0..3_000).chain(ROWS..ROWS + NEW).collect();
    let mut rows = values(&keys, 1.0);
    keys.push(7);
    rows.extend(values(&[7], 2.0));
    table.put_blind(&keys, &rows).unwrap();
    let after = bank.bank.stats().store;
    assert_eq!(after.cold_blocks_read, before.cold_blocks_read);
    let expected = |key: u64| if key == 7 { 2.0 } else { 1.0 };
    let peeked = common::rows_of(&table, &keys);
    for (row, &key) in peeked.chunks(2).zip(&keys) {
        assert_eq!(row, [key as f32, expected(key)]);
    }
    bank.bank.compact().unwrap();
    assert_eq!(table.rows().unwrap(), ROWS + NEW);
    assert_eq!(common::rows_of(&table, &[7, 2_999, 3_000]), [7.0, 2.0, 2999.0, 1.0, 3000.0, 0.0]);
}

#[test]
fn a_table_whose_rows_need_the_old_ones_refuses_blind_puts() {
    let bank = common::new_bank();
    let configs = [
        (TableConfig::new(2).admission(Admission::AfterGets(2)), "admission"),
        (TableConfig::new(2).tracking(Tracking::SetTime), "tracking"),
    ];
    for (config, word) in configs {
        let table = bank.bank.table(word, config).unwrap();
        let error = table.put_blind(&[1], &[0.0; 2]).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("blind"), "{error}");
        assert!(!table.contains(&[1]).unwrap()[0]);
    }
}
