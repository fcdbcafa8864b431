//! Compares whole pipelines with plain Rust: all operators, levels and numbers of threads.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Header, Input, Level, Operator,
    Output, Pipeline, RunOptions, RunReport, Spec, Value,
};

/// Returns all rows of the first output, and the report.
fn run(spec: &Spec, options: &RunOptions, inputs: &[Input<'_>]) -> (Vec<u32>, RunReport) {
    let mut rows = Vec::new();
    let mut pipeline = Pipeline::new(spec, options).unwrap();
    let report = pipeline
        .run(inputs, &mut |batch: &mut Batch| {
            assert_eq!(batch.first_row() as usize * batch.infos()[0].columns.len(), rows.len());
            rows.extend_from_slice(batch.bits32(0).unwrap());
            Ok(())
        })
        .unwrap();
    (rows, report)
}

/// Makes rows in the Criteo format. Values repeat, some fields are empty, and some integers are
/// negative or long.
fn criteo_text(rows: u64) -> String {
    let mut text = String::new();
    for row in 0..rows {
        let draw = |field: u64| (row * 41 + field).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let mut fields = vec![(draw(0) % 2).to_string()];
        for field in 1..14 {
            let value = draw(field) % 3000;
            fields.push(match draw(field) % 11 {
                0 => String::new(),
                1 => format!("-{}", value % 3),
                2 => format!("{}", 1_000_000_000 + value),
                _ => value.to_string(),
            });
        }
        for field in 14..40 {
            let value = draw(field) % (20 << (field % 13));
            let value = (value.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 16) as u32;
            fields.push(if draw(field) % 23 == 0 { String::new() } else { format!("{value:08x}") });
        }
        text += &fields.join("\t");
        text += "\n";
    }
    text
}

/// Returns the expected rows: label, logarithms, ids.
fn criteo_reference(text: &str, modulus: u32) -> Vec<Vec<f64>> {
    let mut ids = vec![HashMap::new(); 26];
    let row = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        let mut row = vec![fields[0].parse().unwrap()];
        for field in &fields[1..14] {
            let value: i64 = if field.is_empty() { 0 } else { field.parse().unwrap() };
            row.push((value.max(0) as f64).ln_1p());
        }
        for (ids, field) in ids.iter_mut().zip(&fields[14..]) {
            let value = if field.is_empty() { 0 } else { u32::from_str_radix(field, 16).unwrap() };
            let fresh = ids.len();
            row.push(*ids.entry(value % modulus).or_insert(fresh) as f64);
        }
        row
    };
    text.lines().map(row).collect()
}

fn assert_criteo(rows: &[u32], expected: &[Vec<f64>]) {
    assert_eq!(rows.len(), expected.len() * 40);
    for (row, expected) in rows.chunks_exact(40).zip(expected) {
        for (field, (&bits, &expected)) in row.iter().zip(expected).enumerate() {
            if (1..14).contains(&field) {
                let got = f64::from(f32::from_bits(bits));
                assert!((got - expected).abs() <= 2.5e-7 * expected, "{got} for {expected}");
            } else {
                assert_eq!(f64::from(bits), expected);
            }
        }
    }
}

#[test]
fn criteo_rows_are_the_same_with_any_threads_levels_and_chunks() {
    let text = criteo_text(5000);
    let expected = criteo_reference(&text, 997);
    let spec = Spec::criteo(997);
    for level in Level::available() {
        for (threads, chunk_bytes) in [(1, 512 << 10), (2, 3000), (3, 20_000), (8, 777)] {
            let options = RunOptions { threads, level, chunk_bytes, ..RunOptions::default() };
            let (rows, report) = run(&spec, &options, &[Input::memory("text", text.as_bytes())]);
            assert_criteo(&rows, &expected);
            assert_eq!((report.rows, report.bad_rows), (5000, 0));
            assert_eq!(report.bytes, text.len() as u64);
        }
    }
}

