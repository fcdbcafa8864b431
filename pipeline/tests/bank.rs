//! Compares pipelines whose vocabularies are in a bank with maps in memory, over reopens and
//! numbers of threads.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::path::Path;

use embank::{Bank, BankOptions, ByteBuffer, OwnedValues, VocabularyConfig};
use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Input, Operator, Output, Pipeline, RunOptions,
    Spec, Value, VocabularySpec,
};

const MODULUS: u32 = 300;

fn open(path: &Path) -> Bank {
    let options = BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() };
    Bank::open(path, options).unwrap()
}

fn options(threads: usize) -> RunOptions {
    RunOptions { threads, chunk_bytes: 700, ..RunOptions::default() }
}

fn numbered(name: &str, from: &str, vocabulary: &str, operators: &[Operator]) -> Column {
    let column = Column { name: name.into(), ..Column::field(from) };
    let column = operators.iter().cloned().fold(column, Column::then);
    column.then(Operator::Vocabulary(vocabulary.into()))
}

/// A spec with columns of numbers, text and hashes without a bound, a column of bounded numbers,
/// and vocabularies that two columns share.
fn spec(settings: Vec<VocabularySpec>) -> Spec {
    let fill = |value: Value| Operator::FillMissing(value);
    let columns = vec![
        numbered("small", "small", "numbers", &[fill(0.into())]),
        numbered("large", "large", "numbers", &[fill(0.into())]),
        numbered("word", "word", "words", &[fill("none".into())]),
        numbered("other", "word", "words", &[fill("other".into())]),
        numbered("hash", "site", "hashes", &[fill(0.into()), Operator::Hash { seed: 5 }]),
        numbered("site", "site", "sites", &[fill(0.into()), Operator::Modulus(MODULUS)]),
    ];
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    Spec {
        fields: vec![
            Field::new("small", FieldKind::Int32),
            Field::new("large", FieldKind::Int64),
            Field::new("word", FieldKind::Bytes),
            Field::new("site", FieldKind::Hex32),
        ],
        columns,
        outputs: vec![
            Output::new("all", Dtype::I64, names.clone()),
            Output::new("ints", Dtype::I32, ["word", "site", "small"]),
            Output::new("bits", Dtype::Bits32, names),
        ],
        vocabularies: settings,
        ..Spec::default()
    }
}

