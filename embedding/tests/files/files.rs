//! Tests exports and imports of tables, and imports of damaged files and of files from other
//! programs.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{new_bank, push_to_disk, rows_of, table};
use embank::{
    Adagrad, Bank, DenseRows, Dtype, Error, ExportOptions, FileFormat, ImportOptions, Optimizer,
    Sgd, StoreError, Table, TableConfig, exported_config,
};
use proptest::prelude::*;

fn formats() -> Vec<&'static str> {
    let mut suffixes = vec!["safetensors", "npy"];
    if cfg!(feature = "parquet") {
        suffixes.push("parquet");
    }
    suffixes
}

fn config() -> TableConfig {
    TableConfig::new(5).optimizer(Optimizer::adagrad(0.1)).seed(3)
}

/// Returns keys that are far apart and unsorted.
fn keys() -> Vec<u64> {
    (0..3000_u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32).sin()).collect()
}

fn export(table: &Table, path: &Path, state: bool) {
    let exported = table.export(path, &ExportOptions { state, ..Default::default() }).unwrap();
    assert_eq!(exported.rows, keys().len() as u64);
    let bytes: u64 = exported.files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert_eq!(exported.bytes, bytes);
}

#[test]
fn what_is_exported_comes_back_and_trains_on_as_before() {
    for suffix in formats() {
        let test = new_bank();
        let from = table(&test.bank, config());
        let keys = keys();
        for _ in 0..3 {
            from.apply_gradients(&keys, &values(keys.len() * 5)).unwrap();
        }
        push_to_disk(&test.bank);
        test.bank.checkpoint(b"").unwrap();
        let path = test.dir.path().join("t").with_extension(suffix);
        export(&from, &path, true);

        let into = test.bank.table("into", config()).unwrap();
        let imported = into.import(&path, &ImportOptions::default()).unwrap();
        assert_eq!((imported.rows, imported.with_state), (3000, true), "{suffix}");
        assert_eq!(rows_of(&into, &keys), rows_of(&from, &keys), "{suffix}");
        for table in [&from, &into] {
            table.apply_gradients(&keys, &values(keys.len() * 5)).unwrap();
        }
        assert_eq!(rows_of(&into, &keys), rows_of(&from, &keys), "{suffix}: the state is there");

        let fresh = test.bank.table("fresh", config()).unwrap();
        let options = ImportOptions { state: false, ..Default::default() };
        assert!(!fresh.import(&path, &options).unwrap().with_state);
        fresh.apply_gradients(&keys, &values(keys.len() * 5)).unwrap();
        assert_ne!(rows_of(&fresh, &keys), rows_of(&from, &keys), "{suffix}: no state");

        let other = test.bank.table("other", TableConfig::new(5)).unwrap();
        let error = other.import(&path, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains("state"), "{error}");
        let narrow = test.bank.table("narrow", TableConfig::new(4)).unwrap();
        let error = narrow.import(&path, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains("have 5 values") && error.contains("have 4"), "{error}");
        assert_eq!(exported_config(&path, None).unwrap(), Some(from.config()));
    }
}

#[test]
fn an_export_is_the_checkpoint_whatever_comes_after() {
    for suffix in formats() {
        let test = new_bank();
        let table = table(&test.bank, config());
        table.put(&[1, 2], &values(10)).unwrap();
        test.bank.checkpoint(b"").unwrap();
        table.put(&[1, 3], &[9.0; 10]).unwrap();
        table.delete(&[2]).unwrap();
        let path = test.dir.path().join("t").with_extension(suffix);
        let mut told = Vec::new();
        let exported = table.export_with(&path, &ExportOptions::default(), |progress| {
            told.push((progress.rows_done, progress.rows_total));
            table.put(&[2], &[7.0; 5]).unwrap();
            ControlFlow::Continue(())
        });
        assert_eq!(exported.unwrap().rows, 2);
        assert_eq!(told, [(2, 2)]);
        let into = test.bank.table("into", config()).unwrap();
        into.import(&path, &ImportOptions::default()).unwrap();
        assert_eq!(into.contains(&[1, 2, 3]).unwrap(), [true, true, false]);
        assert_eq!(rows_of(&into, &[1, 2]), values(10));
    }
}

