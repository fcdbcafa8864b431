//! Tests pipelines on a bank after failures: the state of the bank, and whether the pipeline
//! continues or refuses to.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use embank::{
    Bank, BankOptions, Error as BankError, OwnedValues, StoreError, TableConfig, Vocabulary,
};
use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Input, Operator, Output, Pipeline, RunOptions,
    Spec, VocabularySpec,
};

const LOG_BYTES: u64 = 8 << 20;

fn with_quota(path: &Path) -> Bank {
    let options = BankOptions {
        memory_budget_bytes: 4 << 20,
        disk_quota_bytes: Some(LOG_BYTES),
        ..Default::default()
    };
    Bank::open(path.join("bank"), options).unwrap()
}

/// Writes `rows` rows into a table of their own. They use disk quota until `free` drops the table.
fn fill(bank: &Bank, rows: u64) {
    let table = bank.table("fill", TableConfig::new(64)).unwrap();
    for first in (0..rows).step_by(500) {
        let keys: Vec<u64> = (first..first + 500).collect();
        table.put(&keys, &vec![1.0; 64 * 500]).unwrap();
    }
}

fn free(bank: &Bank) {
    bank.drop_table("fill").unwrap();
    for _ in 0..3 {
        bank.compact().unwrap();
        bank.checkpoint(b"").unwrap();
    }
}

fn one_thread() -> RunOptions {
    RunOptions { threads: 1, chunk_bytes: 16 << 10, ..RunOptions::default() }
}

/// A spec with one column of numbers below `modulus`.
fn numbers(modulus: u32, settings: Option<VocabularySpec>) -> Spec {
    Spec {
        fields: vec![Field::new("site", FieldKind::Int32).required()],
        columns: vec![
            Column::field("site")
                .then(Operator::Modulus(modulus))
                .then(Operator::Vocabulary("site".to_owned())),
        ],
        outputs: vec![Output::new("ids", Dtype::I64, ["site"])],
        vocabularies: settings.into_iter().collect(),
        ..Spec::default()
    }
}

/// A spec with a word, and a number that can make a row bad.
fn words(settings: Option<VocabularySpec>) -> Spec {
    Spec {
        fields: vec![
            Field::new("w", FieldKind::Bytes).required(),
            Field::new("n", FieldKind::Int32).required(),
        ],
        columns: vec![
            Column::field("w").then(Operator::Vocabulary("w".to_owned())),
            Column::field("n"),
        ],
        outputs: vec![Output::new("ids", Dtype::I64, ["w"]), Output::new("n", Dtype::I32, ["n"])],
        vocabularies: settings.into_iter().collect(),
        ..Spec::default()
    }
}

fn counting(name: &str) -> VocabularySpec {
    VocabularySpec { counts: true, ..VocabularySpec::new(name) }
}

fn lines(count: u32) -> String {
    (0..count).map(|number| format!("{number}\n")).collect()
}

fn run(pipeline: &mut Pipeline, text: &str) -> Result<Vec<i64>, Error> {
    let mut ids = Vec::new();
    let input = [Input::memory("text", text.as_bytes())];
    let consumer = &mut |batch: &mut Batch| {
        ids.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    };
    pipeline.run(&input, consumer).map(|_| ids)
}

fn numbers_of(vocabulary: &Vocabulary) -> Vec<u64> {
    let first = vocabulary.config().first_id;
    let ids: Vec<u64> = (first..vocabulary.next_id()).collect();
    match vocabulary.values(&ids).unwrap() {
        OwnedValues::U64(values) => values,
        other => panic!("{other:?}"),
    }
}

