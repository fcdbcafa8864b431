//! Tests that a table of a vocabulary accepts only ids of that vocabulary as keys.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{TestBank, new_bank};
use embank::{
    Error, ExportOptions, FileFormat, ImportOptions, Initializer, Missing, Optimizer, Table,
    TableConfig, UNKNOWN_ID, Vocabulary, VocabularyConfig,
};

fn rows(test: &TestBank, vocabulary: &str) -> Table {
    let config = TableConfig::new(1)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros)
        .vocabulary(vocabulary);
    test.bank.table("rows", config).unwrap()
}

/// Makes a vocabulary with the values 900 and 800, and a table for it.
fn two_values(config: VocabularyConfig) -> (TestBank, Vocabulary, Table) {
    let test = new_bank();
    let words = test.bank.vocabulary("word", config).unwrap();
    words.ids_or_insert(&[900, 800], &mut [0; 2]).unwrap();
    let table = rows(&test, "word");
    (test, words, table)
}

fn is_refused<T: std::fmt::Debug>(result: embank::Result<T>, bad: u64) {
    match result.unwrap_err() {
        Error::KeyIsNoId { table, vocabulary, key, first_id: 0, next_id: 2, unknown_id: None } => {
            assert_eq!((table.as_str(), vocabulary.as_str(), key), ("rows", "word", bad));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn every_way_in_refuses_a_key_that_is_no_id() {
    let (test, _, table) = two_values(VocabularyConfig::u64());
    for bad in [2, 1_000_000, u64::MAX >> 1, 1 << 63, UNKNOWN_ID - 1, UNKNOWN_ID] {
        let keys = [1, bad, 0];
        is_refused(table.get(&keys, &mut [0.0; 3]), bad);
        is_refused(table.get_rows(table.request(&keys).unwrap().distinct(), &mut [0.0; 3]), bad);
        is_refused(table.put(&keys, &[1.0; 3]), bad);
        is_refused(table.apply_gradients(&keys, &[1.0; 3]), bad);
        is_refused(table.update(&keys, |_, _, _| panic!("called for keys that are no ids")), bad);
        is_refused(table.initial(&keys, &mut [0.0; 3]), bad);
        is_refused(table.peek(&keys, &mut [0.0; 3], Missing::Initial), bad);
        is_refused(table.peek(&[bad], &mut [0.0; 1], Missing::Error), bad);
        let prefetch = table.prefetch(&keys).unwrap();
        is_refused(prefetch.wait(&mut [0.0; 3], Missing::Initial), bad);
        // These calls make no row and return no initial values, so they accept any key.
        assert_eq!(table.contains(&[bad]).unwrap(), [false]);
        assert_eq!(table.peek(&[bad], &mut [0.0], Missing::Skip).unwrap().missing, [0]);
        assert_eq!(table.delete(&[bad]).unwrap(), 0);
        assert_eq!(table.lookahead(&[bad]).unwrap().resident, 1);
    }
    assert_eq!(table.contains(&[0, 1]).unwrap(), [false; 2], "no row of a refused batch was made");
    assert_eq!(test.bank.stats().store.live_rows, 4, "those of the vocabulary");
    table.get(&[1, 0, 1], &mut [0.0; 3]).unwrap().apply(&[1.0; 3]).unwrap();
}

/// Shows that `UNKNOWN_ID` and all numbers from 2^63 - 1 on are never ids, whatever number of ids
/// was assigned.
#[test]
fn ids_that_are_given_out_end_at_2_to_the_63() {
    let (_test, words, table) = two_values(VocabularyConfig::u64());
    words.give_out(2..u64::MAX).unwrap();
    // Ids that follow on others than the last one may be another caller's.
    let end = (1 << 63) - 1;
    assert_eq!([words.give_out(2..7), words.give_out(end - 1..end)], [Err(end), Err(end)]);
    table.put(&[(1 << 63) - 2], &[1.0]).unwrap();
    for bad in [(1 << 63) - 1, UNKNOWN_ID - 1, UNKNOWN_ID] {
        let refused = table.put(&[bad], &[1.0]);
        assert!(matches!(refused, Err(Error::KeyIsNoId { .. })), "{bad}: {refused:?}");
    }
}

#[test]
fn the_message_names_the_id_and_the_cure() {
    let (_test, _, table) = two_values(VocabularyConfig::u64());
    let text = table.put(&[UNKNOWN_ID], &[0.0]).unwrap_err().to_string();
    assert!(text.contains("UNKNOWN_ID") && text.contains("ids_or_insert"), "{text}");
    assert!(text.contains("id 0 where the first value gets id 1"), "{text}");
    let text = table.put(&[7], &[0.0]).unwrap_err().to_string();
    assert!(text.contains("key 7 is no id") && text.contains("end before 2"), "{text}");

    let config = VocabularyConfig::u64().first_id(1).unknown_id(0);
    let (_test, _, table) = two_values(config);
    let text = table.put(&[UNKNOWN_ID], &[0.0]).unwrap_err().to_string();
    assert!(text.contains("lookup, which gives id 0"), "{text}");
}

/// Shows that the caller may use keys below the first id, for example for padding and for unknown
/// values.
#[test]
fn ids_below_the_first_one_are_taken() {
    let config = VocabularyConfig::u64().first_id(2).unknown_id(1);
    let (_test, words, table) = two_values(config);
    let mut ids = [0; 3];
    words.lookup(&[900, 7, 800], &mut ids).unwrap();
    assert_eq!(ids, [2, 1, 3]);
    table.get(&ids, &mut [0.0; 3]).unwrap().apply(&[1.0; 3]).unwrap();
    table.put(&[0], &[1.0]).unwrap();
    assert!(matches!(table.put(&[4], &[1.0]), Err(Error::KeyIsNoId { key: 4, next_id: 4, .. })));
}

#[test]
fn a_vocabulary_without_values_has_no_ids() {
    let test = new_bank();
    test.bank.vocabulary("word", VocabularyConfig::u64()).unwrap();
    let table = rows(&test, "word");
    assert!(matches!(table.put(&[0], &[1.0]), Err(Error::KeyIsNoId { key: 0, next_id: 0, .. })));
    drop(table.get(&[], &mut []).unwrap());
}

#[test]
fn tables_that_are_opened_again_check_too() {
    let (test, _, _) = two_values(VocabularyConfig::u64());
    test.bank.checkpoint(b"").unwrap();
    let path = test.bank.path().to_owned();
    drop(test.bank);
    let bank = embank::Bank::open(&path, crate::common::small_options()).unwrap();
    is_refused(bank.open_table("rows").unwrap().put(&[5], &[1.0]), 5);
}

/// Shows that rows of a table can be read although the vocabulary was renumbered. Only
/// `open_table_unchecked` opens such a table.
#[test]
fn an_unchecked_table_takes_what_it_has() {
    let (test, words, table) = two_values(VocabularyConfig::u64().counts(true));
    table.put(&[1], &[5.0]).unwrap();
    words.count(&[0, 0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let path = test.bank.path().to_owned();
    drop((words, table, test.bank));
    let bank = embank::Bank::open(&path, crate::common::small_options()).unwrap();
    bank.open_vocabulary("word").unwrap().keep_frequent(2).unwrap();
    assert!(matches!(bank.open_table("rows"), Err(Error::OtherVocabulary { .. })));
    let table = bank.open_table_unchecked("rows").unwrap();
    let mut row = [0.0];
    table.peek(&[1], &mut row, Missing::Error).unwrap();
    assert_eq!(row, [5.0]);
}

/// Shows that a row whose key is no id any more, after a renumbering, can be read and deleted.
#[test]
fn rows_of_keys_that_are_no_ids_can_be_read_and_deleted() {
    let test = new_bank();
    let words = test.bank.vocabulary("word", VocabularyConfig::u64().counts(true)).unwrap();
    words.ids_or_insert(&[900, 800], &mut [0; 2]).unwrap();
    let table = rows(&test, "word");
    table.put(&[1], &[5.0]).unwrap();
    words.count(&[0, 0]).unwrap();
    words.keep_frequent(2).unwrap();
    // After the renumbering, id 1 does not exist, and the handle belongs to the old numbering.
    assert!(matches!(table.put(&[1], &[1.0]), Err(Error::OtherVocabulary { .. })));
    let table = test.bank.open_table_unchecked("rows").unwrap();
    let mut row = [0.0];
    table.peek(&[1], &mut row, Missing::Initial).unwrap();
    assert_eq!(row, [5.0]);
    assert_eq!(table.delete(&[1]).unwrap(), 1);
}

/// Shows that a table accepts an id as soon as any thread has received it.
#[test]
fn ids_that_another_thread_was_given_just_now_are_taken() {
    let test = new_bank();
    let words = test.bank.vocabulary("word", VocabularyConfig::u64()).unwrap();
    let table = rows(&test, "word");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 0..2_000_u64 {
                let mut id = [0];
                words.ids_or_insert(&[value * 7919], &mut id).unwrap();
                table.put(&id, &[1.0]).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let values: Vec<u64> = (0..2_000).map(|value| value * 7919).collect();
                let mut ids = vec![0; values.len()];
                while !done.load(Ordering::SeqCst) {
                    // A lookup may return an id before the insert that made it has returned.
                    words.ids(&values, &mut ids).unwrap();
                    let known: Vec<u64> =
                        ids.iter().copied().filter(|&id| id != UNKNOWN_ID).collect();
                    let lease = table.get(&known, &mut vec![0.0; known.len()]).unwrap();
                    lease.release().unwrap();
                }
            });
        }
    });
}

#[test]
fn an_import_names_the_row_of_a_key_that_is_no_id() {
    let test = new_bank();
    let free = test.bank.table("free", TableConfig::new(1)).unwrap();
    free.put(&[0, 1, 7], &[1.0, 2.0, 3.0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let words = test.bank.vocabulary("word", VocabularyConfig::u64()).unwrap();
    words.ids_or_insert(&[900, 800], &mut [0; 2]).unwrap();
    let table = rows(&test, "word");
    for format in [FileFormat::Safetensors, FileFormat::Npy] {
        let suffix = if format == FileFormat::Npy { "npy" } else { "safetensors" };
        let file = test.dir.path().join(format!("free.{suffix}"));
        free.export(&file, &ExportOptions::default()).unwrap();
        let error = table.import(&file, &ImportOptions::default()).unwrap_err();
        assert!(matches!(error, Error::FileMismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("row ") && text.contains("no id of vocabulary"), "{text}");
        assert_eq!(table.contains(&[7]).unwrap(), [false]);
    }
    words.ids_or_insert(&[1, 2, 3, 4, 5, 6], &mut [0; 6]).unwrap();
    let file = test.dir.path().join("free.safetensors");
    table.import(&file, &ImportOptions::default()).unwrap();
    assert_eq!(crate::common::rows_of(&table, &[7]), [3.0]);
}

/// Checks that every call refuses the key 0, which is now the id of another value.
fn all_refused(table: &embank::Table) {
    let is_refused = |what: &str, result: embank::Result<()>| {
        assert!(matches!(result, Err(Error::OtherVocabulary { .. })), "{what}: {result:?}");
    };
    let mut row = [0.0];
    is_refused("peek", table.peek(&[0], &mut row, Missing::Skip).map(drop));
    is_refused("contains", table.contains(&[0]).map(drop));
    is_refused("initial", table.initial(&[0], &mut row));
    let fetched = table.prefetch(&[0]).and_then(|of| of.wait(&mut row, Missing::Skip));
    is_refused("prefetch", fetched.map(drop));
    is_refused("get", table.get(&[0], &mut row).map(drop));
    is_refused("put", table.put(&[0], &[1.0]));
    is_refused("apply", table.apply_gradients(&[0], &[1.0]));
    is_refused("update", table.update(&[0], |_, _, _| panic!("called for another numbering")));
}

/// Shows that a reader that refreshes across a renumbering gets errors. In an earlier version it
/// served rows by their old ids, which then belonged to other values.
#[test]
fn a_reader_that_refreshes_across_a_renumbering_is_told() {
    let (test, words, table) = two_values(VocabularyConfig::u64().counts(true));
    table.put(&[0, 1], &[1.0, 2.0]).unwrap();
    words.count(&[0, 1, 1]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let reader =
        embank::Bank::open_read_only(test.bank.path(), crate::common::small_options(), None)
            .unwrap();
    let read = reader.open_table("rows").unwrap();
    words.keep_frequent(2).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let mut row = [0.0];
    read.peek(&[1], &mut row, Missing::Error).unwrap();
    assert_eq!(row, [2.0], "it reads the checkpoint from before");
    reader.refresh().unwrap();
    for result in [
        read.peek(&[0], &mut row, Missing::Skip).map(drop),
        read.contains(&[0]).map(drop),
        read.prefetch(&[0]).and_then(|of| of.wait(&mut row, Missing::Skip)).map(drop),
    ] {
        assert!(matches!(result, Err(Error::OtherVocabulary { .. })), "{result:?}");
    }
    assert!(matches!(reader.open_table("rows"), Err(Error::OtherVocabulary { .. })));
    let unchecked = reader.open_table_unchecked("rows").unwrap();
    unchecked.peek(&[1], &mut row, Missing::Error).unwrap();
    assert_eq!(row, [2.0]);
}

#[test]
fn handles_of_the_renumbering_process_are_told_too() {
    let (test, words, table) = two_values(VocabularyConfig::u64().counts(true));
    table.put(&[0, 1], &[1.0, 2.0]).unwrap();
    let held = table.get(&[0], &mut [0.0]).unwrap();
    words.count(&[0, 1, 1]).unwrap();
    words.keep_frequent(2).unwrap();
    all_refused(&table);
    held.release().unwrap();
    // The table was made again, so it belongs to the new numbering.
    test.bank.drop_table("rows").unwrap();
    rows(&test, "word").put(&[0], &[3.0]).unwrap();
}

#[test]
fn handles_of_a_dropped_vocabulary_are_told() {
    let (test, words, table) = two_values(VocabularyConfig::u64());
    table.put(&[0, 1], &[1.0, 2.0]).unwrap();
    drop(words);
    test.bank.drop_vocabulary("word").unwrap();
    all_refused(&table);
    let again = test.bank.vocabulary("word", VocabularyConfig::u64()).unwrap();
    again.ids_or_insert(&[7, 8], &mut [0; 2]).unwrap();
    all_refused(&table);
}
