//! Tests that a file of a newer version of Embank is not called damaged, and that no call changes
//! such a bank.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{options, put};
use embank_kv::inspect::{SalvageOptions, TableReader, VerifyOptions, salvage, summary, verify};
use embank_kv::{Error, Store, StoreOptions};

const BUDGET_BYTES: u64 = 256 << 10;
const OLD: u64 = 1;
const NEW: u64 = 2;

fn by_hand() -> StoreOptions {
    options(BUDGET_BYTES)
}

/// Makes a closed bank with two checkpoints.
fn bank() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &by_hand()).unwrap();
    let table = store.create_table("rows", 16, b"").unwrap();
    for version in [OLD, NEW] {
        put(&store, table, &(0..100).collect::<Vec<_>>(), version, 16);
        assert_eq!(store.checkpoint(b"a blob").unwrap(), version);
    }
    dir
}

fn file_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("checkpoints/{NEW:010}/{name}"))
}

/// Raises the format version of a metadata file or of a stream above the newest one, and corrects
/// the checksum of its header as docs/format.md says. Returns the version.
fn raise(path: &Path) -> u32 {
    let mut bytes = fs::read(path).unwrap();
    // A bank with parts of a cold tier has manifests and deltas of the next version.
    let has_parts_too = path.ends_with("manifest") || path.ends_with("delta");
    let above = if has_parts_too { 2 } else { 1 };
    let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) + above;
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let is_metadata = bytes.starts_with(b"EMBKMETA");
    let covered = if is_metadata { &bytes[16..] } else { &bytes[16..32] };
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), covered);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
    version
}

/// Returns the content of all files of a directory, except the lock files.
fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(content(&path));
        } else if path.file_name() != Some("LOCK".as_ref()) {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

fn assert_is_newer(error: &Error, file: &Path, version: u32) {
    let Error::NewerFormat { path, found, oldest, newest, .. } = error else { panic!("{error}") };
    assert_eq!((path.as_path(), *found, *newest), (file, version, version - 1));
    assert!(oldest <= newest);
    let text = error.to_string();
    for part in [file.to_str().unwrap(), "not damaged", "use a newer Embank"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Calls all that looks at a bank or opens it. Each call must return the error of `file`, which has
/// the format version `version`, and must change nothing.
fn assert_refused(dir: &Path, file: &Path, version: u32) {
    let before = content(dir);
    let beside = tempfile::tempdir().unwrap();
    let new = beside.path().join("new");
    let salvaged = salvage(dir, &new, &SalvageOptions::default(), &mut |_| {});
    let errors = [
        Store::open(dir, &by_hand()).unwrap_err(),
        Store::open_read_only(dir, &by_hand(), None).unwrap_err(),
        verify(dir, &VerifyOptions::default(), &mut |_| {}).unwrap_err(),
        salvaged.unwrap_err(),
    ];
    for error in &errors {
        assert_is_newer(error, file, version);
    }
    assert!(!new.exists(), "a newer format needs no repair");
    assert_eq!(content(dir), before);
}

#[test]
fn a_bank_with_a_newer_manifest_is_refused_and_not_called_damaged() {
    let dir = bank();
    let manifest = file_of(dir.path(), "manifest");
    let version = raise(&manifest);
    assert_refused(dir.path(), &manifest, version);
    let error = summary(dir.path()).unwrap_err();
    assert_is_newer(&error, &manifest, version);
    let Err(error) = TableReader::open(dir.path(), None, "rows") else { panic!("it opens") };
    assert_is_newer(&error, &manifest, version);
    let copy = dir.path().with_extension("copy");
    let error = Store::copy_checkpoint(dir.path(), None, &copy).unwrap_err();
    assert_is_newer(&error, &manifest, version);
    assert!(!copy.exists());
}

#[test]
fn an_older_checkpoint_beside_a_newer_manifest_can_be_read() {
    let dir = bank();
    raise(&file_of(dir.path(), "manifest"));
    let store = Store::open_read_only(dir.path(), &by_hand(), Some(OLD)).unwrap();
    assert_eq!(store.rows(store.tables()[0].id).unwrap(), 100);
}

#[test]
fn a_roll_back_over_a_newer_manifest_is_refused() {
    let dir = bank();
    let manifest = file_of(dir.path(), "manifest");
    let version = raise(&manifest);
    let before = content(dir.path());
    assert_is_newer(&Store::roll_back(dir.path(), OLD).unwrap_err(), &manifest, version);
    assert_eq!(content(dir.path()), before);
}

/// A bank that opened at an older checkpoint would cut the log that the newer checkpoint needs.
#[test]
fn a_newer_manifest_under_another_name_is_refused() {
    let dir = bank();
    let version = raise(&file_of(dir.path(), "manifest"));
    let aside = dir.path().join("checkpoints/aside");
    fs::rename(dir.path().join(format!("checkpoints/{NEW:010}")), &aside).unwrap();
    let error = Store::open(dir.path(), &by_hand()).unwrap_err();
    assert_is_newer(&error, &aside.join("manifest"), version);
}

#[test]
fn a_newer_file_bank_is_refused() {
    let dir = bank();
    let file = dir.path().join("BANK");
    let version = raise(&file);
    assert_refused(dir.path(), &file, version);
}

#[test]
fn newer_streams_of_a_checkpoint_are_refused() {
    for name in ["blob", "index.0000000002"] {
        let dir = bank();
        let file = file_of(dir.path(), name);
        let version = raise(&file);
        assert_refused(dir.path(), &file, version);
        // The kind of the file is known without its manifest.
        fs::remove_file(file_of(dir.path(), "manifest")).unwrap();
        let error = verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap_err();
        assert_is_newer(&error, &file, version);
    }
}

#[test]
fn a_newer_delta_is_refused_and_the_copy_stays() {
    let dir = bank();
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("copy");
    Store::copy_checkpoint(dir.path(), Some(OLD), &copy).unwrap();
    let delta = dir.path().join("delta");
    Store::export_delta(dir.path(), OLD, Some(NEW), &delta, &mut |_| {}).unwrap();
    let version = raise(&delta);
    let before = content(&copy);
    let error = Store::apply_delta(&copy, &delta, 2, &mut |_| {}).unwrap_err();
    assert_is_newer(&error, &delta, version);
    assert_eq!(content(&copy), before);
}
