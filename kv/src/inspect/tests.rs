//! Tests verification, readers and salvage of banks with parts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    CheckpointReader, Damage, SalvageOptions, TableReader, VerifyOptions, VerifyReport, salvage,
    verify,
};
use crate::cold::head::Kind;
use crate::cold::part::Part;
use crate::options::StoreOptions;
use crate::store::Store;
use crate::testing::cold_bank::{Bank, DROPPED, Random, Rows};

const NAMES: [&str; DROPPED] = ["fixed", "variable"];

/// A closed bank with parts, and its rows.
struct Closed {
    dir: tempfile::TempDir,
    rows: [Rows; DROPPED],
}

impl Closed {
    /// `in_log` versions are drawn for the log, of `keys` keys.
    fn new(seed: u64, runs: u64, in_log: u64, keys: u64) -> Self {
        let mut random = Random(seed);
        let mut bank = Bank::new(1 << 20);
        bank.fill(runs, &mut random);
        let versions = bank.draw(in_log, keys, true, &mut random);
        bank.change(versions);
        bank.store.drop_table(bank.tables[DROPPED]).unwrap();
        bank.store.checkpoint(b"blob").unwrap();
        Closed::of(bank)
    }

    fn of(bank: Bank) -> Self {
        let rows = [bank.expected(0), bank.expected(1)];
        drop(bank.store);
        Closed { dir: bank.dir, rows }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the files of parts.
    fn parts(&self) -> Vec<PathBuf> {
        self.log(true)
    }

    /// Returns the files in the folder `log`: those of parts, or of segments.
    fn log(&self, of_parts: bool) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("log")).unwrap();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        let is_part = |path: &PathBuf| {
            let name = path.file_stem().unwrap().to_str().unwrap();
            u64::from_str_radix(name, 16).unwrap() >= 1 << 49
        };
        found.retain(|path| is_part(path) == of_parts);
        found.sort();
        found
    }

    fn list(&self, checkpoint: u64) -> PathBuf {
        self.path().join(format!("checkpoints/{checkpoint:010}/cold.{checkpoint:010}"))
    }

    /// Asserts that a reader never returns a wrong row, and returns all rows unless it reports
    /// damage. Returns true if rows are missing.
    fn check_readers(&self, what: &str) -> bool {
        let mut lacks = false;
        for (name, rows) in NAMES.iter().zip(&self.rows) {
            let Ok(mut reader) = TableReader::open(self.path(), None, name) else { return true };
            let (found, damage) = read(&mut reader);
            for (key, value) in &found {
                assert_eq!(rows.get(key), Some(value), "{what}: key {key} of {name}");
            }
            if found.len() < rows.len() {
                assert!(!damage.is_empty(), "{what}: rows are missing without damage");
                lacks = true;
            }
        }
        lacks
    }

    /// Asserts that salvage tells of each row that is wrong or missing in the new bank. Returns
    /// true if it reports no loss.
    fn check_salvage(&self, what: &str) -> bool {
        let new = tempfile::tempdir().unwrap();
        let options = SalvageOptions { memory_budget_bytes: Some(4 << 20) };
        let report = salvage(self.path(), new.path(), &options, &mut |_| {}).unwrap();
        let store = Store::open(new.path(), &StoreOptions::default()).unwrap();
        for ((name, rows), told) in NAMES.iter().zip(&self.rows).zip(&report.tables) {
            let table = store.tables().iter().find(|table| table.name == *name).unwrap().id;
            let mut found = Rows::new();
            let mut scan = store.scan(table).unwrap();
            while let Some(row) = scan.next_row().unwrap() {
                found.insert(row.key, row.value.to_vec());
            }
            assert_eq!(told.name, *name);
            let wrong = found.iter().filter(|(key, value)| rows.get(key) != Some(value)).count();
            let missing = rows.keys().filter(|key| !found.contains_key(key)).count();
            assert!(wrong as u64 <= told.uncertain, "{what}: {wrong} wrong rows, {told:?}");
            assert!(missing as u64 <= told.lost().unwrap(), "{what}: {missing} lost, {told:?}");
            if report.is_complete() {
                assert_eq!(&found, rows, "{what}: {name}");
            }
        }
        report.is_complete()
    }
}

fn read(reader: &mut TableReader) -> (Rows, Vec<Damage>) {
    let mut found = Rows::new();
    let mut note = |key: u64, value: &[u8]| {
        assert_eq!(found.insert(key, value.to_vec()), None, "key {key} came twice");
        true
    };
    let damage = reader.for_each_row(&mut note).unwrap();
    (found, damage)
}

