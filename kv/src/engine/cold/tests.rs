//! Tests of views, and of when a part's file goes.

use super::*;
use crate::cold::head::{Kind, PartHead, PartSite, part_number};
use crate::cold::keep::Keep;
use crate::cold::row::{ColdRow, RowFlags};
use crate::cold::writer::PartWriter;
use crate::device::{DeviceOptions, MemoryDevice};
use crate::limits::Limits;
use crate::record::address::TableNumber;
use crate::record::hash::{KeyHash, unhash};

const SEGMENT_BYTES: u64 = 1 << 20;
const HALF: u64 = 1 << 63;

fn device() -> MemoryDevice {
    let options = DeviceOptions { segment_size_bytes: SEGMENT_BYTES, ..DeviceOptions::default() };
    MemoryDevice::new(&options).unwrap()
}

fn budget() -> Arc<Budget> {
    Arc::new(Budget::new(8 << 20, 16 << 10, Limits::PRODUCT).unwrap())
}

/// Makes a part without rows.
fn part(
    device: &MemoryDevice,
    number: u64,
    kind: Kind,
    runs: std::ops::RangeInclusive<u64>,
    hashes: std::ops::RangeInclusive<u64>,
) -> Arc<Part> {
    let salt = number + 99;
    let level = u8::from(runs.start() < runs.end() && kind == Kind::Run);
    let head =
        PartHead { bank: 5, salt, number, kind, level, block_bits: 12, runs, hashes, log: 0..0 };
    let key_hash = KeyHash::new(0);
    let site = PartSite { device, segment_size_bytes: SEGMENT_BYTES, key_hash };
    Arc::new(PartWriter::new(site, head, 9).finish().unwrap())
}

/// Makes a part of a run with 200 rows, whose memory the tier decides about.
fn run_of(device: &MemoryDevice, cold: &Cold) -> Result<Arc<Part>> {
    let number = cold.next_part();
    let run = cold.next_run();
    let head = PartHead {
        bank: 5,
        salt: number + 99,
        number,
        kind: Kind::Run,
        level: 0,
        block_bits: 12,
        runs: run..=run,
        hashes: 0..=u64::MAX,
        log: 0..0,
    };
    let site = PartSite { device, segment_size_bytes: SEGMENT_BYTES, key_hash: KeyHash::new(0) };
    let mut writer = PartWriter::new(site, head, 9);
    for hash in (0..200).map(|i| i << 50) {
        let (flags, unused_bytes, uses, value) = (RowFlags::default(), 0, 0, &[7; 64]);
        let table = TableNumber(1);
        let key = unhash(table, hash);
        writer.push(&ColdRow { table, key, hash, flags, unused_bytes, uses, value })?;
    }
    writer.finish_within(cold).map(Arc::new)
}

fn run(device: &MemoryDevice, number: u64, run: u64) -> Arc<Part> {
    part(device, number, Kind::Run, run..=run, 0..=u64::MAX)
}

fn files(device: &MemoryDevice) -> Vec<u64> {
    let number = |file: crate::device::PartFile| part_number(file.begin, SEGMENT_BYTES);
    device.part_files().unwrap().into_iter().map(number).collect()
}

#[test]
fn a_hash_is_looked_up_in_newer_runs_and_then_in_the_base() {
    let device = device();
    let made = |number, kind, runs, hashes| part(&device, number, kind, runs, hashes);
    let view = ColdView::new(
        3,
        vec![
            run(&device, 7, 7),
            made(0, Kind::Base, 0..=4, 0..=HALF - 1),
            made(2, Kind::Run, 3..=6, 0..=100),
            made(3, Kind::Run, 3..=6, 102..=HALF),
            run(&device, 5, 5),
            made(1, Kind::Base, 0..=6, HALF..=u64::MAX),
            run(&device, 6, 6),
        ],
    );
    let at = |hash| {
        let runs = view.run_parts(hash).map(|part| part.head().number).collect::<Vec<_>>();
        (view.base_part(hash).unwrap().head().number, runs)
    };
    // Runs 3 to 6 have the rows of runs 5 and 6, so they come before them.
    assert_eq!(at(0), (0, vec![7, 2, 6, 5]));
    assert_eq!(at(100), (0, vec![7, 2, 6, 5]));
    assert_eq!(at(101), (0, vec![7, 6, 5]), "the run has a gap here");
    assert_eq!(at(102), (0, vec![7, 3, 6, 5]));
    assert_eq!(at(HALF - 1), (0, vec![7, 3, 6, 5]));
    // The base has all rows of runs up to 6 from here on.
    assert_eq!(at(HALF), (1, vec![7]));
    assert_eq!(at(u64::MAX), (1, vec![7]));
    let numbers: Vec<_> = view.parts().map(|part| part.head().number).collect();
    assert_eq!(numbers, [0, 1, 7, 2, 3, 6, 5]);
    assert_eq!((view.number(), view.rows()), (3, 0));
    assert!(view.memory_bytes() > 0 && view.file_bytes() >= 7 * 8192);
    let without = view.changed(Vec::new(), &[0, 1]);
    assert_eq!(without.number(), 4);
    assert!(without.base_part(7).is_none());
    assert_eq!(without.run_parts(HALF).count(), 4);
}

#[test]
#[should_panic(expected = "do not cover all hashes")]
fn a_view_with_a_gap_in_the_base_is_a_bug() {
    let device = device();
    ColdView::new(0, vec![part(&device, 0, Kind::Base, 0..=0, 0..=HALF)]);
}

