//! Tests that a scan returns each row of a checkpoint once while other threads change the table.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::HashMap;

use crate::common::{new_bank, push_to_disk, small_options, table};
use embank::{Adagrad, Bank, Error, Optimizer, Scan, StoreError, TableConfig};

const DIM: usize = 3;

/// Settings with an odd dim, and with optimizer state after the vector. A scan must return neither
/// padding nor state.
fn config() -> TableConfig {
    let adagrad = Optimizer::Adagrad(Adagrad { initial_accumulator: 9.0, ..Adagrad::new(0.5) });
    TableConfig::new(DIM as u32).optimizer(adagrad)
}

/// Returns the rows that the scan has not returned yet. Reads them in batches of `batch` rows.
fn collect(scan: &mut Scan, batch: usize) -> HashMap<u64, Vec<f32>> {
    let mut found = HashMap::new();
    let (mut keys, mut rows) = (vec![0; batch], vec![f32::NAN; batch * DIM]);
    loop {
        let before = scan.remaining();
        let count = scan.next_batch(&mut keys, &mut rows).unwrap();
        assert_eq!(count as u64, before.min(batch as u64), "only the last batch may be short");
        assert_eq!(scan.remaining(), before - count as u64);
        for (&key, row) in keys[..count].iter().zip(rows.chunks(DIM)) {
            assert_eq!(found.insert(key, row.to_vec()), None, "key {key} came twice");
        }
        if count == 0 {
            return found;
        }
    }
}

fn row_of(key: u64, version: f32) -> [f32; DIM] {
    [key as f32, version, -1.0]
}

fn rows(keys: &[u64], version: f32) -> Vec<f32> {
    keys.iter().flat_map(|&key| row_of(key, version)).collect()
}

#[test]
fn a_scan_yields_what_the_checkpoint_holds_in_batches_of_any_size() {
    let test = new_bank();
    let keys: Vec<u64> = (0..5000).map(|place| place * 7).collect();
    let scanned = table(&test.bank, config());
    scanned.put(&keys, &rows(&keys, 1.0)).unwrap();
    push_to_disk(&test.bank);
    scanned.put(&keys[..100], &rows(&keys[..100], 2.0)).unwrap();
    scanned.delete(&keys[4000..]).unwrap();
    let number = test.bank.checkpoint(b"").unwrap();
    let expected: HashMap<u64, Vec<f32>> = (keys[..4000].iter().enumerate())
        .map(|(place, &key)| (key, row_of(key, if place < 100 { 2.0 } else { 1.0 }).to_vec()))
        .collect();
    for batch in [1, 999, 4000, 10_000] {
        let mut scan = scanned.scan().unwrap();
        assert_eq!((scan.checkpoint(), scan.rows(), scan.remaining()), (number, 4000, 4000));
        assert_eq!(collect(&mut scan, batch), expected, "in batches of {batch}");
    }
    let mut scan = scanned.scan().unwrap();
    let first = scan.next_row().unwrap().map(|row| (row.key, row.vector.to_vec())).unwrap();
    assert_eq!(expected[&first.0], first.1);
    let refused = scan.next_batch(&mut [0; 2], &mut [0.0; DIM]);
    assert!(matches!(refused, Err(Error::ShapeMismatch { what: "rows", .. })));
    assert_eq!(collect(&mut scan, 1000).len(), 3999, "a refusal takes no row");
}

#[test]
fn a_scan_outlives_changes_checkpoints_its_table_and_its_bank_handle() {
    let test = new_bank();
    let keys: Vec<u64> = (0..6000).collect();
    let scanned = table(&test.bank, config());
    scanned.put(&keys, &rows(&keys, 1.0)).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let mut scan = scanned.scan().unwrap();
    let (mut first_keys, mut first_rows) = (vec![0; 500], vec![0.0; 500 * DIM]);
    scan.next_batch(&mut first_keys, &mut first_rows).unwrap();
    for version in 2..6 {
        let lease = scanned.get(&keys, &mut vec![0.0; keys.len() * DIM]).unwrap();
        lease.put(&rows(&keys, version as f32)).unwrap();
        test.bank.checkpoint(b"").unwrap();
        test.bank.compact().unwrap();
    }
    test.bank.drop_table("t").unwrap();
    assert!(matches!(scanned.scan(), Err(Error::TableDropped { .. })));
    test.bank.checkpoint(b"").unwrap();
    let path = test.bank.path().to_owned();
    drop((scanned, test.bank));
    assert!(
        matches!(Bank::open(&path, small_options()), Err(Error::Store(StoreError::Locked { .. }))),
        "the scan keeps the bank open"
    );
    let mut found = collect(&mut scan, 512);
    found.extend(first_keys.into_iter().zip(first_rows.chunks(DIM).map(<[f32]>::to_vec)));
    assert_eq!(found.len(), 6000);
    assert!(found.iter().all(|(&key, row)| *row == row_of(key, 1.0)));
    drop(scan);
    assert!(Bank::open(&path, small_options()).unwrap().tables().is_empty());
}

#[test]
fn a_scan_without_a_checkpoint_of_its_table_says_what_to_do() {
    let test = new_bank();
    let scanned = table(&test.bank, config());
    let Err(error @ Error::Store(StoreError::NoSuchCheckpoint { number: None, .. })) =
        scanned.scan()
    else {
        panic!("there is no checkpoint")
    };
    assert!(error.to_string().contains("take one first"), "{error}");
    test.bank.checkpoint(b"").unwrap();
    assert!(scanned.scan().unwrap().next_row().unwrap().is_none());
    let later = test.bank.table("later", config()).unwrap();
    let Err(Error::Store(StoreError::NoSuchTable(text))) = later.scan() else {
        panic!("it is younger than the checkpoint")
    };
    assert!(text.contains("\"later\" in checkpoint 1"), "{text}");
}

#[test]
fn a_budget_without_room_for_a_scan_is_named_as_the_banks() {
    let test = new_bank();
    let scanned = table(&test.bank, config());
    test.bank.checkpoint(b"").unwrap();
    let mut scans = Vec::new();
    let refusal = (0..1000).find_map(|_| match scanned.scan() {
        Ok(scan) => {
            scans.push(scan);
            None
        }
        Err(error) => Some(error),
    });
    let Some(Error::Store(StoreError::BudgetTooSmall { budget_bytes, needed_bytes, .. })) = refusal
    else {
        panic!("{refusal:?}")
    };
    assert_eq!(budget_bytes, small_options().memory_budget_bytes);
    assert!(needed_bytes > budget_bytes);
    scans.clear();
    assert!(scanned.scan().is_ok(), "what was lent came back");
}
