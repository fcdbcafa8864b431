//! Tests torn and failed insertions, concurrent threads, damage, and every error.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use embank_kv::{Clock, Store, StoreOptions, metadata};

use super::hash::{CLASHING_SEED, key_of};
use super::numbering::Items;
use super::rows::{PutFixed, PutVariable};
use super::*;
use crate::bank::Bank;
use crate::error::StoreError;
use crate::files::export::ExportOptions;
use crate::files::import::options::ImportOptions;
use crate::options::BankOptions;
use crate::row::config::TableConfig;

fn options() -> BankOptions {
    BankOptions { memory_budget_bytes: 1 << 20, checkpoints_kept: 100, ..Default::default() }
}

fn new_bank(dir: &Path) -> Bank {
    Bank::open(dir.join("bank"), options()).unwrap()
}

fn words(range: std::ops::Range<u64>) -> ByteBuffer {
    range.map(|i| format!("word {i}").repeat(1 + (i % 30 == 0) as usize * 30)).collect()
}

fn insert<'v>(vocabulary: &Vocabulary, values: impl Into<Values<'v>>) -> Vec<u64> {
    let values = values.into();
    let mut ids = vec![0; values.len()];
    vocabulary.ids_or_insert(values, &mut ids).unwrap();
    ids
}

fn damage_of(vocabulary: &Vocabulary) -> String {
    match vocabulary.verify() {
        Err(Error::DamagedVocabulary { vocabulary, what }) if vocabulary == "v" => what,
        other => panic!("{other:?}"),
    }
}

/// Appends values without writing the header. This is the state that a crash before the last step
/// of an insertion leaves.
fn tear(vocabulary: &Vocabulary, values: Values<'_>) {
    let mut writer = vocabulary.writer();
    let numbering = vocabulary.shared.numbering();
    vocabulary.take_out_what_lies_beyond(&mut writer, &numbering).unwrap();
    let distinct = Distinct::new(values, vocabulary.shared.founding.seed).unwrap();
    let bytes: Vec<&[u8]> = if distinct.are_strings() {
        (0..distinct.keys.len()).map(|i| distinct.bytes(i)).collect()
    } else {
        Vec::new()
    };
    let tip = writer.tip.take().unwrap();
    let items = Items { keys: &distinct.keys, bytes: &bytes };
    numbering.append(&vocabulary.context().store, &tip, items).unwrap();
}

/// A value whose place is beyond the length is unknown, also in a read-only bank. When the value is
/// inserted again, it gets the next id.
#[test]
fn a_torn_insertion_leaves_nothing() {
    for (kind, seed) in [(0, 7), (1, 7), (1, CLASHING_SEED)] {
        let dir = tempfile::tempdir().unwrap();
        let bank = new_bank(dir.path());
        let config = if kind == 0 { VocabularyConfig::u64() } else { VocabularyConfig::bytes() };
        let vocabulary = bank.vocabulary_with_seed("v", config, seed).unwrap();
        let first = words(0..70);
        let torn = words(70..140);
        let other = ByteBuffer::from_iter((70..140).rev().map(|i| torn.get(i - 70)));
        let numbers: Vec<u64> = (0..70).collect();
        let (torn_numbers, other_numbers): (Vec<u64>, Vec<u64>) =
            ((70..140).collect(), (70..140).rev().collect());
        let (first, torn, other): (Values<'_>, Values<'_>, Values<'_>) = if kind == 0 {
            ((&numbers).into(), (&torn_numbers).into(), (&other_numbers).into())
        } else {
            ((&first).into(), (&torn).into(), (&other).into())
        };
        insert(&vocabulary, first);
        tear(&vocabulary, torn);
        bank.checkpoint(b"").unwrap();
        let see = |vocabulary: &Vocabulary| {
            let mut ids = vec![0; 70];
            assert_eq!(vocabulary.ids(torn, &mut ids).unwrap().len(), 70);
            assert_eq!(vocabulary.verify().unwrap().values, 70);
            assert!(vocabulary.values(&[70]).is_err());
        };
        let reading = Bank::open_read_only(dir.path().join("bank"), options(), None).unwrap();
        see(&reading.open_vocabulary("v").unwrap());
        drop(reading);
        // An insertion repairs the vocabulary: first in this process, as after a failed insertion,
        // and below after a reopen, as after a crash.
        let mut ids = vec![0; 70];
        vocabulary.ids(torn, &mut ids).unwrap();
        assert_eq!(ids, [UNKNOWN_ID; 70]);
        assert_eq!(insert(&vocabulary, other), (70..140).collect::<Vec<_>>());
        assert_eq!(vocabulary.verify().unwrap().values, 140);
        drop((vocabulary, bank));
        let bank = new_bank(dir.path());
        let vocabulary = bank.open_vocabulary("v").unwrap();
        assert_eq!(insert(&vocabulary, other), (70..140).collect::<Vec<_>>());
        assert_eq!(insert(&vocabulary, torn), (70..140).rev().collect::<Vec<_>>());
        assert_eq!(vocabulary.verify().unwrap().values, 140);
    }
}

