//! Tests that the rows of a Parquet or Arrow file stay together: a file whose columns have other
//! numbers of values than it has rows is an error.
//!
//! Regression tests: the columns of a Parquet file were read one after the other, across row
//! groups. If a column chunk had fewer or more values than its row group has rows, all later labels
//! got the features of other rows. A data page without values ended its column chunk early, with
//! the same result.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use arrow_array::{Int32Array, RecordBatch};
use arrow_ipc::writer::FileWriter;
use embank_pipeline::{
    Batch, Column, Dtype, Error, Field, FieldKind, Format, Input, Operator, Output, Pipeline,
    RunOptions, Spec,
};
use parquet::basic::Encoding;
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaDataBuilder, ParquetMetaDataWriter,
    RowGroupMetaData,
};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;

/// The pages of a column chunk, and the number of values that the metadata gives it.
struct Chunk {
    pages: Vec<Page>,
    declared: i64,
}

fn page_of(values: &[i32], num_values: u32) -> Page {
    Page::DataPage {
        buf: values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into(),
        num_values,
        encoding: Encoding::PLAIN,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    }
}

fn page(values: &[i32]) -> Page {
    page_of(values, values.len() as u32)
}

/// A chunk of one page, whose metadata tell the truth.
fn chunk(values: &[i32]) -> Chunk {
    Chunk { pages: vec![page(values)], declared: values.len() as i64 }
}

/// A chunk of these pages, with another number of values in the metadata.
fn declared(pages: Vec<Page>, declared: i64) -> Chunk {
    Chunk { pages, declared }
}

/// A row group: its number of rows, the chunk of `label` and the chunk of `feature`.
type Group = (i64, Chunk, Chunk);

/// Writes a Parquet file of two columns.
fn file(groups: Vec<Group>) -> Vec<u8> {
    let schema = parse_message_type("message m { required int32 label; required int32 feature; }");
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema.unwrap())));
    let mut out = TrackedWrite::new(b"PAR1".to_vec());
    let metadata = FileMetaData::new(2, 0, None, None, Arc::clone(&schema), None);
    let mut metadata = ParquetMetaDataBuilder::new(metadata);
    for (group_rows, label, feature) in groups {
        let mut group = RowGroupMetaData::builder(Arc::clone(&schema)).set_num_rows(group_rows);
        for (column, chunk) in [label, feature].into_iter().enumerate() {
            // The writer counts from its own beginning, behind the magic.
            let begin = 4 + out.bytes_written();
            let mut writer = SerializedPageWriter::new(&mut out);
            for page in chunk.pages {
                let bytes = page.buffer().len();
                writer.write_page(CompressedPage::new(page, bytes)).unwrap();
            }
            let bytes = (4 + out.bytes_written() - begin) as i64;
            let of_chunk = ColumnChunkMetaData::builder(schema.column(column))
                .set_num_values(chunk.declared)
                .set_data_page_offset(begin as i64)
                .set_total_compressed_size(bytes)
                .set_total_uncompressed_size(bytes);
            group = group.add_column_metadata(of_chunk.build().unwrap());
        }
        metadata = metadata.add_row_group(group.build().unwrap());
    }
    let mut bytes = out.into_inner().unwrap();
    ParquetMetaDataWriter::new(&mut bytes, &metadata.build()).finish().unwrap();
    bytes
}

/// Reads labels and features of the file in chunks of few rows and of many.
fn read(bytes: &[u8]) -> Result<Vec<i32>, Error> {
    let fields = ["label", "feature"];
    let spec = Spec {
        fields: fields.map(|name| Field::new(name, FieldKind::Int32)).into(),
        columns: fields
            .map(|name| Column::field(name).then(Operator::FillMissing((-1).into())))
            .into(),
        outputs: vec![Output::new("row", Dtype::I32, fields)],
        ..Spec::default()
    };
    let read = |chunk_bytes| {
        let options = RunOptions { format: Format::Columns, chunk_bytes, ..RunOptions::default() };
        let mut rows = Vec::new();
        let run = |batch: &mut Batch| {
            rows.extend_from_slice(batch.i32(0).unwrap());
            Ok(())
        };
        Pipeline::new(&spec, &options)?.run(&[Input::memory("t", bytes)], &mut { run })?;
        Ok(rows)
    };
    let all: Result<Vec<i32>, Error> = read(1 << 20);
    for rows in 1..4 {
        let some = read(rows * 16);
        assert_eq!(some.as_ref().ok(), all.as_ref().ok(), "in chunks of {rows} rows");
    }
    all
}