#[test]
fn an_export_that_is_ended_or_fails_leaves_the_older_file() {
    for suffix in formats() {
        let test = new_bank();
        let table = table(&test.bank, config());
        table.put(&keys(), &values(15_000)).unwrap();
        let folder = test.dir.path().join("files");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("t").with_extension(suffix);
        let error = table.export(&path, &ExportOptions::default()).unwrap_err();
        assert!(error.to_string().contains("checkpoint"), "{error}");
        test.bank.checkpoint(b"").unwrap();
        export(&table, &path, false);
        let files = || {
            let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            let mut files: Vec<(PathBuf, Vec<u8>)> =
                names.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
            files.sort();
            files
        };
        let before = files();
        let ended = table
            .export_with(&path, &ExportOptions::default(), |_| ControlFlow::Break(()))
            .unwrap_err();
        assert!(matches!(ended, Error::Cancelled));
        let nowhere = folder.join("nowhere").join("t").with_extension(suffix);
        let error = table.export(nowhere, &ExportOptions::default()).unwrap_err().to_string();
        assert!(error.contains("nowhere"), "{error}");
        assert!(before == files(), "{suffix}");
    }
}

#[test]
fn a_dense_file_has_row_i_for_key_i() {
    for suffix in ["safetensors", "npy"] {
        let test = new_bank();
        let table = table(&test.bank, config());
        let present: Vec<u64> = (0..5000).filter(|key| key % 7 != 3).collect();
        table.put(&present, &values(present.len() * 5)).unwrap();
        test.bank.checkpoint(b"").unwrap();
        let path = test.dir.path().join("t").with_extension(suffix);
        let dense = |rows, fill_missing| ExportOptions {
            dense: Some(DenseRows { rows, fill_missing }),
            ..Default::default()
        };
        let error = table.export(&path, &dense(None, false)).unwrap_err().to_string();
        assert!(error.contains("714 of the keys 0 to 4999"), "{error}");
        let error = table.export(&path, &dense(Some(4000), true)).unwrap_err().to_string();
        assert!(error.contains("beyond the 4000 rows"), "{error}");
        assert!(!path.exists());
        let exported = table.export(&path, &dense(Some(5010), true)).unwrap();
        assert_eq!((exported.rows, exported.filled_rows), (4286, 724));
        assert_eq!(exported.files, std::slice::from_ref(&path));

        let into = test.bank.table("into", config()).unwrap();
        assert_eq!(into.import(&path, &ImportOptions::default()).unwrap().rows, 5010);
        let all: Vec<u64> = (0..5010).collect();
        let mut expected = vec![0.0; all.len() * 5];
        table.initial(&all, &mut expected).unwrap();
        for (i, &key) in present.iter().enumerate() {
            expected[key as usize * 5..][..5]
                .copy_from_slice(&values(present.len() * 5)[i * 5..][..5]);
        }
        assert_eq!(rows_of(&into, &all), expected, "{suffix}");

        let exported = table.export(&path, &dense(None, true)).unwrap();
        assert_eq!(exported.filled_rows, 714);
        let bytes = fs::metadata(&path).unwrap().len();
        assert!((5000 * 20..5000 * 20 + 1000).contains(&bytes), "{bytes}");
    }
}

#[test]
fn an_npy_set_loses_its_keys_first_and_no_older_part_stays() {
    let test = new_bank();
    let table = table(&test.bank, config());
    table.put(&keys(), &values(15_000)).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let path = test.dir.path().join("t.npy");
    export(&table, &path, true);
    export(&table, &path, false);
    assert!(!test.dir.path().join("t.state.npy").exists());
    fs::remove_file(test.dir.path().join("t.keys.npy")).unwrap();
    let error = table.import(&path, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("did not come to its end"), "{error}");
}