fn draw(row: u64, field: u64) -> u64 {
    (row * 7 + field + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24
}

/// Makes rows with some empty fields and with values that repeat. Later parts have more different
/// values.
fn text(part: u64, rows: u64) -> String {
    let mut text = String::new();
    for row in part * rows..(part + 1) * rows {
        let value = |field: u64| draw(row, field) % (5 + draw(row, field + 9) % (row + 1));
        let sign = if draw(row, 1).is_multiple_of(2) { "-" } else { "" };
        let mut fields = [
            format!("{sign}{}", value(1)),
            format!("{sign}{}", value(2) * 3_000_000_000),
            format!("w{}", "x".repeat(value(3) as usize % 40) + &value(3).to_string()),
            format!("{:x}", (value(4) * 2_654_435_761) as u32),
        ];
        for (place, field) in fields.iter_mut().enumerate() {
            if draw(row, 20 + place as u64).is_multiple_of(13) {
                field.clear();
            }
        }
        text += &fields.join("\t");
        text += "\n";
    }
    text
}

/// Returns, for each row, the vocabulary and the value of each column.
fn values(text: &str) -> Vec<[(&'static str, String); 6]> {
    let or = |field: &str, other: &str| if field.is_empty() { other } else { field }.to_owned();
    let number = |field: &str| or(field, "0").parse::<i64>().unwrap().to_string();
    let row = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        let site = u32::from_str_radix(&or(fields[3], "0"), 16).unwrap();
        [
            ("numbers", number(fields[0])),
            ("numbers", number(fields[1])),
            ("words", or(fields[2], "none")),
            ("words", or(fields[2], "other")),
            ("hashes", site.to_string()),
            ("sites", (site % MODULUS).to_string()),
        ]
    };
    text.lines().map(row).collect()
}

type Model = HashMap<&'static str, HashMap<String, i64>>;

fn number(model: &mut Model, first_id: i64, text: &str) -> Vec<i64> {
    let mut ids = Vec::new();
    for row in values(text) {
        for (vocabulary, value) in row {
            let known = model.entry(vocabulary).or_default();
            let fresh = first_id + known.len() as i64;
            ids.push(*known.entry(value).or_insert(fresh));
        }
    }
    ids
}

/// Runs the pipeline and returns all ids, which must be equal in the three outputs.
fn run(pipeline: &mut Pipeline, text: &str) -> Vec<i64> {
    let mut ids = Vec::new();
    pipeline
        .run(&[Input::memory("text", text.as_bytes())], &mut |batch: &mut Batch| {
            let all = batch.i64(0).unwrap();
            let bits: Vec<i64> = batch.bits32(2).unwrap().iter().map(|&id| id.into()).collect();
            assert_eq!(all, bits);
            for (all, ints) in all.chunks(6).zip(batch.i32(1).unwrap().chunks(3)) {
                let shown = [all[2], all[5], all[0]].map(|id| i32::try_from(id).unwrap());
                assert_eq!(shown, ints);
            }
            ids.extend_from_slice(all);
            Ok(())
        })
        .unwrap();
    ids
}

#[test]
fn ids_are_those_of_a_map_over_reopens_with_any_number_of_threads() {
    for threads in [1, 2, 3, 8] {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Model::new();
        for part in 0..4 {
            let bank = open(&folder.path().join("bank"));
            let mut pipeline =
                Pipeline::with_bank(&spec(vec![]), &options(threads), &bank).unwrap();
            let mut expected = model.clone();
            let text = text(part, 400);
            assert_eq!(run(&mut pipeline, &text), number(&mut expected, 0, &text), "{threads}");
            // No checkpoint follows the third part, so the reopened bank has no value of it.
            if part != 2 {
                pipeline.checkpoint(&bank, &part.to_le_bytes()).unwrap();
                model = expected;
            }
            for (name, known) in &model {
                let vocabulary = bank.open_vocabulary(name).unwrap();
                vocabulary.verify().unwrap();
                assert!(vocabulary.len() as usize >= known.len());
            }
        }
        let bank = open(&folder.path().join("bank"));
        for (name, known) in &model {
            assert_eq!(bank.open_vocabulary(name).unwrap().len(), known.len() as u64, "{name}");
        }
        let words = bank.open_vocabulary("words").unwrap();
        let OwnedValues::Bytes(values) = words.values(&[0, 1]).unwrap() else { panic!() };
        assert_eq!(model["words"][std::str::from_utf8(values.get(1)).unwrap()], 1);
    }
}

#[test]
fn rare_values_get_the_id_for_those_in_two_passes() {
    let settings = ["numbers", "words", "hashes", "sites"].map(|name| VocabularySpec {
        min_count: 3,
        unknown_id: Some(1),
        first_id: 2,
        ..VocabularySpec::new(name)
    });
    let input = text(0, 800);
    let mut counts: HashMap<(&str, String), u64> = HashMap::new();
    values(&input).into_iter().flatten().for_each(|value| *counts.entry(value).or_default() += 1);
    let mut model: HashMap<&str, HashMap<String, i64>> = HashMap::new();
    let mut frequent = |input: &str, grows: bool| -> Vec<i64> {
        let id = |value: (&'static str, String)| {
            let known = model.entry(value.0).or_default();
            let fresh = 2 + known.len() as i64;
            match counts.get(&value) {
                Some(3..) if grows => *known.entry(value.1).or_insert(fresh),
                _ => known.get(&value.1).copied().unwrap_or(1),
            }
        };
        values(input).into_iter().flatten().map(id).collect()
    };
    let (later, first) = (text(1, 300), frequent(&input, true));
    let second = frequent(&later, false);
    assert!(first.contains(&1) && second.contains(&1));
    for threads in [1, 2, 3, 8] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bank");
        let bank = open(&path);
        let with = |bank: &Bank| {
            Pipeline::with_bank(&spec(settings.clone().into()), &options(threads), bank).unwrap()
        };
        let mut pipeline = with(&bank);
        assert_eq!(run(&mut pipeline, &input), first, "{threads}");
        pipeline.checkpoint(&bank, b"").unwrap();
        drop((pipeline, bank));
        // The vocabularies are frozen now, so this run applies them in one pass.
        let bank = open(&path);
        let mut pipeline = with(&bank);
        assert_eq!(run(&mut pipeline, &later), second, "{threads}");
        for name in ["numbers", "words", "hashes", "sites"] {
            let vocabulary = bank.open_vocabulary(name).unwrap();
            assert!(vocabulary.is_frozen());
            let sum: u64 =
                counts.iter().filter(|of| of.0.0 == name && *of.1 >= 3).map(|c| c.1).sum();
            assert_eq!(vocabulary.verify().unwrap().counted, Some(sum), "{name}, {threads}");
        }
    }
}

