//! Tests a bank that was opened by a relative path. The store must keep using the same directory
//! when the process changes its working directory. This file has one test only, because the working
//! directory belongs to the whole process.

mod common;

use std::env;
use std::path::Path;

use common::reading::{by_hand, keys, rows_of};
use common::{peek, put};
use embank_kv::{Store, StoreOptions};

#[test]
fn a_relative_path_is_resolved_once() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    std::fs::create_dir_all(&here).unwrap();
    std::fs::create_dir_all(&there).unwrap();
    let options = StoreOptions { segment_size_bytes: Some(64 << 10), ..by_hand(2) };
    let version = |path: &Path| {
        let reader = Store::open_read_only(path, &options, None).unwrap();
        let version = u64::from_le_bytes(reader.reading().unwrap().blob[..].try_into().unwrap());
        let rows = peek(&reader, reader.tables()[0].id, &keys(500)).unwrap();
        assert_eq!(rows, rows_of(&keys(500), version, 120));
        version
    };
    env::set_current_dir(&there).unwrap();
    let other = Store::open(Path::new("bank"), &options).unwrap();
    let table = other.create_table("rows", 120, b"").unwrap();
    put(&other, table, &keys(500), 7, 120);
    other.checkpoint(&7_u64.to_le_bytes()).unwrap();

    env::set_current_dir(&here).unwrap();
    let store = Store::open(Path::new("bank"), &options).unwrap();
    let table = store.create_table("rows", 120, b"").unwrap();
    for step in 1..6_u64 {
        put(&store, table, &keys(500), step, 120);
        store.compact().unwrap();
        assert_eq!(store.checkpoint(&step.to_le_bytes()).unwrap(), step);
        env::set_current_dir(if step % 2 == 0 { &here } else { &there }).unwrap();
    }
    assert_eq!(store.path(), here.canonicalize().unwrap().join("bank"));
    drop((store, other));
    assert_eq!(version(&here.join("bank")), 5);
    assert_eq!(version(&there.join("bank")), 7);
}
