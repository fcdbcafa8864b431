//! Tests that this build opens vocabularies of every on-disk format: docs/testing.md, "Formats".
//!
//! `vocabulary_fixtures/format-<n>-vocabulary-<m>` holds a bank's files, and the values of its
//! vocabularies as text. n is the version of the metadata format, and m the version of vocabulary
//! descriptors. `write_a_fixture` makes a fixture.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::fixture::copy;
use crate::common::small_options;
use embank::{Bank, ByteBuffer, TableConfig, UNKNOWN_ID, Values, VocabularyConfig};

/// The version of vocabulary descriptors that this build writes.
const DESCRIPTOR: u32 = 1;
const BLOB: &[u8] = b"step 2";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vocabulary_fixtures")
}

/// Returns the name of the fixture with the formats that this build writes.
fn own_name() -> String {
    let frame = embank_kv::metadata::encode(&());
    let version = u32::from_le_bytes(frame[8..12].try_into().unwrap());
    format!("format-{version}-vocabulary-{DESCRIPTOR}")
}

/// Returns short and long strings, the empty string, and bytes that are not UTF-8.
fn strings(range: std::ops::Range<usize>) -> ByteBuffer {
    range
        .map(|i| match i % 10 {
            0 => vec![0xFF; i],
            3 => format!("{i} ").repeat(50).into_bytes(),
            _ => format!("word {i}").into_bytes(),
        })
        .collect()
}

fn write(bank: &Bank) {
    let config = VocabularyConfig::bytes().first_id(2).unknown_id(1).counts(true);
    let words = bank.vocabulary("words", config).unwrap();
    let mut ids = vec![0; 100];
    words.ids_or_insert(&strings(0..100), &mut ids).unwrap();
    words.count(&ids[20..]).unwrap();
    words.count(&ids[40..]).unwrap();
    words.keep_frequent(1).unwrap();
    bank.table("words", TableConfig::new(1).vocabulary("words")).unwrap();
    let numbers = bank.vocabulary("numbers", VocabularyConfig::u64()).unwrap();
    let values: Vec<u64> = (0..200).map(|i| i * i * 0x1234_5678_9ABC).rev().collect();
    numbers.ids_or_insert(&values, &mut [0; 200]).unwrap();
    numbers.set_frozen(true).unwrap();
}

fn listing(bank: &Bank) -> String {
    let mut text = String::new();
    for of in bank.vocabularies() {
        let vocabulary = bank.open_vocabulary(&of.name).unwrap();
        let whole = vocabulary.verify().unwrap();
        let (config, frozen) = (&of.config, of.frozen);
        writeln!(text, "{} {config:?} frozen {frozen} {:?}", of.name, of.identity).unwrap();
        writeln!(text, "{} values, fingerprint {:016x}", whole.values, whole.fingerprint).unwrap();
        let mut scan = vocabulary.scan();
        while let Some(chunk) = scan.next_chunk().unwrap() {
            for (i, id) in (chunk.first_id..).take(chunk.values.len()).enumerate() {
                let value = match chunk.values {
                    Values::U64(values) => values[i].to_string(),
                    Values::Bytes(values) => values.get(i).escape_ascii().to_string(),
                };
                writeln!(text, "{id} {value} {:?}", chunk.counts.get(i)).unwrap();
            }
        }
    }
    text
}

#[test]
fn vocabularies_of_every_fixture_open() {
    let mut found = false;
    for entry in fs::read_dir(folder()).unwrap() {
        let fixture = entry.unwrap().path();
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture.join("bank"), dir.path());
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        assert_eq!(bank.recovered().unwrap().blob, BLOB);
        let expected = fs::read_to_string(fixture.join("values.txt")).unwrap();
        assert_eq!(listing(&bank), expected, "{}", fixture.display());
        bank.open_table("words").unwrap();

        // After the reopen, old values keep their ids and new values get the next ids.
        let words = bank.open_vocabulary("words").unwrap();
        let (first, len) = (words.config().first_id, words.len());
        let mut ids = vec![0; 120];
        assert_eq!(words.ids_or_insert(&strings(20..140), &mut ids).unwrap(), 40);
        assert_eq!(ids, (first..first + len + 40).collect::<Vec<_>>());
        let numbers = bank.open_vocabulary("numbers").unwrap();
        assert_eq!(numbers.ids(&[0, 1], &mut ids[..2]).unwrap(), [1]);
        assert_eq!(ids[..2], [199, UNKNOWN_ID]);
        bank.checkpoint(b"and on").unwrap();
        drop((words, numbers, bank));
        let bank = Bank::open(dir.path(), small_options()).unwrap();
        assert_eq!(bank.open_vocabulary("words").unwrap().verify().unwrap().values, len + 40);
        found |= fixture.ends_with(own_name());
    }
    assert!(found, "write a fixture of {} (docs/testing.md, \"Formats\")", own_name());
}

#[test]
#[ignore = "writes files: run it when the format has changed"]
fn write_a_fixture() {
    let fixture = folder().join(own_name());
    assert!(!fixture.exists(), "{} is there: a fixture never changes", fixture.display());
    let dir = tempfile::tempdir().unwrap();
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    write(&bank);
    bank.checkpoint(BLOB).unwrap();
    drop(bank);
    copy(dir.path(), &fixture.join("bank"));
    let bank = Bank::open(dir.path(), small_options()).unwrap();
    fs::write(fixture.join("values.txt"), listing(&bank)).unwrap();
}
