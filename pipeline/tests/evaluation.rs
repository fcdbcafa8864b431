//! Tests evaluations: runs that look values up and add none. They also work while the learning
//! pipeline runs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::mpsc::sync_channel;

use embank::{Bank, BankOptions, OwnedValues};
use embank_pipeline::{
    Batch, Column, Dtype, Error, Feed, FeedInput, FeedOptions, Field, FieldKind, Input, Operator,
    Output, Pipeline, RunOptions, Spec, VocabularySpec,
};

/// A spec with a column of numbers below 100 and, if `text`, a column of text. Each column has its
/// own vocabulary.
fn spec(text: bool, settings: impl Fn(VocabularySpec) -> VocabularySpec) -> Spec {
    let numbered = |name: &str, operators: &[Operator]| {
        let column = operators.iter().cloned().fold(Column::field(name), Column::then);
        column.then(Operator::Vocabulary(name.to_owned()))
    };
    let mut columns = vec![numbered("site", &[Operator::Modulus(100)])];
    let mut names = vec!["site"];
    if text {
        columns.push(numbered("word", &[]));
        names.push("word");
    }
    Spec {
        fields: vec![
            Field::new("site", FieldKind::Int32).required(),
            Field::new("word", FieldKind::Bytes).required(),
        ],
        columns,
        outputs: vec![Output::new("ids", Dtype::I64, names.clone())],
        vocabularies: names.iter().map(|&name| settings(VocabularySpec::new(name))).collect(),
        ..Spec::default()
    }
}

fn with_unknown(settings: VocabularySpec) -> VocabularySpec {
    VocabularySpec { first_id: 1, unknown_id: Some(0), ..settings }
}

fn options(threads: usize) -> RunOptions {
    RunOptions { threads, chunk_bytes: 12, ..RunOptions::default() }
}

fn open(path: &Path) -> Bank {
    Bank::open(path, bank_options()).unwrap()
}

fn bank_options() -> BankOptions {
    BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() }
}

fn rows(values: impl IntoIterator<Item = u32>) -> String {
    values.into_iter().map(|value| format!("{value}\tw{value}\n")).collect()
}

fn run(pipeline: &mut Pipeline, text: &str) -> Result<Vec<i64>, Error> {
    let mut ids = Vec::new();
    pipeline.run(&[Input::memory("text", text.as_bytes())], &mut |batch: &mut Batch| {
        ids.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    })?;
    Ok(ids)
}

fn feed(pipeline: Pipeline, text: &str) -> Feed {
    let options = FeedOptions { batch_rows: 1, batches_ahead: 1, ..FeedOptions::default() };
    pipeline.feed(vec![FeedInput::memory("text", text.as_bytes())], &options).unwrap()
}

fn ids(batch: Batch) -> Vec<i64> {
    batch.i64(0).unwrap().to_vec()
}

fn words(bank: &Bank) -> Vec<String> {
    let words = bank.open_vocabulary("word").unwrap();
    let ids: Vec<u64> = (0..words.len()).map(|place| words.config().first_id + place).collect();
    match words.values(&ids).unwrap() {
        OwnedValues::Bytes(values) => {
            values.values().iter().map(|value| String::from_utf8(value.to_vec()).unwrap()).collect()
        }
        OwnedValues::U64(_) => panic!("they are text"),
    }
}

#[test]
fn an_evaluation_inserts_and_counts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let counting = |settings| VocabularySpec { counts: true, ..with_unknown(settings) };
    let mut pipeline = Pipeline::with_bank(&spec(true, counting), &options(1), &bank).unwrap();
    assert_eq!(run(&mut pipeline, &rows([7, 9, 7])).unwrap(), [1, 1, 2, 2, 1, 1]);
    pipeline.checkpoint(&bank, b"").unwrap();
    let before = (words(&bank), bank.stats().store.changed);
    for threads in [1, 4] {
        let mut evaluation = pipeline.evaluation();
        assert!(pipeline.learns() && !evaluation.learns());
        evaluation.set_threads(threads);
        let found = run(&mut evaluation, &rows([9, 8, 7, 8])).unwrap();
        assert_eq!(found, [2, 2, 0, 0, 1, 1, 0, 0]);
        evaluation.save().unwrap();
    }
    assert_eq!((words(&bank), bank.stats().store.changed), before);
    assert_eq!(pipeline.vocabularies().next().unwrap().1, [7, 9]);
    // A value that was unknown to the evaluation gets the next id when the pipeline learns it.
    assert_eq!(run(&mut pipeline, &rows([8])).unwrap(), [3, 3]);
    assert_eq!(run(&mut pipeline.evaluation(), &rows([8])).unwrap(), [3, 3]);
    let mut evaluation = pipeline.evaluation();
    for refused in [
        evaluation.generate(&[]).unwrap_err(),
        evaluation.keep_frequent(1).unwrap_err(),
        evaluation.checkpoint(&bank, b"").unwrap_err(),
    ] {
        assert!(refused.to_string().contains("is an evaluation of another"), "{refused}");
    }
}