/// Regression test: a pipeline failed to load a renumbered vocabulary that had a value above its
/// modulus. It kept a part of the new values with the old number of values, so later runs gave ids
/// of other values, or panicked.
#[test]
fn a_vocabulary_that_cannot_be_taken_over_is_refused_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    let spec = numbers(1000, Some(counting("site")));
    let mut pipeline = Pipeline::with_bank(&spec, &one_thread(), &bank).unwrap();
    assert_eq!(run(&mut pipeline, "1\n2\n3\n").unwrap(), [0, 1, 2]);
    pipeline.save().unwrap();
    let vocabulary = bank.open_vocabulary("site").unwrap();
    vocabulary.keep_frequent(1).unwrap();
    for also in [&[5000][..], &[7, 8]] {
        vocabulary.ids_or_insert(also, &mut [0; 2][..also.len()]).unwrap();
        for _ in 0..2 {
            let error = run(&mut pipeline, "7\n8\n").unwrap_err();
            assert!(matches!(error, Error::ValueOutOfRange { value: 5000, .. }), "{error}");
        }
    }
    // Now all values of the vocabulary are below the modulus.
    vocabulary.count(&[1, 2]).unwrap();
    vocabulary.keep_frequent(1).unwrap();
    assert_eq!(run(&mut pipeline, "8\n9\n7\n").unwrap(), [1, 2, 0]);
    pipeline.save().unwrap();
    assert_eq!(numbers_of(&vocabulary), [7, 8, 9]);
}

/// A save that fails halfway has stored some of its values. The next save recognises these values
/// as the pipeline's own and continues.
#[test]
fn a_save_that_failed_halfway_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    fill(&bank, 20_000);
    let mut pipeline = Pipeline::with_bank(&numbers(1 << 20, None), &one_thread(), &bank).unwrap();
    let count = 100_000;
    run(&mut pipeline, &lines(count)).unwrap();
    let error = pipeline.save().unwrap_err();
    assert!(
        matches!(error, Error::Bank(BankError::Store(StoreError::QuotaExceeded { .. }))),
        "{error}"
    );
    let vocabulary = bank.open_vocabulary("site").unwrap();
    let there = vocabulary.len();
    assert!((1..u64::from(count)).contains(&there), "{there}");
    // The pipeline can run between the failed save and the next one.
    assert_eq!(run(&mut pipeline, "99999\n100000\n").unwrap(), [99_999, 100_000]);
    free(&bank);
    pipeline.save().unwrap();
    assert_eq!(numbers_of(&vocabulary), (0..=u64::from(count)).collect::<Vec<_>>());
    // After a failed save, an insertion by another user of the bank is still detected.
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    fill(&bank, 20_000);
    let mut pipeline = Pipeline::with_bank(&numbers(1 << 20, None), &one_thread(), &bank).unwrap();
    run(&mut pipeline, &lines(count)).unwrap();
    pipeline.save().unwrap_err();
    free(&bank);
    let vocabulary = bank.open_vocabulary("site").unwrap();
    vocabulary.ids_or_insert(&[1 << 19], &mut [0]).unwrap();
    for _ in 0..2 {
        let error = run(&mut pipeline, "1\n").unwrap_err();
        assert!(matches!(error, Error::VocabularyChanged { .. }), "{error}");
        let error = pipeline.save().unwrap_err();
        assert!(matches!(error, Error::VocabularyChanged { .. }), "{error}");
    }
}

/// A save that fails while it stores counts has added some of them. The next save does not add them
/// again.
#[test]
fn counts_are_saved_once_whatever_fails() {
    let count = 60_000;
    let text = lines(count);
    let mut failed_while_counting = 0;
    for rows in (8000..24_000).step_by(500) {
        let folder = tempfile::tempdir().unwrap();
        let bank = with_quota(folder.path());
        fill(&bank, rows);
        let spec = numbers(1 << 20, Some(counting("site")));
        let mut pipeline = Pipeline::with_bank(&spec, &one_thread(), &bank).unwrap();
        pipeline.generate(&[Input::memory("text", text.as_bytes())]).unwrap();
        let vocabulary = bank.open_vocabulary("site").unwrap();
        if pipeline.save().is_ok() {
            continue;
        }
        if vocabulary.len() < u64::from(count) {
            if failed_while_counting > 0 {
                break;
            }
            continue;
        }
        failed_while_counting += 1;
        free(&bank);
        pipeline.save().unwrap();
        let counts = vocabulary.counts(&(0..u64::from(count)).collect::<Vec<_>>()).unwrap();
        assert!(counts.iter().all(|&count| count == 1), "{rows} rows before it");
    }
    assert!(failed_while_counting > 0, "the quota was not met while counts were saved");
}

