//! Tests Parquet and Arrow files as Spark, pandas, Polars and DuckDB write them: codecs, checksums
//! and types.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int64Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Date64Array, Decimal128Array, Decimal256Array,
    DictionaryArray, DurationMillisecondArray, Float16Array, Float64Array, Int32Array, Int64Array,
    ListArray, NullArray, RecordBatch, StringArray, StringViewArray, Time64NanosecondArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray, UInt32Array,
};
use arrow_buffer::i256;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Format, Input, Operator, Output, Pipeline,
    RunOptions, RunReport, Spec, TimeUnit,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

/// The value for missing fields.
const MISSING: i64 = -7;

/// A spec with one field, shown as integers: floats in 64ths, text as hashes.
fn spec(kind: FieldKind) -> Spec {
    let column = Column::field("x");
    let column = match kind {
        FieldKind::Bytes => column
            .then(Operator::FillMissing("none".into()))
            .then(Operator::Hash { seed: 1 })
            .then(Operator::Modulus(1 << 30)),
        _ => column.then(Operator::FillMissing(MISSING.into())),
    };
    let dtype = if kind == FieldKind::Float32 { Dtype::F32 } else { Dtype::I64 };
    Spec {
        fields: vec![Field::new("x", kind)],
        columns: vec![column],
        outputs: vec![Output::new("x", dtype, ["x"])],
        ..Spec::default()
    }
}

fn run_spec(spec: &Spec, inputs: &[Input<'_>]) -> Result<(Vec<i64>, RunReport), Error> {
    let options = RunOptions { format: Format::Columns, threads: 2, ..RunOptions::default() };
    let mut rows = Vec::new();
    let report = Pipeline::new(spec, &options)?.run(inputs, &mut |batch: &mut Batch| {
        match batch.i64(0) {
            Some(values) => rows.extend_from_slice(values),
            None => rows.extend(batch.f32(0).unwrap().iter().map(|&x| (x * 64.0) as i64)),
        }
        Ok(())
    })?;
    Ok((rows, report))
}

fn read(kind: FieldKind, bytes: &[u8]) -> Result<Vec<i64>, Error> {
    run_spec(&spec(kind), &[Input::memory("t", bytes)]).map(|(rows, _)| rows)
}

fn batch(column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([("x", column, true)]).unwrap()
}

fn parquet_with(batch: &RecordBatch, codec: Compression) -> Vec<u8> {
    let properties = WriterProperties::builder().set_compression(codec).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Returns the column in each of the three file formats.
fn files(column: &ArrayRef) -> Vec<(&'static str, Vec<u8>)> {
    let batch = batch(Arc::clone(column));
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    file.write(&batch).unwrap();
    let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    stream.write(&batch).unwrap();
    vec![
        ("Parquet", parquet_with(&batch, Compression::SNAPPY)),
        ("Arrow file", file.into_inner().unwrap()),
        ("Arrow stream", stream.into_inner().unwrap()),
    ]
}

fn expect(kind: FieldKind, column: ArrayRef, expected: &[i64]) {
    for (name, bytes) in files(&column) {
        let found = read(kind, &bytes);
        let found = found.unwrap_or_else(|error| panic!("{name}, {kind:?}: {error}"));
        assert_eq!(found, expected, "{name}, {kind:?} of {}", column.data_type());
    }
}

/// Regression test: Parquet files with the codecs gzip, lz4 and brotli were refused with "Disabled
/// feature at compile time".
#[test]
fn every_codec_is_read() {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..5000).map(|n| n % 300)));
    let batch = batch(numbers);
    let expected: Vec<i64> = (0..5000).map(|n| n % 300).collect();
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ] {
        let found = read(FieldKind::Int64, &parquet_with(&batch, codec)).unwrap();
        assert!(found == expected, "{codec}");
    }
}

