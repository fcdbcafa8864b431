//! Tests scans of banks with parts against a map.

use super::Scan;
use crate::cold::head::Kind;
use crate::testing::cold_bank::{Bank, DROPPED, Random, Rows};

fn collect(scan: &mut Scan<'_>) -> Rows {
    let mut rows = Rows::new();
    while let Some(row) = scan.next_row().unwrap() {
        assert_eq!(rows.insert(row.key, row.value.to_vec()), None, "key {} came twice", row.key);
    }
    assert!(scan.next_row().unwrap().is_none());
    assert_eq!(rows.len() as u64, scan.rows());
    rows
}

fn check(bank: &Bank) {
    for table in 0..DROPPED {
        let mut scan = bank.store.scan(bank.tables[table]).unwrap();
        assert_eq!(collect(&mut scan), bank.expected(table), "table {table}");
    }
}

/// Parts alone, parts below a short log, and parts below a log with more rows than a slice has room
/// for. Some runs are merged in a part of the base and not in another.
#[test]
fn a_scan_returns_the_newest_version_of_each_row() {
    for (seed, runs, in_log) in [(1, 0, 0), (2, 1, 0), (3, 7, 0), (4, 3, 300), (5, 7, 30_000)] {
        let mut random = Random(seed);
        let mut bank = Bank::new(1 << 20);
        bank.fill(runs, &mut random);
        let versions = bank.draw(in_log, 60_000, true, &mut random);
        bank.change(versions);
        bank.store.drop_table(bank.tables[DROPPED]).unwrap();
        bank.store.checkpoint(b"").unwrap();
        check(&bank);
    }
}

/// A scan of a checkpoint returns its rows although later views lack its parts.
#[test]
fn a_scan_keeps_the_parts_of_its_checkpoint() {
    let mut random = Random(9);
    let mut bank = Bank::new(4 << 20);
    bank.fill(3, &mut random);
    bank.store.checkpoint(b"").unwrap();
    let core = bank.store.core();
    let numbers =
        || -> Vec<u64> { core.cold.view().parts().map(|part| part.head().number).collect() };
    let there = || core.log.device.part_files().unwrap().len();
    let old = numbers();
    let files = there();
    let mut scan = bank.store.scan(bank.tables[0]).unwrap();
    let first = scan.next_row().unwrap().map(|row| (row.key, row.value.to_vec())).unwrap();
    // All rows move to one new base part, and further checkpoints replace the first.
    let base = bank.part(
        Kind::Base,
        (0, 3),
        (0, u64::MAX),
        &bank.rows.clone().into_iter().filter(|(_, value)| value.is_some()).collect(),
    );
    core.cold.publish(core.cold.view().changed(vec![base], &old));
    for _ in 0..4 {
        bank.store.checkpoint(b"").unwrap();
        core.remove_unneeded_parts();
    }
    assert_eq!(there(), files + 1);
    let mut rows = Rows::from([first]);
    while let Some(row) = scan.next_row().unwrap() {
        assert_eq!(rows.insert(row.key, row.value.to_vec()), None);
    }
    assert_eq!(rows, bank.expected(0));
    drop(scan);
    assert_eq!(there(), 1);
    check(&bank);
}

/// The newest checkpoint has other parts than the present view, so a scan loads them. Then it
/// fails, because the checkpoint lacks the table.
#[test]
fn a_scan_that_fails_gives_back_the_memory_of_parts() {
    let mut random = Random(11);
    let mut bank = Bank::new(4 << 20);
    bank.fill(3, &mut random);
    bank.store.checkpoint(b"").unwrap();
    let core = bank.store.core();
    let old: Vec<u64> = core.cold.view().parts().map(|part| part.head().number).collect();
    let rows = bank.rows.clone().into_iter().filter(|(_, value)| value.is_some()).collect();
    let base = bank.part(Kind::Base, (0, 3), (0, u64::MAX), &rows);
    core.cold.publish(core.cold.view().changed(vec![base], &old));
    core.remove_unneeded_parts();
    let before = core.budget.cold_bytes();
    let scan = bank.store.scan(bank.tables[0]).unwrap();
    assert!(core.budget.cold_bytes() > before, "the scan has loaded parts");
    drop(scan);
    let new = bank.store.create_table("new", 8, b"").unwrap();
    assert!(matches!(bank.store.scan(new), Err(crate::Error::NoSuchTable(_))));
    assert_eq!(core.budget.cold_bytes(), before);
}
