//! Tests Parquet and Arrow inputs: they give the same rows as a text with the same values.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, UInt32Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Field, FieldKind, Format, Input, Operator, Output,
    Pipeline, RunOptions, RunReport, Spec,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};

fn spec() -> Spec {
    let kinds = [
        ("small", FieldKind::Int32),
        ("large", FieldKind::Int64),
        ("ratio", FieldKind::Float32),
        ("site", FieldKind::Hex32),
        ("digits", FieldKind::Hex32),
        ("word", FieldKind::Bytes),
    ];
    let column = |(name, kind)| {
        let column = Column::field(name);
        let fill = |value| Operator::FillMissing(value);
        match kind {
            FieldKind::Bytes => column
                .then(fill("none".into()))
                .then(Operator::Hash { seed: 1 })
                .then(Operator::Modulus(1 << 30)),
            FieldKind::Float32 => column.then(fill(0.5.into())),
            FieldKind::Int64 => column.then(fill(7.into())).then(Operator::Modulus(1 << 30)),
            _ => column.then(fill(9.into())),
        }
    };
    Spec {
        fields: kinds.iter().map(|&(name, kind)| Field::new(name, kind)).collect(),
        columns: kinds.map(column).into(),
        outputs: vec![Output::new("row", Dtype::Bits32, kinds.map(|(name, _)| name))],
        bad_rows: BadRows::Skip,
        ..Spec::default()
    }
}

const ROWS: i32 = 5000;

/// Returns the rows as columns and as text. The columns are in another order than the fields, and
/// one of them belongs to no field.
fn rows() -> (RecordBatch, String) {
    let null = |n: i32, of: i32| n % of == of - 1;
    let some = |of: i32| move |n: i32| (!null(n, of)).then_some(n);
    let all = || 0..ROWS;
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "word",
            Arc::new(
                all().map(|n| some(5)(n).map(|n| format!("w{}", n % 40))).collect::<StringArray>(),
            ),
        ),
        ("unused", Arc::new(Int64Array::from_iter_values(0..i64::from(ROWS)))),
        (
            "small",
            Arc::new(all().map(|n| some(3)(n).map(|n| i64::from(-n))).collect::<Int64Array>()),
        ),
        (
            "large",
            Arc::new(all().map(|n| some(4)(n).map(|n| i64::from(n) << 33)).collect::<Int64Array>()),
        ),
        (
            "ratio",
            Arc::new(
                all().map(|n| some(7)(n).map(|n| f64::from(n) / 4.0)).collect::<Float64Array>(),
            ),
        ),
        (
            "site",
            Arc::new(
                all().map(|n| some(6)(n).map(|n| n as u32 * 800_000)).collect::<UInt32Array>(),
            ),
        ),
        (
            "digits",
            Arc::new(all().map(|n| some(9)(n).map(|n| format!("{n:x}"))).collect::<StringArray>()),
        ),
    ];
    let shown = |n, of, text: String| if null(n, of) { String::new() } else { text };
    let text = all().map(|n| {
        [
            shown(n, 3, (-n).to_string()),
            shown(n, 4, (i64::from(n) << 33).to_string()),
            shown(n, 7, (f64::from(n) / 4.0).to_string()),
            shown(n, 6, format!("{:x}", n as u32 * 800_000)),
            shown(n, 9, format!("{n:x}")),
            shown(n, 5, format!("w{}", n % 40)),
        ]
        .join("\t")
            + "\n"
    });
    (
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
            .unwrap(),
        text.collect(),
    )
}

fn run(
    format: Format,
    chunk_bytes: usize,
    inputs: &[Input<'_>],
) -> Result<(Vec<u32>, RunReport), Error> {
    let options = RunOptions { threads: 2, format, chunk_bytes, ..RunOptions::default() };
    let mut rows = Vec::new();
    let report =
        Pipeline::new(&spec(), &options).unwrap().run(inputs, &mut |batch: &mut Batch| {
            rows.extend_from_slice(batch.bits32(0).unwrap());
            Ok(())
        })?;
    Ok((rows, report))
}

fn parquet(batch: &RecordBatch) -> Vec<u8> {
    let properties = parquet::file::properties::WriterProperties::builder();
    let properties = properties.set_max_row_group_row_count(Some(1234)).build();
    let writer = parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties));
    let mut writer = writer.unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_file(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.write(&batch.slice(0, 0)).unwrap();
    writer.into_inner().unwrap()
}

