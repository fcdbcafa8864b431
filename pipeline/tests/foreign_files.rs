//! Tests files of columns that break a rule of their format, names that differ in case, folders
//! that name values, and files with many columns.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, BinaryArray, DictionaryArray, Int32Array, Int64Array, RecordBatch};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{DataType, Field as ArrowField, Schema};
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Input, Operator, Output,
    Pipeline, RunOptions, RunReport, Spec,
};
use parquet::arrow::ArrowWriter;

fn spec(names: &[&str], kind: FieldKind) -> Spec {
    let column = |name: &&str| match kind {
        FieldKind::Bytes => Column::field(*name)
            .then(Operator::FillMissing("none".into()))
            .then(Operator::Hash { seed: 1 })
            .then(Operator::Modulus(1 << 30)),
        _ => Column::field(*name).then(Operator::FillMissing((-7).into())),
    };
    Spec {
        fields: names.iter().map(|name| Field::new(*name, kind)).collect(),
        columns: names.iter().map(column).collect(),
        outputs: vec![Output::new("x", Dtype::I64, names.to_vec())],
        bad_rows: BadRows::Skip,
        ..Spec::default()
    }
}

fn run(spec: &Spec, inputs: &[Input<'_>]) -> Result<(Vec<i64>, RunReport), Error> {
    let options = RunOptions { format: Format::Columns, threads: 2, ..RunOptions::default() };
    let mut rows = Vec::new();
    let report = Pipeline::new(spec, &options)?.run(inputs, &mut |batch: &mut Batch| {
        rows.extend_from_slice(batch.i64(0).unwrap());
        Ok(())
    })?;
    Ok((rows, report))
}

fn parquet(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_file(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Replaces each `from` in `bytes` by `to`, of the same length.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let places: Vec<_> = memchr_places(bytes, from);
    assert!(!places.is_empty());
    for place in places {
        bytes[place..place + to.len()].copy_from_slice(to);
    }
}

fn memchr_places(bytes: &[u8], of: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(of.len()).enumerate();
    windows.filter(|(_, window)| *window == of).map(|(place, _)| place).collect()
}

/// Regression test: text that is not UTF-8 in a column of text ended the run without a row, and
/// without the value. In a column of bytes it is read.
#[test]
fn text_that_is_not_utf8_is_a_bad_row_with_its_number() {
    let words = ["first", "wrong", "", "last, of more bytes than a view holds inline"];
    let text: ArrayRef = Arc::new(arrow_array::StringArray::from(words.to_vec()));
    let large: ArrayRef = Arc::new(arrow_array::LargeStringArray::from(words.to_vec()));
    let view: ArrayRef = Arc::new(arrow_array::StringViewArray::from(words.to_vec()));
    let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::from_iter(words));
    let spec = spec(&["x"], FieldKind::Bytes);
    for column in [text, large, view, dictionary] {
        let kind = column.data_type().clone();
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        for mut bytes in [parquet(&batch), arrow_file(&batch), arrow_stream(&batch)] {
            let expected = run(&spec, &[Input::memory("t", &bytes)]).unwrap().0;
            replace(&mut bytes, b"wrong", b"\xffrong");
            let (rows, report) = run(&spec, &[Input::memory("t", &bytes)]).unwrap();
            assert_eq!(rows, [expected[0], expected[2], expected[3]], "{kind}");
            let bad = report.first_bad_rows[0].to_string();
            for part in ["t:2:", "\"x\"", "rong", "not UTF-8", "binary"] {
                assert!(bad.contains(part), "{part}: {bad}");
            }
            let strict = Spec { bad_rows: BadRows::Fail, ..spec.clone() };
            let error = run(&strict, &[Input::memory("t", &bytes)]).unwrap_err();
            assert!(matches!(error, Error::BadRow(_)), "{error}");
        }
    }
    let plain: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xffrong"[..]]));
    let batch = RecordBatch::try_from_iter([("x", plain)]).unwrap();
    assert_eq!(run(&spec, &[Input::memory("t", &parquet(&batch))]).unwrap().0.len(), 1);
}

fn numbers(name: &str, values: &[i64]) -> RecordBatch {
    let values: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    let other: ArrayRef = Arc::new(Int64Array::from(vec![0; values.len()]));
    RecordBatch::try_from_iter([(name, values), ("other", other)]).unwrap()
}

/// Regression test: the field `user_id` was missing in all rows of a file that calls its column
/// `User_ID`, without an error.
#[test]
fn a_column_whose_name_differs_in_case_is_an_error_that_names_both() {
    let good = parquet(&numbers("user_id", &[1, 2]));
    let fields = spec(&["user_id", "other"], FieldKind::Int64);
    for name in ["User_ID", "USER_ID", " user_id"] {
        for bytes in [parquet(&numbers(name, &[3])), arrow_stream(&numbers(name, &[3]))] {
            let inputs = [Input::memory("good", &good), Input::memory("other", &bytes)];
            let error = run(&fields, &inputs).unwrap_err().to_string();
            for part in ["other: ", "no column \"user_id\"", &format!("{name:?}")] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }
    // Two fields whose names differ in case only have a column each.
    let both = spec(&["user_id", "other", "Other"], FieldKind::Int64);
    let upper = parquet(&numbers("Other", &[5]));
    let lower = parquet(&numbers("user_id", &[6]));
    let inputs = [Input::memory("upper", &upper[..]), Input::memory("lower", &lower)];
    let (rows, report) = run(&both, &inputs).unwrap();
    assert_eq!((rows, report.missing_columns), (vec![-7, 0, 5, 6, 0, -7], 2));
}

#[test]
fn files_of_other_formats_are_named() {
    let fields = spec(&["x"], FieldKind::Int64);
    for (bytes, told) in [
        (&b"# Clicks\n\nCollected in May"[..], "text that begins with \"# Clicks\""),
        (b"FEA1\0\0\0\0 a table FEA1", "Feather V2"),
        (b"PARE encrypted PARE", "encrypted Parquet"),
    ] {
        let error = run(&fields, &[Input::memory("README.txt", bytes)]).unwrap_err().to_string();
        assert!(error.starts_with("README.txt: ") && error.contains(told), "{error}");
    }
}

fn write(path: &Path, values: &[i64]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, parquet(&numbers("x", values))).unwrap();
}

/// Regression test: a field that the folders `day=...` of a data set name was missing in all rows.
#[test]
fn folders_that_name_values_are_columns() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    write(&at("d/day=1/site=7/part-0.parquet"), &[10, 11]);
    write(&at("d/day=2/site=__HIVE_DEFAULT_PARTITION__/part-0.parquet"), &[20]);
    let paths =
        ["d/day=1/site=7/part-0.parquet", "d/day=2/site=__HIVE_DEFAULT_PARTITION__/part-0.parquet"];
    let inputs = paths.map(|path| Input::file(at(path)));
    let (rows, report) = run(&spec(&["site", "x", "day"], FieldKind::Int64), &inputs).unwrap();
    assert_eq!((rows, report.missing_columns), (vec![7, 10, 1, 7, 11, 1, -7, 20, 2], 0));
    // A value that is no number of the field's kind makes its rows bad.
    write(&at("e/day=monday/part-0.parquet"), &[1]);
    let bad = [inputs[0].clone(), Input::file(at("e/day=monday/part-0.parquet"))];
    let (rows, report) = run(&spec(&["x", "day"], FieldKind::Int64), &bad).unwrap();
    assert_eq!((rows, report.bad_rows), (vec![10, 1, 11, 1], 1));
    // A column of the file counts before a folder.
    write(&at("x=5/part-0.parquet"), &[1]);
    let (rows, _) =
        run(&spec(&["x"], FieldKind::Int64), &[Input::file(at("x=5/part-0.parquet"))]).unwrap();
    assert_eq!(rows, [1]);
    // Regression test: the error said that all fields were skipped.
    let error = run(&spec(&["day", "site"], FieldKind::Int64), &inputs).unwrap_err().to_string();
    for part in
        ["from the names of its folders", "must be a column of it: use one of its columns x"]
    {
        assert!(error.contains(part), "{error}");
    }
}

