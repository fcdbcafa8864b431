//! Tests imports of Parquet files from other programs: lists of every type, nulls, and columns that
//! may be keys.

#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{TestBank, new_bank, rows_of, table};
use arrow_array::builder::{Float64Builder, Int64Builder, ListBuilder};
use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    Float16Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    LargeStringArray, RecordBatch, StringArray, TimestampMicrosecondArray, UInt8Array, UInt16Array,
};
use arrow_schema::{Field, Schema};
use embank::{ImportOptions, Imported, Table, TableConfig};
use parquet::arrow::ArrowWriter;

type Row<'a> = Option<&'a [Option<f64>]>;

fn lists(rows: &[Row<'_>]) -> ArrayRef {
    let mut lists = ListBuilder::new(Float64Builder::new());
    for row in rows {
        match row {
            Some(values) => lists.append_value(values.iter().copied()),
            None => lists.append(false),
        }
    }
    Arc::new(lists.finish())
}

fn write(test: &TestBank, columns: Vec<(&str, ArrayRef)>) -> PathBuf {
    let path = test.dir.path().join("others.parquet");
    let fields =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(schema, arrays).unwrap();
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

fn import(
    test: &TestBank,
    columns: Vec<(&str, ArrayRef)>,
    keys: Option<&str>,
) -> Result<Imported, String> {
    let path = write(test, columns);
    let options = ImportOptions { keys: keys.map(str::to_owned), ..Default::default() };
    table(&test.bank, TableConfig::new(2)).import(path, &options).map_err(|error| error.to_string())
}

#[test]
fn lists_of_doubles_come_in_and_those_that_are_no_rows_are_named() {
    let test = new_bank();
    let whole: Row<'_> = Some(&[Some(1.5), Some(-2.0)]);
    let imported = import(&test, vec![("vector", lists(&[whole, whole]))], None).unwrap();
    assert_eq!(imported.rows, 2);
    assert_eq!(rows_of(&table(&test.bank, TableConfig::new(2)), &[0, 1]), [1.5, -2.0, 1.5, -2.0]);
    for (bad, expected) in [
        (None, "row 1, column \"vector\": it is null"),
        (Some(&[Some(1.0), None][..]), "row 1, column \"vector\": value 1 is null"),
        (Some(&[Some(1.0)][..]), "row 1, column \"vector\": it has 1 values, not 2"),
        (Some(&[Some(1.0); 3][..]), "row 1, column \"vector\": it has 3 values, not 2"),
    ] {
        let error = import(&test, vec![("vector", lists(&[whole, bad]))], None).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // A file without rows does not show the length of its lists, so the import can't check the dim.
    assert_eq!(import(&test, vec![("vector", lists(&[]))], None).unwrap().rows, 0);
}

#[test]
fn keys_are_named_where_a_column_may_be_them() {
    let test = new_bank();
    let whole: Row<'_> = Some(&[Some(1.5), Some(-2.0)]);
    let columns = |ids: ArrayRef| vec![("id", ids), ("vector", lists(&[whole, whole]))];
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![7, -1]));
    // Rows of a Parquet file have no order, so an import must not use their positions as keys.
    let error = import(&test, columns(Arc::clone(&ids)), None).unwrap_err();
    assert!(error.contains("\"id\" (Int64)") && error.contains("first_key"), "{error}");
    import(&test, columns(ids), Some("id")).unwrap();
    let table = table(&test.bank, TableConfig::new(2));
    assert_eq!(table.contains(&[0, 7, u64::MAX]).unwrap(), [false, true, true]);
    let nulls: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    let error = import(&test, columns(nulls), Some("id")).unwrap_err();
    assert!(error.contains("row 1, column \"id\" is null"), "{error}");
    // Floats can't be keys, but another program may have turned integer keys into floats. The
    // import must not use positions as keys instead.
    let halves: ArrayRef = Arc::new(Float16Array::from(vec![half::f16::ONE; 2]));
    let error = import(&test, columns(halves), None).unwrap_err();
    assert!(error.contains("\"id\" (Float16)"), "{error}");
}

fn two(test: &TestBank) -> Table {
    table(&test.bank, TableConfig::new(2))
}

/// Returns ids that are not plain integers, as pandas, Polars and Spark write them by default.
fn odd_ids() -> Vec<ArrayRef> {
    vec![
        Arc::new(StringArray::from(vec!["7", "8"])),
        Arc::new(LargeStringArray::from(vec!["7", "8"])),
        Arc::new(Float64Array::from(vec![Some(7.0), None])),
        Arc::new(Float32Array::from(vec![7.0, 8.0])),
        Arc::new(Decimal128Array::from(vec![7, 8]).with_precision_and_scale(10, 0).unwrap()),
        Arc::new(DictionaryArray::<Int8Type>::from_iter(["7", "8"])),
        Arc::new(
            DictionaryArray::<Int8Type>::try_new(
                Int8Array::from(vec![0, 1]),
                Arc::new(Int64Array::from(vec![7, 8])),
            )
            .unwrap(),
        ),
        Arc::new(BooleanArray::from(vec![true, false])),
        Arc::new(Date32Array::from(vec![7, 8])),
        Arc::new(TimestampMicrosecondArray::from(vec![7, 8])),
        Arc::new(BinaryArray::from(vec![&b"7"[..], b"8"])),
    ]
}

/// Shows that ids of other types than integers are refused, with their type and a cure. In an
/// earlier version they were silently ignored, and the rows got the keys 0 and 1.
#[test]
fn ids_that_are_no_integers_are_refused_by_type_and_cure() {
    let test = new_bank();
    let whole: Row<'_> = Some(&[Some(1.5), Some(-2.0)]);
    for ids in odd_ids() {
        let kind = ids.data_type().to_string();
        for (name, cure) in [("key", "int64"), ("keys", "int64"), ("id", "first_key")] {
            let columns = vec![(name, Arc::clone(&ids)), ("vector", lists(&[whole, whole]))];
            let error = import(&test, columns, None).unwrap_err();
            for expected in ["others.parquet", name, &kind, cure] {
                assert!(error.contains(expected), "{name} {kind}: {error}");
            }
            assert_eq!(two(&test).contains(&[0, 1]).unwrap(), [false; 2]);
        }
        let path = test.dir.path().join("others.parquet");
        let by_position = ImportOptions { first_key: Some(5), ..Default::default() };
        assert_eq!(two(&test).import(&path, &by_position).unwrap().rows, 2, "{kind}");
        two(&test).delete(&[5, 6]).unwrap();
    }
}

#[test]
fn small_integers_are_widened() {
    let whole: Row<'_> = Some(&[Some(1.5), Some(-2.0)]);
    let ids: [(ArrayRef, [u64; 2]); 4] = [
        (Arc::new(Int8Array::from(vec![7, -1])), [7, u64::MAX]),
        (Arc::new(UInt8Array::from(vec![7, 255])), [7, 255]),
        (Arc::new(Int16Array::from(vec![700, -2])), [700, u64::MAX - 1]),
        (Arc::new(UInt16Array::from(vec![700, 65_535])), [700, 65_535]),
    ];
    for (ids, expected) in ids {
        for name in ["key", "keys"] {
            let test = new_bank();
            let columns = vec![(name, Arc::clone(&ids)), ("vector", lists(&[whole, whole]))];
            import(&test, columns, None).unwrap();
            assert_eq!(two(&test).contains(&expected).unwrap(), [true; 2], "{expected:?}");
        }
    }
}

#[test]
fn columns_that_may_be_meant_otherwise_are_refused() {
    let test = new_bank();
    let whole: Row<'_> = Some(&[Some(1.5), Some(-2.0)]);
    let vectors = || lists(&[whole, whole]);
    let ids = || -> ArrayRef { Arc::new(Int64Array::from(vec![7, 8])) };
    let texts = || -> ArrayRef { Arc::new(StringArray::from(vec!["a", "b"])) };
    let whole_numbers = || -> ArrayRef {
        let mut lists = ListBuilder::new(Int64Builder::new());
        lists.append_value([Some(1), Some(2)]);
        lists.append_value([Some(1), Some(2)]);
        Arc::new(lists.finish())
    };
    let cases: Vec<(Vec<(&str, ArrayRef)>, &str)> = vec![
        (vec![("key", ids()), ("keys", ids()), ("vector", vectors())], "both \"keys\" and \"key\""),
        (vec![("key", ids()), ("rows", vectors()), ("vector", vectors())], "both \"rows\" and"),
        (vec![("key", ids()), ("key", ids()), ("vector", vectors())], "two columns \"key\""),
        (
            vec![("key", ids()), ("vector", vectors()), ("vector", vectors())],
            "two columns \"vector\"",
        ),
        (
            vec![("key", ids()), ("note", texts()), ("note", texts()), ("vector", vectors())],
            "two columns",
        ),
        (vec![("key", ids()), ("vector", texts()), ("emb", vectors())], "\"vector\" is Utf8"),
        (vec![("key", ids()), ("rows", ids()), ("emb", vectors())], "\"rows\" is Int64"),
        (vec![("key", ids()), ("vector", vectors()), ("state", texts())], "without the state"),
        (vec![("key", ids()), ("emb", vectors()), ("state", vectors())], "without the state"),
        (vec![("key", ids()), ("vector", vectors()), ("scales", ids())], "\"scales\""),
        (vec![("key", ids()), ("history", whole_numbers()), ("emb", vectors())], "name one of"),
    ];
    for (columns, expected) in cases {
        let error = import(&test, columns, None).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(two(&test).contains(&[0, 1, 7, 8]).unwrap(), [false; 4]);
    }
    // If the import finds a column of keys, other columns may have any type.
    let columns = vec![("keys", ids()), ("name", texts()), ("rows", vectors())];
    assert_eq!(import(&test, columns, None).unwrap().rows, 2);
}

#[test]
fn a_directory_of_parquet_files_is_read_in_sorted_order() {
    let test = new_bank();
    let directory = test.dir.path().join("table.parquet");
    std::fs::create_dir(&directory).unwrap();
    let part = |name: &str, columns: Vec<(&str, ArrayRef)>| {
        std::fs::rename(write(&test, columns), directory.join(name)).unwrap();
    };
    let ids = |ids: [i64; 2]| -> ArrayRef { Arc::new(Int64Array::from(ids.to_vec())) };
    let row = |value: f64| lists(&[Some(&[Some(value), Some(value)][..]); 2]);
    part("part-00001.parquet", vec![("key", ids([3, 1])), ("vector", row(2.0))]);
    part("part-00000.snappy.parquet", vec![("key", ids([1, 2])), ("vector", row(1.0))]);
    let no_ids: ArrayRef = Arc::new(Int64Array::from(Vec::<i64>::new()));
    part("part-00002.parquet", vec![("key", no_ids), ("vector", lists(&[]))]);
    for name in ["_SUCCESS", ".part-00000.parquet.crc"] {
        std::fs::write(directory.join(name), "no rows").unwrap();
    }
    assert_eq!(two(&test).import(&directory, &ImportOptions::default()).unwrap().rows, 4);
    // If two files have a row of the same key, the row of the later file stays.
    assert_eq!(rows_of(&two(&test), &[2, 1, 3]), [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);

    std::fs::write(directory.join("notes.txt"), "no rows").unwrap();
    let error = two(&test).import(&directory, &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    std::fs::remove_file(directory.join("notes.txt")).unwrap();
    std::fs::create_dir(directory.join("day=1")).unwrap();
    let error = two(&test).import(&directory, &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("day=1"), "{error}");
    let empty = test.dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let error = two(&test).import(&empty, &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("without a file"), "{error}");
}