#[test]
fn packed_rows_become_what_their_text_becomes() {
    let text = criteo_text(1500).replace("\t1000000", "\t1");
    let mut packed = Vec::new();
    for line in text.lines() {
        for (i, field) in line.split('\t').enumerate() {
            let value = match (i, field) {
                (_, "") => 0,
                (0..14, field) => field.parse::<i32>().unwrap().cast_unsigned(),
                (_, field) => u32::from_str_radix(field, 16).unwrap(),
            };
            packed.extend_from_slice(&value.to_le_bytes());
        }
    }
    let spec = Spec::criteo(5000);
    let (expected, _) =
        run(&spec, &RunOptions::default(), &[Input::memory("text", text.as_bytes())]);
    for level in Level::available() {
        let options = RunOptions {
            threads: 3,
            level,
            format: Format::Packed,
            chunk_bytes: 5000,
            ..RunOptions::default()
        };
        let (rows, report) = run(&spec, &options, &[Input::memory("packed", &packed)]);
        assert_eq!(rows, expected, "{level}");
        assert_eq!(report.rows, 1500);
    }
    let options = RunOptions { format: Format::Packed, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let cut = [Input::memory("cut", &packed[..packed.len() - 3])];
    let error = pipeline.run(&cut, &mut |_: &mut Batch| Ok(())).unwrap_err();
    assert!(matches!(error, Error::NoWholeRows { .. }), "{error}");
}

#[test]
fn real_rows_of_criteo() {
    let folder = std::env::var_os("EMBANK_DATA").map(std::path::PathBuf::from);
    let folder =
        folder.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data").into());
    let path = folder.join("criteo_tiny/train.tsv");
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: {} is not there", path.display());
        return;
    };
    let expected = criteo_reference(&text, 5000);
    let (rows, _) = run(&Spec::criteo(5000), &RunOptions::default(), &[Input::file(&path)]);
    assert_criteo(&rows, &expected);
}

fn text_spec() -> Spec {
    let field = |name: &str, kind| Field::new(name, kind);
    Spec {
        fields: vec![
            field("small", FieldKind::Int32),
            field("large", FieldKind::Int64).required(),
            field("ratio", FieldKind::Float32),
            field("word", FieldKind::Bytes),
            field("ignored", FieldKind::Skip),
            field("site", FieldKind::Bytes),
        ],
        columns: vec![
            Column::field("small").then(Operator::FillMissing(Value::Int(-7))),
            Column { name: "clipped".into(), ..Column::field("small") }
                .then(Operator::FillMissing(Value::Int(5)))
                .then(Operator::Clip { low: 0.0, high: 10.0 }),
            Column { name: "bucket".into(), ..Column::field("small") }
                .then(Operator::FillMissing(Value::Int(0)))
                .then(Operator::Bucketize(vec![-1.0, 0.5, 3.0])),
            Column::field("large").then(Operator::Modulus(10)),
            Column::field("ratio").then(Operator::FillMissing(Value::Float(0.5))),
            Column { name: "positive".into(), ..Column::field("ratio") }
                .then(Operator::FillMissing(Value::Float(0.0)))
                .then(Operator::Neg2Zero)
                .then(Operator::Logarithm),
            Column::field("word")
                .then(Operator::FillMissing("none".into()))
                .then(Operator::Hash { seed: 3 })
                .then(Operator::Modulus(1000))
                .then(Operator::Vocabulary("word".into())),
            Column::field("site").then(Operator::FillMissing("ff".into())).then(Operator::Hex2Int),
            Column::cross("both", "large", "site")
                .then(Operator::Modulus(1 << 20))
                .then(Operator::Vocabulary("both".into())),
        ],
        outputs: vec![
            Output::new(
                "ints",
                Dtype::I32,
                ["small", "clipped", "bucket", "large", "word", "both"],
            ),
            Output::new("floats", Dtype::F32, ["ratio", "positive", "clipped"]),
            Output::new("wide", Dtype::I64, ["small", "word"]),
            Output::new("bits", Dtype::Bits32, ["site"]),
        ],
        ..Spec::default()
    }
}