/// The least number of rounds of insertions.
const ROUNDS_MIN: u64 = 60;
/// The least number of checkpoints that must be taken during insertions.
const CHECKPOINTS_MIN: u32 = 2;
/// Longest time that insertions continue until the checkpoints have been taken.
const PATIENCE: Duration = Duration::from_secs(120);

/// Another thread inserts, counts and renumbers while this thread takes one checkpoint after
/// another. Every checkpoint opens and is consistent.
#[test]
fn every_checkpoint_during_insertions_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let config = VocabularyConfig::bytes().counts(true);
    let strings = bank.vocabulary("v", config).unwrap();
    let numbers = bank.vocabulary("n", VocabularyConfig::u64()).unwrap();
    let done = AtomicBool::new(false);
    let checkpoints = AtomicU32::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The loop ends after `ROUNDS_MIN` rounds if the checkpoints have been taken, and at
            // the deadline otherwise.
            for round in 0.. {
                let few = checkpoints.load(Ordering::Relaxed) < CHECKPOINTS_MIN;
                if round >= ROUNDS_MIN && (!few || began.elapsed() > PATIENCE) {
                    break;
                }
                let ids = insert(&strings, &words(round * 40..round * 40 + 300));
                strings.count(&ids).unwrap();
                insert(&numbers, &(round * 500..round * 500 + 700).collect::<Vec<u64>>());
                if round % 20 == 19 {
                    strings.keep_frequent(3).unwrap();
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            bank.checkpoint(b"").unwrap();
            checkpoints.fetch_add(1, Ordering::Relaxed);
        }
    });
    let numbers_now = numbers.fingerprint();
    bank.checkpoint(b"").unwrap();
    drop((strings, numbers, bank));
    let path = dir.path().join("bank");
    let kept: Vec<u64> = Bank::checkpoints(&path).unwrap().iter().map(|of| of.number).collect();
    assert!(kept.len() > 2);
    for &number in &kept {
        let bank = Bank::open_read_only(&path, options(), Some(number)).unwrap();
        for of in bank.vocabularies() {
            let vocabulary = bank.open_vocabulary(&of.name).unwrap();
            assert_eq!(vocabulary.verify().unwrap().values, of.len);
        }
    }
    for &number in kept.iter().rev() {
        // Opens each checkpoint for writing and continues from it, as after a crash.
        if Bank::checkpoints(&path).unwrap().last().unwrap().number != number {
            Bank::roll_back(&path, number).unwrap();
        }
        let bank = Bank::open(&path, options()).unwrap();
        for of in bank.vocabularies() {
            let vocabulary = bank.open_vocabulary(&of.name).unwrap();
            match of.config.kind {
                ValueKind::U64 => drop(insert(&vocabulary, &(0..2000).collect::<Vec<u64>>())),
                ValueKind::Bytes => drop(insert(&vocabulary, &words(0..500))),
            }
            let whole = vocabulary.verify().unwrap();
            assert!(whole.values >= of.len);
            if Some(&number) == kept.last() && of.name == "n" {
                // The newest checkpoint has these numbers already, so the insertion added none.
                assert_eq!(whole.fingerprint, numbers_now);
            }
        }
        let tables: usize =
            bank.vocabularies().iter().map(|of| 3 + usize::from(of.config.counts)).sum();
        assert_eq!(bank.context().store.tables().len(), tables, "nothing is left over");
    }
}

