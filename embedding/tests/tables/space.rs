//! Tests disk space: the store receives the options, a quota refuses rows that do not fit, and the
//! error's advice works.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::common::{new_bank_with, rows_of, small_options, table};
use embank::{
    Bank, BankOptions, CompactionOptions, Error, Optimizer, StoreError, Table, TableConfig,
};

const DIM: u32 = 16;

fn by_hand() -> BankOptions {
    let compaction = CompactionOptions { background: false, ..Default::default() };
    BankOptions { compaction, ..small_options() }
}

/// Writes every row repeatedly, so the log becomes many times as long as its rows.
fn rewrite(table: &Table, keys: &[u64], times: usize) {
    let rows = vec![1.0; keys.len() * table.dim()];
    for _ in 0..times {
        table.put(keys, &rows).unwrap();
    }
}

#[test]
fn options_out_of_their_range_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let compaction = |space_amplification_target, throttle_bytes_per_s| CompactionOptions {
        space_amplification_target,
        throttle_bytes_per_s,
        ..Default::default()
    };
    let with = |compaction| BankOptions { compaction, ..small_options() };
    let quota = BankOptions { disk_quota_bytes: Some(1000), ..small_options() };
    for (name, options) in [
        ("space_amplification_target", with(compaction(1.0, None))),
        ("space_amplification_target", with(compaction(f64::NAN, None))),
        ("throttle_bytes_per_s", with(compaction(1.4, Some(0)))),
        ("disk_quota_bytes", quota),
    ] {
        let path = dir.path().join(name);
        match Bank::open(&path, options).unwrap_err() {
            Error::Store(StoreError::InvalidOption { option, problem }) => {
                assert_eq!(option, name, "{problem}");
            }
            other => panic!("{name}: {other}"),
        }
        assert!(Bank::open(&path, small_options()).is_ok(), "the refusal leaves nothing behind");
    }
}

#[test]
fn compaction_works_in_the_background_or_when_it_is_called() {
    let keys: Vec<u64> = (0..20_000).collect();
    let test = new_bank_with(by_hand());
    let rows = table(&test.bank, TableConfig::new(DIM));
    rewrite(&rows, &keys, 6);
    let before = test.bank.stats().store;
    assert_eq!((before.compacted_bytes, before.freed_bytes), (0, 0), "nobody called for it");
    assert!(before.space_amplification() > 2.0, "{}", before.space_amplification());
    let done = test.bank.compact().unwrap();
    assert!(done.scanned_bytes > 0 && done.freed_bytes > 0, "{done:?}");
    let after = test.bank.stats().store;
    assert!(after.log_disk_bytes < before.log_disk_bytes / 2);
    assert_eq!(rows_of(&rows, &[0, 19_999]), [1.0; 2 * DIM as usize]);

    let tight = CompactionOptions {
        background: true,
        space_amplification_target: 1.2,
        ..Default::default()
    };
    let test = new_bank_with(BankOptions { compaction: tight, ..small_options() });
    rewrite(&table(&test.bank, TableConfig::new(DIM)), &keys, 10);
    let stats = test.bank.stats().store;
    assert!(stats.compacted_bytes > 0, "{stats:?}");
    assert!(stats.space_amplification() < 1.5, "{}", stats.space_amplification());
}

#[test]
fn a_quota_refuses_what_does_not_fit_and_dropping_a_table_cures_it() {
    const QUOTA: u64 = 4 << 20;
    let compaction = CompactionOptions { background: true, ..CompactionOptions::default() };
    let test =
        new_bank_with(BankOptions { disk_quota_bytes: Some(QUOTA), compaction, ..small_options() });
    let config = || TableConfig::new(DIM).optimizer(Optimizer::sgd(1.0));
    let kept = test.bank.table("kept", config()).unwrap();
    kept.put(&[1, 2], &[7.0; 2 * DIM as usize]).unwrap();
    let full = table(&test.bank, config());
    let refusal = (0..1000_u64)
        .map(|batch| batch * 500..(batch + 1) * 500)
        .find_map(|keys| full.put(&keys.collect::<Vec<_>>(), &[0.5; 500 * DIM as usize]).err())
        .unwrap();
    let text = refusal.to_string();
    assert!(text.contains("raise the quota"), "the cure: {text}");
    let Error::Store(StoreError::QuotaExceeded { quota_bytes, log_bytes, live_bytes, .. }) =
        refusal
    else {
        panic!("{text}")
    };
    assert_eq!(quota_bytes, QUOTA);
    assert!(live_bytes <= log_bytes && log_bytes <= QUOTA, "{text}");
    assert!(test.bank.stats().store.log_disk_bytes <= QUOTA);

    // Peeks, deletions, drops and checkpoints still work at the quota.
    assert_eq!(rows_of(&kept, &[2]), [7.0; DIM as usize]);
    assert_eq!(full.delete(&[3]).unwrap(), 1);
    test.bank.checkpoint(b"full").unwrap();
    test.bank.drop_table("t").unwrap();
    test.bank.checkpoint(b"dropped").unwrap();
    test.bank.compact().unwrap();
    // Two checkpoints are kept, so the second checkpoint below removes the last checkpoint from
    // before the compaction.
    test.bank.checkpoint(b"compacted").unwrap();
    test.bank.checkpoint(b"and its last checkpoint gone").unwrap();
    let again = table(&test.bank, config());
    again.put(&(0..500).collect::<Vec<_>>(), &[2.0; 500 * DIM as usize]).unwrap();
    assert_eq!(rows_of(&again, &[499]), [2.0; DIM as usize]);
    assert_eq!(rows_of(&kept, &[1]), [7.0; DIM as usize]);
}

/// Shows that a Get that the quota stops halfway leaves no count behind. Outstanding leases can
/// still end, although giving back a count of a row on disk writes a new record.
#[test]
fn at_the_quota_counts_come_back() {
    let compaction = CompactionOptions { background: true, ..CompactionOptions::default() };
    let test = new_bank_with(BankOptions {
        disk_quota_bytes: Some(4 << 20),
        compaction,
        ..small_options()
    });
    let rows = table(&test.bank, TableConfig::new(DIM).staleness_bound(Some(0)));
    let refused = (0..1000_u64).map(|batch| (batch * 500..(batch + 1) * 500).collect::<Vec<_>>());
    let mut held = Vec::new();
    for keys in refused {
        match rows.get(&keys, &mut vec![0.0; keys.len() * DIM as usize]) {
            Ok(lease) => held.push(lease),
            Err(Error::Store(StoreError::QuotaExceeded { .. })) => {
                for key in keys {
                    assert!(matches!(rows.outstanding(key), Ok(None | Some(0))), "key {key}");
                }
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(held.len() > 20, "most rows have left memory");
    let first = held.remove(0);
    let keys = first.unique().keys().to_vec();
    first.put(&[3.0; 500 * DIM as usize]).unwrap();
    assert_eq!(rows_of(&rows, &keys), [3.0; 500 * DIM as usize]);
    drop(held);
    assert_eq!(test.bank.stats().release_failures, 0);
    for key in (0..100_000).step_by(97) {
        assert!(matches!(rows.outstanding(key), Ok(None | Some(0))), "key {key}");
    }
}