fn arrow_stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn columns_give_what_the_text_gives() {
    let (batch, text) = rows();
    let (expected, _) =
        run(Format::TSV, 512 << 10, &[Input::memory("t", text.as_bytes())]).unwrap();
    assert_eq!(expected.len(), ROWS as usize * 6);
    let directory = tempfile::tempdir().unwrap();
    for bytes in [parquet(&batch), arrow_file(&batch), arrow_stream(&batch)] {
        let path = directory.path().join("rows");
        std::fs::write(&path, &bytes).unwrap();
        for chunk_bytes in [512 << 10, 20_000, 1] {
            let inputs = [Input::file(&path), Input::memory("memory", &bytes)];
            let (rows, report) = run(Format::Columns, chunk_bytes, &inputs).unwrap();
            assert!(rows == [expected.clone(), expected.clone()].concat(), "{chunk_bytes}");
            assert_eq!((report.rows, report.bad_rows), (ROWS as u64 * 2, 0));
        }
    }
}

/// Writes an Arrow file and an Arrow stream with batches of `rows` rows.
fn arrow_batches(
    batch: &RecordBatch,
    rows: usize,
    codec: Option<CompressionType>,
) -> [(&'static str, Vec<u8>); 2] {
    let options = || IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let schema = batch.schema();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
    let mut stream = StreamWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
    for first in (0..batch.num_rows()).step_by(rows) {
        let part = batch.slice(first, rows.min(batch.num_rows() - first));
        file.write(&part).unwrap();
        stream.write(&part).unwrap();
    }
    [("file", file.into_inner().unwrap()), ("stream", stream.into_inner().unwrap())]
}

/// Returns the batch with the columns of text as dictionaries.
fn with_dictionaries(batch: &RecordBatch) -> RecordBatch {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns()).map(|(field, column)| {
        let column = match column.as_any().downcast_ref::<StringArray>() {
            Some(text) => Arc::new(text.iter().collect::<DictionaryArray<Int32Type>>()),
            None => Arc::clone(column),
        };
        (field.name(), column, true)
    });
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// An Arrow file is read one whole record batch at a time, however many rows that has. A block has
/// 1024 rows.
#[test]
fn the_length_of_record_batches_does_not_change_the_rows() {
    let (batch, text) = rows();
    let (expected, _) =
        run(Format::TSV, 512 << 10, &[Input::memory("t", text.as_bytes())]).unwrap();
    for batch in [with_dictionaries(&batch), batch] {
        for codec in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
            for batch_rows in [ROWS as usize, 1024, 300] {
                for (name, bytes) in arrow_batches(&batch, batch_rows, codec) {
                    for chunk_bytes in [512 << 10, 20_000] {
                        let input = [Input::memory(name, &bytes)];
                        let (rows, _) = run(Format::Columns, chunk_bytes, &input).unwrap();
                        assert!(rows == expected, "{name}, {codec:?}, {batch_rows}, {chunk_bytes}");
                    }
                }
            }
        }
    }
}

/// A batch is read with all its columns, but only the columns of fields are decompressed and
/// decoded.
#[test]
fn damage_in_columns_that_no_field_uses_does_not_matter() {
    let (batch, _) = rows();
    let place = batch.schema_ref().index_of("unused").unwrap();
    let used: Vec<usize> = (0..batch.num_columns()).filter(|&column| column != place).collect();
    let words: Vec<String> = (0..ROWS).map(|n| format!("unused word {}", n % 500)).collect();
    let mut columns: Vec<(&str, ArrayRef)> = vec![(
        "unused dictionary",
        Arc::new(words.iter().map(String::as_str).collect::<DictionaryArray<Int32Type>>()),
    )];
    let schema = batch.schema();
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        columns.push((field.name(), Arc::clone(column)));
    }
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let all = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let used = batch.project(&used).unwrap();
    let (expected, _) =
        run(Format::Columns, 512 << 10, &[Input::memory("used", &parquet(&used))]).unwrap();
    for (codec, magic) in [
        (CompressionType::LZ4_FRAME, [0x04, 0x22, 0x4D, 0x18]),
        (CompressionType::ZSTD, [0x28, 0xB5, 0x2F, 0xFD]),
    ] {
        let frames = |bytes: &[u8]| -> Vec<usize> {
            (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == magic).collect()
        };
        let used = arrow_batches(&used, ROWS as usize, Some(codec));
        for ((name, bytes), (_, used)) in
            arrow_batches(&all, ROWS as usize, Some(codec)).iter().zip(&used)
        {
            let unused_frames = frames(bytes).len() - frames(used).len();
            // The values of both columns, and the dictionary's values.
            assert!(unused_frames >= 3, "{name}, {codec:?}: {unused_frames}");
            let is_read = |&at: &usize| {
                let mut damaged = bytes.clone();
                damaged[at..at + 4].fill(0);
                match run(Format::Columns, 512 << 10, &[Input::memory(*name, &damaged)]) {
                    Ok((rows, _)) => assert!(rows == expected, "{name}, {codec:?}, byte {at}"),
                    Err(Error::Columns { .. }) => return false,
                    Err(other) => panic!("{name}, {codec:?}, byte {at}: {other}"),
                }
                true
            };
            let read = frames(bytes).iter().filter(|at| is_read(at)).count();
            assert_eq!(read, unused_frames, "{name}, {codec:?}");
        }
    }
}