#[test]
fn threads_that_insert_and_look_up_agree() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let vocabulary = bank.vocabulary("v", VocabularyConfig::bytes().first_id(1)).unwrap();
    let all: Vec<Vec<(u64, u64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let vocabulary = vocabulary.clone();
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    for round in 0..25 {
                        let start = (thread * 37 + round * 61) % 900;
                        let range = start..start + 200;
                        let batch = words(range.clone());
                        let mut ids = vec![0; 200];
                        vocabulary.ids(&batch, &mut ids).unwrap();
                        let before = ids.clone();
                        vocabulary.ids_or_insert(&batch, &mut ids).unwrap();
                        for (&id, &before) in ids.iter().zip(&before) {
                            assert!(before == UNKNOWN_ID || before == id);
                        }
                        seen.extend(range.zip(ids));
                    }
                    seen
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut ids = std::collections::HashMap::new();
    for (value, id) in all.into_iter().flatten() {
        assert_eq!(*ids.entry(value).or_insert(id), id);
    }
    let mut dense: Vec<u64> = ids.values().copied().collect();
    dense.sort_unstable();
    assert_eq!(dense, (1..=ids.len() as u64).collect::<Vec<_>>());
    assert_eq!(vocabulary.verify().unwrap().values, ids.len() as u64);
}

#[test]
fn lookups_and_renumbering_go_together() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let vocabulary = bank.vocabulary("v", VocabularyConfig::u64().counts(true)).unwrap();
    let numbers: Vec<u64> = (0..1000).collect();
    let ids = insert(&vocabulary, &numbers);
    vocabulary.count(&ids).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                vocabulary.keep_frequent(1).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut found = vec![0; 1000];
        while !done.load(Ordering::SeqCst) {
            assert!(vocabulary.ids(&numbers, &mut found).unwrap().is_empty());
            assert_eq!(found, ids);
        }
    });
    assert_eq!(vocabulary.identity().renumberings(), 20);
    assert_eq!(bank.context().store.tables().len(), 4);
}

#[test]
fn a_reader_moves_on_with_the_bank() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let writing = bank.vocabulary("v", VocabularyConfig::u64().counts(true)).unwrap();
    insert(&writing, &[5, 6]);
    bank.checkpoint(b"").unwrap();
    let reading = Bank::open_read_only(dir.path().join("bank"), options(), None).unwrap();
    let vocabulary = reading.open_vocabulary("v").unwrap();
    let ids = insert(&writing, &[7]);
    writing.count(&ids).unwrap();
    writing.keep_frequent(1).unwrap();
    bank.vocabulary("w", VocabularyConfig::u64()).unwrap();
    bank.checkpoint(b"").unwrap();
    let mut ids = [0; 3];
    assert_eq!(vocabulary.ids(&[5, 6, 7], &mut ids).unwrap(), [2]);
    // Moves only the store to the new checkpoint. The handle must notice that its tables are gone,
    // and read its state again.
    reading.context().store.refresh().unwrap();
    assert_eq!(vocabulary.ids(&[5, 6, 7], &mut ids).unwrap(), [0, 1]);
    reading.refresh().unwrap();
    assert_eq!((ids[2], vocabulary.len(), vocabulary.identity()), (0, 1, writing.identity()));
    assert_eq!(reading.vocabularies().len(), 2);
    bank.drop_vocabulary("v").unwrap();
    bank.checkpoint(b"").unwrap();
    reading.refresh().unwrap();
    let gone = vocabulary.ids(&[5], &mut ids[..1]);
    assert!(matches!(gone, Err(Error::VocabularyDropped { .. })), "{gone:?}");
    assert!(matches!(reading.open_vocabulary("v"), Err(Error::NoSuchVocabulary { .. })));
}

