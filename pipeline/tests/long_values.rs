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

/// Regression test: one text of 1,025 bytes ended a run, also with `bad_rows: skip`.
#[test]
fn a_text_that_is_too_long_for_its_vocabulary_is_a_bad_row() {
    let options = RunOptions { threads: 2, ..RunOptions::default() };
    for (limit, longest) in [(None, 1024), (Some(5), 5)] {
        for min_count in [0, 1] {
            let folder = tempfile::tempdir().unwrap();
            let bank_options =
                BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() };
            let bank = Bank::open(folder.path().join("bank"), bank_options).unwrap();
            let settings =
                VocabularySpec { value_bytes_max: limit, min_count, ..VocabularySpec::new("word") };
            let (fits, long) = ("f".repeat(longest), "l".repeat(longest + 1));
            let text = format!("a\tb\n{long}\ta\n{fits}\t\nb\t{long}\nb\ta\n");
            let skipping = spec(BadRows::Skip, settings.clone());
            let mut pipeline = Pipeline::with_bank(&skipping, &options, &bank).unwrap();
            let (ids, report) = run(&mut pipeline, &text).unwrap();
            assert_eq!((ids, report.bad_rows), (vec![1, 2, 3, 4, 2, 1], 2), "{min_count}");
            let lines: Vec<_> = report.first_bad_rows.iter().map(|bad| bad.line).collect();
            assert_eq!(lines, [2, 4]);
            for part in [&format!("longer than the {longest} bytes"), "`value_bytes_max`"] {
                assert!(report.first_bad_rows[0].what.contains(part), "{report:?}");
            }
            // To an evaluation, the value is one that the vocabulary does not have.
            let (ids, report) = run(&mut pipeline.evaluation(), &text).unwrap();
            assert_eq!((ids, report.bad_rows), (vec![1, 2, 0, 1, 3, 4, 2, 0, 2, 1], 0));
            drop(pipeline);
            let strict = spec(BadRows::Fail, settings);
            let mut pipeline = Pipeline::with_bank(&strict, &options, &bank).unwrap();
            let error = run(&mut pipeline, &text).unwrap_err();
            assert!(matches!(error, Error::BadRow(_)), "{error}");
        }
    }
}
