//! Tests that exported files keep each row's number of uses and time of last use. An eviction of an
//! imported table must then delete the rows that it would delete in the exported table.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{TestBank, new_bank};
use embank::{
    Bank, DenseRows, Dtype, Error, Eviction, ExportOptions, ImportOptions, Initializer, Optimizer,
    Table, TableConfig, Tracking,
};

/// Larger than 2^24, so f32 can't represent every whole number from here on.
const START: u32 = 30_000_001;
const KEYS: [u64; 6] = [0, 1, 2, 3, 4, 5];

fn formats() -> Vec<&'static str> {
    let mut suffixes = vec!["safetensors", "npy"];
    if cfg!(feature = "parquet") {
        suffixes.push("parquet");
    }
    suffixes
}

fn config() -> TableConfig {
    TableConfig::new(2)
        .optimizer(Optimizer::adagrad(0.1))
        .initializer(Initializer::Zeros)
        .tracking(Tracking::SetTime)
}

/// Makes a table whose row of key i was used i + 1 times, last at `START` + i.
fn lived(bank: &Bank, config: TableConfig) -> Table {
    let table = bank.table("from", config).unwrap();
    for &key in &KEYS {
        if table.config().tracking == Tracking::SetTime {
            table.set_time(START + key as u32).unwrap();
        }
        for _ in 0..=key {
            table.put(&[key], &[key as f32, 1.0]).unwrap();
        }
    }
    bank.checkpoint(b"").unwrap();
    table
}

fn with_state() -> ExportOptions {
    ExportOptions { state: true, ..Default::default() }
}

fn path(test: &TestBank, suffix: &str) -> PathBuf {
    test.dir.path().join("t").with_extension(suffix)
}

fn gone(table: &Table, eviction: &Eviction) -> Vec<u64> {
    let mut gone = Vec::new();
    let list = |keys: &[u64]| gone.extend_from_slice(keys);
    table.evict_with(&eviction.dry_run(true), list, |_| ControlFlow::Continue(())).unwrap();
    gone.sort_unstable();
    gone
}

/// Returns each row's key and use count, found by evictions by frequency. No row may have 10 or
/// more uses.
fn uses_of(bank: &Bank, table: &Table) -> Vec<(u64, u32)> {
    bank.checkpoint(b"").unwrap();
    let fewer = |count: u32| gone(table, &Eviction::new().used_fewer_than(count));
    let mut uses: Vec<(u64, u32)> = Vec::new();
    for count in 1..=10 {
        let known: Vec<u64> = uses.iter().map(|&(key, _)| key).collect();
        let new = fewer(count).into_iter().filter(|key| !known.contains(key));
        uses.extend(new.map(|key| (key, count - 1)).collect::<Vec<_>>());
    }
    uses.sort_unstable();
    uses
}

/// Returns each row's key and time of last use. For each of `times`, which must ascend, an eviction
/// by age finds the rows unused since.
fn last_used_of(bank: &Bank, table: &Table, times: std::ops::Range<u32>) -> Vec<(u64, u32)> {
    bank.checkpoint(b"").unwrap();
    let now = times.end;
    table.set_time(now).unwrap();
    let mut found: Vec<(u64, u32)> = Vec::new();
    for time in times {
        let known: Vec<u64> = found.iter().map(|&(key, _)| key).collect();
        let old = gone(table, &Eviction::new().unused_for(now - time));
        let new = old.into_iter().filter(|key| !known.contains(key));
        found.extend(new.map(|key| (key, time)).collect::<Vec<_>>());
    }
    found.sort_unstable();
    found
}

fn expected_uses() -> Vec<(u64, u32)> {
    KEYS.iter().map(|&key| (key, key as u32 + 1)).collect()
}

fn expected_last_used() -> Vec<(u64, u32)> {
    KEYS.iter().map(|&key| (key, START + key as u32)).collect()
}

const AROUND: std::ops::Range<u32> = START - 2..START + 10;

