//! The engine for fjall, a log-structured merge tree in Rust. fjall has no batched reads. A batch
//! of writes is one `WriteBatch`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fjall::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, HashRatioPolicy,
    PinningPolicy,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::map::missing;
use super::{Engine, Named, Session, Settings, sorted_places};
use crate::content;

/// The interval at which `settle` checks whether background work is done.
const SETTLE_POLL: Duration = Duration::from_millis(5);
const SETTLE_MAX: Duration = Duration::from_secs(600);

struct Fjall {
    database: Database,
    rows: Keyspace,
    value_bytes: usize,
    cache_bytes: u64,
    memtable_bytes: u64,
}

/// Opens a database with one keyspace.
///
/// # Errors
/// Returns any error of the store.
pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    // One memtable fills while fjall flushes another. The cache gets the rest of the budget.
    let budget = settings.memory_budget_bytes;
    let memtable_bytes = (budget / 8).clamp(1 << 20, 64 << 20);
    let cache_bytes = budget.saturating_sub(2 * memtable_bytes);
    let database = Database::builder(&settings.directory)
        .cache_size(cache_bytes)
        .journal_compression(CompressionType::None)
        .manual_journal_persist(true)
        .open()?;
    let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(memtable_bytes)
            .manual_journal_persist(true)
            .data_block_compression_policy(CompressionPolicy::disabled())
            .index_block_compression_policy(CompressionPolicy::disabled())
            .data_block_hash_ratio_policy(HashRatioPolicy::all(1.33))
            .filter_policy(FilterPolicy::all(filter))
            .filter_block_pinning_policy(PinningPolicy::new([true, false]))
            .index_block_pinning_policy(PinningPolicy::new([true, true, false]))
            .expect_point_read_hits(true)
    };
    let rows = database.keyspace("rows", options)?;
    let value_bytes = settings.value_bytes;
    Ok(Box::new(Fjall { database, rows, value_bytes, cache_bytes, memtable_bytes }))
}

impl Engine for Fjall {
    fn describe(&self) -> Named<String> {
        vec![
            ("store".into(), "fjall 3".into()),
            ("cache_size".into(), self.cache_bytes.to_string()),
            ("max_memtable_size".into(), format!("{}, two at a time", self.memtable_bytes)),
            ("journal".into(), "manual_journal_persist: never flushed while measuring".into()),
            ("compression".into(), "none".into()),
            (
                "point reads".into(),
                "expect_point_read_hits, bloom filters of 10 bits a key, data-block hash index at 1.33, \
                 blocks of 4 KiB"
                    .into(),
            ),
            ("reads".into(), "one get a key: there is no batched read".into()),
            ("page cache".into(), "outside the budget: fjall reads its files through it".into()),
        ]
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession(self)))
    }

    fn settle(&self) -> Result<()> {
        let started = Instant::now();
        while self.database.outstanding_flushes() > 0 || self.database.active_compactions() > 0 {
            ensure!(started.elapsed() < SETTLE_MAX, "background work took over {SETTLE_MAX:?}");
            std::thread::sleep(SETTLE_POLL);
        }
        Ok(())
    }

    fn persist(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}

struct FjallSession<'a>(&'a Fjall);

impl Session for FjallSession<'_> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let value_bytes = self.0.value_bytes;
        for place in sorted_places(keys) {
            let found = self.0.rows.get(keys[place].to_be_bytes())?;
            let found = found.with_context(|| missing(keys[place]))?;
            values[place * value_bytes..][..value_bytes].copy_from_slice(&found);
        }
        Ok(())
    }

    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        if let [key] = keys {
            return Ok(self.0.rows.insert(key.to_be_bytes(), values)?);
        }
        let mut batch = self.0.database.batch();
        for (key, value) in keys.iter().zip(values.chunks_exact(self.0.value_bytes)) {
            batch.insert(&self.0.rows, key.to_be_bytes(), value);
        }
        Ok(batch.commit()?)
    }

    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        self.update(keys, values)
    }

    fn read_modify_write(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        self.read(keys, values)?;
        content::advance_all(keys, values)?;
        self.update(keys, values)
    }

    fn scan(
        &mut self,
        start: u64,
        limit: usize,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for row in self.0.rows.range(start.to_be_bytes()..).take(limit) {
            let (key, value) = row.into_inner()?;
            let key = <[u8; 8]>::try_from(&*key).context("a key of another length")?;
            each(u64::from_be_bytes(key), &value)?;
        }
        Ok(())
    }
}