fn check(dir: &Path, memory_bytes: u64) -> VerifyReport {
    let options = VerifyOptions { memory_bytes, ..VerifyOptions::default() };
    verify(dir, &options, &mut |_| {}).unwrap()
}

/// Verifies and reads banks whose rows lie in the log, in runs and in a base, with memory for all
/// rows of the log and for few of them.
#[test]
fn a_sound_bank_with_parts_is_clean_and_readable() {
    for (seed, runs, in_log) in [(1, 0, 0), (2, 3, 0), (3, 5, 900), (4, 2, 9000)] {
        let bank = Closed::new(seed, runs, in_log, 6000);
        for memory_bytes in [64 << 20, 32 << 10] {
            let report = check(bank.path(), memory_bytes);
            assert_eq!(report.damage, [], "seed {seed}");
            assert_eq!(report.parts, bank.parts().len() as u64);
            for (table, rows) in report.checkpoints[0].tables.iter().zip(&bank.rows) {
                let expected = rows.len() as u64;
                assert_eq!((table.rows, table.sound), (expected, expected), "{}", table.name);
            }
        }
        assert!(!bank.check_readers("sound"));
        for (name, rows) in NAMES.iter().zip(&bank.rows) {
            let mut reader = TableReader::open(bank.path(), None, name).unwrap();
            let keys: Vec<u64> = (0..6100).step_by(7).collect();
            let expected: Vec<_> = keys.iter().map(|key| rows.get(key).cloned()).collect();
            assert_eq!(reader.get(&keys).unwrap(), expected, "{name}");
        }
        let mut all: BTreeMap<u16, Rows> = BTreeMap::new();
        let mut reader = CheckpointReader::open(bank.path(), 1).unwrap();
        let mut note = |table: u16, key: u64, value: &[u8]| {
            all.entry(table).or_default().insert(key, value.to_vec());
            true
        };
        assert_eq!(reader.for_each_row(&mut note).unwrap(), []);
        assert_eq!(all.into_values().collect::<Vec<_>>(), bank.rows);
        // The reader ends when it is told to.
        let mut left = 100;
        let mut reader = TableReader::open(bank.path(), None, "fixed").unwrap();
        let some = |_, _: &[u8]| {
            left -= 1;
            left > 0
        };
        reader.for_each_row(&mut { some }).unwrap();
        assert_eq!(left, 0);
        assert!(bank.check_salvage("sound"));
    }
}

/// Each flipped bit of a part is found, and named with file and part. A reader returns no wrong
/// row, and salvage tells of each row that it lost.
#[test]
fn each_damaged_byte_of_a_part_is_found() {
    let bank = Closed::new(11, 3, 700, 6000);
    let mut random = Random(77);
    let mut seen = 0;
    for (number, file) in (0_u64..).zip(bank.parts()) {
        let good = fs::read(&file).unwrap();
        for turn in 0..24 {
            // Header and trailer, and any byte.
            let at = match turn {
                0..4 => random.below(128),
                4..8 => good.len() as u64 - 4096 + random.below(128),
                _ => random.below(good.len() as u64),
            };
            let mut bytes = good.clone();
            bytes[at as usize] ^= 1 << random.below(8);
            fs::write(&file, &bytes).unwrap();
            let what = format!("byte {at} of part {number}");
            let damage = check(bank.path(), 64 << 20).damage;
            assert!(!damage.is_empty(), "{what}");
            for damage in damage {
                assert_eq!((&damage.path, damage.part), (&file, Some(number)), "{what}");
                assert!(damage.what.contains("part "), "{what}: {damage}");
            }
            bank.check_readers(&what);
            if turn % 4 == 0 {
                bank.check_salvage(&what);
            }
            seen += 1;
        }
        fs::write(&file, good).unwrap();
    }
    assert!(seen > 100, "{seen}");
    assert!(check(bank.path(), 64 << 20).is_clean());
}