#[test]
fn every_operator_in_one_pipeline() {
    let text = "small,large,ratio,word,ignored,site\n\
                3,12,1.5,apple,x,1f\r\n\
                ,-12,,,y,\n\
                -2,5000000000,-3,apple,,AB\n\
                99,1,0.25,pear,z,1f";
    for level in Level::available() {
        let options = RunOptions { level, format: Format::CSV, ..RunOptions::default() };
        let mut pipeline = Pipeline::new(&text_spec(), &options).unwrap();
        let mut batches = Vec::new();
        let input = [Input::memory("text", text.as_bytes())];
        pipeline
            .run(&input, &mut |batch: &mut Batch| {
                batches.push(batch.take());
                Ok(())
            })
            .unwrap();
        let batch = &batches[0];
        let expected =
            [[3, 3, 3, 2, 0, 0], [-7, 5, 1, 8, 1, 1], [-2, 0, 0, 0, 0, 2], [99, 10, 3, 1, 2, 3]];
        assert_eq!(batch.i32(0).unwrap(), expected.as_flattened(), "{level}");
        let log = |x: f32| x.ln_1p();
        let expected =
            [[1.5, log(1.5), 3.0], [0.5, 0.0, 5.0], [-3.0, 0.0, 0.0], [0.25, log(0.25), 10.0]];
        for (got, expected) in batch.f32(1).unwrap().iter().zip(expected.as_flattened()) {
            assert!((got - expected).abs() <= 2.5e-7, "{level}: {got} for {expected}");
        }
        assert_eq!(batch.i64(2).unwrap(), [3, 0, -7, 1, -2, 0, 99, 2], "{level}");
        assert_eq!(batch.bits32(3).unwrap(), [0x1F, 0xFF, 0xAB, 0x1F], "{level}");
        assert!(batch.f32(0).is_none() && batch.i64(0).is_none() && batch.i32(9).is_none());
    }
}

#[test]
fn columns_that_share_a_vocabulary_number_row_by_row() {
    let spec = Spec {
        fields: vec![Field::new("from", FieldKind::Hex32), Field::new("to", FieldKind::Hex32)],
        columns: ["to", "from"]
            .map(|name| {
                Column::field(name)
                    .then(Operator::FillMissing(Value::Int(0)))
                    .then(Operator::Modulus(100))
                    .then(Operator::Vocabulary("page".into()))
            })
            .into(),
        outputs: vec![Output::new("edge", Dtype::Bits32, ["from", "to"])],
        ..Spec::default()
    };
    let text = "5\t7\n7\t5\n9\t8\n1\t9\n".repeat(20);
    // Within a row, the first column of the spec gets its id first.
    let expected = [[1, 0], [0, 1], [3, 2], [4, 3]].as_flattened().repeat(20);
    for threads in [1, 4] {
        let options = RunOptions { threads, chunk_bytes: 10, ..RunOptions::default() };
        let (rows, _) = run(&spec, &options, &[Input::memory("text", text.as_bytes())]);
        assert_eq!(rows, expected, "{threads} threads");
    }
}

