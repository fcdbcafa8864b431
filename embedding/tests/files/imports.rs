//! Tests that an import never guesses which part of a file holds the keys. It refuses a doubtful
//! file and names the parts.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{TestBank, new_bank, rows_of, table};
use embank::{Dtype, Error, ExportOptions, ImportOptions, StoreError, Table, TableConfig};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// A tensor of a safetensors file: name, dtype, shape and bytes.
pub(crate) type Tensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

pub(crate) fn safetensors(path: &Path, tensors: &[Tensor<'_>]) {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let (from, to) = (data.len(), data.len() + bytes.len());
        header.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#
        ));
        data.extend(bytes);
    }
    let header = format!("{{{}}}", header.join(","));
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
}

/// Writes an npy file as NumPy does.
fn npy(path: &Path, kind: &str, is_fortran: bool, shape: &str, data: &[u8]) {
    let order = if is_fortran { "True" } else { "False" };
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}");
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let length = (text.len() as u16).to_le_bytes();
    fs::write(path, [b"\x93NUMPY\x01\0", &length[..], text.as_bytes(), data].concat()).unwrap();
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns the bytes of a matrix of two rows with two values each.
fn vectors() -> Vec<u8> {
    floats(&[1.5, -2.0, 0.25, 3.0])
}

fn file(test: &TestBank, name: &str) -> PathBuf {
    test.dir.path().join(name)
}

fn two(test: &TestBank) -> Table {
    table(&test.bank, TableConfig::new(2))
}

