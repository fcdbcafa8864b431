//! Damaged record files: no wrong row is handed out, and a check finds all damage.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use embank_pipeline::{Error, RecordFile, RecordOptions, verify_records};

use super::seals::seal;
use super::{is_right, write};

const ROWS: usize = 900;
/// Damaged copies of each file.
const COPIES: usize = 250;

fn options(zstd_level: Option<i32>) -> RecordOptions {
    RecordOptions { rows_per_group: 170, zstd_level, ..RecordOptions::default() }
}

/// An intact file, and a file of other rows with the same lengths.
struct Files {
    bytes: Vec<u8>,
    other: Vec<u8>,
    /// Begin and length of each group.
    groups: Vec<(usize, usize)>,
}

impl Files {
    fn new(dir: &Path, zstd_level: Option<i32>) -> Self {
        let path = dir.join("intact.records");
        write(&path, 5000, ROWS, options(zstd_level));
        let other = fs::read(&path).unwrap();
        write(&path, 0, ROWS, options(zstd_level));
        let groups = RecordFile::open(&path).unwrap().groups().to_vec();
        let place = |group: &embank_pipeline::RecordGroup| {
            (group.offset as usize, group.stored_bytes as usize)
        };
        Self { bytes: fs::read(&path).unwrap(), other, groups: groups.iter().map(place).collect() }
    }

    /// Returns a damaged copy, and what was done to it.
    fn damaged(&self, random: &mut fastrand::Rng) -> (Vec<u8>, &'static str) {
        let mut bytes = self.bytes.clone();
        let at = random.usize(..bytes.len());
        let block = [1, 16, 512, 4096][random.usize(..4)];
        let begin = at / block * block;
        let end = bytes.len().min(begin + block);
        let what = match random.u8(..8) {
            0 | 1 => {
                bytes[at] ^= 1 << random.u8(..8);
                "a flipped bit"
            }
            2 => {
                for _ in 0..random.u8(2..40) {
                    let at = random.usize(..bytes.len());
                    bytes[at] ^= 1 << random.u8(..8);
                }
                "flipped bits"
            }
            3 => {
                bytes.truncate(at);
                "a cut end"
            }
            4 => {
                let (a, b) = (random.usize(..self.groups.len()), random.usize(..self.groups.len()));
                let ((a, a_bytes), (b, b_bytes)) = (self.groups[a], self.groups[b]);
                let length = a_bytes.min(b_bytes);
                bytes[a..a + length].copy_from_slice(&self.bytes[b..b + length]);
                bytes[b..b + length].copy_from_slice(&self.bytes[a..a + length]);
                "swapped groups"
            }
            5 => {
                let more = vec![random.u8(..) % 2; random.usize(1..6000)];
                let at = if random.bool() { bytes.len() } else { at };
                bytes.splice(at..at, more);
                "a lengthened file"
            }
            6 => {
                bytes[begin..end].fill(0);
                "a block of zeros"
            }
            _ => {
                let end = end.min(self.other.len());
                if begin < end {
                    bytes[begin..end].copy_from_slice(&self.other[begin..end]);
                }
                "a block of another file"
            }
        };
        (bytes, what)
    }
}

