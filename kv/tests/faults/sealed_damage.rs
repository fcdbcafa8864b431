//! Tests damage with correct checksums, as a faulty program may write it. The store must return an
//! error without a panic and without a large allocation. The fuzz targets of `kv/fuzz` search for
//! more such damage.

#![expect(clippy::unwrap_used, reason = "a test")]
#![allow(unreachable_pub, dead_code, reason = "shared with the fuzz targets, which use all of it")]

use crate::seals;
use std::fs;
use std::path::PathBuf;

use crate::common::{options, peek, put};
use embank_kv::inspect::{SalvageOptions, TableReader, VerifyOptions, salvage, verify};
use embank_kv::{Error, Store, TableId};

const BUDGET_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 8 << 10;

/// Makes a closed bank with one table and one checkpoint. Returns the bank and the path of the
/// checkpoint's index file.
fn bank() -> (tempfile::TempDir, TableId, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
    let table = store.create_table("rows", 24, b"").unwrap();
    put(&store, table, &(0..500).collect::<Vec<_>>(), 1, 24);
    store.checkpoint(b"").unwrap();
    let image = dir.path().join("checkpoints/0000000001/index.0000000001");
    (dir, table, image)
}

/// Changes the words in an index file whose stream has one chunk, and corrects the checksum.
fn change_words(image: &PathBuf, change: impl FnOnce(&mut [[u8; 8]])) {
    let mut bytes = fs::read(image).unwrap();
    let length = u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
    change(bytes[40..40 + length].as_chunks_mut::<8>().0);
    seals::stream(&mut bytes);
    fs::write(image, bytes).unwrap();
}

/// Regression test: an index file claimed 2^43 buckets. The store requested a terabyte before it
/// read anything.
#[test]
fn an_index_is_not_larger_than_its_files() {
    let (dir, _, image) = bank();
    change_words(&image, |words| words[0] = 43_u64.to_le_bytes());
    let error = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap_err();
    assert!(matches!(&error, Error::Damaged { path, .. } if *path == image), "{error}");
    let report = verify(dir.path(), &VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(report.damage.iter().any(|damage| damage.path == image), "{:?}", report.damage);
    let new = dir.path().join("new");
    let report = salvage(dir.path(), &new, &SalvageOptions::default(), &mut |_| {}).unwrap();
    assert_eq!(report.tables[0].rows, 500);
}

/// Regression test: an index entry led to the last bytes of a page, which have no room for a
/// record's header. The reader read past its buffer.
#[test]
fn an_entry_that_leads_to_a_pages_end_is_damage() {
    for (before_end, chained) in [8, 16, 24, 32].into_iter().flat_map(|at| [(at, 0), (at, 1)]) {
        let (dir, table, image) = bank();
        // Each row has an entry. Two rows share one entry if their hashes have the same bucket and
        // tag.
        let mut changed = 0;
        change_words(&image, |words| {
            let mut at = 4;
            while words[at] != [0xFF; 8] {
                let entries = u64::from_le_bytes(words[at]) as usize & ((1 << 20) - 1);
                for word in &mut words[at + 1..=at + entries] {
                    let (entry, end) = (u64::from_le_bytes(*word), PAGE_BYTES - before_end);
                    let entry = entry >> 47 << 47 | chained << 46 | end >> 3;
                    *word = entry.to_le_bytes();
                }
                at += 1 + entries;
                changed += entries;
            }
        });
        assert!(changed > 490, "{changed} entries");
        let store = Store::open(dir.path(), &options(BUDGET_BYTES)).unwrap();
        for key in 0..500 {
            assert!(peek(&store, table, &[key]).is_err());
        }
        if chained == 1 {
            assert!(store.scan(table).unwrap().next_row().is_err());
        }
        let mut reader = TableReader::open(dir.path(), None, "rows").unwrap();
        let damage = reader.for_each_row(&mut |_, _| panic!("no entry leads to a row")).unwrap();
        assert_eq!(damage.len(), changed);
    }
}