fn refusal(result: embank::Result<embank::Imported>) -> String {
    match result {
        Err(Error::UnreadableFile { path, what } | Error::FileMismatch { path, what }) => {
            format!("{}: {what}", path.display())
        }
        Err(
            error @ Error::Store(
                StoreError::InvalidArgument(_)
                | StoreError::InvalidOption { .. }
                | StoreError::WrongKind { .. }
                | StoreError::Io { .. },
            ),
        ) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Shows that integers of 8 and 16 bits are keys. In an earlier version an import ignored 16-bit
/// keys, and the rows got the keys 0 and 1.
#[test]
fn small_integers_are_keys_in_every_format() {
    let test = new_bank();
    let table = two(&test);
    let path = file(&test, "t.safetensors");
    for (dtype, keys) in [
        ("I16", [300_i16, -1].map(i16::to_le_bytes).concat()),
        ("U16", [300_u16, 65_535].map(u16::to_le_bytes).concat()),
        ("I8", vec![44, 0xFF]),
        ("U8", vec![44, 0xFF]),
    ] {
        let expected = match dtype {
            "I16" => [300, u64::MAX],
            "U16" => [300, 65_535],
            "I8" => [44, u64::MAX],
            _ => [44, 255],
        };
        for name in ["keys", "key"] {
            let tensors =
                [(name, dtype, &[2][..], keys.clone()), ("rows", "F32", &[2, 2], vectors())];
            safetensors(&path, &tensors);
            table.delete(&expected).unwrap();
            table.import(&path, &ImportOptions::default()).unwrap();
            assert_eq!(rows_of(&table, &expected), [1.5, -2.0, 0.25, 3.0], "{dtype} {name}");
            assert_eq!(table.contains(&[0, 1]).unwrap(), [false, false], "{dtype} {name}");
        }
        let kind = match dtype {
            "I16" => "<i2",
            "U16" => "<u2",
            "I8" => "|i1",
            _ => "|u1",
        };
        npy(&file(&test, "n.rows.npy"), "<f4", false, "(2, 2)", &vectors());
        npy(&file(&test, "n.keys.npy"), kind, false, "(2,)", &keys);
        table.delete(&expected).unwrap();
        table.import(file(&test, "n.npy"), &ImportOptions::default()).unwrap();
        assert_eq!(rows_of(&table, &expected), [1.5, -2.0, 0.25, 3.0], "{kind}");
    }
}

#[test]
fn what_has_the_name_of_a_part_is_that_part_or_refused() {
    let test = new_bank();
    let table = two(&test);
    let path = file(&test, "t.safetensors");
    let rows = || ("rows", "F32", &[2, 2][..], vectors());
    let keys = || ("keys", "U32", &[2][..], vec![7, 0, 0, 0, 8, 0, 0, 0]);
    let cases: [(&[Tensor<'_>], &str); 11] = [
        (&[("keys", "F32", &[2], floats(&[7.0, 8.0])), rows()], "keys is f32"),
        (&[("keys", "BOOL", &[2], vec![0, 1]), rows()], "\"keys\" (BOOL"),
        (&[("keys", "U8", &[2, 1, 1], vec![0, 1]), rows()], "\"keys\" (U8"),
        (&[("key", "F64", &[2], vec![0; 16]), rows()], "key is f64"),
        (&[keys(), ("key", "U8", &[2], vec![0, 1]), rows()], "both \"keys\" and \"key\""),
        (
            &[keys(), ("rows", "U8", &[2, 2], vec![0; 4]), ("emb", "F32", &[2, 2], vectors())],
            "rows is u8",
        ),
        (
            &[keys(), ("rows", "F8_E4M3", &[2, 2], vec![0; 4]), ("emb", "F32", &[2, 2], vectors())],
            "\"rows\" (F8_E4M3",
        ),
        (&[keys(), rows(), ("scales", "F32", &[2], floats(&[1.0, 2.0]))], "scales go with"),
        (&[keys(), rows(), ("state", "I64", &[2], vec![0; 16])], "state is i64"),
        (&[keys(), rows(), ("state", "BOOL", &[2], vec![0; 2])], "\"state\" (BOOL"),
        (
            &[keys(), ("emb", "F32", &[2, 2], vectors()), ("state", "F32", &[2, 2], vectors())],
            "import without the state",
        ),
    ];
    for (tensors, expected) in cases {
        safetensors(&path, tensors);
        let refused = refusal(table.import(&path, &ImportOptions::default()));
        assert!(refused.contains("t.safetensors") && refused.contains(expected), "{refused}");
        assert_eq!(table.contains(&[0, 1, 7, 8]).unwrap(), [false; 4], "{refused}");
    }
    // With the options that the error messages advise, the import succeeds.
    let named = ImportOptions { rows: Some("rows".to_owned()), ..Default::default() };
    safetensors(&path, &[keys(), rows(), ("scales", "F32", &[2], floats(&[1.0, 2.0]))]);
    assert_eq!(table.import(&path, &named).unwrap().rows, 2);
    let stateless = ImportOptions { state: false, ..Default::default() };
    safetensors(
        &path,
        &[keys(), ("emb", "F32", &[2, 2], vectors()), ("state", "F32", &[2, 2], vectors())],
    );
    assert_eq!(table.import(&path, &stateless).unwrap().rows, 2);
    let positions = ImportOptions { first_key: Some(0), ..Default::default() };
    safetensors(&path, &[("keys", "F32", &[2], floats(&[7.0, 8.0])), rows()]);
    assert_eq!(table.import(&path, &positions).unwrap().rows, 2);
    assert_eq!(rows_of(&table, &[0, 1]), [1.5, -2.0, 0.25, 3.0]);
}

#[test]
fn a_tensor_that_may_be_keys_is_named_or_left_on_request() {
    let test = new_bank();
    let table = two(&test);
    let path = file(&test, "t.safetensors");
    let ids = [70_i64, 11].map(i64::to_le_bytes).concat();
    let matrix = || ("emb.weight", "F32", &[2, 2][..], vectors());
    for beside in [
        ("ids", "I64", &[2][..], ids.clone()),
        ("ids", "I64", &[2, 1][..], ids.clone()),
        ("popularity", "F32", &[2][..], floats(&[0.5, 0.75])),
        ("mask", "BOOL", &[2][..], vec![1, 1]),
    ] {
        safetensors(&path, &[beside.clone(), matrix()]);
        let refused = refusal(table.import(&path, &ImportOptions::default()));
        assert!(refused.contains(beside.0) && refused.contains("first_key"), "{refused}");
    }
    // A tensor of another length can't hold the keys of these rows.
    safetensors(&path, &[("bias", "F32", &[3], floats(&[0.0; 3])), matrix()]);
    assert_eq!(table.import(&path, &ImportOptions::default()).unwrap().rows, 2);
    safetensors(&path, &[("ids", "I64", &[2], ids), matrix()]);
    let named = ImportOptions { keys: Some("ids".to_owned()), ..Default::default() };
    table.import(&path, &named).unwrap();
    assert_eq!(rows_of(&table, &[70, 11]), [1.5, -2.0, 0.25, 3.0]);
    // The file has two matrices, one of a type that an import can't read. The import can't tell
    // which matrix holds the rows.
    safetensors(&path, &[("packed", "F8_E4M3", &[2, 4], vec![0; 8]), matrix()]);
    let refused = refusal(table.import(&path, &ImportOptions::default()));
    assert!(refused.contains("name one of"), "{refused}");
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let test = new_bank();
    let path = file(&test, "t.safetensors");
    let header = r#"{"rows":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"rows":{"dtype":"F32","shape":[1,4],"data_offsets":[0,16]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&path, [&length[..], header.as_bytes(), &vectors()].concat()).unwrap();
    let refused = refusal(two(&test).import(&path, &ImportOptions::default()));
    assert!(refused.contains("two tensors \"rows\""), "{refused}");
}

#[test]
fn rows_by_position_begin_at_a_key_and_end_at_the_last() {
    let test = new_bank();
    let table = two(&test);
    let path = file(&test, "t.npy");
    npy(&path, "<f4", false, "(2, 2)", &vectors());
    let from = |first_key| ImportOptions { first_key: Some(first_key), ..Default::default() };
    table.import(&path, &from(1000)).unwrap();
    assert_eq!(rows_of(&table, &[1000, 1001]), [1.5, -2.0, 0.25, 3.0]);
    table.import(&path, &from(u64::MAX - 1)).unwrap();
    assert_eq!(rows_of(&table, &[u64::MAX - 1, u64::MAX]), [1.5, -2.0, 0.25, 3.0]);
    let refused = refusal(table.import(&path, &from(u64::MAX)));
    assert!(refused.contains("beyond the last key"), "{refused}");
    let both = ImportOptions { keys: Some("k.npy".to_owned()), ..from(0) };
    let refused = refusal(table.import(&path, &both));
    assert!(refused.contains("leave one of them out"), "{refused}");
}

/// Shows that column-major arrays are read, as pandas' `to_numpy` writes them.
#[test]
fn npy_in_fortran_order_is_read() {
    let test = new_bank();
    let wide = test.bank.table("wide", TableConfig::new(3)).unwrap();
    let (rows, columns) = (100_000_usize, 3_usize);
    let value = |row: usize, column: usize| (row * columns + column) as f32;
    let column_major: Vec<f32> =
        (0..columns).flat_map(|column| (0..rows).map(move |row| value(row, column))).collect();
    let path = file(&test, "t.npy");
    npy(&path, "<f4", true, &format!("({rows}, {columns})"), &floats(&column_major));
    assert_eq!(wide.import(&path, &ImportOptions::default()).unwrap().rows, rows as u64);
    for row in [0, 1, 65_535, 65_536, rows - 1] {
        let expected: Vec<f32> = (0..columns).map(|column| value(row, column)).collect();
        assert_eq!(rows_of(&wide, &[row as u64]), expected, "{row}");
    }
    let doubles: Vec<u8> =
        [1.5_f64, 0.25, -2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    npy(&path, "<f8", true, "(2, 2)", &doubles);
    let table = two(&test);
    table.import(&path, &ImportOptions::default()).unwrap();
    assert_eq!(rows_of(&table, &[0, 1]), [1.5, -2.0, 0.25, 3.0]);
    npy(&path, "<f4", true, "(2, 2)", &floats(&[0.0; 3]));
    let refused = refusal(table.import(&path, &ImportOptions::default()));
    assert!(refused.contains("does not fit"), "{refused}");
}

/// Shows that an import refuses a matrix if a file of keys exists beside it. An earlier version
/// ignored that file, so row i got the key i.
#[test]
fn an_npy_matrix_beside_keys_is_refused() {
    let test = new_bank();
    let table = two(&test);
    let ids = [70_i64, 11].map(i64::to_le_bytes).concat();
    let at = |name: &str| file(&test, name);
    npy(&at("t.npy"), "<f4", false, "(2, 2)", &vectors());
    for beside in ["t.keys.npy", "t.key.npy"] {
        npy(&at(beside), "<i8", false, "(2,)", &ids);
        let refused = refusal(table.import(at("t.npy"), &ImportOptions::default()));
        assert!(refused.contains(beside) && refused.contains("first_key"), "{refused}");
        fs::remove_file(at(beside)).unwrap();
    }
    for beside in ["t.rows.npy", "t.scales.npy"] {
        npy(&at(beside), "<f4", false, "(2, 2)", &vectors());
        let refused = refusal(table.import(at("t.npy"), &ImportOptions::default()));
        assert!(refused.contains(beside), "{refused}");
        fs::remove_file(at(beside)).unwrap();
    }
    // The path names the file of rows, `t.rows.npy`. The set itself has the path `t.npy`.
    npy(&at("t.rows.npy"), "<f4", false, "(2, 2)", &vectors());
    npy(&at("t.keys.npy"), "<i8", false, "(2,)", &ids);
    let refused = refusal(table.import(at("t.rows.npy"), &ImportOptions::default()));
    assert!(refused.contains("t.keys.npy"), "{refused}");
    fs::remove_file(at("t.npy")).unwrap();
    table.import(at("t.npy"), &ImportOptions::default()).unwrap();
    assert_eq!(rows_of(&table, &[70, 11]), [1.5, -2.0, 0.25, 3.0]);
    npy(&at("t.keys.npy"), ">i8", false, "(2,)", &ids);
    let refused = refusal(table.import(at("t.npy"), &ImportOptions::default()));
    assert!(refused.contains(">i8") && refused.contains("astype"), "{refused}");
}

#[test]
fn values_that_the_table_would_make_infinite_are_refused_with_their_place() {
    for (dtype, kind, large) in [
        (Dtype::F16, "<f4", floats(&[7e4])),
        (Dtype::Bf16, "<f4", floats(&[f32::MAX])),
        (Dtype::F32, "<f8", 1e39_f64.to_le_bytes().to_vec()),
        (Dtype::Int8, "<f8", (-1e300_f64).to_le_bytes().to_vec()),
    ] {
        let test = new_bank();
        let table = table(&test.bank, TableConfig::new(2).dtype(dtype));
        let path = file(&test, "t.npy");
        let mut data = vec![0; large.len() * 3];
        data.extend(&large);
        npy(&path, kind, false, "(2, 2)", &data);
        let options = ImportOptions { first_key: Some(40), ..Default::default() };
        let refused = refusal(table.import(&path, &options));
        assert!(refused.contains("row 1 (key 41), column 1"), "{dtype:?}: {refused}");
        assert_eq!(table.contains(&[40, 41]).unwrap(), [false; 2]);
    }
}

#[test]
fn a_list_of_files_goes_in_as_one_and_is_checked_before_the_first_row() {
    let test = new_bank();
    let table = two(&test);
    let files = ["b.safetensors", "a.safetensors", "c.npy"].map(|name| file(&test, name));
    let keyed = |path: &Path, first: u8| {
        let keys = vec![first, first + 1];
        safetensors(path, &[("keys", "U8", &[2], keys), ("rows", "F32", &[2, 2], vectors())]);
    };
    keyed(&files[0], 10);
    keyed(&files[1], 20);
    let mut told = Vec::new();
    let imported = table
        .import_files_with(&files[..2], &ImportOptions::default(), |progress| {
            told.push((progress.rows_done, progress.rows_total));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((imported.rows, imported.with_state), (4, false));
    assert_eq!(told, [(2, 4), (4, 4)]);
    assert_eq!(table.contains(&[10, 11, 20, 21]).unwrap(), [true; 4]);

    // The last file has no keys, so no row of any file is imported.
    table.delete(&[10, 11, 20, 21]).unwrap();
    npy(&files[2], "<f4", false, "(2, 2)", &vectors());
    let refused = refusal(table.import_files(&files, &ImportOptions::default()));
    assert!(refused.contains("c.npy") && refused.contains("first_key"), "{refused}");
    npy(&files[2], "<f4", false, "(2, 3)", &floats(&[0.0; 6]));
    let refused = refusal(table.import_files(&files, &ImportOptions::default()));
    assert!(refused.contains("c.npy") && refused.contains("3 values"), "{refused}");
    assert_eq!(table.contains(&[10, 11, 20, 21]).unwrap(), [false; 4]);

    // An import by position continues the numbering from file to file.
    npy(&files[2], "<f4", false, "(2, 2)", &floats(&[5.0, 6.0, 7.0, 8.0]));
    let by_position = ImportOptions { first_key: Some(100), ..Default::default() };
    table.import_files(&files, &by_position).unwrap();
    assert_eq!(rows_of(&table, &[101, 102, 104, 105]), [0.25, 3.0, 1.5, -2.0, 5.0, 6.0, 7.0, 8.0]);
    let none: [&Path; 0] = [];
    let refused = refusal(table.import_files(&none, &ImportOptions::default()));
    assert!(refused.contains("the list of files is empty"), "{refused}");
}

#[test]
fn suffixes_are_read_in_any_case() {
    let test = new_bank();
    let table = two(&test);
    table.put(&[3], &[1.0, 2.0]).unwrap();
    test.bank.checkpoint(b"").unwrap();
    for name in ["T.SAFETENSORS", "T.Npy"] {
        table.export(file(&test, name), &ExportOptions::default()).unwrap();
        assert_eq!(table.import(file(&test, name), &ImportOptions::default()).unwrap().rows, 1);
    }
    assert!(file(&test, "T.rows.npy").exists());
}

/// Shows that an import refuses FIFOs and devices at once. In an earlier version opening a FIFO
/// waited for a writer without limit.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let test = new_bank();
    let table = two(&test);
    for suffix in ["npy", "safetensors"] {
        let path = file(&test, &format!("pipe.{suffix}"));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let refused = refusal(table.import(&path, &ImportOptions::default()));
        assert!(refused.contains("no regular file"), "{refused}");
        let device = file(&test, &format!("device.{suffix}"));
        std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
        let refused = refusal(table.import(&device, &ImportOptions::default()));
        assert!(refused.contains("no regular file"), "{refused}");
    }
}