/// Shows that evictions treat an imported table like the exported one. In an earlier version an
/// import counted as one use, so `used_fewer_than(3)` removed the most used rows.
#[test]
fn evictions_judge_an_imported_table_as_the_exported_one() {
    for (suffix, dense) in formats()
        .into_iter()
        .map(|suffix| (suffix, None))
        .chain([("safetensors", Some(DenseRows::default())), ("npy", Some(DenseRows::default()))])
    {
        for config in [
            config(),
            config().optimizer(Optimizer::None),
            config().optimizer(Optimizer::adam(0.1)).dtype(Dtype::Int8).state_dtype(Dtype::Bf16),
            config().dtype(Dtype::F16),
        ] {
            let test = new_bank();
            let from = lived(&test.bank, config.clone());
            let path = path(&test, suffix);
            from.export(&path, &ExportOptions { dense, ..with_state() }).unwrap();

            let into = test.bank.table("into", config.clone()).unwrap();
            into.set_time(START + 5).unwrap();
            // Row 1 is already in the table and was used later. The import replaces the row, its
            // uses, and its time of last use.
            into.put(&[1, 1, 1], &[9.0; 6]).unwrap();
            into.import(&path, &ImportOptions::default()).unwrap();
            for table in [&from, &into] {
                let what = format!("{suffix} {dense:?} {config:?} {}", table.name());
                assert_eq!(uses_of(&test.bank, table), expected_uses(), "{what}");
                let last_used = last_used_of(&test.bank, table, AROUND);
                assert_eq!(last_used, expected_last_used(), "{what}");
                let rare = Eviction::new().used_fewer_than(3);
                assert_eq!(gone(table, &rare), [0, 1], "{what}");
            }
            // Training adds to the imported uses.
            into.put(&[4], &[0.5; 2]).unwrap();
            assert_eq!(uses_of(&test.bank, &into)[4], (4, 6));
        }
    }
}

/// Makes a table, sets its time, and imports `path` into it.
fn imported(test: &TestBank, path: &Path, options: &ImportOptions, config: TableConfig) -> Table {
    let table = test.bank.table("into", config).unwrap();
    if table.config().tracking == Tracking::SetTime {
        table.set_time(START + 7).unwrap();
    }
    assert_eq!(table.import(path, options).unwrap().rows, KEYS.len() as u64);
    table
}

fn one_use_each() -> Vec<(u64, u32)> {
    KEYS.map(|key| (key, 1)).to_vec()
}

fn used_at(time: u32) -> Vec<(u64, u32)> {
    KEYS.map(|key| (key, time)).to_vec()
}

#[test]
fn an_import_without_uses_counts_as_one() {
    for suffix in formats() {
        let test = new_bank();
        let (path, default) = (path(&test, suffix), ImportOptions::default());
        let check = |options: &ImportOptions, what: &str| {
            let into = imported(&test, &path, options, config());
            assert_eq!(uses_of(&test.bank, &into), one_use_each(), "{suffix} {what}");
            let last_used = last_used_of(&test.bank, &into, AROUND);
            assert_eq!(last_used, used_at(START + 7), "{suffix} {what}");
            test.bank.drop_table("into").unwrap();
        };
        let from = lived(&test.bank, config());
        from.export(&path, &with_state()).unwrap();
        check(&ImportOptions { state: false, ..Default::default() }, "left in the file");
        for column in ["last_used", "uses"] {
            alter(&path, column, Change::Gone);
        }
        check(&default, "written by an older version");
        from.export(&path, &ExportOptions::default()).unwrap();
        check(&default, "not exported");
        test.bank.drop_table("from").unwrap();
        lived(&test.bank, config().tracking(Tracking::None)).export(&path, &with_state()).unwrap();
        check(&default, "not tracked");
    }
}

#[test]
fn a_table_without_tracking_ignores_uses() {
    for suffix in formats() {
        let test = new_bank();
        let path = path(&test, suffix);
        lived(&test.bank, config()).export(&path, &with_state()).unwrap();
        for column in ["last_used", "uses"] {
            alter(&path, column, Change::Floats);
        }
        let plain = config().tracking(Tracking::None);
        let into = imported(&test, &path, &ImportOptions::default(), plain);
        assert_eq!(crate::common::rows_of(&into, &[5]), [5.0, 1.0], "{suffix}");
    }
}