/// Regression test: checksums of pages were not verified, so most flipped bits gave wrong values.
#[test]
fn a_flipped_bit_of_a_page_with_a_checksum_is_an_error() {
    let whole = include_bytes!("fixtures/page_checksums.parquet");
    let word = Column::field("word").then(Operator::FillMissing("".into()));
    let word = word.then(Operator::Hash { seed: 1 }).then(Operator::Modulus(1 << 30));
    let n = Column::field("n").then(Operator::FillMissing(MISSING.into()));
    let spec = Spec {
        fields: vec![Field::new("n", FieldKind::Int64), Field::new("word", FieldKind::Bytes)],
        columns: vec![n, word],
        outputs: vec![Output::new("x", Dtype::I64, ["n", "word"])],
        ..Spec::default()
    };
    let read = |bytes: &[u8]| run_spec(&spec, &[Input::memory("t", bytes)]).map(|(rows, _)| rows);
    let expected = read(whole).unwrap();
    assert_eq!((expected.len(), expected[0], expected[2]), (120, 0, 506_952_113));
    let footer = u32::from_le_bytes(*whole[whole.len() - 8..].first_chunk().unwrap()) as usize;
    let pages = 4..whole.len() - 8 - footer;
    let mut told = 0;
    for at in pages.clone() {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 8);
        match read(&bytes) {
            // The bit was in a part of a page's header that the reader ignores, or that does not
            // change the values.
            Ok(rows) => assert!(rows == expected, "byte {at}"),
            Err(error) => told += usize::from(error.to_string().starts_with("t: ")),
        }
    }
    assert!(told * 10 > pages.len() * 9, "{told} of {}", pages.len());
}

#[test]
fn dictionaries_of_text_and_of_numbers() {
    let words = ["a", "b", "a", "c"];
    let plain: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("b"), None, Some("c")]));
    let hashes = read(FieldKind::Bytes, &files(&plain)[0].1).unwrap();
    let keys = UInt32Array::from(vec![Some(0), Some(1), None, Some(3)]);
    for values in [
        Arc::new(StringArray::from(words.to_vec())) as ArrayRef,
        Arc::new(StringViewArray::from(words.to_vec())),
    ] {
        let column = DictionaryArray::<UInt32Type>::try_new(keys.clone(), values).unwrap();
        // The writer can't write string views of a dictionary to Parquet.
        if matches!(column.values().data_type(), arrow_schema::DataType::Utf8) {
            expect(FieldKind::Bytes, Arc::new(column), &hashes);
            continue;
        }
        for (name, bytes) in &files_of_arrow(&(Arc::new(column) as ArrayRef)) {
            assert_eq!(read(FieldKind::Bytes, bytes).unwrap(), hashes, "{name}");
        }
    }
    let numbers = || Arc::new(Int64Array::from(vec![Some(70), None, Some(-5)])) as ArrayRef;
    let keys = arrow_array::Int8Array::from(vec![Some(2), Some(0), None, Some(1), Some(0)]);
    let column = DictionaryArray::<Int8Type>::try_new(keys, numbers()).unwrap();
    for kind in [FieldKind::Int32, FieldKind::Int64] {
        let expected = [-5, 70, MISSING, MISSING, 70];
        for (name, bytes) in &files_of_arrow(&(Arc::new(column.clone()) as ArrayRef)) {
            assert_eq!(read(kind, bytes).unwrap(), expected, "{name}");
        }
    }
    let keys = arrow_array::Int64Array::from(vec![1, 1, 0]);
    let values: ArrayRef = Arc::new(Int32Array::from(vec![4, 9]));
    let column = DictionaryArray::<Int64Type>::try_new(keys, values).unwrap();
    expect(FieldKind::Int32, Arc::new(column), &[9, 9, 4]);
}

fn files_of_arrow(column: &ArrayRef) -> Vec<(&'static str, Vec<u8>)> {
    let batch = batch(Arc::clone(column));
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    file.write(&batch).unwrap();
    let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    stream.write(&batch).unwrap();
    vec![("file", file.into_inner().unwrap()), ("stream", stream.into_inner().unwrap())]
}

/// A stream may extend a dictionary, or replace it, between its batches.
#[test]
fn dictionaries_that_change_within_a_stream() {
    let part = |words: &[&'static str]| {
        let words: DictionaryArray<Int8Type> = words.iter().copied().collect();
        batch(Arc::new(words))
    };
    let parts = [part(&["a", "b"]), part(&["c", "a"]), part(&["b"])];
    let mut stream = StreamWriter::try_new(Vec::new(), &parts[0].schema()).unwrap();
    parts.iter().for_each(|part| stream.write(part).unwrap());
    let plain: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "a", "b"]));
    let expected = read(FieldKind::Bytes, &files(&plain)[0].1).unwrap();
    assert_eq!(read(FieldKind::Bytes, &stream.into_inner().unwrap()).unwrap(), expected);
}