#[test]
fn a_part_goes_when_no_reader_and_no_checkpoint_has_it() {
    let device = device();
    let budget = budget();
    let cold = Cold::new(SEGMENT_BYTES, &budget, &PartList::default(), Vec::new());
    assert!(!cold.has_rows() && cold.view().is_empty());
    let add = |cold: &Cold, removed: &[u64]| {
        let part = run_of(&device, cold).unwrap();
        cold.publish(cold.view().changed(vec![part], removed));
        let _ = cold.remove_unneeded(&device, || ());
    };
    add(&cold, &[]);
    let one = budget.cold_bytes();
    assert!(one > 0 && cold.has_rows());
    let each = cold.disk_bytes();
    let reader = cold.view();
    let mut pin = cold.pin_checkpoint(1);
    pin.keep();
    drop(pin);
    add(&cold, &[0]);
    // The reader's view has part 0, and so does checkpoint 1.
    assert_eq!(
        (files(&device), budget.cold_bytes(), cold.disk_bytes()),
        (vec![0, 1], 2 * one, 2 * each)
    );
    drop(reader);
    let _ = cold.remove_unneeded(&device, || ());
    assert_eq!((files(&device), budget.cold_bytes()), (vec![0, 1], one), "the memory is free");
    // A checkpoint that fails pins nothing.
    drop(cold.pin_checkpoint(2));
    add(&cold, &[1]);
    assert_eq!(files(&device), [0, 2]);
    cold.unpin(&[1]);
    let _ = cold.remove_unneeded(&device, || ());
    assert_eq!((files(&device), cold.disk_bytes()), (vec![2], each));
    cold.publish(cold.view().changed(Vec::new(), &[2]));
    let _ = cold.remove_unneeded(&device, || ());
    assert_eq!((files(&device), cold.disk_bytes(), budget.cold_bytes()), (vec![], 0, 0));
    assert!(!cold.has_rows());
    assert_eq!((cold.next_part(), cold.next_run()), (3, 4), "numbers grow");
}

/// Runs get all columns while there is memory, then fewer, then no filters. When not even one fence
/// fits, the tier says so, and charges nothing for the part.
#[test]
fn a_part_keeps_what_the_budget_has_memory_for() {
    let device = device();
    let budget = budget();
    let cold = Cold::new(SEGMENT_BYTES, &budget, &PartList::default(), Vec::new());
    let mut columns = Vec::new();
    let kept = |left_bytes: u64| {
        let most = budget.cold_bytes_max();
        let for_runs = most - most / 16;
        let _taken = budget.charge_cold(for_runs - left_bytes).unwrap();
        let part = run_of(&device, &cold)?;
        assert!(part.memory_bytes() as u64 <= left_bytes);
        Ok::<_, crate::Error>(part.keep())
    };
    for left_bytes in [1 << 20, 495, 300, 144] {
        columns.push(kept(left_bytes).unwrap());
    }
    let expected = [(9, 0), (8, 0), (2, 0), (0, 0)];
    let expected = expected.map(|(columns, stride_bits)| Keep { columns, stride_bits });
    assert_eq!(columns, expected);
    assert_eq!(budget.cold_bytes(), 0, "the parts are gone");
    let left = budget.cold_bytes_left();
    let taken = budget.charge_cold(left - 100).unwrap();
    let error = run_of(&device, &cold).unwrap_err();
    assert!(matches!(error, crate::Error::BudgetTooSmall { .. }), "{error}");
    assert_eq!(budget.cold_bytes(), left - 100);
    drop(taken);
}

#[test]
fn an_opening_keeps_the_parts_that_checkpoints_name() {
    let device = device();
    for number in 0..6 {
        run(&device, number, number + 1);
    }
    let listed = |numbers: &[u64]| {
        let entry = |&number: &u64| {
            let part = run(&device, number, number + 1);
            ListedPart {
                head: part.head().clone(),
                file_bytes: part.file_bytes(),
                trailer_crc: part.trailer_crc(),
            }
        };
        let parts = numbers.iter().map(entry).collect();
        PartList { next_part: 5, next_run: 7, parts, ..PartList::default() }
    };
    let site =
        PartSite { device: &device, segment_size_bytes: SEGMENT_BYTES, key_hash: KeyHash::new(0) };
    let open = |older: Option<PartList>| {
        let newest = listed(&[1, 3]);
        let cold = Cold::load(&newest, site, &budget()).unwrap();
        cold.keep_only(vec![(4, older), (9, Some(newest))], &device).unwrap();
        cold
    };
    // The list of checkpoint 4 can't be read, so it may name each part below the next number.
    let cold = open(None);
    assert_eq!(files(&device), [0, 1, 2, 3, 4]);
    let of_all = cold.disk_bytes();
    let _ = cold.remove_unneeded(&device, || ());
    assert_eq!(files(&device), [0, 1, 2, 3, 4]);
    let cold = open(Some(listed(&[0, 1])));
    assert_eq!(files(&device), [0, 1, 3]);
    assert_eq!(cold.disk_bytes() * 5, of_all * 3);
    cold.unpin(&[4]);
    let _ = cold.remove_unneeded(&device, || ());
    assert_eq!(files(&device), [1, 3]);
    assert_eq!((cold.next_part(), cold.next_run()), (5, 7));
}
