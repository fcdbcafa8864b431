//! Tests that the error of a bank at its disk quota, and the statistics, name what holds the log's
//! space.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{new_bank_with, small_options};
use embank::{
    Bank, BankOptions, CompactionOptions, Error, SpaceHolder, StoreError, Table, TableConfig,
};

const QUOTA_BYTES: u64 = 8 << 20;
const ROWS: u64 = 2_000;

fn options() -> BankOptions {
    BankOptions {
        disk_quota_bytes: Some(QUOTA_BYTES),
        checkpoints_kept: 1,
        compaction: CompactionOptions { background: true, ..Default::default() },
        wait_timeout: std::time::Duration::from_secs(20),
        ..small_options()
    }
}

fn write_all(table: &Table) -> embank::Result<()> {
    let rows = vec![1.0; 100 * 64];
    for first in (0..ROWS).step_by(100) {
        let keys: Vec<u64> = (first..first + 100).collect();
        table.put(&keys, &rows)?;
    }
    Ok(())
}

/// Rewrites the rows until the log reaches the quota, and takes checkpoints that release older
/// checkpoints. Returns the holders that the error names, and its text.
fn fill(bank: &Bank, table: &Table) -> (Vec<SpaceHolder>, String) {
    // The loop ends: the holder keeps every rewrite in the log, so the log reaches the quota.
    for _ in 0..10_000 {
        match write_all(table) {
            Ok(()) => drop(bank.checkpoint(b"").unwrap()),
            Err(error @ Error::Store(StoreError::QuotaExceeded { .. })) => {
                let text = error.to_string();
                let Error::Store(StoreError::QuotaExceeded { holders, .. }) = error else {
                    unreachable!()
                };
                return (holders, text);
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the quota is never used up");
}

#[test]
fn an_open_scan_is_named_and_nothing_else_is_blamed() {
    let test = new_bank_with(options());
    let table = test.bank.table("t", TableConfig::new(64)).unwrap();
    write_all(&table).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let scan = table.scan().unwrap();
    let (holders, text) = fill(&test.bank, &table);
    assert_eq!(holders[0].checkpoint, None, "{holders:?}");
    assert!(text.contains("an open scan") && text.contains("close the scan"), "{text}");
    assert_eq!(test.bank.space_holders()[0], holders[0]);
    drop(scan);
    // The error's advice works: once the scan is closed, the log has room.
    test.bank.checkpoint(b"").unwrap();
    write_all(&table).unwrap();
    assert!(test.bank.space_holders().iter().all(|of| of.checkpoint.is_some()));
}

#[test]
fn a_reader_of_an_old_checkpoint_is_named_with_its_process() {
    let test = new_bank_with(options());
    let table = test.bank.table("t", TableConfig::new(64)).unwrap();
    write_all(&table).unwrap();
    let old = test.bank.checkpoint(b"").unwrap();
    let reader = Bank::open_read_only(test.bank.path(), small_options(), None).unwrap();
    let (holders, text) = fill(&test.bank, &table);
    assert_eq!(holders[0].checkpoint, Some(old), "{holders:?}");
    let process = format!("process ({})", std::process::id());
    assert!(text.contains(&format!("checkpoint {old}, which this {process}")), "{text}");
    assert!(text.contains("let them refresh"), "{text}");
    reader.refresh().unwrap();
    test.bank.checkpoint(b"").unwrap();
    write_all(&table).unwrap();
}

#[test]
fn a_roll_back_names_who_reads_the_checkpoint() {
    let test = new_bank_with(small_options());
    let table = test.bank.table("t", TableConfig::new(1)).unwrap();
    let first = test.bank.checkpoint(b"").unwrap();
    table.put(&[1], &[0.5]).unwrap();
    let newer = test.bank.checkpoint(b"").unwrap();
    let path = test.bank.path().to_owned();
    drop((table, test.bank));
    let _reader = Bank::open_read_only(&path, small_options(), None).unwrap();
    let error = Bank::roll_back(&path, first).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("checkpoint {newer}")), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
}
