//! The engine for redb, a copy-on-write B-tree in one file with its own cache.
//!
//! Every batch is one transaction. A read transaction shows the newest state until some thread
//! commits. So a session keeps its read transaction until a commit. Writes commit without
//! durability. Whenever the writes reach a number of bytes, an empty durable commit follows, as
//! redb's author advises. Until a durable commit, redb must keep freed pages and remembers them in
//! memory.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};

use super::map::missing;
use super::{Engine, Named, Session, Settings, sorted_places};
use crate::content;

const TABLE: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("rows");

struct Redb {
    database: Database,
    value_bytes: usize,
    cache_bytes: usize,
    /// The number of commits so far. A read transaction is outdated if this number has changed
    /// since the transaction began.
    commits: AtomicU64,
    /// Bytes of values written since the last durable commit.
    undurable_bytes: AtomicU64,
    /// When `undurable_bytes` reaches this number, a durable commit follows.
    durable_every_bytes: u64,
}

/// Opens a database with one table.
///
/// # Errors
/// Returns any error of the store.
pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    fs::create_dir_all(&settings.directory)?;
    let path = settings.directory.join("rows.redb");
    let cache_bytes =
        usize::try_from(settings.memory_budget_bytes).context("--memory-budget is too large")?;
    let database = create(&path, cache_bytes, settings.reopen)?;
    let engine = Redb {
        database,
        value_bytes: settings.value_bytes,
        cache_bytes,
        commits: AtomicU64::new(0),
        undurable_bytes: AtomicU64::new(0),
        durable_every_bytes: settings.memory_budget_bytes / 4,
    };
    let transaction = engine.database.begin_write()?;
    transaction.open_table(TABLE)?;
    transaction.commit()?;
    Ok(Box::new(engine))
}

fn create(path: &Path, cache_bytes: usize, reopen: bool) -> Result<Database> {
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    let found = path.exists();
    ensure!(found || !reopen, "{} does not exist", path.display());
    Ok(if reopen { builder.open(path)? } else { builder.create(path)? })
}

impl Engine for Redb {
    fn describe(&self) -> Named<String> {
        vec![
            ("store".into(), "redb".into()),
            ("cache_size".into(), self.cache_bytes.to_string()),
            (
                "durability".into(),
                format!("None; an empty Immediate commit every {} bytes", self.durable_every_bytes),
            ),
            ("transactions".into(), "one a batch; reads keep theirs until a commit".into()),
            ("key, value".into(), "u64, &[u8]".into()),
            ("page cache".into(), "outside the budget: redb reads its file through it".into()),
        ]
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession { engine: self, snapshot: None }))
    }

    fn atomic_rmw(&self) -> bool {
        true
    }

    fn settle(&self) -> Result<()> {
        self.persist()
    }

    fn persist(&self) -> Result<()> {
        self.undurable_bytes.store(0, Ordering::Relaxed);
        Ok(self.database.begin_write()?.commit()?)
    }
}

struct RedbSession<'a> {
    engine: &'a Redb,
    /// The table of the open read transaction, and the number of commits when it was opened.
    snapshot: Option<(u64, ReadOnlyTable<u64, &'static [u8]>)>,
}

impl RedbSession<'_> {
    fn table(&mut self) -> Result<&ReadOnlyTable<u64, &'static [u8]>> {
        // Acquire: pairs with the Release in `write`. The count is loaded before the transaction
        // begins. If a commit comes in between, the transaction shows it, but has an old count. The
        // next call then begins another transaction without need, which does no harm.
        let commits = self.engine.commits.load(Ordering::Acquire);
        if self.snapshot.as_ref().is_none_or(|(seen, _)| *seen != commits) {
            // The old transaction ends first, so that redb can use its pages again.
            self.snapshot = None;
            let table = self.engine.database.begin_read()?.open_table(TABLE)?;
            self.snapshot = Some((commits, table));
        }
        let (_, table) = self.snapshot.as_ref().expect("it was opened above");
        Ok(table)
    }

    fn write(
        &mut self,
        bytes: usize,
        work: impl FnOnce(&WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        self.snapshot = None;
        let engine = self.engine;
        let mut transaction = engine.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        work(&transaction)?;
        transaction.commit()?;
        engine.commits.fetch_add(1, Ordering::Release);
        let bytes = engine.undurable_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if bytes >= engine.durable_every_bytes { engine.persist() } else { Ok(()) }
    }
}

impl Session for RedbSession<'_> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let value_bytes = self.engine.value_bytes;
        let table = self.table()?;
        for place in sorted_places(keys) {
            let found = table.get(keys[place])?.with_context(|| missing(keys[place]))?;
            values[place * value_bytes..][..value_bytes].copy_from_slice(found.value());
        }
        Ok(())
    }

    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        let value_bytes = self.engine.value_bytes;
        self.write(values.len(), |transaction| {
            let mut table = transaction.open_table(TABLE)?;
            for place in sorted_places(keys) {
                table.insert(keys[place], &values[place * value_bytes..][..value_bytes])?;
            }
            Ok(())
        })
    }

    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        self.update(keys, values)
    }

    fn read_modify_write(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let value = &mut values[..self.engine.value_bytes];
        self.write(keys.len() * value.len(), |transaction| {
            let mut table = transaction.open_table(TABLE)?;
            for place in sorted_places(keys) {
                let key = keys[place];
                let found = table.get(key)?.with_context(|| missing(key))?;
                value.copy_from_slice(found.value());
                drop(found);
                content::advance(key, value)?;
                table.insert(key, &*value)?;
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
        for row in self.table()?.range(start..)?.take(limit) {
            let (key, value) = row?;
            each(key.value(), value.value())?;
        }
        Ok(())
    }
}