/// Shows that a call on a read-only bank succeeds however often other threads refresh the bank. In
/// an earlier version, a call was restarted up to eight times, and then said that the vocabulary
/// was dropped.
#[test]
fn no_refresh_comes_between_the_second_attempt_of_a_call() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    insert(&bank.vocabulary("v", VocabularyConfig::u64()).unwrap(), &[5]);
    bank.checkpoint(b"").unwrap();
    let reading = Bank::open_read_only(dir.path().join("bank"), options(), None).unwrap();
    let vocabulary = reading.open_vocabulary("v").unwrap();
    let moving = &vocabulary.registry.moving;
    let mut calls = 0;
    let len = vocabulary.read(|_, len| {
        calls += 1;
        let may_move = moving.try_lock().is_some();
        assert_eq!(may_move, calls == 1, "call {calls}");
        let gone = Error::Store(StoreError::NoSuchTable("v".into()));
        if may_move { Err(gone) } else { Ok(len) }
    });
    assert_eq!((len.unwrap(), calls), (1, 2));
    assert!(moving.try_lock().is_some());
}

#[test]
fn verification_names_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let store = &bank.context().store;
    let vocabulary = bank.vocabulary("v", VocabularyConfig::u64()).unwrap();
    insert(&vocabulary, &(10..200).collect::<Vec<u64>>());
    let numbering = vocabulary.shared.numbering();
    let put = |key: u64, place: u64| {
        let mut put = PutFixed { bytes: &place.to_le_bytes(), row_bytes: 8 };
        store.execute(numbering.ids, &[key], Clock::Keep, &mut put).unwrap();
    };
    vocabulary.verify().unwrap();
    put(10, 4);
    assert_eq!(damage_of(&vocabulary), "id 0 has the value 10, which leads to id 4");
    put(10, 0);
    put(1000, 4);
    assert!(damage_of(&vocabulary).contains("191 rows"));
    store.delete(numbering.ids, &[1000, 12]).unwrap();
    assert_eq!(damage_of(&vocabulary), "id 2 has the value 12, which leads to no id");
    put(12, 2);
    vocabulary.verify().unwrap();
    store.delete(numbering.values, &[1]).unwrap();
    assert_eq!(damage_of(&vocabulary), "id 64 was given out and has no value");
    assert!(matches!(vocabulary.values(&[100]), Err(Error::DamagedVocabulary { .. })));

    let strings = bank.vocabulary("w", VocabularyConfig::bytes()).unwrap();
    bank.drop_vocabulary("v").unwrap();
    let vocabulary = bank.vocabulary("v", VocabularyConfig::bytes()).unwrap();
    insert(&strings, &words(0..70));
    insert(&vocabulary, &words(0..70));
    let numbering = vocabulary.shared.numbering();
    let key = key_of(vocabulary.shared.founding.seed, words(3..4).get(0));
    let copies = numbering.read_records(store, &[key]).unwrap();
    let mut record = copies.get(0).to_vec();
    record::push_entry(&mut record, 5, b"stray");
    let mut put = PutVariable { bytes: &record, ends: &[record.len()] };
    store.execute(numbering.ids, &[key], Clock::Keep, &mut put).unwrap();
    assert!(damage_of(&vocabulary).contains("71 entries"));
    let header = vocabulary.writer().header;
    vocabulary.writer().header.fingerprint ^= 1;
    assert!(damage_of(&vocabulary).contains("fingerprint"));
    vocabulary.writer().header = header;
    let cancelled = vocabulary.verify_with(|_| ControlFlow::Break(()));
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    strings.verify().unwrap();
}