#[test]
fn values_that_do_not_fit_are_bad_rows() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("small", Arc::new(Int64Array::from(vec![1, 1 << 40, 3, 4, 5, 6]))),
        ("large", Arc::new(Int64Array::from(vec![0; 6]))),
        ("ratio", Arc::new(Float64Array::from(vec![0.0, 0.0, f64::NAN, 1e300, 0.0, 0.0]))),
        ("site", Arc::new(Int64Array::from(vec![0, 0, 0, 0, -1, 0]))),
        ("digits", Arc::new(Int32Array::from(vec![-1; 6]))),
        ("word", Arc::new(StringArray::from(vec!["a"; 6]))),
    ];
    let bytes = parquet(&RecordBatch::try_from_iter(columns).unwrap());
    let (rows, report) = run(Format::Columns, 512 << 10, &[Input::memory("p", &bytes)]).unwrap();
    assert_eq!((rows.len(), report.rows, report.bad_rows), (18, 3, 3));
    // An i32 in a hexadecimal field keeps its 32 bits.
    // NaN is a missing value.
    assert_eq!(
        (rows[0], rows[4], rows[6], rows[8], rows[12]),
        (1, u32::MAX, 3, 0.5_f32.to_bits(), 6)
    );
    let said: Vec<_> = report.first_bad_rows.iter().map(ToString::to_string).collect();
    assert_eq!(said[0], "p:2: field \"small\", \"1099511627776\", does not fit into 32 bits");
    assert!(
        said[1].starts_with("p:4: field \"ratio\"")
            && said[1].ends_with("does not fit into 32 bits"),
        "{said:?}"
    );
    assert!(said[2].starts_with("p:5: field \"site\", \"-1\""), "{said:?}");
}

#[test]
fn columns_that_are_not_there_or_of_other_types_are_named() {
    let (batch, _) = rows();
    let without = batch.project(&[0, 1]).unwrap();
    let all = parquet(&batch);
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    for field in batch.schema().fields() {
        columns.push((field.name().clone(), batch.column_by_name(field.name()).unwrap().clone()));
    }
    columns[0].1 = Arc::new(Int64Array::from(vec![0; ROWS as usize]));
    let wrong = RecordBatch::try_from_iter(columns).unwrap();
    for (bytes, told) in [
        (parquet(&without), "no column \"small\""),
        (arrow_file(&wrong), "\"word\" has the type Int64"),
        (all[..all.len() - 20].to_vec(), ""),
        (b"n,word\n1,a\n".to_vec(), "no Parquet or Arrow file"),
        (Vec::new(), ""),
    ] {
        match run(Format::Columns, 512 << 10, &[Input::memory("name", &bytes)]) {
            Err(error @ Error::Columns { .. }) => {
                let error = error.to_string();
                assert!(error.starts_with("name: ") && error.contains(told), "{error}");
            }
            other => panic!("{told}: {other:?}"),
        }
    }
}