#[test]
fn decimals_dates_and_times_are_numbers() {
    let decimal = |values: Vec<Option<i128>>, precision, places| {
        let array = Decimal128Array::from(values).with_precision_and_scale(precision, places);
        Arc::new(array.unwrap()) as ArrayRef
    };
    for precision in [2, 9, 18, 38] {
        let column = decimal(vec![Some(42), None, Some(-7)], precision, 0);
        expect(FieldKind::Int32, Arc::clone(&column), &[42, MISSING, -7]);
        expect(FieldKind::Int64, Arc::clone(&column), &[42, MISSING, -7]);
        expect(FieldKind::Float32, column, &[42 * 64, MISSING * 64, -7 * 64]);
    }
    expect(FieldKind::Float32, decimal(vec![Some(150), None], 10, 2), &[96, MISSING * 64]);
    let large = files(&decimal(vec![Some(1 << 70)], 38, 0));
    let error = read(FieldKind::Int64, &large[0].1).unwrap_err();
    assert!(error.to_string().contains("does not fit into 64 bits"), "{error}");

    // These digits need more than 128 bits.
    let digits = i256::from_i128(25).checked_mul(i256::from_i128(10).checked_pow(49).unwrap());
    let wide = |places| {
        let array = Decimal256Array::from(vec![digits]).with_precision_and_scale(76, places);
        Arc::new(array.unwrap()) as ArrayRef
    };
    expect(FieldKind::Float32, wide(50), &[160]);
    let error = read(FieldKind::Int64, &files(&wide(0))[0].1).unwrap_err();
    assert!(error.to_string().contains("does not fit into 64 bits"), "{error}");
    let error = read(FieldKind::Float32, &files(&wide(0))[0].1).unwrap_err();
    assert!(error.to_string().contains("\"x\""), "{error}");

    let dates = Date32Array::from(vec![Some(19_000), None, Some(-1)]);
    expect(FieldKind::Int32, Arc::new(dates), &[19_000, MISSING, -1]);
    let dates = Date64Array::from(vec![86_400_000 * 3, -1]);
    expect(FieldKind::Int64, Arc::new(dates), &[3, -1]);
    // Times are read in microseconds, whatever the file's unit is.
    let expected = [1_700_000_000_000_000, MISSING, -1_000_000];
    let seconds = [Some(1_700_000_000), None, Some(-1)];
    let of = |unit: i64| seconds.map(|value| value.map(|value: i64| value * unit)).to_vec();
    expect(FieldKind::Int64, Arc::new(TimestampSecondArray::from(of(1))), &expected);
    expect(FieldKind::Int64, Arc::new(TimestampMillisecondArray::from(of(1_000))), &expected);
    let zoned = TimestampMicrosecondArray::from(of(1_000_000)).with_timezone("+02:00");
    expect(FieldKind::Int64, Arc::new(zoned), &expected);
    expect(
        FieldKind::Int64,
        Arc::new(TimestampNanosecondArray::from(of(1_000_000_000))),
        &expected,
    );
    expect(FieldKind::Int64, Arc::new(Time64NanosecondArray::from(vec![5_999])), &[5]);
}

#[test]
fn the_unit_of_times_is_the_fields() {
    let nanoseconds: ArrayRef =
        Arc::new(TimestampNanosecondArray::from(vec![1_700_000_000_123_456_789, -1]));
    for (unit, expected) in [
        (TimeUnit::Second, [1_700_000_000, -1]),
        (TimeUnit::Millisecond, [1_700_000_000_123, -1]),
        (TimeUnit::Microsecond, [1_700_000_000_123_456, -1]),
        (TimeUnit::Nanosecond, [1_700_000_000_123_456_789, -1]),
    ] {
        let mut spec = spec(FieldKind::Int64);
        spec.fields[0].time_unit = unit;
        assert_eq!(Spec::from_json(&spec.to_json()).unwrap(), spec);
        for (name, bytes) in files(&nanoseconds) {
            let (rows, _) = run_spec(&spec, &[Input::memory("t", &bytes)]).unwrap();
            assert_eq!(rows, expected, "{name}, {unit:?}");
        }
    }
    let mut spec = spec(FieldKind::Int64);
    spec.fields[0].time_unit = TimeUnit::Nanosecond;
    let seconds: ArrayRef = Arc::new(TimestampSecondArray::from(vec![i64::MAX]));
    let error = run_spec(&spec, &[Input::memory("t", &files_of_arrow(&seconds)[0].1)]).unwrap_err();
    assert!(error.to_string().contains("does not fit into 64 bits"), "{error}");
    let durations: ArrayRef = Arc::new(DurationMillisecondArray::from(vec![3]));
    let bytes = &files_of_arrow(&durations)[0].1;
    assert_eq!(run_spec(&spec, &[Input::memory("t", bytes)]).unwrap().0, [3_000_000]);
}