/// A cut part, a lost part, a part in the place of another one, and a block in the place of
/// another.
#[test]
fn a_wrong_file_of_a_part_is_found() {
    let bank = Closed::new(12, 2, 300, 6000);
    let files = bank.parts();
    let mut random = Random(78);
    for (number, file) in (0_u64..).zip(&files) {
        let good = fs::read(file).unwrap();
        let other = fs::read(&files[(number as usize + 1) % files.len()]).unwrap();
        let mut swapped = good.clone();
        swapped.copy_within(4096..8192, 8192);
        let cut = good[..random.below(good.len() as u64) as usize].to_vec();
        let longer = [&good[..], &[0; 4096]].concat();
        for (what, bytes) in [
            ("cut", Some(cut)),
            ("empty", Some(Vec::new())),
            ("other", Some(other)),
            ("swapped", Some(swapped)),
            ("longer", Some(longer)),
            ("gone", None),
        ] {
            match bytes {
                Some(bytes) => fs::write(file, bytes).unwrap(),
                None => fs::remove_file(file).unwrap(),
            }
            let what = format!("part {number}, {what}");
            let damage = check(bank.path(), 64 << 20).damage;
            assert!(damage.iter().any(|damage| damage.path == *file), "{what}: {damage:?}");
            let lacks = bank.check_readers(&what);
            assert!(!bank.check_salvage(&what) || !lacks, "{what}");
        }
        fs::write(file, good).unwrap();
    }
    assert!(check(bank.path(), 64 << 20).is_clean());
}

/// A damaged record of the log hides no newer version: its row in the parts is older, and counts as
/// uncertain.
#[test]
fn a_row_below_a_damaged_record_is_uncertain() {
    let bank = Closed::new(13, 2, 4000, 3000);
    let mut random = Random(79);
    let file = &bank.log(false)[0];
    let good = fs::read(file).unwrap();
    let used = good.iter().rposition(|&byte| byte != 0).unwrap() as u64;
    let mut lacked = 0;
    for _ in 0..20 {
        let mut bytes = good.clone();
        let at = random.below(used);
        bytes[at as usize] ^= 1 << random.below(8);
        fs::write(file, &bytes).unwrap();
        let what = format!("byte {at} of the log");
        lacked += u32::from(bank.check_readers(&what));
        bank.check_salvage(&what);
    }
    assert!(lacked > 5, "{lacked}");
}

/// Without the list, the headers tell the parts.
#[test]
fn a_lost_list_is_found_and_replaced_by_headers() {
    let bank = Closed::new(14, 3, 300, 6000);
    let list = bank.list(1);
    let good = fs::read(&list).unwrap();
    for at in (0..good.len()).step_by(5) {
        let mut bytes = good.clone();
        bytes[at] ^= 16;
        fs::write(&list, &bytes).unwrap();
        let damage = check(bank.path(), 64 << 20).damage;
        assert!(damage.iter().any(|damage| damage.path == list), "byte {at}: {damage:?}");
        if at % 200 == 0 {
            assert!(TableReader::open(bank.path(), None, "fixed").is_err(), "byte {at}");
            assert!(bank.check_salvage(&format!("byte {at} of the list")));
        }
    }
    fs::remove_file(&list).unwrap();
    assert!(!check(bank.path(), 64 << 20).is_clean());
    assert!(bank.check_salvage("no list"));
    fs::write(&list, good).unwrap();
    assert!(check(bank.path(), 64 << 20).is_clean());
}

/// With parts of two checkpoints in the folder, the headers do not tell which ones count. So the
/// rows of parts are uncertain.
#[test]
fn parts_of_other_checkpoints_make_rows_uncertain() {
    let mut random = Random(15);
    let mut bank = Bank::new(1 << 20);
    bank.fill(3, &mut random);
    bank.store.checkpoint(b"").unwrap();
    let core = bank.store.core();
    let old: Vec<u64> = core.cold.view().parts().map(|part| part.head().number).collect();
    let rows = bank.rows.iter().filter(|(_, value)| value.is_some());
    let rows = rows.map(|(row, value)| (*row, value.clone())).collect();
    let half = 1 << 63;
    let base: Vec<Arc<Part>> = vec![
        bank.part(Kind::Base, (0, 3), (0, half - 1), &rows),
        bank.part(Kind::Base, (0, 3), (half, u64::MAX), &rows),
    ];
    core.cold.publish(core.cold.view().changed(base, &old));
    drop(core);
    bank.store.checkpoint(b"").unwrap();
    let bank = Closed::of(bank);
    assert!(check(bank.path(), 64 << 20).is_clean());
    for checkpoint in [2, 1] {
        let list = bank.list(checkpoint);
        let good = fs::read(&list).unwrap();
        fs::write(&list, &good[..good.len() - 1]).unwrap();
        let damage = check(bank.path(), 64 << 20).damage;
        assert!(damage.iter().all(|damage| damage.path == list), "{damage:?}");
        assert_eq!(bank.check_salvage("two lists"), checkpoint == 1);
        fs::write(&list, good).unwrap();
    }
}