/// Makes a table, updates its rows several times, and writes a checkpoint.
fn trained(bank: &Bank, name: &str, config: TableConfig) -> Table {
    let table = bank.table(name, config).unwrap();
    let keys: Vec<u64> = (0..300).rev().collect();
    for round in 0..5 {
        let gradients: Vec<f32> =
            (0..300 * table.dim()).map(|i| ((i * 7 + round) as f32).sin()).collect();
        table.apply_gradients(&keys, &gradients).unwrap();
    }
    bank.checkpoint(b"").unwrap();
    table
}

/// Shows that f16, bf16 and int8 rows survive an export and import bit for bit, because a
/// safetensors file holds their stored bytes. In an earlier version int8 rows came back with other
/// scales.
#[test]
fn rows_below_f32_come_back_bit_for_bit() {
    for (dtype, suffix) in [Dtype::F16, Dtype::Bf16, Dtype::Int8]
        .into_iter()
        .flat_map(|dtype| formats().into_iter().map(move |suffix| (dtype, suffix)))
    {
        let test = new_bank();
        let config = config().dtype(dtype).state_dtype(Dtype::Bf16);
        let from = trained(&test.bank, "from", config.clone());
        let path = test.dir.path().join("t").with_extension(suffix);
        let keys: Vec<u64> = (0..300).collect();
        let bits = |table: &Table| -> Vec<u32> {
            rows_of(table, &keys).into_iter().map(f32::to_bits).collect()
        };
        for (state, dense) in [(true, false), (false, false), (true, true)] {
            if dense && suffix == "parquet" {
                continue;
            }
            let dense = dense.then(DenseRows::default);
            let options = ExportOptions { state, dense, ..Default::default() };
            from.export(&path, &options).unwrap();
            let into = test.bank.table("into", config.clone()).unwrap();
            into.put(&[0, 1], &[9.0; 10]).unwrap();
            assert_eq!(into.import(&path, &ImportOptions::default()).unwrap().with_state, state);
            if dtype == Dtype::Int8 && suffix != "safetensors" {
                for (found, expected) in rows_of(&into, &keys).iter().zip(rows_of(&from, &keys)) {
                    assert!((found - expected).abs() <= 2e-7 * expected.abs(), "{suffix}");
                }
            } else {
                assert_eq!(bits(&into), bits(&from), "{dtype:?} {suffix} {options:?}");
            }
            // An export of the imported table writes equal bytes.
            if suffix == "safetensors" {
                test.bank.checkpoint(b"").unwrap();
                let again = test.dir.path().join("again.safetensors");
                into.export(&again, &options).unwrap();
                assert_eq!(sorted_rows(&again), sorted_rows(&path), "{dtype:?} {options:?}");
            }
            test.bank.drop_table("into").unwrap();
        }
    }
}