#[test]
fn a_threshold_in_memory_is_that_of_a_bank() {
    let settings = VocabularySpec {
        min_count: 2,
        unknown_id: Some(0),
        first_id: 1,
        ..VocabularySpec::new("sites")
    };
    let site = numbered("site", "site", "sites", &[Operator::Modulus(MODULUS)]);
    let spec = Spec {
        fields: vec![Field::new("site", FieldKind::Hex32).required()],
        columns: vec![site],
        outputs: vec![Output::new("ids", Dtype::I64, ["site"])],
        vocabularies: vec![settings],
        ..Spec::default()
    };
    assert_eq!(Spec::from_json(&spec.to_json()).unwrap(), spec);
    let json = spec.to_json().replace("\"min_count\"", "\"least\"");
    assert!(Spec::from_json(&json).is_err());
    let text: String = (0..500).map(|row| format!("{:x}\n", draw(row, 0) % (row + 1))).collect();
    let ids = |pipeline: &mut Pipeline| {
        let mut ids = Vec::new();
        let input = [Input::memory("text", text.as_bytes())];
        let consumer = &mut |batch: &mut Batch| {
            ids.extend_from_slice(batch.i64(0).unwrap());
            Ok(())
        };
        pipeline.run(&input, consumer).unwrap();
        ids
    };
    let in_memory = ids(&mut Pipeline::new(&spec, &options(3)).unwrap());
    assert!(in_memory.contains(&0) && in_memory.contains(&9));
    let folder = tempfile::tempdir().unwrap();
    let bank = open(&folder.path().join("bank"));
    let mut pipeline = Pipeline::with_bank(&spec, &options(2), &bank).unwrap();
    assert_eq!(ids(&mut pipeline), in_memory);
    assert_eq!(ids(&mut pipeline), in_memory, "a later run finds it frozen");
    let refused = Spec {
        vocabularies: vec![VocabularySpec { unknown_id: None, ..spec.vocabularies[0].clone() }],
        ..spec.clone()
    };
    let error = Pipeline::new(&refused, &options(1)).unwrap_err();
    assert!(error.to_string().contains("unknown_id"), "{error}");
    let refused = Spec { vocabularies: vec![VocabularySpec::new("other")], ..spec };
    let error = Pipeline::new(&refused, &options(1)).unwrap_err();
    assert!(error.to_string().contains("no column uses"), "{error}");
}

fn sites(modulus: u32) -> Spec {
    Spec {
        fields: vec![Field::new("site", FieldKind::Hex32).required()],
        columns: vec![numbered("site", "site", "sites", &[Operator::Modulus(modulus)])],
        outputs: vec![Output::new("ids", Dtype::I64, ["site"])],
        ..Spec::default()
    }
}

fn run_sites(pipeline: &mut Pipeline, text: &str) -> Result<Vec<i64>, Error> {
    let mut ids = Vec::new();
    let input = [Input::memory("text", text.as_bytes())];
    let consumer = &mut |batch: &mut Batch| {
        ids.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    };
    pipeline.run(&input, consumer).map(|_| ids)
}

