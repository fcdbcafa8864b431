//! The engine for LMDB through `heed`: a copy-on-write B-tree in a memory map.
//!
//! Every batch is one transaction. A read transaction shows the newest state until some thread
//! commits. So a session keeps its read transaction until a commit. An insert of a key
//! beyond the greatest key is an append, as LMDB advises for bulk loads. LMDB then fills a page
//! before it begins the next one, instead of splitting full pages in half.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use heed::types::{Bytes, U64};
use heed::{
    Database, Env, EnvFlags, EnvOpenOptions, IntegerComparator, PutFlags, RoTxn, RwTxn, WithTls,
};

use super::map::missing;
use super::{Engine, Named, Session, Settings, sorted_places};
use crate::content;

type Rows = Database<U64<heed::byteorder::NativeEndian>, Bytes, IntegerComparator>;

struct Lmdb {
    env: Env<WithTls>,
    rows: Rows,
    value_bytes: usize,
    map_bytes: usize,
    /// The number of commits so far. A read transaction is outdated if this number has changed
    /// since the transaction began.
    commits: AtomicU64,
    /// One more than the greatest key. LMDB writes a new key from this value on with `APPEND`. A
    /// thread uses this value only within a write transaction.
    append_from: AtomicU64,
}

/// Opens an environment with one database.
///
/// # Errors
/// Returns any error of the store.
pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    fs::create_dir_all(&settings.directory)?;
    // A row takes its value, its key and about 10 bytes. The map must also hold half-full pages and
    // old pages that readers still use. The file is sparse, so a large map costs nothing.
    let row_bytes = settings.value_bytes as u64 + 32;
    let map_bytes = (settings.rows * row_bytes * 8 + (8 << 30)).next_multiple_of(4096);
    let map_bytes = usize::try_from(map_bytes).context("--rows is too large for a memory map")?;
    let mut options = EnvOpenOptions::new();
    options.map_size(map_bytes).max_readers(256);
    let flags =
        EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP | EnvFlags::NO_READ_AHEAD | EnvFlags::NO_MEM_INIT;
    // SAFETY: the flags give up durability only. No other program touches the files, which lie in a
    // directory of this run.
    let env = unsafe { options.flags(flags).open(&settings.directory)? };
    let mut transaction = env.write_txn()?;
    let rows: Rows = env
        .database_options()
        .types::<U64<heed::byteorder::NativeEndian>, Bytes>()
        .key_comparator::<IntegerComparator>()
        .create(&mut transaction)?;
    let last = rows.last(&transaction)?.map_or(0, |(key, _)| key.saturating_add(1));
    transaction.commit()?;
    Ok(Box::new(Lmdb {
        env,
        rows,
        value_bytes: settings.value_bytes,
        map_bytes,
        commits: AtomicU64::new(0),
        append_from: AtomicU64::new(last),
    }))
}

impl Engine for Lmdb {
    fn describe(&self) -> Named<String> {
        vec![
            ("store".into(), format!("{} through heed", heed::lmdb_version().string)),
            ("flags".into(), "NOSYNC, WRITEMAP, NORDAHEAD, NOMEMINIT; INTEGERKEY".into()),
            ("map_size".into(), self.map_bytes.to_string()),
            ("transactions".into(), "one a batch; reads keep theirs until a commit".into()),
            ("loading".into(), "ascending keys are appended (MDB_APPEND)".into()),
            (
                "page cache".into(),
                "outside the budget: LMDB has no cache but the system's, which may hold all of the file"
                    .into(),
            ),
        ]
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LmdbSession { engine: self, snapshot: None }))
    }

    fn atomic_rmw(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }
}

struct LmdbSession<'a> {
    engine: &'a Lmdb,
    /// The open read transaction, and the number of commits when it began.
    snapshot: Option<(u64, RoTxn<'a, WithTls>)>,
}

impl<'a> LmdbSession<'a> {
    fn transaction(&mut self) -> Result<&RoTxn<'a, WithTls>> {
        // Acquire: pairs with the Release in `write`. The count is loaded before the transaction
        // begins. If a commit comes in between, the transaction shows it, but has an old count. The
        // next call then begins another transaction without need, which does no harm.
        let commits = self.engine.commits.load(Ordering::Acquire);
        if self.snapshot.as_ref().is_none_or(|(seen, _)| *seen != commits) {
            // The old transaction must end first, because a thread has one reader slot.
            self.snapshot = None;
            self.snapshot = Some((commits, self.engine.env.read_txn()?));
        }
        let (_, transaction) = self.snapshot.as_ref().expect("it began above");
        Ok(transaction)
    }

    fn write(&mut self, work: impl FnOnce(&mut RwTxn<'_>) -> Result<()>) -> Result<()> {
        self.snapshot = None;
        let mut transaction = self.engine.env.write_txn()?;
        work(&mut transaction)?;
        transaction.commit()?;
        self.engine.commits.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Session for LmdbSession<'_> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let (rows, value_bytes) = (self.engine.rows, self.engine.value_bytes);
        let transaction = self.transaction()?;
        for place in sorted_places(keys) {
            let key = keys[place];
            let found = rows.get(transaction, &key)?.with_context(|| missing(key))?;
            values[place * value_bytes..][..value_bytes].copy_from_slice(found);
        }
        Ok(())
    }

    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        let (rows, value_bytes) = (self.engine.rows, self.engine.value_bytes);
        self.write(|transaction| {
            for place in sorted_places(keys) {
                let value = &values[place * value_bytes..][..value_bytes];
                rows.put(transaction, &keys[place], value)?;
            }
            Ok(())
        })
    }

    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        let (rows, value_bytes) = (self.engine.rows, self.engine.value_bytes);
        let append_from = &self.engine.append_from;
        self.write(|transaction| {
            for place in sorted_places(keys) {
                let (key, value) = (keys[place], &values[place * value_bytes..][..value_bytes]);
                // Relaxed: the write transaction excludes other writers.
                if key >= append_from.load(Ordering::Relaxed) {
                    rows.put_with_flags(transaction, PutFlags::APPEND, &key, value)?;
                    append_from.store(key.saturating_add(1), Ordering::Relaxed);
                } else {
                    rows.put(transaction, &key, value)?;
                }
            }
            Ok(())
        })
    }

    fn read_modify_write(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let rows = self.engine.rows;
        let value = &mut values[..self.engine.value_bytes];
        self.write(|transaction| {
            for place in sorted_places(keys) {
                let key = keys[place];
                value.copy_from_slice(rows.get(transaction, &key)?.with_context(|| missing(key))?);
                content::advance(key, value)?;
                rows.put(transaction, &key, value)?;
            }
            Ok(())
        })
    }

    fn scan(
        &mut self,
        start: u64,
        limit: usize,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let rows = self.engine.rows;
        for row in rows.range(self.transaction()?, &(start..))?.take(limit) {
            let (key, value) = row?;
            each(key, value)?;
        }
        Ok(())
    }
}