/// Returns the rows of a safetensors file as bytes, sorted by key. A row joins the bytes of all
/// tensors that the table stores.
fn sorted_rows(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let tensor = |name: &str| {
        let place = header.get(name)?.get("data_offsets")?;
        let [from, to] = [0, 1].map(|at| place[at].as_u64().unwrap() as usize);
        Some(data[from..to].chunks((to - from) / 300).map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let parts: Vec<_> =
        ["keys", "rows", "scales", "state"].into_iter().filter_map(tensor).collect();
    let mut rows: Vec<Vec<u8>> =
        (0..300).map(|row| parts.iter().flat_map(|part| part[row].clone()).collect()).collect();
    rows.sort();
    rows
}

#[test]
fn rows_below_f32_have_their_own_types_in_files() {
    let test = new_bank();
    for (dtype, in_safetensors, in_npy, bytes) in [
        (Dtype::F16, "\"F16\"", "<f2", 2),
        (Dtype::Bf16, "\"BF16\"", "<f4", 2),
        (Dtype::Int8, "\"I8\"", "<f4", 1),
    ] {
        let from = trained(&test.bank, dtype.name(), config().dtype(dtype));
        let path = test.dir.path().join("t.safetensors");
        let exported = from.export(&path, &ExportOptions::default()).unwrap();
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        assert!(text.contains(in_safetensors), "{dtype:?}");
        assert_eq!(text.contains("scales"), dtype == Dtype::Int8);
        assert!(exported.bytes < 300 * (8 + 5 * bytes + 4) + 1000, "{}", exported.bytes);
        from.export(test.dir.path().join("t.npy"), &ExportOptions::default()).unwrap();
        let text = fs::read(test.dir.path().join("t.rows.npy")).unwrap();
        assert!(String::from_utf8_lossy(&text[..64]).contains(in_npy), "{dtype:?}");
        // A table of another dtype can import the values.
        for file in ["t.safetensors", "t.npy"] {
            let plain = test.bank.table("plain", TableConfig::new(5)).unwrap();
            let options = ImportOptions { state: false, ..Default::default() };
            plain.import(test.dir.path().join(file), &options).unwrap();
            let keys: Vec<u64> = (0..300).collect();
            assert_eq!(rows_of(&plain, &keys), rows_of(&from, &keys), "{dtype:?} {file}");
            test.bank.drop_table("plain").unwrap();
        }
    }
}

/// Shows that a file without rows imports no rows. In an earlier version the reader panicked on an
/// int8 tensor without rows.
#[test]
fn a_file_without_rows_puts_none() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(2));
    let path = test.dir.path().join("t.safetensors");
    for (columns, fits) in [(0, true), (2, true), (3, false)] {
        let header = format!(
            r#"{{"rows":{{"dtype":"I8","shape":[0,{columns}],"data_offsets":[0,0]}},"scales":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}}}"#
        );
        fs::write(&path, safetensors(&header, &[])).unwrap();
        let imported = table.import(&path, &ImportOptions::default());
        assert_eq!(imported.map(|imported| imported.rows).ok(), fits.then_some(0), "{columns}");
    }
    test.bank.checkpoint(b"").unwrap();
    for suffix in formats() {
        let path = test.dir.path().join("none").with_extension(suffix);
        table.export(&path, &ExportOptions::default()).unwrap();
        assert_eq!(table.import(&path, &ImportOptions::default()).unwrap().rows, 0, "{suffix}");
        let other = test.bank.table("other", TableConfig::new(5)).unwrap();
        let error = other.import(&path, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains("have 2 values"), "{suffix}: {error}");
    }
}

/// Regression test: an earlier version removed any ending from the name, so the exports to
/// `model.1` and `model.2` both wrote `model.rows.npy`. An export must remove only a final `.npy`.
#[test]
fn npy_sets_of_different_names_are_different_files() {
    let test = new_bank();
    let format = Some(FileFormat::Npy);
    let path = |i: u64| test.dir.path().join(format!("model.{i}"));
    for i in [1, 2] {
        let table = test.bank.table(&i.to_string(), TableConfig::new(1)).unwrap();
        table.put(&[1], &[i as f32]).unwrap();
        test.bank.checkpoint(b"").unwrap();
        table.export(path(i), &ExportOptions { format, ..Default::default() }).unwrap();
    }
    let into = test.bank.table("into", TableConfig::new(1)).unwrap();
    for i in [1, 2] {
        into.import(path(i), &ImportOptions { format, ..Default::default() }).unwrap();
        assert_eq!(rows_of(&into, &[1]), [i as f32]);
    }
}