/// Regression test: the work of a run grew with the square of the number of columns. A chunk of
/// 8,000 columns had eight rows, and each block searched the columns by name.
#[test]
fn many_columns_are_read_in_chunks_of_many_rows() {
    const COLUMNS: usize = 2000;
    let names: Vec<String> = (0..COLUMNS).map(|n| format!("c{n}")).collect();
    let fields: Vec<_> =
        names.iter().map(|name| ArrowField::new(name, DataType::Int32, false)).collect();
    let column = |n: usize| -> ArrayRef {
        Arc::new(Int32Array::from_iter_values((0..1500).map(|row| row * 10_000 + n as i32)))
    };
    let columns = (0..COLUMNS).map(column).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    // The fields are in another order than the columns.
    let names: Vec<&str> = names.iter().rev().map(String::as_str).collect();
    for bytes in [parquet(&batch), arrow_file(&batch)] {
        let mut chunks = Vec::new();
        let mut last = Vec::new();
        let options = RunOptions { format: Format::Columns, threads: 1, ..RunOptions::default() };
        let mut pipeline = Pipeline::new(&spec(&names, FieldKind::Int32), &options).unwrap();
        pipeline
            .run(&[Input::memory("t", &bytes)], &mut |batch: &mut Batch| {
                chunks.push(batch.rows());
                last = batch.i64(0).unwrap()[(batch.rows() - 1) * COLUMNS..].to_vec();
                Ok(())
            })
            .unwrap();
        assert_eq!(chunks, [1024, 476]);
        let expected: Vec<_> = (0..COLUMNS as i64).rev().map(|n| 1499 * 10_000 + n).collect();
        assert_eq!(last, expected);
    }
}