/// Regression test: when the first pass of a run failed, the bank kept the counts of some rows. The
/// next run counted these rows again, so it kept values that occur once.
#[test]
fn counts_of_a_part_are_not_counted_on() {
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    let new = VocabularySpec::new("w");
    let settings = VocabularySpec { min_count: 2, first_id: 1, unknown_id: Some(0), ..new };
    let spec = words(Some(settings));
    let options = RunOptions { chunk_bytes: 16, ..one_thread() };
    let mut pipeline = Pipeline::with_bank(&spec, &options, &bank).unwrap();
    // This run fails before it counts any row.
    let nowhere = [Input::file(folder.path().join("nowhere"))];
    let error = pipeline.run(&nowhere, &mut |_: &mut Batch| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let good = "once\t1\ntwice\t2\ntwice\t2\nother\t3\nlast\t4\n";
    let error = run(&mut pipeline, &good.replace("last\t4", "last\tx")).unwrap_err();
    assert!(matches!(error, Error::BadRow(_)), "{error}");
    for _ in 0..2 {
        let error = run(&mut pipeline, good).unwrap_err();
        assert!(matches!(error, Error::CountedInPart(_)), "{error}");
        let again = [Input::memory("text", good.as_bytes())];
        assert!(matches!(pipeline.generate(&again), Err(Error::CountedInPart(_))));
        assert!(matches!(pipeline.keep_frequent(2), Err(Error::CountedInPart(_))));
    }
    bank.drop_vocabulary("w").unwrap();
    let mut pipeline = Pipeline::with_bank(&spec, &options, &bank).unwrap();
    assert_eq!(run(&mut pipeline, good).unwrap(), [0, 1, 1, 0, 0]);
}

/// Values of a known range are counted in memory, and a failed pass drops its counts. The pass can
/// be repeated.
#[test]
fn a_failed_pass_over_values_of_a_known_range_may_be_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    let new = VocabularySpec::new("site");
    let settings = VocabularySpec { min_count: 2, first_id: 1, unknown_id: Some(0), ..new };
    let options = RunOptions { chunk_bytes: 4, ..one_thread() };
    let spec = numbers(100, Some(settings));
    let mut pipeline = Pipeline::with_bank(&spec, &options, &bank).unwrap();
    let error = run(&mut pipeline, "5\n6\n6\n7\nx\n").unwrap_err();
    assert!(matches!(error, Error::BadRow(_)), "{error}");
    assert_eq!(run(&mut pipeline, "5\n6\n6\n7\n").unwrap(), [0, 1, 1, 0]);
}

/// The disk is full between the two passes of a run. The first pass has counted the rows, and the
/// next run does not count them again.
#[test]
fn a_run_that_failed_between_its_passes_is_finished_by_the_next() {
    for by_hand in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let bank = with_quota(folder.path());
        fill(&bank, 20_000);
        let new = VocabularySpec::new("site");
        let settings = VocabularySpec { min_count: 2, first_id: 1, unknown_id: Some(0), ..new };
        let spec = numbers(1 << 20, Some(settings));
        let mut pipeline = Pipeline::with_bank(&spec, &one_thread(), &bank).unwrap();
        let text = lines(60_000) + "7\n";
        let inputs = [Input::memory("text", text.as_bytes())];
        let error = if by_hand {
            pipeline.generate(&inputs).unwrap();
            pipeline.keep_frequent(1).unwrap_err()
        } else {
            run(&mut pipeline, &text).unwrap_err()
        };
        assert!(
            matches!(error, Error::Bank(BankError::Store(StoreError::QuotaExceeded { .. }))),
            "{error}"
        );
        free(&bank);
        for refused in
            [pipeline.generate(&inputs).map(drop), pipeline.checkpoint(&bank, b"").map(drop)]
        {
            assert!(matches!(refused, Err(Error::CountedInPart(_))), "{refused:?}");
        }
        let ids = run(&mut pipeline, &text).unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 2, "7 comes twice");
        assert!(ids.iter().all(|&id| id <= 1));
        pipeline.checkpoint(&bank, b"").unwrap();
        assert_eq!(run(&mut pipeline, "6\n7\n").unwrap(), [0, 1]);
    }
}