#[test]
fn half_floats_and_columns_without_a_value() {
    let halves: Vec<_> = [0.5, -2.0, 0.25].map(half::f16::from_f32).to_vec();
    // 300 values, so Parquet stores them in a dictionary of two-byte values too.
    let many: Vec<_> = halves.iter().copied().cycle().take(300).collect();
    let expected: Vec<i64> = [32, -128, 16].into_iter().cycle().take(300).collect();
    expect(FieldKind::Float32, Arc::new(Float16Array::from(many)), &expected);
    for kind in [FieldKind::Int32, FieldKind::Int64, FieldKind::Hex32] {
        let fill = if kind == FieldKind::Hex32 { 0 } else { MISSING };
        let mut spec = spec(kind);
        spec.columns[0].operators = vec![Operator::FillMissing(fill.into())];
        for (name, bytes) in files(&(Arc::new(NullArray::new(3)) as ArrayRef)) {
            let (rows, _) = run_spec(&spec, &[Input::memory("t", &bytes)]).unwrap();
            assert_eq!(rows, [fill; 3], "{name}, {kind:?}");
        }
    }
    expect(FieldKind::Float32, Arc::new(NullArray::new(2)), &[MISSING * 64; 2]);
    let booleans = BooleanArray::from(vec![Some(true), None, Some(false)]);
    expect(FieldKind::Int32, Arc::new(booleans), &[1, MISSING, 0]);
}

/// A column that only newer files have is missing in the older ones, and the report says so.
#[test]
fn a_column_that_a_file_lacks_is_missing_and_told() {
    let both = |x: Option<Vec<i64>>| {
        let y: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let x = x.map(|x| ("x", Arc::new(Int64Array::from(x)) as ArrayRef));
        let columns = x.into_iter().chain([("y", y)]);
        parquet_with(&RecordBatch::try_from_iter(columns).unwrap(), Compression::SNAPPY)
    };
    let (with, without) = (both(Some(vec![10, 20])), both(None));
    let mut spec = spec(FieldKind::Int64);
    spec.fields.push(Field::new("y", FieldKind::Int64).required());
    spec.columns.push(Column::field("y"));
    spec.outputs[0].columns.push("y".to_owned());
    let inputs = [Input::memory("with", &with), Input::memory("without", &without)];
    let (rows, report) = run_spec(&spec, &inputs).unwrap();
    assert_eq!(rows, [10, 1, 20, 2, MISSING, 1, MISSING, 2]);
    assert_eq!(report.missing_columns, 1);
    assert_eq!(report.first_missing_columns, ["without: \"x\""]);
    // A required field needs its column.
    spec.fields[0].required = true;
    let error = run_spec(&spec, &inputs).unwrap_err();
    assert!(error.to_string().starts_with("without: it has no column \"x\", only y"), "{error}");
    // A field without a column in any input is an error, because its name may be misspelt.
    spec.fields[0].required = false;
    let error = run_spec(&spec, &inputs[1..]).unwrap_err();
    assert!(error.to_string().contains("no column \"x\", and no other input"), "{error}");
    let error = read(FieldKind::Int64, &without).unwrap_err();
    assert!(error.to_string().contains("no column \"x\""), "{error}");
}

#[test]
fn types_that_do_not_fit_name_column_and_cure() {
    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1)])]));
    let times: ArrayRef = Arc::new(TimestampSecondArray::from(vec![1]));
    let places = Decimal128Array::from(vec![15]).with_precision_and_scale(4, 1).unwrap();
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
    for (kind, column, cure) in [
        (FieldKind::Int64, &lists, "lists are not read"),
        (FieldKind::Bytes, &lists, "lists are not read"),
        (FieldKind::Float32, &times, "declare the field Int64"),
        (FieldKind::Int32, &(Arc::new(places) as ArrayRef), "declare the field Float32"),
        (FieldKind::Bytes, &floats, "declare the field Float32"),
    ] {
        for (name, bytes) in files(column) {
            let told = read(kind, &bytes).unwrap_err().to_string();
            assert!(told.starts_with("t: its column \"x\" has the type"), "{name}: {told}");
            assert!(told.contains(cure), "{name}: {told}");
        }
    }
    // Two columns with the same name are refused.
    let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let twice = RecordBatch::try_from_iter([("x", Arc::clone(&one)), ("x", one)]).unwrap();
    let mut file = FileWriter::try_new(Vec::new(), &twice.schema()).unwrap();
    file.write(&twice).unwrap();
    let error = read(FieldKind::Int64, &file.into_inner().unwrap()).unwrap_err();
    assert!(error.to_string().contains("two columns of it have the name \"x\""), "{error}");
}