/// An evaluation knows only the values that had ids when it began.
#[test]
fn a_feed_that_learns_and_evaluations_go_on_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let mut pipeline = Pipeline::with_bank(&spec(true, with_unknown), &options(2), &bank).unwrap();
    run(&mut pipeline, &rows([50, 51])).unwrap();
    let later = pipeline.evaluation();
    let mut evaluating = feed(pipeline.evaluation(), &rows((0..20).chain([51])));
    let mut learning = feed(pipeline, &rows(0..20));
    // The feeds take turns, so the pipeline learns values while the evaluation runs.
    let first = evaluating.next().unwrap().unwrap();
    assert_eq!(ids(first), [0, 0]);
    for value in 0..20 {
        assert_eq!(ids(learning.next().unwrap().unwrap()), [value + 3, value + 3]);
        let expected = if value < 19 { [0, 0] } else { [2, 2] };
        assert_eq!(ids(evaluating.next().unwrap().unwrap()), expected, "after {value}");
    }
    assert!(evaluating.next().is_none() && learning.next().is_none());
    // A feed that is made now knows all values.
    let mut later = feed(later, &rows([19, 20]));
    assert_eq!(ids(later.next().unwrap().unwrap()), [22, 22]);
    assert_eq!(ids(later.next().unwrap().unwrap()), [0, 0]);
    drop(later);
    assert_eq!(run(&mut learning.into_pipeline().unwrap(), &rows([20])).unwrap(), [23, 23]);
}

#[test]
fn an_unknown_value_without_an_id_names_value_column_and_cure() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let mut pipeline = Pipeline::with_bank(&spec(true, |of| of), &options(2), &bank).unwrap();
    run(&mut pipeline, &rows([7])).unwrap();
    for (text, column, value) in
        [("7\tw7\n8\tw7\n", "site", "8"), ("7\tw7\n7\tnew\n", "word", "\"new\"")]
    {
        let error = run(&mut pipeline.evaluation(), text).unwrap_err();
        let shown = error.to_string();
        let Error::UnknownValue { name, column: at, value: found, input, row, frozen } = error
        else {
            panic!("{error}")
        };
        assert_eq!((&name[..], &at[..], &found[..]), (column, column, value));
        assert_eq!((&input[..], row, frozen), ("text", 1, false));
        assert!(shown.contains("let a run that learns see the value first"), "{shown}");
        assert!(shown.contains("first_id=1, unknown_id=0"), "{shown}");
        assert!(!shown.contains(&folder.path().display().to_string()), "{shown}");
    }
    assert_eq!(words(&bank), ["w7"]);
}

/// Regression test: a pipeline on a read-only bank failed at the first unknown value, with an error
/// that named the bank.
#[test]
fn a_pipeline_on_a_bank_to_read_is_an_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    for settings in [with_unknown as fn(VocabularySpec) -> VocabularySpec, |of| of] {
        let path = folder.path().join(settings(VocabularySpec::new("")).first_id.to_string());
        let bank = open(&path);
        let reader = || Bank::open_read_only(&path, bank_options(), None).unwrap();
        let mut writing = Pipeline::with_bank(&spec(true, settings), &options(1), &bank).unwrap();
        let known = run(&mut writing, &rows([7, 9])).unwrap();
        writing.checkpoint(&bank, b"").unwrap();
        let reading = reader();
        let mut pipeline =
            Pipeline::with_bank(&spec(true, settings), &options(2), &reading).unwrap();
        assert!(!pipeline.learns());
        assert_eq!(run(&mut pipeline, &rows([7, 9])).unwrap(), known);
        let unknown = run(&mut pipeline, &rows([8]));
        if settings(VocabularySpec::new("")).first_id == 1 {
            assert_eq!(unknown.unwrap(), [0, 0]);
        } else {
            assert!(matches!(unknown.unwrap_err(), Error::UnknownValue { .. }));
        }
        let refused = pipeline.generate(&[]).unwrap_err().to_string();
        assert!(refused.contains("is open to read only"), "{refused}");
        // The pipeline sees the bank's new values, and so do its earlier evaluations.
        let mut before = pipeline.evaluation();
        let learnt = run(&mut writing, &rows([8])).unwrap();
        writing.checkpoint(&bank, b"").unwrap();
        reading.refresh().unwrap();
        assert_eq!(run(&mut before, &rows([8])).unwrap(), learnt);
        assert_eq!(run(&mut pipeline, &rows([8])).unwrap(), learnt);
    }
}

#[test]
fn a_vocabulary_that_a_bank_to_read_lacks_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).checkpoint(b"").unwrap();
    let reading = Bank::open_read_only(folder.path(), bank_options(), None).unwrap();
    let error = Pipeline::with_bank(&spec(true, |of| of), &options(1), &reading).unwrap_err();
    assert!(
        error.to_string().contains("has no vocabulary \"site\", and is open to read only"),
        "{error}"
    );
}

