//! Tests a process whose files may not exceed a length (`ulimit -f`), and that ignores the signal
//! of that limit, as Python does. The limit applies to the whole process, so this file has one
//! test.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use common::reading::{by_hand, keys, rows_of};
use common::{PutAll, peek, put, value};
use embank_kv::{Clock, DeviceChoice, Error, Store, StoreOptions, TableId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const VALUE_BYTES: usize = 120;

fn limit_file_sizes(bytes: Option<u64>) {
    let found = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(found.maximum), ..found }).unwrap();
}

fn try_put(store: &Store, table: TableId, keys: &[u64], version: u64) -> Result<(), Error> {
    let values: Vec<_> = keys.iter().map(|&key| value(key, version, VALUE_BYTES)).collect();
    store.execute(table, keys, Clock::Keep, &mut PutAll(&values)).map(|_| ())
}

fn assert_refused(result: Result<impl std::fmt::Debug, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    for part in ["File too large", "No row is lost", "`ulimit -f`"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Regression test: a write of the log that the limit refused poisoned the store, although memory
/// held the page.
#[test]
fn a_limit_of_file_sizes_is_like_a_full_disk() {
    // SAFETY: the call only sets how this process treats the signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for device in [DeviceChoice::Threads, DeviceChoice::Auto] {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { segment_size_bytes: Some(4 << 20), device, ..by_hand(2) };
        let store = Store::open(dir.path(), &options).unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        let all = keys(20_000);
        put(&store, table, &all[..1000], 1, VALUE_BYTES);
        store.checkpoint(b"first").unwrap();
        // The log's segment may not grow to its full length.
        limit_file_sizes(Some(1 << 20));
        assert_refused(try_put(&store, table, &all, 2));
        assert_refused(store.checkpoint(b"none"));
        limit_file_sizes(None);
        put(&store, table, &all, 3, VALUE_BYTES);
        assert_eq!(peek(&store, table, &all).unwrap(), rows_of(&all, 3, VALUE_BYTES));
        store.checkpoint(b"second").unwrap();
        // No row has changed since, so only the image of the index is too long.
        limit_file_sizes(Some(16));
        let refused = store.checkpoint(b"none");
        assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("index.")));
        assert_refused(refused);
        limit_file_sizes(None);
        store.checkpoint(b"third").unwrap();
        drop(store);
        let store = Store::open(dir.path(), &options).unwrap();
        assert_eq!(store.recovered().unwrap().blob, b"third");
        assert_eq!(
            peek(&store, store.tables()[0].id, &all).unwrap(),
            rows_of(&all, 3, VALUE_BYTES)
        );
    }
}