#[test]
fn a_second_run_goes_on_numbering() {
    let text = |range: std::ops::Range<u32>| -> String {
        range
            .map(|value| format!("0{}{}\n", "\t1".repeat(13), format!("\t{value:x}").repeat(26)))
            .collect()
    };
    let mut pipeline = Pipeline::new(&Spec::criteo(1000), &RunOptions::default()).unwrap();
    let mut ids = Vec::new();
    for part in [text(10..20), text(15..25)] {
        let input = [Input::memory("part", part.as_bytes())];
        pipeline
            .run(&input, &mut |batch: &mut Batch| {
                ids.extend(batch.bits32(0).unwrap().chunks(40).map(|row| row[39]));
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(ids, (0..10).chain(5..15).collect::<Vec<_>>());
    for (_, values) in pipeline.vocabularies() {
        assert_eq!(values, (10..25).collect::<Vec<_>>());
    }
}

#[test]
fn bad_rows_are_named_by_line_and_column_in_the_order_of_the_input() {
    let good = format!("0{}{}\n", "\t1".repeat(13), "\tff".repeat(26));
    let bad = good.replacen("\tff", "\tgg", 1);
    let text = [good.repeat(30), bad.clone(), good.repeat(30), "1\t2\n".into(), good].concat();
    let inputs = [Input::memory("first.tsv", b"0\n"), Input::memory("second.tsv", text.as_bytes())];
    for threads in [1, 3] {
        let options = RunOptions { threads, chunk_bytes: 500, ..RunOptions::default() };
        let spec = Spec { bad_rows: BadRows::Skip, ..Spec::criteo(100) };
        let (rows, report) = run(&spec, &options, &inputs);
        assert_eq!((rows.len(), report.rows, report.bad_rows), (61 * 40, 61, 3));
        let said: Vec<_> = report.first_bad_rows.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "first.tsv:1: has 1 field, and the pipeline's rows have 40: it is read as text with the separator \
                 \"\\t\", which it does not have; for text with commas and a header give `format: csv`, for other \
                 text a `separator`",
                "second.tsv:31:29: field \"C1\", \"gg\", is not a hexadecimal number",
                "second.tsv:62: has 2 fields, and the pipeline's rows have 40, separated by \"\\t\"",
            ]
        );
        let mut pipeline = Pipeline::new(&Spec::criteo(100), &options).unwrap();
        let error = pipeline.run(&inputs[1..], &mut |_: &mut Batch| Ok(())).unwrap_err();
        assert!(error.to_string().starts_with("second.tsv:31:29: field \"C1\""), "{error}");
    }
}

#[test]
fn a_consumer_ends_the_run_and_a_panic_does_not_hang_it() {
    let text = criteo_text(2000);
    let inputs = [Input::memory("text", text.as_bytes())];
    let options = RunOptions { threads: 4, chunk_bytes: 1000, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&Spec::criteo(100), &options).unwrap();
    let mut batches = 0;
    let error = pipeline.run(&inputs, &mut |_: &mut Batch| {
        batches += 1;
        if batches == 10 { Err("the disk is full".into()) } else { Ok(()) }
    });
    assert!(matches!(error, Err(Error::Consumer(why)) if why.to_string() == "the disk is full"));
    assert_eq!(batches, 10);
    let error = pipeline.run(&inputs, &mut |_: &mut Batch| panic!("a defect"));
    assert!(matches!(error, Err(Error::Panicked(text)) if text == "a defect"));
}

#[test]
fn a_pipeline_that_makes_no_sense_is_refused_with_the_cure() {
    let field = |kind| Spec {
        fields: vec![Field::new("x", kind)],
        outputs: vec![Output::new("out", Dtype::F32, ["x"])],
        ..Spec::default()
    };
    let with = |kind, operators: &[Operator]| {
        let column = Column { operators: operators.to_vec(), ..Column::field("x") };
        Spec { columns: vec![column], ..field(kind) }
    };
    let fill = Operator::FillMissing(Value::Int(0));
    let vocabulary = Operator::Vocabulary("v".into());
    let cases = [
        (field(FieldKind::Int32), "no column is named"),
        (with(FieldKind::Skip, &[]), "skipped"),
        (with(FieldKind::Int32, &[]), "may be missing"),
        (with(FieldKind::Int32, &[Operator::Logarithm]), "FillMissing before Logarithm"),
        (with(FieldKind::Int32, &[fill.clone(), Operator::Logarithm]), "Neg2Zero"),
        (with(FieldKind::Int32, &[fill.clone(), Operator::Modulus(0)]), "from 1 to 2^31"),
        (with(FieldKind::Int32, &[fill.clone(), vocabulary.clone()]), "Modulus"),
        (with(FieldKind::Int32, &[fill.clone(), Operator::Hex2Int]), "Hex2Int"),
        (
            with(FieldKind::Int32, &[Operator::FillMissing("a".into())]),
            "FillMissing has \"a\", and the values are whole numbers of 32 bits",
        ),
        (
            with(FieldKind::Hex32, &[Operator::FillMissing(Value::Int(-1))]),
            "FillMissing has -1, and the values are unsigned",
        ),
        (with(FieldKind::Float32, &[fill.clone(), Operator::Modulus(5)]), "whole numbers"),
        (with(FieldKind::Bytes, &[Operator::FillMissing("".into())]), "text"),
        (
            with(
                FieldKind::Hex32,
                &[fill.clone(), Operator::Modulus(5), vocabulary.clone(), fill.clone()],
            ),
            "last operator",
        ),
        (with(FieldKind::Hex32, &[fill.clone(), Operator::Modulus(5), vocabulary]), "no floats"),
        (
            with(FieldKind::Int32, &[fill.clone(), Operator::Clip { low: 2.0, high: 1.0 }]),
            "no values",
        ),
        (
            with(FieldKind::Int32, &[fill.clone(), Operator::Clip { low: 0.5, high: 1.0 }]),
            "whole ends",
        ),
        (with(FieldKind::Int32, &[fill, Operator::Bucketize(vec![2.0, 1.0])]), "ascend"),
    ];
    for (spec, cure) in cases {
        let error = Pipeline::new(&spec, &RunOptions::default()).unwrap_err();
        assert!(
            matches!(error, Error::Spec(_)) && error.to_string().contains(cure),
            "{error}: {cure}"
        );
    }
    let options = RunOptions { format: Format::Packed, ..RunOptions::default() };
    let error = Pipeline::new(&text_spec(), &options).unwrap_err();
    assert!(error.to_string().contains("32 bits"), "{error}");
    let options = RunOptions { threads: 0, ..RunOptions::default() };
    assert!(matches!(Pipeline::new(&Spec::criteo(5), &options), Err(Error::Spec(_))));
    for chunk_bytes in [0, usize::MAX] {
        let options = RunOptions { chunk_bytes, ..RunOptions::default() };
        assert!(matches!(Pipeline::new(&Spec::criteo(5), &options), Err(Error::Spec(_))));
    }
}

#[test]
fn nothing_comes_of_nothing() {
    for text in ["", "label\n"] {
        let options = RunOptions {
            format: Format::Text { separator: b'\t'.into(), header: Header::Skip, quote: None },
            ..RunOptions::default()
        };
        let (rows, report) =
            run(&Spec::criteo(5), &options, &[Input::memory("empty", text.as_bytes())]);
        assert_eq!((rows.len(), report.rows), (0, 0));
    }
}

/// A consumer may take the batch itself and leave an empty batch in its place.
#[test]
fn a_batch_that_is_replaced_costs_no_rows() {
    let text = criteo_text(1000);
    let options = RunOptions { threads: 2, chunk_bytes: 5000, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&Spec::criteo(100), &options).unwrap();
    let mut rows = Vec::new();
    let inputs = [Input::memory("text", text.as_bytes())];
    pipeline
        .run(&inputs, &mut |batch: &mut Batch| {
            rows.extend_from_slice(std::mem::take(batch).bits32(0).unwrap());
            Ok(())
        })
        .unwrap();
    assert_criteo(&rows, &criteo_reference(&text, 100));
}

#[test]
fn an_open_quote_in_a_header_is_a_bad_row() {
    let text = format!("a,\"b\n{}", "1,2\n".repeat(100));
    let fields = ["a", "b"].map(|name| Field::new(name, FieldKind::Int32).required()).to_vec();
    let spec = Spec {
        fields,
        columns: vec![Column::field("a")],
        outputs: vec![Output::new("a", Dtype::I32, ["a"])],
        ..Spec::default()
    };
    let options = RunOptions { format: Format::CSV, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let inputs = [Input::memory("open.csv", text.as_bytes())];
    let error = pipeline.run(&inputs, &mut |_: &mut Batch| Ok(())).unwrap_err();
    assert!(error.to_string().starts_with("open.csv:1:"), "{error}");
}

#[test]
fn columns_of_one_text_are_filled_apart() {
    let column = |name: &str, fill: &str| {
        Column { name: name.into(), ..Column::field("s") }
            .then(Operator::FillMissing(fill.into()))
            .then(Operator::Hash { seed: 1 })
            .then(Operator::Modulus(1 << 30))
    };
    for (first, second) in [("x", ""), ("", "x"), ("x", "y")] {
        let spec = Spec {
            fields: vec![Field::new("s", FieldKind::Bytes), Field::new("t", FieldKind::Bytes)],
            columns: vec![column("a", first), column("b", second)],
            outputs: vec![Output::new("both", Dtype::Bits32, ["a", "b"])],
            ..Spec::default()
        };
        let text = format!("\t\n{first}\t\n{second}\t\n");
        let options = RunOptions::default();
        let (rows, _) = run(&spec, &options, &[Input::memory("text", text.as_bytes())]);
        // Row 0 has an empty field, row 1 the first column's fill value as text, and row 2 the
        // second column's. An empty fill value reads as a missing value, so its row is not
        // compared.
        let hash_of = |fill: &str, row: usize, place: usize| {
            (!fill.is_empty()).then(|| rows[row * 2 + place])
        };
        assert!(hash_of(first, 1, 0).is_none_or(|hash| rows[0] == hash), "{first:?}, {second:?}");
        assert!(hash_of(second, 2, 1).is_none_or(|hash| rows[1] == hash), "{first:?}, {second:?}");
        assert_ne!(rows[0], rows[1], "{first:?}, {second:?}");
    }
}

#[test]
fn a_required_field_that_no_column_uses_is_checked() {
    let spec = Spec {
        fields: vec![
            Field::new("a", FieldKind::Int32).required(),
            Field::new("b", FieldKind::Int32).required(),
        ],
        columns: vec![Column::field("a")],
        outputs: vec![Output::new("a", Dtype::I32, ["a"])],
        bad_rows: BadRows::Skip,
        ..Spec::default()
    };
    let mut pipeline = Pipeline::new(&spec, &RunOptions::default()).unwrap();
    let inputs = [Input::memory("text", b"1\t\n2\tx\n3\t4\n")];
    let report = pipeline.run(&inputs, &mut |_: &mut Batch| Ok(())).unwrap();
    assert_eq!((report.rows, report.bad_rows), (1, 2));
}

#[test]
fn ends_of_a_clip_stay_within_its_numbers() {
    let spec = |high: f64| Spec {
        fields: vec![Field::new("x", FieldKind::Hex32).required()],
        columns: vec![Column::field("x").then(Operator::Clip { low: 0.0, high })],
        outputs: vec![Output::new("x", Dtype::I32, ["x"])],
        ..Spec::default()
    };
    for high in [1e20, f64::INFINITY, f64::from(u32::MAX)] {
        let error = Pipeline::new(&spec(high), &RunOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Spec(_)), "{error}");
    }
    let mut negative = spec(1000.0);
    negative.columns[0].operators[0] = Operator::Clip { low: -5.0, high: -1.0 };
    let error = Pipeline::new(&negative, &RunOptions::default()).unwrap_err();
    assert!(error.to_string().contains("leaves no value to a column of unsigned"), "{error}");
    assert!(Pipeline::new(&spec(1000.0), &RunOptions::default()).is_ok());
}

/// A row with many faults is reported once, and its place is found in one pass over the row.
#[test]
fn many_faults_of_long_quoted_rows() {
    let fields = 2000;
    let names: Vec<_> = (0..fields).map(|i| format!("f{i}")).collect();
    let spec = Spec {
        fields: names.iter().map(|name| Field::new(name, FieldKind::Float32).required()).collect(),
        columns: vec![Column::field("f0")],
        outputs: vec![Output::new("f0", Dtype::F32, ["f0"])],
        bad_rows: BadRows::Skip,
        ..Spec::default()
    };
    let text = format!("\"1\"{}\n", ",1".repeat(fields - 1))
        + &format!("x{}\n", ",x".repeat(fields - 1)).repeat(50);
    let format = Format::Text { separator: b','.into(), header: Header::None, quote: Some(b'"') };
    let options = RunOptions { format, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let inputs = [Input::memory("text", text.as_bytes())];
    let report = pipeline.run(&inputs, &mut |_: &mut Batch| Ok(())).unwrap();
    assert_eq!((report.rows, report.bad_rows), (1, 50));
    assert_eq!(
        report.first_bad_rows[0].to_string(),
        "text:2:1: field \"f0\", \"x\", is not a finite number"
    );
}

#[test]
fn a_run_inside_a_drop_of_an_unwinding_thread_is_a_run_as_any() {
    struct RunsWhenDropped<'a>(&'a mut Vec<u64>);

    impl Drop for RunsWhenDropped<'_> {
        fn drop(&mut self) {
            let text = criteo_text(400);
            let options = RunOptions { threads: 3, chunk_bytes: 3000, ..RunOptions::default() };
            // Repeated, because a different thread may end first in each run.
            for _ in 0..30 {
                let mut pipeline = Pipeline::new(&Spec::criteo(50), &options).unwrap();
                let input = [Input::memory("rows", text.as_bytes())];
                let report = pipeline.run(&input, &mut |_: &mut Batch| Ok(())).unwrap();
                self.0.push(report.rows);
            }
        }
    }

    let mut rows = Vec::new();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _runs = RunsWhenDropped(&mut rows);
        panic!("as a trainer might");
    }));
    assert!(unwound.is_err());
    assert_eq!(rows, [400; 30]);
}