/// `run` does not finish a vocabulary that counts without a `min_count`. Another call of
/// `keep_frequent` finishes it, or another user of the bank by freezing it.
#[test]
fn what_was_not_kept_by_hand_is_kept_by_hand_or_frozen_by_another() {
    for frozen_by_another in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let bank = with_quota(folder.path());
        fill(&bank, 20_000);
        let new = VocabularySpec::new("site");
        let settings = VocabularySpec { counts: true, first_id: 1, unknown_id: Some(0), ..new };
        let spec = numbers(1 << 20, Some(settings));
        let mut pipeline = Pipeline::with_bank(&spec, &one_thread(), &bank).unwrap();
        let text = lines(60_000) + "7\n";
        pipeline.generate(&[Input::memory("text", text.as_bytes())]).unwrap();
        pipeline.keep_frequent(2).unwrap_err();
        free(&bank);
        let refused = pipeline.checkpoint(&bank, b"").unwrap_err();
        assert!(refused.to_string().contains("call keep_frequent again"), "{refused}");
        if frozen_by_another {
            pipeline.save().unwrap();
            let vocabulary = bank.open_vocabulary("site").unwrap();
            vocabulary.set_frozen(true).unwrap();
            pipeline.checkpoint(&bank, b"").unwrap();
            // An unfrozen vocabulary counts again.
            vocabulary.set_frozen(false).unwrap();
            pipeline.generate(&[Input::memory("text", b"8\n8\n")]).unwrap();
            assert_eq!(pipeline.keep_frequent(2).unwrap()[0].kept, 2);
            assert_eq!(run(&mut pipeline, "6\n7\n8\n").unwrap(), [0, 1, 2]);
        } else {
            assert_eq!(pipeline.keep_frequent(2).unwrap()[0].kept, 1);
            assert_eq!(run(&mut pipeline, "6\n7\n").unwrap(), [0, 1]);
        }
        pipeline.checkpoint(&bank, b"").unwrap();
    }
}

/// Regression test: two pipelines were made before either ran. The second one did not notice that
/// the first one had frozen the vocabulary. It added its counts to the first one's, and then failed
/// to keep the frequent values.
#[test]
fn what_another_pipeline_has_frozen_meanwhile_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    let new = VocabularySpec::new("site");
    let settings = VocabularySpec { min_count: 2, first_id: 1, unknown_id: Some(0), ..new };
    let spec = numbers(100, Some(settings));
    let mut pipelines = [0, 1].map(|_| Pipeline::with_bank(&spec, &one_thread(), &bank).unwrap());
    for pipeline in &mut pipelines {
        assert_eq!(run(pipeline, "5\n6\n6\n").unwrap(), [0, 1, 1]);
        pipeline.save().unwrap();
        assert_eq!(bank.open_vocabulary("site").unwrap().counts(&[1]).unwrap(), [2]);
    }
    // An unfrozen vocabulary is counted and kept again.
    bank.open_vocabulary("site").unwrap().set_frozen(false).unwrap();
    assert_eq!(run(&mut pipelines[0], "5\n5\n8\n").unwrap(), [2, 2, 0]);
}