/// Shows that an import ignores times of last use in another unit, such as minutes instead of the
/// caller's times. With times of another unit, rows would look too old, or would never become old.
#[test]
fn a_last_use_of_another_unit_is_not_taken() {
    for suffix in formats() {
        let test = new_bank();
        let path = path(&test, suffix);
        let minutes = config().tracking(Tracking::Minutes);
        lived(&test.bank, minutes.clone()).export(&path, &with_state()).unwrap();
        let into = imported(&test, &path, &ImportOptions::default(), config());
        assert_eq!(uses_of(&test.bank, &into), expected_uses(), "{suffix}");
        assert_eq!(last_used_of(&test.bank, &into, AROUND), used_at(START + 7), "{suffix}");
        for table in ["from", "into"] {
            test.bank.drop_table(table).unwrap();
        }

        // The file's time is 7, in the caller's unit. The importing table counts minutes.
        let from = test.bank.table("from", config()).unwrap();
        from.set_time(7).unwrap();
        from.put(&KEYS, &[1.0; 12]).unwrap();
        test.bank.checkpoint(b"").unwrap();
        from.export(&path, &with_state()).unwrap();
        let into = imported(&test, &path, &ImportOptions::default(), minutes);
        assert_eq!(uses_of(&test.bank, &into), one_use_each(), "{suffix}");
        let year = Eviction::new().unused_for(365 * 24 * 60);
        assert_eq!(gone(&into, &year), [0_u64; 0], "{suffix}");
    }
}

#[test]
fn minutes_come_back_as_they_were() {
    for suffix in formats() {
        let test = new_bank();
        let path = path(&test, suffix);
        let minutes = config().tracking(Tracking::Minutes);
        lived(&test.bank, minutes.clone()).export(&path, &with_state()).unwrap();
        let into = imported(&test, &path, &ImportOptions::default(), minutes);
        assert_eq!(uses_of(&test.bank, &into), expected_uses(), "{suffix}");
        let hour = Eviction::new().unused_for(60);
        assert_eq!(gone(&into, &hour), [0_u64; 0], "{suffix}: they were used just now");
    }
}

#[test]
fn keys_that_a_dense_file_fills_have_no_use() {
    for suffix in ["safetensors", "npy"] {
        let test = new_bank();
        let path = path(&test, suffix);
        let from = lived(&test.bank, config());
        from.delete(&[2]).unwrap();
        test.bank.checkpoint(b"").unwrap();
        from.set_time(START + 8).unwrap();
        let dense = Some(DenseRows { rows: None, fill_missing: true });
        from.export(&path, &ExportOptions { dense, ..with_state() }).unwrap();
        let into = imported(&test, &path, &ImportOptions::default(), config());
        let (mut uses, mut last_used) = (expected_uses(), expected_last_used());
        (uses[2].1, last_used[2].1) = (0, START + 8);
        assert_eq!(uses_of(&test.bank, &into), uses, "{suffix}");
        assert_eq!(last_used_of(&test.bank, &into, AROUND), last_used, "{suffix}");
    }
}

/// Shows that an import reads the tensor or column that the caller names. It takes uses only
/// together with the tensor or column of the table's rows.
#[test]
fn named_columns_are_the_ones_that_are_read() {
    for (suffix, rows) in [("safetensors", "rows"), ("parquet", "vector")] {
        if !formats().contains(&suffix) {
            continue;
        }
        let test = new_bank();
        let path = path(&test, suffix);
        lived(&test.bank, config()).export(&path, &with_state()).unwrap();
        let named = |keys: &str, rows: &str| ImportOptions {
            keys: Some(keys.to_owned()),
            rows: Some(rows.to_owned()),
            ..Default::default()
        };
        let keys = if suffix == "parquet" { "key" } else { "keys" };
        let into = imported(&test, &path, &named(keys, rows), config());
        assert_eq!(uses_of(&test.bank, &into), expected_uses(), "{suffix}");
        test.bank.drop_table("into").unwrap();
        // A matrix other than the table's rows is imported without uses.
        let into = imported(&test, &path, &named(keys, "state"), config());
        assert_eq!(uses_of(&test.bank, &into), one_use_each(), "{suffix}");
        test.bank.drop_table("into").unwrap();
        let into = imported(&test, &path, &named("last_used", rows), config());
        let times = KEYS.map(|key| u64::from(START) + key);
        assert_eq!(into.contains(&times).unwrap(), [true; 6], "{suffix}");
    }
}