/// 2,000 strings that share 64 hashes make a record longer than the limit. The insertion fails and
/// leaves no rows.
#[test]
fn an_insertion_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let config = VocabularyConfig::bytes().value_bytes_max(40);
    let vocabulary = bank.vocabulary_with_seed("v", config, CLASHING_SEED).unwrap();
    let first = words(1..30);
    let many = words(31..50);
    insert(&vocabulary, &first);
    let before = vocabulary.len();
    let clashing = ByteBuffer::from_iter((0..2000).map(|i| format!("{i}")));
    let failed = vocabulary.ids_or_insert(&clashing, &mut [0; 2000]);
    assert!(matches!(failed, Err(Error::Store(StoreError::TooLong { .. }))));
    assert_eq!(vocabulary.len(), before);
    assert_eq!(vocabulary.ids(&clashing, &mut [0; 2000]).unwrap().len(), 2000);
    assert_eq!(insert(&vocabulary, &many), (29..48).collect::<Vec<_>>());
    assert_eq!(vocabulary.verify().unwrap().values, 48);
}

#[test]
fn what_is_half_made_is_dropped_and_what_is_lost_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let vocabulary = bank.vocabulary("v", VocabularyConfig::u64()).unwrap();
    insert(&vocabulary, &[1, 2]);
    let founding = vocabulary.shared.founding.clone();
    let store = &bank.context().store;
    // Makes an unfinished numbering, and a vocabulary without a header.
    numbering::Numbering::create(store, "v", &founding.config, founding.identity, 1).unwrap();
    let half = descriptor::Founding { identity: 77, ..founding };
    numbering::Numbering::create(store, "half", &half.config, 77, 0).unwrap();
    store.create_table("half (vocabulary)", 64, &half.descriptor()).unwrap();
    assert_eq!(store.tables().len(), 8);
    bank.checkpoint(b"").unwrap();
    drop((vocabulary, bank));

    let reading = Bank::open_read_only(dir.path().join("bank"), options(), None).unwrap();
    assert_eq!(reading.vocabularies().len(), 1);
    drop(reading);
    let bank = new_bank(dir.path());
    assert_eq!((bank.vocabularies().len(), bank.context().store.tables().len()), (1, 3));
    let vocabulary = bank.open_vocabulary("v").unwrap();
    assert_eq!(vocabulary.verify().unwrap().values, 2);
    bank.context().store.delete(vocabulary.shared.header, &[0]).unwrap();
    bank.checkpoint(b"").unwrap();
    drop((vocabulary, bank));
    let lost = Bank::open(dir.path().join("bank"), options());
    assert!(matches!(lost, Err(Error::DamagedVocabulary { .. })), "{lost:?}");
}

/// A program that drops what it can't read would lose the values.
#[test]
fn a_vocabulary_of_a_newer_version_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let small = StoreOptions { memory_budget_bytes: 1 << 20, ..StoreOptions::default() };
    let store = Store::open(dir.path(), &small).unwrap();
    let founding =
        descriptor::Founding { config: VocabularyConfig::u64(), identity: 1, seed: 2 }.descriptor();
    let (kind, version, settings): (u16, u16, Vec<u8>) = metadata::decode(&founding).unwrap();
    let newer = metadata::encode(&(kind, version + 1, settings));
    store.create_table("v (vocabulary)", 64, &newer).unwrap();
    store.checkpoint(b"").unwrap();
    drop(store);
    let error = Bank::open(dir.path(), options()).unwrap_err();
    let Error::UnreadableTable { table, reason } = &error else { panic!("{error}") };
    assert_eq!(table, "v (vocabulary)");
    assert!(reason.contains("version 2") && reason.contains("use a newer Embank"), "{reason}");
}

#[test]
fn handles_of_a_dropped_vocabulary_make_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let config = VocabularyConfig::u64().counts(true);
    for values in [0..0, 0..100_u64] {
        let old = bank.vocabulary("v", config.clone()).unwrap();
        let ids = insert(&old, &values.collect::<Vec<_>>());
        old.count(&ids).unwrap();
        bank.drop_vocabulary("v").unwrap();
        let gone = |result: Result<()>| {
            assert!(matches!(result, Err(Error::VocabularyDropped { .. })), "{result:?}");
        };
        gone(old.keep_frequent(1).map(drop));
        gone(old.ids_or_insert(&[7000], &mut [0]).map(drop));
        gone(old.set_frozen(true));
        gone(old.verify().map(drop));
        assert!(bank.context().store.tables().is_empty());
    }
}