/// After a renumbering, the ids of a running evaluation belong to other values, so it ends. Tested
/// in memory and in a bank.
#[test]
fn a_renumbering_ends_an_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let counting = |settings| VocabularySpec { counts: true, ..with_unknown(settings) };
    for text in [false, true] {
        let spec = spec(text, counting);
        let mut pipeline = if text {
            // Keeps only the vocabulary of text, because its values are looked up in the bank.
            let mut spec = spec;
            spec.columns.remove(0);
            spec.outputs = vec![Output::new("ids", Dtype::I64, ["word"])];
            spec.vocabularies.remove(0);
            Pipeline::with_bank(&spec, &options(1), &bank).unwrap()
        } else {
            Pipeline::new(&spec, &options(1)).unwrap()
        };
        pipeline.generate(&[Input::memory("text", rows([7, 9, 9]).as_bytes())]).unwrap();
        let mut evaluating = feed(pipeline.evaluation(), &rows((0..200).map(|row| row % 2 + 9)));
        assert_eq!(ids(evaluating.next().unwrap().unwrap()), [2]);
        assert_eq!(pipeline.keep_frequent(2).unwrap()[0].kept, 1);
        let failed = evaluating.find_map(Result::err).unwrap();
        assert!(matches!(failed, Error::VocabularyRenumbered { .. }), "{failed}");
        let mut again = pipeline.evaluation();
        assert_eq!(run(&mut again, &rows([9, 7, 10])).unwrap(), [1, 0, 0]);
    }
}

#[test]
fn ids_that_are_not_final_are_not_evaluated() {
    let rare = |settings| VocabularySpec { min_count: 2, ..with_unknown(settings) };
    let mut pipeline = Pipeline::new(&spec(false, rare), &options(1)).unwrap();
    let error = run(&mut pipeline.evaluation(), &rows([7])).unwrap_err().to_string();
    assert!(error.contains("\"site\" has a min_count") && error.contains("not final"), "{error}");
    assert_eq!(run(&mut pipeline, &rows([7, 9, 9])).unwrap(), [0, 1, 1]);
    assert_eq!(run(&mut pipeline.evaluation(), &rows([9, 7, 8])).unwrap(), [1, 0, 0]);
}

/// The consumer of a learning run may run an evaluation: no lock is held while the consumer has a
/// batch.
#[test]
fn a_consumer_may_evaluate() {
    let mut pipeline = Pipeline::new(&spec(false, with_unknown), &options(1)).unwrap();
    let mut evaluation = pipeline.evaluation();
    let (found, seen) = sync_channel(100);
    let text = rows(0..6);
    let consumer = &mut |_: &mut Batch| {
        found.send(run(&mut evaluation, &rows([0, 5]))?)?;
        Ok(())
    };
    pipeline.run(&[Input::memory("text", text.as_bytes())], consumer).unwrap();
    let seen: Vec<_> = seen.try_iter().collect();
    assert_eq!(seen.first().unwrap(), &[1, 0]);
    assert_eq!(seen.last().unwrap(), &[1, 6]);
}

/// Another user renumbers the vocabulary. The learning pipeline has the old ids until its next run
/// begins, so evaluations fail until then.
#[test]
fn a_renumbering_by_another_hand_ends_evaluations_until_the_pipeline_has_seen_it() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let counting = |settings| VocabularySpec { counts: true, ..with_unknown(settings) };
    let mut pipeline = Pipeline::with_bank(&spec(false, counting), &options(1), &bank).unwrap();
    pipeline.generate(&[Input::memory("text", rows([7, 9, 9]).as_bytes())]).unwrap();
    pipeline.save().unwrap();
    let mut evaluating = feed(pipeline.evaluation(), &rows((0..200).map(|row| row % 2 + 9)));
    assert_eq!(ids(evaluating.next().unwrap().unwrap()), [2]);
    assert_eq!(bank.open_vocabulary("site").unwrap().keep_frequent(2).unwrap().kept, 1);
    let failed = evaluating.find_map(Result::err).unwrap();
    assert!(matches!(failed, Error::VocabularyRenumbered { .. }), "{failed}");
    let failed = run(&mut pipeline.evaluation(), &rows([9])).unwrap_err();
    assert!(matches!(failed, Error::VocabularyRenumbered { .. }), "{failed}");
    assert_eq!(run(&mut pipeline, &rows([9])).unwrap(), [1]);
    assert_eq!(run(&mut pipeline.evaluation(), &rows([9, 7])).unwrap(), [1, 0]);
}

#[test]
fn an_evaluation_saves_nothing_of_the_pipeline_that_learns() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(folder.path());
    let mut pipeline = Pipeline::with_bank(&spec(false, with_unknown), &options(1), &bank).unwrap();
    assert_eq!(run(&mut pipeline, &rows([7, 9])).unwrap(), [1, 2]);
    let mut evaluation = pipeline.evaluation();
    evaluation.save_each_batch(true);
    assert_eq!(run(&mut evaluation, &rows([9, 8])).unwrap(), [2, 0]);
    assert!(bank.open_vocabulary("site").unwrap().is_empty());
    pipeline.save().unwrap();
    assert_eq!(bank.open_vocabulary("site").unwrap().len(), 2);
}