#[test]
fn of_many_bad_rows_the_first_are_reported_and_all_counted() {
    let spec = Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("w", FieldKind::Int32).required(),
        ],
        columns: vec![Column::field("n"), Column::field("w")],
        outputs: vec![Output::new("n", Dtype::Bits32, ["n", "w"])],
        bad_rows: BadRows::Skip,
        bad_rows_max: 1.0,
        ..Spec::default()
    };
    // Four kinds of rows: wrong number of fields, one bad number, two bad numbers, good.
    let text = "1\nx\t1\ny\tz\n1\t2\n".repeat(3000);
    for (chunk_bytes, quote) in
        [(1 << 20, None), (1 << 20, Some(b'"')), (70, None), (70, Some(b'"'))]
    {
        let text = if quote.is_some() { text.replace('z', "\"z\"") } else { text.clone() };
        let format = Format::Text { separator: b'\t'.into(), header: Header::Skip, quote };
        let options = RunOptions { chunk_bytes, format, ..RunOptions::default() };
        let (_, report) = run(&spec, &options, &[Input::memory("rows", text.as_bytes())]);
        assert_eq!((report.rows, report.bad_rows), (3000, 8999), "{chunk_bytes} {quote:?}");
        let lines: Vec<_> = report.first_bad_rows.iter().map(|bad| bad.line).collect();
        assert_eq!(lines, [2, 3, 5, 6, 7, 9, 10, 11, 13, 14], "{chunk_bytes} {quote:?}");
    }
}