/// Shows that an import ignores `uses` in files of other programs, where it may mean something
/// else.
#[test]
fn uses_in_files_of_other_programs_are_not_read() {
    let test = new_bank();
    let path = path(&test, "safetensors");
    lived(&test.bank, config()).export(&path, &with_state()).unwrap();
    let mut file = Tensors::read(&path);
    file.metadata.retain(|name, _| !name.starts_with("embank."));
    file.write(&path);
    alter(&path, "uses", Change::Floats);
    let into = imported(&test, &path, &ImportOptions::default(), config());
    assert_eq!(uses_of(&test.bank, &into), one_use_each());
}

#[test]
fn damaged_columns_of_uses_are_refused_by_name() {
    for suffix in formats() {
        for column in ["last_used", "uses"] {
            for change in [Change::Gone, Change::Floats, Change::Short] {
                let test = new_bank();
                let path = path(&test, suffix);
                lived(&test.bank, config()).export(&path, &with_state()).unwrap();
                alter(&path, column, change);
                let into = test.bank.table("into", config()).unwrap();
                let error = into.import(&path, &ImportOptions::default()).unwrap_err();
                assert!(matches!(error, Error::UnreadableFile { .. }), "{suffix} {error}");
                let text = error.to_string();
                let file = path.with_extension("").display().to_string();
                for part in [&file, column] {
                    assert!(text.contains(part), "{suffix} {change:?} {column}: {text}");
                }
                assert_eq!(into.contains(&KEYS).unwrap(), [false; 6], "{suffix}: {text}");
            }
        }
    }
}

/// Shows that uses in npy files are imported only with the list of the set's files,
/// `t.embank.json`, which the export writes last. Without the list, an import can't tell whether
/// the files of uses belong to this set.
#[test]
fn an_npy_set_keeps_its_uses_together() {
    let test = new_bank();
    let path = path(&test, "npy");
    let file = |name: &str| test.dir.path().join(name);
    let config = config().optimizer(Optimizer::None);
    let from = lived(&test.bank, config.clone());
    let exported = from.export(&path, &with_state()).unwrap();
    assert_eq!(exported.files.len(), 5);
    let list = fs::read(file("t.embank.json")).unwrap();
    fs::remove_file(file("t.embank.json")).unwrap();
    let into = test.bank.table("into", config).unwrap();
    let error = into.import(&path, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("t.embank.json") && error.contains("without the state"), "{error}");
    let options = ImportOptions { state: false, ..Default::default() };
    assert_eq!(into.import(&path, &options).unwrap().rows, 6);

    // Without the list, the export may not remove `t.last_used.npy`, so it fails.
    let error = from.export(&path, &ExportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("t.last_used.npy is there"), "{error}");
    fs::write(file("t.embank.json"), list).unwrap();
    from.export(&path, &ExportOptions::default()).unwrap();
    for (name, is_there) in [("last_used", false), ("uses", false), ("rows", true), ("keys", true)]
    {
        assert_eq!(file(&format!("t.{name}.npy")).exists(), is_there, "{name}");
    }
}

/// A way to damage a column of uses.
#[derive(Debug, Clone, Copy)]
enum Change {
    Gone,
    Floats,
    /// One row fewer. In Parquet all columns have equal length, so there the last value is null.
    Short,
}

fn alter(path: &Path, column: &str, change: Change) {
    match path.extension().unwrap().to_str().unwrap() {
        "safetensors" => alter_safetensors(path, column, change),
        "npy" => alter_npy(path, column, change),
        #[cfg(feature = "parquet")]
        "parquet" => in_parquet::alter(path, column, change),
        other => panic!("{other}"),
    }
}

/// A tensor's type, shape and bytes.
type TensorBytes = (String, Vec<u64>, Vec<u8>);

/// The parsed tensors of a safetensors file.
struct Tensors {
    metadata: serde_json::Map<String, serde_json::Value>,
    tensors: BTreeMap<String, TensorBytes>,
}

