//! Parquet files that others made: lists of any kind, nulls, columns that may be keys.

#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, ListBuilder};
use arrow_array::{ArrayRef, Float16Array, Int32Array, Int64Array, RecordBatch};
use common::{TestBank, new_bank, rows_of, table};
use embank::{ImportOptions, Imported, TableConfig};
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
    let batch = RecordBatch::try_from_iter(columns).unwrap();
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
    // Without a row, lists tell no dim.
    assert_eq!(import(&test, vec![("vector", lists(&[]))], None).unwrap().rows, 0);
}

#[test]
fn keys_are_named_where_a_column_may_be_them() {
    let test = new_bank();
    let whole: Row<'_> = Some(&[Some(1.5), Some(-2.0)]);
    let columns = |ids: ArrayRef| vec![("id", ids), ("vector", lists(&[whole, whole]))];
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![7, -1]));
    // Rows have no order there: their numbers were taken for keys.
    let error = import(&test, columns(Arc::clone(&ids)), None).unwrap_err();
    assert!(error.contains("\"id\" may be one"), "{error}");
    import(&test, columns(ids), Some("id")).unwrap();
    let table = table(&test.bank, TableConfig::new(2));
    assert_eq!(table.contains(&[0, 7, u64::MAX]).unwrap(), [false, true, true]);
    let nulls: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    let error = import(&test, columns(nulls), Some("id")).unwrap_err();
    assert!(error.contains("row 1, column \"id\" is null"), "{error}");
    let halves: ArrayRef = Arc::new(Float16Array::from(vec![half::f16::ONE; 2]));
    assert_eq!(import(&test, columns(halves), None).unwrap().rows, 2);
}