/// Shows that an npy export removes only files that an export left. In an earlier version it
/// removed any file with the name of one of the set's files, such as `emb.keys.npy`. It also
/// removed the older set before the new set was sure to replace it.
#[test]
fn an_npy_export_removes_only_what_an_export_left() {
    let test = new_bank();
    let table = trained(&test.bank, "t", config());
    let file = |name: &str| test.dir.path().join(name);
    let export = |state: bool, dense: bool| {
        let dense = dense.then(DenseRows::default);
        table.export(file("emb.npy"), &ExportOptions { state, dense, ..Default::default() })
    };
    fs::write(file("emb.keys.npy"), b"the user's own").unwrap();
    export(false, true).unwrap();
    assert_eq!(fs::read(file("emb.keys.npy")).unwrap(), b"the user's own");
    let error = export(false, false).unwrap_err().to_string();
    assert!(error.contains("emb.npy is there"), "{error}");
    fs::remove_file(file("emb.npy")).unwrap();
    export(false, false).unwrap();

    // The export reports the directory in its way before it removes any file.
    fs::create_dir(file("emb.state.npy")).unwrap();
    let error = export(true, false).unwrap_err().to_string();
    assert!(error.contains("emb.state.npy"), "{error}");
    let into = test.bank.table("into", config()).unwrap();
    assert_eq!(into.import(file("emb.npy"), &ImportOptions::default()).unwrap().rows, 300);
    fs::remove_dir(file("emb.state.npy")).unwrap();

    fs::write(file("emb.state.npy"), b"the user's own").unwrap();
    let error = export(false, false).unwrap_err().to_string();
    assert!(error.contains("emb.state.npy is there"), "{error}");
    fs::remove_file(file("emb.state.npy")).unwrap();
    export(true, false).unwrap();
    export(true, true).unwrap();
    for (name, there) in [("emb.rows.npy", false), ("emb.keys.npy", false), ("emb.npy", true)] {
        assert_eq!(file(name).exists(), there, "{name}");
    }
    export(false, false).unwrap();
    for (name, there) in [("emb.npy", false), ("emb.state.npy", false), ("emb.rows.npy", true)] {
        assert_eq!(file(name).exists(), there, "{name}");
    }
}

/// Shows that an import refuses the state of another optimizer. Momentum and decaying Adagrad store
/// equally many values per row, so the length of the state does not tell them apart.
#[test]
fn state_of_another_optimizer_is_refused_in_every_format() {
    let momentum = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::new(0.1) });
    let decaying = Optimizer::Adagrad(Adagrad { lr_decay: 0.1, ..Adagrad::new(0.1) });
    let test = new_bank();
    let from = trained(&test.bank, "from", config().optimizer(decaying));
    let into = test.bank.table("into", config().optimizer(momentum)).unwrap();
    for (suffix, dense) in formats()
        .into_iter()
        .map(|suffix| (suffix, None))
        .chain([("safetensors", Some(DenseRows::default())), ("npy", Some(DenseRows::default()))])
    {
        let path = test.dir.path().join("t").with_extension(suffix);
        let options = ExportOptions { state: true, dense, ..Default::default() };
        from.export(&path, &options).unwrap();
        let error = into.import(&path, &ImportOptions::default()).unwrap_err();
        assert!(matches!(error, Error::FileMismatch { .. }), "{suffix}: {error:?}");
        let error = error.to_string();
        assert!(
            error.contains("the state of Adagrad,") && !error.contains("{"),
            "{suffix}: {error}"
        );
        let options = ImportOptions { state: false, ..Default::default() };
        assert!(!into.import(&path, &options).unwrap().with_state);
    }
    // Without `t.embank.json`, an import can't tell which optimizer the state belongs to.
    fs::remove_file(test.dir.path().join("t.embank.json")).unwrap();
    let path = test.dir.path().join("t.npy");
    let error = into.import(&path, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("t.embank.json") && error.contains("without the state"), "{error}");
}