fn refused(bytes: &[u8], parts: &[&str]) {
    let error = read(bytes).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_column_with_fewer_or_more_values_than_rows_is_refused() {
    let five = || chunk(&[1, 2, 3, 4, 5]);
    let rows = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5];
    assert_eq!(read(&file(vec![(5, five(), five())])).unwrap(), rows);
    let named = ["\"label\" has", "row group 1 of 2, which has 5 rows"];
    // Two values of the first row group are in the second.
    let short = || chunk(&[1, 2, 3]);
    refused(&file(vec![(5, short(), five()), (5, chunk(&[4, 5, 1, 2, 3, 4, 5]), five())]), &named);
    // The metadata give the right number, and the pages have another.
    let short = || declared(vec![page(&[1, 2, 3])], 5);
    let long = || declared(vec![page(&[4, 5, 1, 2]), page(&[3, 4, 5])], 5);
    refused(&file(vec![(5, short(), five()), (5, long(), five())]), &named);
    refused(&file(vec![(5, long(), five()), (5, short(), five())]), &named);
    // A page of more values after all rows are read.
    let long = declared(vec![page(&[1, 2, 3, 4, 5]), page(&[6])], 5);
    refused(&file(vec![(5, five(), long)]), &["\"feature\" has 6 or more values"]);
    // All columns have the same wrong number.
    refused(&file(vec![(5, short(), short())]), &["\"label\" has 3 values"]);
    // A page has fewer values than it says.
    let fewer = declared(vec![page_of(&[1, 2, 3], 5)], 5);
    refused(&file(vec![(5, five(), fewer)]), &["\"feature\": "]);
    refused(&file(vec![(-5, five(), five())]), &["negative number of rows"]);
}

#[test]
fn a_page_of_version_2_with_other_numbers_is_refused() {
    let second = |num_values, num_rows| Page::DataPageV2 {
        buf: [1_i32, 2].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into(),
        num_values,
        encoding: Encoding::PLAIN,
        num_nulls: 0,
        num_rows,
        def_levels_byte_len: 0,
        rep_levels_byte_len: 0,
        is_compressed: false,
        statistics: None,
    };
    let file = |page| file(vec![(2, chunk(&[1, 2]), declared(vec![page], 2))]);
    assert_eq!(read(&file(second(2, 2))).unwrap(), [1, 1, 2, 2]);
    refused(&file(second(2, 5)), &["\"feature\"", "2 values and 5 rows"]);
    refused(&file(second(1, 1)), &["\"feature\" has 1 values"]);
}

#[test]
fn a_page_without_values_ends_nothing() {
    let with_empty = |parts: &[&[i32]]| Chunk {
        declared: parts.iter().map(|part| part.len() as i64).sum(),
        pages: parts.iter().map(|part| page(part)).collect(),
    };
    let groups = vec![
        (3, with_empty(&[&[], &[1], &[], &[2, 3]]), chunk(&[1, 2, 3])),
        (2, chunk(&[4, 5]), with_empty(&[&[4, 5], &[]])),
    ];
    assert_eq!(read(&file(groups)).unwrap(), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
}

#[test]
fn arrow_batches_whose_columns_have_other_lengths_are_refused() {
    let column = |values: [i32; 3]| Arc::new(Int32Array::from_iter_values(values)) as _;
    let batch = [("label", column([7, 8, 9])), ("feature", column([7, 8, 9]))];
    let batch = RecordBatch::try_from_iter(batch).unwrap();
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let bytes = writer.into_inner().unwrap();
    assert_eq!(read(&bytes).unwrap(), [7, 7, 8, 8, 9, 9]);
    // Replaces each number of 64 bits that equals `number` by `wrong`. Returns how many of these
    // files are refused. No file gives other rows.
    let refusals = |number: u64, wrong: u64| {
        let number = number.to_le_bytes();
        let mut refused = 0;
        for at in (0..bytes.len() - 8).filter(|&at| bytes[at..at + 8] == number) {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            match read(&bytes) {
                Ok(rows) => assert_eq!(rows, [7, 7, 8, 8, 9, 9], "{wrong} at {at}"),
                Err(_) => refused += 1,
            }
        }
        refused
    };
    // The batch's number of rows, and the length of each of the two columns.
    for length in [0, 1, 2, 4] {
        assert!(refusals(3, length) >= 3, "{length}");
    }
    // The second column's buffer begins at byte 64.
    for place in [65, 68] {
        assert!(refusals(64, place) >= 1, "{place}");
    }
}