#[test]
fn long_strings_that_come_often_are_in_memory_once() {
    use parquet::arrow::arrow_writer::ArrowWriterOptions;
    // With a copy of the string for each row, this would take 2.8 GB.
    let (rows, long) = (40_000, "x".repeat(70_000));
    let keys = Int32Array::from_iter_values((0..rows).map(|row| row % 2));
    let words = StringArray::from(vec![long.as_str(), "short"]);
    let words = DictionaryArray::<Int32Type>::try_new(keys, Arc::new(words)).unwrap();
    let batch = RecordBatch::try_from_iter([("word", Arc::new(words) as ArrayRef)]).unwrap();
    // Without Arrow's own schema in the file, the column's type is string, not dictionary.
    let options = ArrowWriterOptions::new().with_skip_arrow_metadata(true);
    let writer =
        parquet::arrow::ArrowWriter::try_new_with_options(Vec::new(), batch.schema(), options);
    let mut writer = writer.unwrap();
    writer.write(&batch).unwrap();
    let file = writer.into_inner().unwrap();
    let word = Column::field("word").then(Operator::FillMissing("none".into()));
    let word = word.then(Operator::Hash { seed: 1 }).then(Operator::Modulus(1 << 30));
    let spec = Spec {
        fields: vec![Field::new("word", FieldKind::Bytes)],
        columns: vec![word],
        outputs: vec![Output::new("row", Dtype::Bits32, ["word"])],
        bad_rows: BadRows::Skip,
        bad_rows_max: 1.0,
        ..Spec::default()
    };
    let options = RunOptions { format: Format::Columns, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let input = [Input::memory("words", &file)];
    let report = pipeline.run(&input, &mut |_: &mut Batch| Ok(())).unwrap();
    assert_eq!((report.rows, report.bad_rows), (20_000, 20_000));
}

#[test]
fn a_pipe_of_columns_is_refused_with_the_cure() {
    use std::os::fd::AsRawFd as _;
    let (reader, _writer) = std::io::pipe().unwrap();
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    let options = RunOptions { format: Format::Columns, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec(), &options).unwrap();
    let error = pipeline.run(&[Input::file(path)], &mut |_: &mut Batch| Ok(())).unwrap_err();
    assert!(error.to_string().contains("write it to a file first"), "{error}");
}

#[test]
fn sizes_that_an_arrow_file_only_claims_are_errors() {
    let batch = rows().0.slice(0, 40);
    for whole in [arrow_file(&batch), arrow_stream(&batch)] {
        // Overwrites 8 bytes at each multiple of 4 with a huge number, whether or not they hold a
        // size.
        for at in (0..whole.len() - 8).step_by(4) {
            for claimed in [u64::MAX >> 1, 1 << 40, u64::from(u32::MAX >> 1), u64::MAX] {
                let mut file = whole.clone();
                file[at..at + 8].copy_from_slice(&claimed.to_le_bytes());
                match run(Format::Columns, 100, &[Input::memory("claims", &file)]) {
                    Ok(_) | Err(Error::Columns { .. }) => {}
                    Err(other) => panic!("{other} with {claimed} at byte {at}"),
                }
            }
        }
    }
}

/// Writes the strings as an uncompressed Parquet file whose pages have this encoding.
fn encoded(batch: &RecordBatch, encoding: Encoding, version: WriterVersion) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(encoding)
        .set_writer_version(version)
        .set_compression(Compression::UNCOMPRESSED)
        .set_data_page_row_count_limit(1000)
        .set_write_batch_size(100);
    let mut writer =
        ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn strings_packed_by_their_lengths_or_what_they_share_are_read() {
    let spec = Spec {
        fields: vec![Field::new("word", FieldKind::Bytes)],
        columns: vec![
            Column::field("word")
                .then(Operator::FillMissing("none".into()))
                .then(Operator::Hash { seed: 1 })
                .then(Operator::Modulus(1 << 30)),
        ],
        outputs: vec![Output::new("row", Dtype::Bits32, ["word"])],
        ..Spec::default()
    };
    let word =
        |n: i32| (n % 5 > 0).then(|| "abcdefghij".repeat((n % 11) as usize) + &n.to_string());
    let words: StringArray = (0..ROWS).map(word).collect();
    let filled = StringArray::from_iter_values((0..ROWS).map(|n| word(n).unwrap_or_default()));
    let read = |bytes: &[u8]| {
        let options = RunOptions { format: Format::Columns, ..RunOptions::default() };
        let mut rows = Vec::new();
        let run = Pipeline::new(&spec, &options).unwrap().run(
            &[Input::memory("words", bytes)],
            &mut |batch: &mut Batch| {
                rows.extend_from_slice(batch.bits32(0).unwrap());
                Ok(())
            },
        );
        run.map(|_| rows)
    };
    let mut expected = None;
    for words in [words, filled] {
        let words: ArrayRef = Arc::new(words);
        let nulls = words.null_count() > 0;
        let batch = RecordBatch::try_from_iter_with_nullable([("word", words, nulls)]).unwrap();
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for encoding in
                [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY]
            {
                let mut bytes = encoded(&batch, encoding, version);
                let rows = read(&bytes).unwrap();
                assert_eq!(rows.len(), ROWS as usize);
                let expected = expected.get_or_insert_with(|| rows.clone());
                assert!(rows == *expected, "{encoding} {version:?} {nulls}");
                // Overwrites the number of lengths. It comes after the block size (128) and the
                // number of miniblocks (4), and has two bytes here.
                let header = bytes.windows(3).position(|bytes| bytes == [0x80, 0x01, 0x04]);
                let Some(header) = header.filter(|_| encoding != Encoding::PLAIN) else { continue };
                bytes[header + 3..header + 5].copy_from_slice(&[0xFF, 0x7F]);
                let error = read(&bytes).unwrap_err().to_string();
                assert!(error.contains("16383 lengths, of 1000 that it may have"), "{error}");
            }
        }
    }
}
