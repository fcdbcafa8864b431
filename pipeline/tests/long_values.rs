//! Tests texts that are longer than their vocabulary takes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use embank::{Bank, BankOptions};
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Input, Operator, Output, Pipeline,
    RunOptions, RunReport, Spec, VocabularySpec,
};

fn spec(bad_rows: BadRows, settings: VocabularySpec) -> Spec {
    let numbered = |name: &str, field: &str| {
        let column = Column { name: name.to_owned(), ..Column::field(field) };
        let filled = column.then(Operator::FillMissing("none".into()));
        filled.then(Operator::Vocabulary("word".to_owned()))
    };
    Spec {
        fields: vec![Field::new("word", FieldKind::Bytes), Field::new("other", FieldKind::Bytes)],
        columns: vec![numbered("word", "word"), numbered("other", "other")],
        outputs: vec![Output::new("ids", Dtype::I64, ["word", "other"])],
        bad_rows,
        bad_rows_max: 1.0,
        vocabularies: vec![VocabularySpec { first_id: 1, unknown_id: Some(0), ..settings }],
    }
}

fn run(pipeline: &mut Pipeline, text: &str) -> Result<(Vec<i64>, RunReport), Error> {
    let mut ids = Vec::new();
    let inputs = [Input::memory("t", text.as_bytes())];
    let report = pipeline.run(&inputs, &mut |batch: &mut Batch| {
        ids.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    })?;
    Ok((ids, report))
}

/// A bank in a new folder, which is removed with the first value.
fn new_bank() -> (tempfile::TempDir, Bank) {
    let folder = tempfile::tempdir().unwrap();
    let options = BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() };
    let bank = Bank::open(folder.path().join("bank"), options).unwrap();
    (folder, bank)
}

/// The limits of the tests: each setting, and the largest number of bytes that it means.
const LIMITS: [(Option<u32>, usize); 2] = [(None, 1024), (Some(5), 5)];

/// Rows with texts of `longest` bytes, and in rows 2 and 4 with a text of one byte more.
fn rows(longest: usize) -> String {
    let (fits, long) = ("f".repeat(longest), "l".repeat(longest + 1));
    format!("a\tb\n{long}\ta\n{fits}\t\nb\t{long}\nb\ta\n")
}

/// The ids of `rows` if no row is left out and a text that is too long is unknown.
const WITH_UNKNOWN: [i64; 10] = [1, 2, 0, 1, 3, 4, 2, 0, 2, 1];

/// Regression test: one text of 1,025 bytes ended a run, also with `bad_rows: skip`.
#[test]
fn a_text_that_is_too_long_for_its_vocabulary_is_a_bad_row() {
    let options = RunOptions { threads: 2, ..RunOptions::default() };
    for (limit, longest) in LIMITS {
        let (_folder, bank) = new_bank();
        let settings = VocabularySpec { value_bytes_max: limit, ..VocabularySpec::new("word") };
        let skipping = spec(BadRows::Skip, settings.clone());
        let mut pipeline = Pipeline::with_bank(&skipping, &options, &bank).unwrap();
        let (ids, report) = run(&mut pipeline, &rows(longest)).unwrap();
        assert_eq!((ids, report.bad_rows), (vec![1, 2, 3, 4, 2, 1], 2));
        let lines: Vec<_> = report.first_bad_rows.iter().map(|bad| bad.line).collect();
        assert_eq!(lines, [2, 4]);
        for part in [&format!("longer than the {longest} bytes"), "`value_bytes_max`"] {
            assert!(report.first_bad_rows[0].what.contains(part), "{report:?}");
        }
        // To an evaluation, the value is one that the vocabulary does not have.
        let (ids, report) = run(&mut pipeline.evaluation(), &rows(longest)).unwrap();
        assert_eq!((ids, report.bad_rows), (WITH_UNKNOWN.to_vec(), 0));
        drop(pipeline);
        let strict = spec(BadRows::Fail, settings);
        let mut pipeline = Pipeline::with_bank(&strict, &options, &bank).unwrap();
        let error = run(&mut pipeline, &rows(longest)).unwrap_err();
        assert!(matches!(error, Error::BadRow(_)), "{error}");
    }
}

/// A text means the same in training and in evaluation. Regression test: to a run that learns, the
/// row of a text that is too long was bad although the vocabulary was frozen, and to an evaluation
/// the text was unknown.
#[test]
fn a_text_that_is_too_long_for_a_frozen_vocabulary_is_unknown() {
    let options = RunOptions { threads: 2, ..RunOptions::default() };
    for (limit, longest) in LIMITS {
        for min_count in [0, 1] {
            let (_folder, bank) = new_bank();
            let settings =
                VocabularySpec { value_bytes_max: limit, min_count, ..VocabularySpec::new("word") };
            let strict = spec(BadRows::Fail, settings.clone());
            let skipping = spec(BadRows::Skip, settings);
            let mut pipeline = Pipeline::with_bank(&skipping, &options, &bank).unwrap();
            let (_, report) = run(&mut pipeline, &rows(longest)).unwrap();
            // With a `min_count`, the pass that makes batches finds the vocabulary frozen.
            assert_eq!(report.bad_rows, if min_count == 0 { 2 } else { 0 });
            bank.open_vocabulary("word").unwrap().set_frozen(true).unwrap();
            let mut strict = Pipeline::with_bank(&strict, &options, &bank).unwrap();
            for mut frozen in [strict.evaluation(), pipeline] {
                let (ids, report) = run(&mut frozen, &rows(longest)).unwrap();
                assert_eq!((ids, report.bad_rows), (WITH_UNKNOWN.to_vec(), 0), "{min_count}");
            }
            assert_eq!(run(&mut strict, &rows(longest)).unwrap().0, WITH_UNKNOWN);
        }
    }
}