#[test]
fn a_checkpoint_is_one_of_the_pipelines_own_bank() {
    let folder = tempfile::tempdir().unwrap();
    let (bank, other) =
        (with_quota(&folder.path().join("a")), with_quota(&folder.path().join("b")));
    let mut pipeline = Pipeline::with_bank(&numbers(9, None), &one_thread(), &bank).unwrap();
    run(&mut pipeline, "1\n").unwrap();
    let error = pipeline.checkpoint(&other, b"").unwrap_err();
    assert!(matches!(&error, Error::Spec(text) if text.contains("another bank")), "{error}");
    assert_eq!(bank.open_vocabulary("site").unwrap().len(), 0);
    pipeline.checkpoint(&bank.clone(), b"").unwrap();
    assert_eq!(bank.open_vocabulary("site").unwrap().len(), 1);
    let mut in_memory = Pipeline::new(&numbers(9, None), &one_thread()).unwrap();
    assert!(matches!(in_memory.checkpoint(&bank, b""), Err(Error::Spec(_))));
}

/// Regression test: the error for a value that a frozen vocabulary lacks named row 0 of some batch,
/// not the value's row and input.
#[test]
fn unknown_and_long_values_are_told_with_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    let options = RunOptions { threads: 2, chunk_bytes: 8, ..one_thread() };
    let two = Spec {
        columns: vec![
            Column::field("w").then(Operator::Vocabulary("w".to_owned())),
            Column { name: "x".to_owned(), ..Column::field("x") }
                .then(Operator::Vocabulary("w".to_owned())),
        ],
        fields: vec![
            Field::new("w", FieldKind::Bytes).required(),
            Field::new("x", FieldKind::Bytes).required(),
        ],
        outputs: vec![Output::new("ids", Dtype::I64, ["w", "x"])],
        vocabularies: vec![VocabularySpec { value_bytes_max: Some(5), ..VocabularySpec::new("w") }],
        ..Spec::default()
    };
    let mut pipeline = Pipeline::with_bank(&two, &options, &bank).unwrap();
    let mut fail = |first: &str, second: &str| {
        let inputs =
            [Input::memory("first", first.as_bytes()), Input::memory("second", second.as_bytes())];
        pipeline.run(&inputs, &mut |_: &mut Batch| Ok(())).unwrap_err()
    };
    match fail("a\tb\na\tb\nb\tb\n", "a\ta\nb\tlonger\n") {
        Error::BadRow(bad) => {
            assert_eq!((&bad.input[..], bad.line), ("second", 2));
            assert!(bad.what.contains("\"longer\", is longer than the 5 bytes"), "{bad}");
        }
        error => panic!("{error}"),
    }
    let words = bank.open_vocabulary("w").unwrap();
    assert_eq!(words.len(), 2);
    words.set_frozen(true).unwrap();
    match fail("a\tb\na\tb\nb\tb\n", "a\ta\nb\tnew\nother\ta\n") {
        Error::UnknownValue { name, column, value, input, row, frozen } => {
            assert_eq!((&name[..], &column[..], &value[..]), ("w", "x", "\"new\""));
            assert_eq!((&input[..], row, frozen), ("second", 4, true));
        }
        error => panic!("{error}"),
    }
}

/// An unknown value of a known range is reported with its row, after another user of the bank has
/// frozen the vocabulary.
#[test]
fn unknown_numbers_are_told_with_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let bank = with_quota(folder.path());
    let options = RunOptions { chunk_bytes: 2, ..one_thread() };
    let mut pipeline = Pipeline::with_bank(&numbers(9, None), &options, &bank).unwrap();
    run(&mut pipeline, "1\n2\n").unwrap();
    pipeline.save().unwrap();
    bank.open_vocabulary("site").unwrap().set_frozen(true).unwrap();
    match run(&mut pipeline, "1\n2\n1\n3\n").unwrap_err() {
        Error::UnknownValue { value, input, row, .. } => {
            assert_eq!((&value[..], &input[..], row), ("3", "text", 3));
        }
        error => panic!("{error}"),
    }
}