impl Tensors {
    fn read(path: &Path) -> Self {
        let file = fs::read(path).unwrap();
        let (length, rest) = file.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(header).unwrap();
        let metadata = header["__metadata__"].as_object().unwrap().clone();
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
        let tensors = tensors.map(|(name, tensor)| {
            let numbers = |of: &str| -> Vec<u64> {
                let numbers = tensor[of].as_array().unwrap().iter();
                numbers.map(|number| number.as_u64().unwrap()).collect()
            };
            let place = numbers("data_offsets");
            let bytes = data[place[0] as usize..place[1] as usize].to_vec();
            let dtype = tensor["dtype"].as_str().unwrap().to_owned();
            (name.clone(), (dtype, numbers("shape"), bytes))
        });
        Self { metadata, tensors: tensors.collect() }
    }

    fn write(&self, path: &Path) {
        let mut data = Vec::new();
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_owned(), self.metadata.clone().into());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let place = [data.len(), data.len() + bytes.len()];
            data.extend(bytes);
            let tensor =
                serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": place });
            header.insert(name.clone(), tensor);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        fs::write(path, file).unwrap();
    }
}

fn alter_safetensors(path: &Path, column: &str, change: Change) {
    let mut file = Tensors::read(path);
    let (dtype, shape, bytes) = file.tensors.get_mut(column).unwrap();
    assert_eq!((dtype.as_str(), &shape[..], bytes.len()), ("U32", &[6][..], 24));
    match change {
        Change::Gone => drop(file.tensors.remove(column)),
        Change::Floats => *dtype = "F32".to_owned(),
        Change::Short => {
            shape[0] -= 1;
            bytes.truncate(20);
        }
    }
    file.write(path);
}

fn alter_npy(path: &Path, column: &str, change: Change) {
    let own = path.with_extension(format!("{column}.npy"));
    let bytes = fs::read(&own).unwrap();
    let text = String::from_utf8_lossy(&bytes[..64]).into_owned();
    assert!(text.contains("'<u4'"), "{text}");
    match change {
        Change::Gone => {
            fs::remove_file(&own).unwrap();
            let list = path.with_extension("embank.json");
            let text = fs::read_to_string(&list).unwrap();
            fs::write(&list, text.replace(&format!("/t.{column}.npy"), "")).unwrap();
        }
        Change::Floats | Change::Short => {
            let (old, new) = match change {
                Change::Floats => (&b"<u4"[..], &b"<f4"[..]),
                _ => (&b"(6,)"[..], &b"(5,)"[..]),
            };
            let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
            let mut altered = bytes;
            altered[at..at + new.len()].copy_from_slice(new);
            if matches!(change, Change::Short) {
                altered.truncate(altered.len() - 4);
            }
            fs::write(&own, altered).unwrap();
        }
    }
}

#[cfg(feature = "parquet")]
mod in_parquet {
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::UInt32Type;
    use arrow_array::{Array, ArrayRef, Float32Array, RecordBatch, UInt32Array};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::properties::WriterProperties;

    use super::Change;

    pub(crate) fn alter(path: &Path, column: &str, change: Change) {
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        let pairs = builder.metadata().file_metadata().key_value_metadata().unwrap().iter();
        let own = pairs.filter(|pair| pair.key.starts_with("embank.")).cloned().collect();
        let batch = builder.build().unwrap().next().unwrap().unwrap();
        let mut columns: Vec<(String, ArrayRef)> = Vec::new();
        for (field, values) in batch.schema().fields().iter().zip(batch.columns()) {
            let mut values = Arc::clone(values);
            if field.name() == column {
                let words = values.as_primitive::<UInt32Type>().values().to_vec();
                values = match change {
                    Change::Gone => continue,
                    Change::Floats => {
                        let floats = words.iter().map(|&word| word as f32);
                        Arc::new(Float32Array::from_iter_values(floats))
                    }
                    Change::Short => {
                        let mut words: Vec<Option<u32>> = words.into_iter().map(Some).collect();
                        *words.last_mut().unwrap() = None;
                        Arc::new(UInt32Array::from(words))
                    }
                };
                assert_eq!(values.len(), 6);
            }
            columns.push((field.name().clone(), values));
        }
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let properties = WriterProperties::builder().set_key_value_metadata(Some(own)).build();
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}