#[test]
fn every_refusal_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let config = VocabularyConfig::bytes().value_bytes_max(5);
    let v = bank.vocabulary("v", config.clone()).unwrap();
    let n = bank.vocabulary("n", VocabularyConfig::u64()).unwrap();
    let text = |result: Result<()>| result.unwrap_err().to_string();
    let short = ByteBuffer::from_iter(["red"]);

    assert!(text(v.ids(&[1], &mut [0]).map(drop)).contains("has bytes values and was given u64"));
    assert!(text(v.ids(&short, &mut []).map(drop)).contains("1 values need as many ids, found 0"));
    assert!(text(v.lookup(&short, &mut [0])).contains("no id for the value \"red\" at place 0"));
    let long = ByteBuffer::from_iter(["red", "yellow"]);
    let refused = text(v.ids_or_insert(&long, &mut [0; 2]).map(drop));
    assert!(refused.contains("\"yellow\" has 6 bytes and may have 5"), "{refused}");
    assert!(v.is_empty());
    assert!(text(v.count(&[0])).contains("has no counts"));
    assert!(text(v.keep_frequent(1).map(drop)).contains("has no counts"));
    assert!(text(v.add_counts(&[0], &[])).contains("1 ids need as many counts"));
    assert!(text(v.merge(&v, |_| ControlFlow::Continue(())).map(drop)).contains("into itself"));
    assert!(text(v.merge(&n, |_| ControlFlow::Continue(())).map(drop)).contains("\"n\" has u64"));
    insert(&v, &short);
    v.set_frozen(true).unwrap();
    let green = ByteBuffer::from_iter(["green"]);
    assert!(text(v.ids_or_insert(&green, &mut [0]).map(drop)).contains("frozen"));
    assert_eq!(insert(&v, &short), [0]);
    let other = bank.vocabulary("other", config).unwrap();
    insert(&other, &green);
    let merged = v.merge(&other, |_| ControlFlow::Continue(()));
    assert!(matches!(merged, Err(Error::VocabularyFrozen { .. })));
    v.set_frozen(false).unwrap();
    let stopped = v.merge(&other, |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Cancelled)));

    let mismatch = bank.vocabulary("v", VocabularyConfig::u64());
    assert!(matches!(mismatch, Err(Error::VocabularyMismatch { .. })));
    assert!(matches!(bank.open_vocabulary("x"), Err(Error::NoSuchVocabulary { .. })));
    assert!(matches!(bank.drop_vocabulary("x"), Err(Error::NoSuchVocabulary { .. })));
    let huge = bank.vocabulary("huge", VocabularyConfig::bytes().value_bytes_max(128 << 10));
    assert!(matches!(huge, Err(Error::Store(StoreError::TooLong { .. }))));
    // The failed attempt has left no tables, so the name is free.
    bank.vocabulary("huge", VocabularyConfig::bytes()).unwrap();
    let counting = bank.vocabulary("c", VocabularyConfig::u64().counts(true).first_id(2)).unwrap();
    insert(&counting, &[9]);
    counting.count(&[0, 1, 2]).unwrap();
    assert!(matches!(counting.count(&[2, 3]), Err(Error::UnknownId { id: 3, .. })));
    assert!(matches!(counting.counts(&[1]), Err(Error::UnknownId { id: 1, .. })));
    assert_eq!(counting.counts(&[2]).unwrap(), [1]);
    let mut scan = counting.scan();
    counting.keep_frequent(0).unwrap();
    assert!(scan.next_chunk().is_err());
}