#[test]
fn a_table_and_a_bank_that_do_not_fit_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(&folder.path().join("bank"));
    let mut pipeline = Pipeline::with_bank(&sites(100), &options(1), &bank).unwrap();
    assert_eq!(run_sites(&mut pipeline, "63\n5\n").unwrap(), [0, 1]);
    pipeline.save().unwrap();
    // Another user inserts while the pipeline has no unsaved values: the pipeline adopts the
    // insertion.
    let vocabulary = bank.open_vocabulary("sites").unwrap();
    vocabulary.ids_or_insert(&[7], &mut [0]).unwrap();
    assert_eq!(run_sites(&mut pipeline, "7\n8\n").unwrap(), [2, 3]);
    // Another user inserts while the pipeline has unsaved values: the save fails.
    vocabulary.ids_or_insert(&[9], &mut [0]).unwrap();
    let error = pipeline.save().unwrap_err();
    assert!(matches!(error, Error::VocabularyChanged { .. }), "{error}");
    assert!(error.to_string().contains("has grown from 3 to 4 values"), "{error}");
    let error = run_sites(&mut pipeline, "8\n").unwrap_err();
    assert!(matches!(error, Error::VocabularyChanged { .. }), "{error}");
    // The bank has a value that is not below the modulus.
    let error = Pipeline::with_bank(&sites(99), &options(1), &bank).unwrap_err();
    assert!(matches!(error, Error::ValueOutOfRange { value: 99, id: 0, range: 99, .. }), "{error}");
    // The bank's vocabulary has another kind of values, then other settings.
    bank.drop_vocabulary("sites").unwrap();
    bank.vocabulary("sites", VocabularyConfig::bytes()).unwrap();
    let error = Pipeline::with_bank(&sites(99), &options(1), &bank).unwrap_err();
    assert!(error.to_string().contains("has bytes values"), "{error}");
    bank.drop_vocabulary("sites").unwrap();
    bank.vocabulary("sites", VocabularyConfig::u64().first_id(4)).unwrap();
    let spec = Spec { vocabularies: vec![VocabularySpec::new("sites")], ..sites(99) };
    let error = Pipeline::with_bank(&spec, &options(1), &bank).unwrap_err();
    assert!(error.to_string().contains("first_id"), "{error}");
    // Without settings in the spec, the bank's settings apply.
    let mut pipeline = Pipeline::with_bank(&sites(99), &options(1), &bank).unwrap();
    assert_eq!(run_sites(&mut pipeline, "7\n8\n").unwrap(), [4, 5]);
}

#[test]
fn frozen_vocabularies_do_what_their_config_says() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(&folder.path().join("bank"));
    let words = Spec {
        fields: vec![Field::new("site", FieldKind::Bytes).required()],
        columns: vec![numbered("site", "site", "words", &[])],
        outputs: vec![Output::new("ids", Dtype::I64, ["site"])],
        ..Spec::default()
    };
    for spec in [sites(100), words] {
        let is_text = spec.fields[0].kind == FieldKind::Bytes;
        let name = if is_text { "words" } else { "sites" };
        for unknown in [None, Some(1)] {
            let config = if is_text { VocabularyConfig::bytes() } else { VocabularyConfig::u64() };
            let mut config = config.first_id(2);
            config.unknown_id = unknown;
            let vocabulary = bank.vocabulary(name, config).unwrap();
            let mut pipeline = Pipeline::with_bank(&spec, &options(2), &bank).unwrap();
            assert_eq!(run_sites(&mut pipeline, "7\n8\n7\n").unwrap(), [2, 3, 2]);
            pipeline.save().unwrap();
            vocabulary.set_frozen(true).unwrap();
            let outcome = run_sites(&mut pipeline, "8\n9\n7\n");
            match unknown {
                Some(_) => assert_eq!(outcome.unwrap(), [3, 1, 2]),
                _ => {
                    let error = outcome.unwrap_err().to_string();
                    assert!(error.contains('9') && error.contains("frozen"), "{error}");
                }
            }
            vocabulary.set_frozen(false).unwrap();
            assert_eq!(run_sites(&mut pipeline, "9\n7\n").unwrap(), [4, 2]);
            drop(pipeline);
            bank.drop_vocabulary(name).unwrap();
        }
    }
}

#[test]
fn a_consumer_may_take_checkpoints_if_each_batch_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(&folder.path().join("bank"));
    let mut pipeline = Pipeline::with_bank(&sites(1000), &options(2), &bank).unwrap();
    pipeline.save_each_batch(true);
    let text: String = (0..900).map(|row| format!("{row:x}\n")).collect();
    let vocabulary = bank.open_vocabulary("sites").unwrap();
    let mut rows = 0;
    pipeline
        .run(&[Input::memory("text", text.as_bytes())], &mut |batch: &mut Batch| {
            rows += batch.rows() as u64;
            assert_eq!(vocabulary.len(), rows);
            Ok(())
        })
        .unwrap();
    assert_eq!(rows, 900);
}