/// Shows that a dense export can be cancelled at any point, and fails if the disk lacks room. In an
/// earlier version one stray large key filled the disk, and the export could not be cancelled.
#[test]
fn a_dense_export_can_be_ended_at_any_point_and_needs_room() {
    for suffix in ["safetensors", "npy"] {
        let test = new_bank();
        let table = table(&test.bank, config());
        table.put(&[1, 1 << 50], &values(10)).unwrap();
        test.bank.checkpoint(b"").unwrap();
        let path = test.dir.path().join("t").with_extension(suffix);
        let dense = |rows| ExportOptions {
            dense: Some(DenseRows { rows, fill_missing: true }),
            ..Default::default()
        };
        let error = table.export(&path, &dense(None)).unwrap_err().to_string();
        assert!(error.contains("0 to 1125899906842624") && error.contains("free"), "{error}");
        let error = table.export(&path, &dense(Some(u64::MAX))).unwrap_err().to_string();
        assert!(error.contains("free"), "{error}");
        table.delete(&[1 << 50]).unwrap();
        table.put(&[400_000], &values(5)).unwrap();
        test.bank.checkpoint(b"").unwrap();
        let mut told = Vec::new();
        table
            .export_with(&path, &dense(None), |progress| {
                told.push((progress.rows_done, progress.rows_total));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(told.len() > 3 && told.is_sorted() && told.last() == Some(&(2, 2)), "{told:?}");
        for calls in 0..told.len() {
            let mut left = calls;
            let ended = table.export_with(&path, &dense(None), |_| {
                left = left.wrapping_sub(1);
                if left == usize::MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(matches!(ended, Err(Error::Cancelled)), "{calls}");
        }
    }
}

/// Returns the bytes of an npy file as NumPy writes it.
fn npy(kind: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], text.as_bytes(), data].concat()
}

/// Returns the bytes of a safetensors file with this header and data.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn matrices_of_others_are_rows_from_key_0_on() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(2));
    let path = test.dir.path().join("others.npy");
    let doubles = [1.5_f64, -2.0, 0.25, 3.0].map(f64::to_le_bytes).concat();
    fs::write(&path, npy("<f8", "(2, 2)", &doubles)).unwrap();
    table.import(&path, &ImportOptions::default()).unwrap();
    assert_eq!(rows_of(&table, &[0, 1]), [1.5, -2.0, 0.25, 3.0]);

    let keys = test.dir.path().join("ids.npy");
    fs::write(&keys, npy("<i8", "(2,)", &[9_i64, -1].map(i64::to_le_bytes).concat())).unwrap();
    let named = ImportOptions { keys: Some(keys.display().to_string()), ..Default::default() };
    table.import(&path, &named).unwrap();
    assert_eq!(rows_of(&table, &[9, u64::MAX]), [1.5, -2.0, 0.25, 3.0]);

    let path = test.dir.path().join("others.safetensors");
    let header = r#"{"emb.weight":{"dtype":"BF16","shape":[3,2],"data_offsets":[0,12]}}"#;
    let halves = [0x3F80_u16, 0x4000, 0xBF80, 0, 0x3F00, 0x4040].map(u16::to_le_bytes).concat();
    fs::write(&path, safetensors(header, &halves)).unwrap();
    assert_eq!(table.import(&path, &ImportOptions::default()).unwrap().rows, 3);
    assert_eq!(rows_of(&table, &[0, 1, 2]), [1.0, 2.0, -1.0, 0.0, 0.5, 3.0]);

    // int8 rows, with one scale per row.
    let header = r#"{"rows":{"dtype":"I8","shape":[2,2],"data_offsets":[0,4]},"scales":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    let data = [&[1, 0xFF, 100, 2][..], &[0.5_f32, 2.0].map(f32::to_le_bytes).concat()].concat();
    fs::write(&path, safetensors(header, &data)).unwrap();
    table.import(&path, &ImportOptions::default()).unwrap();
    assert_eq!(rows_of(&table, &[0, 1]), [0.5, -0.5, 200.0, 4.0]);
    let named = ImportOptions { rows: Some("nothing".to_owned()), ..Default::default() };
    let error = table.import(&path, &named).unwrap_err().to_string();
    assert!(error.contains("\"nothing\"") && error.contains("\"scales\""), "{error}");
}

#[test]
fn a_value_that_is_not_finite_is_named_with_its_place() {
    for suffix in formats() {
        let test = new_bank();
        let table = table(&test.bank, TableConfig::new(3));
        // A put refuses NaN, so the test brings NaN into the table through a file.
        let header = r#"{"keys":{"dtype":"U32","shape":[1],"data_offsets":[0,4]},"rows":{"dtype":"F32","shape":[1,3],"data_offsets":[4,16]}}"#;
        let rows = [1.0, f32::NAN, 2.0].map(f32::to_le_bytes).concat();
        let bad = test.dir.path().join("bad.safetensors");
        fs::write(&bad, safetensors(header, &[40_u32.to_le_bytes().to_vec(), rows].concat()))
            .unwrap();
        table.import(&bad, &ImportOptions { non_finite: true, ..Default::default() }).unwrap();
        test.bank.checkpoint(b"").unwrap();
        let path = test.dir.path().join("t").with_extension(suffix);
        table.export(&path, &ExportOptions::default()).unwrap();
        let into = test.bank.table("into", TableConfig::new(3)).unwrap();
        let error = into.import(&path, &ImportOptions::default()).unwrap_err().to_string();
        for expected in ["t.", "row 0 (key 40), column 1 of the vector is NaN"] {
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(into.contains(&[40]).unwrap(), [false]);
        into.import(&path, &ImportOptions { non_finite: true, ..Default::default() }).unwrap();
        assert!(rows_of(&into, &[40])[1].is_nan());
    }
}

#[test]
fn of_equal_keys_the_last_row_stays() {
    let test = new_bank();
    let table = table(&test.bank, TableConfig::new(1).optimizer(Optimizer::adagrad(0.1)));
    let header = r#"{"keys":{"dtype":"U32","shape":[3],"data_offsets":[0,12]},"rows":{"dtype":"F32","shape":[3,1],"data_offsets":[12,24]},"state":{"dtype":"F32","shape":[3,1],"data_offsets":[24,36]}}"#;
    let keys = [4_u32, 5, 4].map(u32::to_le_bytes).concat();
    let rows = [1.0_f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
    let path = test.dir.path().join("t.safetensors");
    fs::write(&path, safetensors(header, &[keys, rows.clone(), rows].concat())).unwrap();
    assert!(table.import(&path, &ImportOptions::default()).unwrap().with_state);
    assert_eq!(rows_of(&table, &[4, 5]), [3.0, 2.0]);
}

#[test]
fn a_file_of_another_dim_does_not_fit_and_is_not_called_unreadable() {
    let test = new_bank();
    let from = table(&test.bank, TableConfig::new(3));
    from.put(&[1], &values(3)).unwrap();
    test.bank.checkpoint(b"").unwrap();
    let into = test.bank.table("into", TableConfig::new(2)).unwrap();
    for suffix in formats() {
        let path = test.dir.path().join("t").with_extension(suffix);
        from.export(&path, &ExportOptions::default()).unwrap();
        match into.import(&path, &ImportOptions::default()) {
            Err(Error::FileMismatch { what, .. }) => {
                assert!(what.contains("dim 3"), "{suffix}: {what}");
            }
            other => panic!("{suffix}: {other:?}"),
        }
        assert_eq!(into.rows().unwrap(), 0);
    }
}

#[test]
fn a_table_is_made_with_the_settings_of_a_file() {
    let test = new_bank();
    let from = trained(&test.bank, "from", config().optimizer(Optimizer::adam(0.25)).seed(9));
    for suffix in formats() {
        let path = test.dir.path().join("t").with_extension(suffix);
        from.export(&path, &ExportOptions { state: true, ..Default::default() }).unwrap();
        let copy = test.bank.table_as_exported(suffix, &path, None, |_| ()).unwrap();
        assert_eq!(copy.config(), from.config(), "{suffix}");
        assert_eq!(copy.rows().unwrap(), 0);
        assert!(copy.import(&path, &ImportOptions::default()).unwrap().with_state);
        assert_eq!(copy.rows().unwrap(), from.rows().unwrap(), "{suffix}");
    }
    // A dense npy matrix has no place for settings.
    let path = test.dir.path().join("dense.npy");
    let dense = Some(DenseRows { fill_missing: true, ..DenseRows::default() });
    from.export(&path, &ExportOptions { dense, ..Default::default() }).unwrap();
    let error = test.bank.table_as_exported("dense", &path, None, |_| ()).unwrap_err();
    assert!(matches!(error, Error::FileMismatch { .. }), "{error:?}");
    assert!(!test.bank.tables().iter().any(|table| table.name == "dense"));
}

/// Shows that an import never panics, for every cut and many changed bytes. It returns an error or
/// other values.
#[test]
fn damaged_files_are_refused_or_read_and_nothing_else() {
    let test = new_bank();
    let from = table(&test.bank, config());
    from.put(&[1, 2, 3], &values(15)).unwrap();
    test.bank.checkpoint(b"").unwrap();
    for suffix in formats() {
        let path = test.dir.path().join("t").with_extension(suffix);
        from.export(&path, &ExportOptions { state: true, ..Default::default() }).unwrap();
        let into = test.bank.table("into", config()).unwrap();
        let file = if suffix == "npy" { test.dir.path().join("t.rows.npy") } else { path.clone() };
        let whole = fs::read(&file).unwrap();
        for length in (0..whole.len()).step_by(if suffix == "parquet" { 9 } else { 1 }) {
            fs::write(&file, &whole[..length]).unwrap();
            let error = into.import(&path, &ImportOptions::default()).unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::UnreadableFile { .. }
                        | Error::FileMismatch { .. }
                        | Error::Store(StoreError::InvalidArgument(_) | StoreError::Io { .. })
                ),
                "{suffix} cut to {length}: {error}"
            );
        }
        // Fewer bytes are changed in Parquet, because its reader is slow to open a file and slower
        // to panic. The import catches the panic.
        for at in (0..whole.len()).step_by(if suffix == "parquet" { 9 } else { 1 }) {
            for flip in [1, 0xFF] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                fs::write(&file, &damaged).unwrap();
                let options = ImportOptions { non_finite: true, ..Default::default() };
                match into.import(&path, &options) {
                    Ok(imported) => assert_eq!(imported.rows, 3, "{suffix} {at} {flip}"),
                    Err(Error::UnreadableFile { what, .. } | Error::FileMismatch { what, .. }) => {
                        assert!(!what.is_empty())
                    }
                    Err(other) => panic!("{suffix} {at} {flip}: {other}"),
                }
            }
        }
        fs::write(&file, &whole).unwrap();
        into.import(&path, &ImportOptions::default()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_header_makes_the_reader_panic(
        header in r#"(\{|\}|\[|\]|"rows"|"dtype"|"shape"|"data_offsets"|"F32"|:|,|[0-9]{1,20}){0,24}"#,
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let test = new_bank();
        let table = table(&test.bank, TableConfig::new(2));
        let path = test.dir.path().join("t.safetensors");
        fs::write(&path, safetensors(&header, &data)).unwrap();
        let _ = table.import(&path, &ImportOptions::default());
        let shape = format!(
            r#"{{"rows":{{"dtype":"F32","shape":{header},"data_offsets":[0,{}]}}}}"#,
            data.len()
        );
        fs::write(&path, safetensors(&shape, &data)).unwrap();
        let _ = table.import(&path, &ImportOptions::default());
    }
}

#[test]
fn parquet_is_told_apart_from_a_program_without_it() {
    let test = new_bank();
    let table = table(&test.bank, config());
    test.bank.checkpoint(b"").unwrap();
    let options = ExportOptions { format: Some(FileFormat::Parquet), ..Default::default() };
    let exported = table.export(test.dir.path().join("t"), &options);
    assert_eq!(exported.is_ok(), cfg!(feature = "parquet"));
    let dense = ExportOptions { dense: Some(DenseRows::default()), ..options };
    let error = table.export(test.dir.path().join("t"), &dense).unwrap_err().to_string();
    assert!(error.contains("no dense tables"), "{error}");
}