#[test]
fn a_table_is_opened_with_its_vocabulary_alone() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let config = VocabularyConfig::u64().counts(true);
    let vocabulary = bank.vocabulary("v", config.clone()).unwrap();
    let asked = TableConfig::new(1).vocabulary("v");
    let made = bank.table("t", asked.clone()).unwrap().config();
    bank.checkpoint(b"").unwrap();
    drop((vocabulary, bank));

    let bank = new_bank(dir.path());
    assert_eq!(bank.open_table("t").unwrap().config(), made);
    bank.table("t", asked.clone()).unwrap();
    bank.table("t", made.clone()).unwrap();
    let without = bank.table("t", TableConfig::new(1));
    assert!(matches!(without, Err(Error::ConfigMismatch { .. })));
    let refusal = |bank: &Bank| {
        for refused in [bank.open_table("t"), bank.table("t", asked.clone())] {
            match refused {
                Err(Error::OtherVocabulary { table, vocabulary, found }) => {
                    assert_eq!((&table[..], &vocabulary[..]), ("t", "v"));
                    if bank.open_table_unchecked("t").is_ok() {
                        return found;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        String::new()
    };
    bank.open_vocabulary("v").unwrap().keep_frequent(1).unwrap();
    assert!(refusal(&bank).contains("(renumberings: 1, and 0 when the table was made)"));
    bank.drop_vocabulary("v").unwrap();
    assert_eq!(refusal(&bank), "the bank has none of that name");
    bank.vocabulary("v", config.clone()).unwrap();
    assert_eq!(refusal(&bank), "the vocabulary of that name is another one");

    // Another bank refuses `made`, the settings of the first bank's table, with the numbering that
    // the table was made for. An exported file has such settings.
    let other_dir = tempfile::tempdir().unwrap();
    let other = new_bank(other_dir.path());
    assert!(matches!(other.table("t", made.clone()), Err(Error::OtherVocabulary { .. })));
    // Regression test: when a new table named a missing vocabulary, an earlier version's error
    // spoke of rows of the table, which did not exist.
    match other.table("t", asked.clone()) {
        Err(Error::NoSuchVocabulary { vocabulary }) => assert_eq!(vocabulary, "v"),
        refused => panic!("{:?}", refused.map(|_| ())),
    }
    other.vocabulary("v", config).unwrap();
    assert!(matches!(other.table("t", made.clone()), Err(Error::OtherVocabulary { .. })));
    let unbound = other.table("t", TableConfig { vocabulary: None, ..made }).unwrap();

    // An import also checks which vocabulary's ids are the keys of the file.
    let file = dir.path().join("t.safetensors");
    let kept = bank.open_table_unchecked("t").unwrap();
    kept.put(&[0], &[1.5]).unwrap();
    bank.checkpoint(b"").unwrap();
    kept.export(&file, &ExportOptions::default()).unwrap();
    let bound = other.table("bound", asked).unwrap();
    match bound.import(&file, &ImportOptions::default()) {
        Err(Error::FileMismatch { what, .. }) => assert!(what.contains("vocabulary"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(unbound.import(&file, &ImportOptions::default()).unwrap().rows, 1);
    assert_eq!(kept.import(&file, &ImportOptions::default()).unwrap().rows, 1);
}

#[test]
fn lookups_of_new_values_read_no_disk_and_of_old_ones_once() {
    let dir = tempfile::tempdir().unwrap();
    let bank = new_bank(dir.path());
    let vocabulary = bank.vocabulary("v", VocabularyConfig::bytes()).unwrap();
    for start in (0..20_000).step_by(1000) {
        insert(&vocabulary, &ByteBuffer::from_iter((start..start + 1000).map(|i| format!("w{i}"))));
    }
    let reads = || bank.stats().store.disk_reads;
    let batch = |from: u64| ByteBuffer::from_iter((from..from + 1000).map(|i| format!("w{i}")));
    let before = reads();
    assert_eq!(vocabulary.ids(&batch(1 << 40), &mut [0; 1000]).unwrap().len(), 1000);
    let new = reads() - before;
    assert!(new <= 20, "{new} reads for 1,000 new values");
    let before = reads();
    assert!(vocabulary.ids(&batch(0), &mut [0; 1000]).unwrap().is_empty());
    let old = reads() - before;
    assert!((1..=1100).contains(&old), "{old} reads for 1,000 values on disk");
}