#[test]
fn an_id_that_an_output_cannot_show_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let bank = open(&folder.path().join("bank"));
    bank.vocabulary("words", VocabularyConfig::bytes().first_id((1 << 31) - 1)).unwrap();
    for (dtype, fits) in [(Dtype::I32, false), (Dtype::Bits32, true), (Dtype::I64, true)] {
        let spec = Spec {
            fields: vec![Field::new("word", FieldKind::Bytes).required()],
            columns: vec![numbered("word", "word", "words", &[])],
            outputs: vec![Output::new("ids", dtype, ["word"])],
            ..Spec::default()
        };
        // The second value's id is 2^31. In the second round the bank already knows both values.
        for _ in 0..2 {
            let mut pipeline = Pipeline::with_bank(&spec, &options(1), &bank).unwrap();
            let input = [Input::memory("words", b"a\nb\n")];
            let outcome = pipeline.run(&input, &mut |_: &mut Batch| Ok(()));
            match outcome {
                Ok(_) => assert!(fits, "{dtype:?}"),
                Err(Error::IdTooLarge { id, limit, .. }) => {
                    assert_eq!((fits, id, limit), (false, 1 << 31, (1 << 31) - 1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    let words = bank.open_vocabulary("words").unwrap();
    let mut ids = [0; 2];
    words.ids(&ByteBuffer::from_iter(["a", "b"]), &mut ids).unwrap();
    assert_eq!(ids, [(1 << 31) - 1, 1 << 31]);
}

#[test]
fn values_without_a_bound_want_a_bank_and_one_kind_a_vocabulary() {
    let error = Pipeline::new(&spec(vec![]), &options(1)).unwrap_err();
    assert!(error.to_string().contains("Pipeline::with_bank"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let bank = open(&folder.path().join("bank"));
    let mut mixed = spec(vec![]);
    mixed.columns[5] = numbered(
        "site",
        "site",
        "hashes",
        &[Operator::FillMissing(0.into()), Operator::Modulus(9)],
    );
    let error = Pipeline::with_bank(&mixed, &options(1), &bank).unwrap_err();
    assert!(error.to_string().contains("shares vocabulary \"hashes\""), "{error}");
    let mut floats = spec(vec![]);
    floats.columns[0] =
        numbered("small", "small", "numbers", &[Operator::FillMissing(0.into()), Operator::Float]);
    let error = Pipeline::with_bank(&floats, &options(1), &bank).unwrap_err();
    assert!(error.to_string().contains("whole numbers and text"), "{error}");
}

#[test]
fn a_vocabulary_that_can_not_be_taken_over_is_refused_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let bank = open(&dir.path().join("bank"));
    let new = VocabularySpec::new("v");
    let spec = Spec {
        fields: vec![Field::new("n", FieldKind::Int32).required()],
        columns: vec![numbered("n", "n", "v", &[Operator::Modulus(5)])],
        outputs: vec![Output::new("ids", Dtype::I64, ["n"])],
        vocabularies: vec![VocabularySpec { counts: true, ..new }],
        ..Spec::default()
    };
    let mut pipeline = Pipeline::with_bank(&spec, &options(1), &bank).unwrap();
    let input = [Input::memory("numbers", b"1\n2\n3\n")];
    pipeline.run(&input, &mut |_: &mut Batch| Ok(())).unwrap();
    pipeline.save().unwrap();
    // Another user of the bank renumbers the vocabulary and adds a value above the modulus. The
    // number of values stays the same.
    let vocabulary = bank.open_vocabulary("v").unwrap();
    vocabulary.count(&[0, 2]).unwrap();
    vocabulary.keep_frequent(1).unwrap();
    let values = [7_u64];
    vocabulary.ids_or_insert(&values, &mut [0]).unwrap();
    assert_eq!(vocabulary.len(), 3);
    for _ in 0..2 {
        let error = pipeline.run(&input, &mut |_: &mut Batch| Ok(())).unwrap_err();
        assert!(matches!(error, Error::ValueOutOfRange { value: 7, .. }), "{error}");
    }
}