/// Reads all groups of a file of rows 0, 1 and so on. Returns the number of groups that were handed
/// out and the damaged ones. `None` if the file could not be opened.
fn read(path: &Path) -> Option<(u64, Vec<u64>)> {
    let told = |error: &Error| {
        let text = error.to_string();
        assert!(text.contains("rows.records") && text.contains("write the file again"), "{text}");
    };
    let file = match RecordFile::open(path) {
        Ok(file) => file,
        Err(error @ Error::Records(_)) => {
            told(&error);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(file.rows(), ROWS as u64);
    let (mut sound, mut damaged) = (0, Vec::new());
    for (number, group) in file.groups().iter().enumerate() {
        match file.read(number) {
            Ok(batch) => {
                assert_eq!(batch.rows(), group.rows);
                assert!(is_right(batch, group.first_row as usize), "a wrong row");
                sound += 1;
            }
            Err(error) => {
                told(&error);
                let Error::Records(damage) = error else { panic!("{error}") };
                assert_eq!((damage.path.as_path(), damage.offset), (path, group.offset));
                assert_eq!(damage.group, Some(number as u64));
                damaged.push(number as u64);
            }
        }
    }
    Some((sound, damaged))
}

/// Of 500 damaged files, each group is right or refused, and a check counts every file.
#[test]
fn damaged_files_hand_out_no_wrong_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    let mut random = fastrand::Rng::with_seed(11);
    let (mut found, mut opened, mut handed_out) = (0, 0, 0);
    for level in [None, Some(3)] {
        let files = Files::new(dir.path(), level);
        let mut copies = 0;
        // The loop ends: at most one of some copies equals the intact file.
        while copies < COPIES {
            let (bytes, what) = files.damaged(&mut random);
            if bytes == files.bytes {
                continue;
            }
            copies += 1;
            fs::write(&path, &bytes).unwrap();
            let read = read(&path);
            let report = verify_records(&path, &mut |_| {}).unwrap();
            assert!(!report.is_clean(), "{what}: not found");
            found += 1;
            assert!(report.damage.iter().all(|damage| damage.path == path));
            let Some((sound, damaged)) = read else {
                assert_eq!((report.damage.len(), report.damage[0].group), (1, None), "{what}");
                continue;
            };
            opened += 1;
            handed_out += sound;
            assert_eq!((report.sound_groups, report.groups), (sound, 6), "{what}");
            // Further damage lies in the zeros after groups.
            let groups: Vec<_> = report.damage.iter().filter_map(|damage| damage.group).collect();
            assert_eq!(groups.len(), report.damage.len(), "{what}");
            assert!(damaged.iter().all(|number| groups.contains(number)), "{what}");
        }
    }
    assert_eq!(found, 2 * COPIES);
    // The test sees both: files that can't be opened, and damaged groups beside sound ones.
    assert!(opened > 100 && opened < 400 && handed_out > 300, "{opened} {handed_out}");
}

/// A check finds a flipped bit in each byte of a file, zeros among them.
#[test]
fn every_byte_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    for level in [None, Some(3)] {
        write(&path, 0, 60, options(level));
        let bytes = fs::read(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        for (at, &byte) in bytes.iter().enumerate() {
            file.write_all_at(&[byte ^ 1 << (at % 8)], at as u64).unwrap();
            let report = verify_records(&path, &mut |_| {}).unwrap();
            assert_eq!(report.damage.len(), 1, "byte {at}");
            file.write_all_at(&[byte], at as u64).unwrap();
        }
        assert!(verify_records(&path, &mut |_| {}).unwrap().is_clean());
    }
}

/// `verify` goes on after a damaged group, and names each.
#[test]
fn a_check_lists_every_damaged_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    let mut files = Files::new(dir.path(), None);
    let after = files.groups[2].0 + files.groups[2].1 + 9;
    for at in [files.groups[1].0 + 5, files.groups[4].0, after] {
        files.bytes[at] ^= 64;
    }
    fs::write(&path, &files.bytes).unwrap();
    let report = verify_records(&path, &mut |_| {}).unwrap();
    let told: Vec<_> = report.damage.iter().map(|damage| (damage.group, damage.offset)).collect();
    let place = |group: usize| (Some(group as u64), files.groups[group].0 as u64);
    assert_eq!(told, [place(1), (Some(2), after as u64), place(4)]);
    assert!(report.damage[0].what.contains("checksum") && report.damage[1].what.contains("zero"));
    assert_eq!((report.groups, report.sound_groups, report.rows), (6, 4, ROWS as u64));
    assert_eq!(report.sound_rows, ROWS as u64 - 2 * 170);
    let told = report.damage[0].to_string();
    assert!(told.contains("rows.records: group 1 at ") && told.contains("checksum"), "{told}");
}

/// A file whose checksums are right may still name any length. Memory is allocated only for what
/// can be there.
#[test]
fn lengths_are_checked_before_memory_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    for level in [None, Some(3)] {
        let files = Files::new(dir.path(), level);
        let trailer = files.bytes.len() - 64;
        let footer = trailer - 8 - 6 * 48;
        let entry = footer + 8;
        let places = [
            ("bytes of the description", 16),
            ("the prefixes", footer),
            ("offset of a group", entry),
            ("first row", entry + 8),
            ("end of a segment", entry + 24),
            ("bytes of a segment", entry + 32),
            ("offset of the footer", trailer + 16),
            ("bytes of the footer", trailer + 24),
            ("number of groups", trailer + 40),
            ("number of rows", trailer + 48),
        ];
        for (what, at) in places {
            for value in [0, 1, 1 << 20, 1 << 32, 1 << 52, u64::MAX - 7, u64::MAX] {
                let mut bytes = files.bytes.clone();
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                if bytes == files.bytes {
                    continue;
                }
                seal(&mut bytes);
                fs::write(&path, &bytes).unwrap();
                let error = RecordFile::open(&path).unwrap_err();
                assert!(matches!(error, Error::Records(_)), "{what} {value}: {error}");
            }
        }
        for rows in [0, 1, 169, 171, 65_536, 65_537, u32::MAX] {
            let mut bytes = files.bytes.clone();
            bytes[entry + 16..entry + 20].copy_from_slice(&rows.to_le_bytes());
            seal(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            let error = RecordFile::open(&path).unwrap_err();
            assert!(matches!(&error, Error::Records(damage) if damage.group == Some(0)), "{error}");
        }
    }
}

/// A compressed segment that decompresses to more, to less or to nothing is refused, also with a
/// right checksum.
#[test]
fn a_compressed_group_has_exactly_its_values() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.records");
    let files = Files::new(dir.path(), Some(3));
    let (begin, length) = files.groups[0];
    // Each of these fits in the group's place: zeros compress well.
    let bytes = RecordFile::open(&dir.path().join("intact.records")).unwrap().groups()[0].bytes;
    for (what, values) in [("fewer", bytes - 1), ("more", bytes + 1), ("as many", bytes)] {
        let frame = zstd::bulk::compress(&vec![0; values as usize], 3).unwrap();
        let mut changed = files.bytes.clone();
        let rest = begin + frame.len();
        changed[begin..rest].copy_from_slice(&frame);
        // A frame that the decoder skips fills the place up.
        let skipped = length - frame.len() - 8;
        changed[rest..rest + 4].copy_from_slice(&0x184D_2A50_u32.to_le_bytes());
        changed[rest + 4..rest + 8].copy_from_slice(&(skipped as u32).to_le_bytes());
        seal(&mut changed);
        fs::write(&path, &changed).unwrap();
        let read = RecordFile::open(&path).unwrap().read(0);
        assert_eq!(read.is_ok(), what == "as many", "{what}: {read:?}");
    }
}
