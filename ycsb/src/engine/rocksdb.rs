//! The engine for RocksDB, a log-structured merge tree, configured for point lookups as its wiki
//! advises.
//!
//! RocksDB charges memtables, index blocks and filter blocks to the block cache
//! (WriteBufferManager), so the size of this cache is the budget for all of them. Direct I/O keeps
//! the page cache empty. A batch of reads is one MultiGet, which reads blocks in parallel through
//! io_uring if the kernel permits that. A batch of writes is one WriteBatch.

use anyhow::{Context, Result};
use rocksdb::statistics::{StatsLevel, Ticker};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB,
    DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME, DataBlockIndexType, Direction, IteratorMode,
    Options, ReadOptions, WaitForCompactOptions, WriteBatch, WriteBufferManager, WriteOptions,
};

use super::map::missing;
use super::{Engine, Named, Session, Settings};
use crate::content;

const FILTER_BITS: f64 = 10.0;
const HASH_RATIO: f64 = 0.75;
const BLOCK_BYTES: usize = 4096;

struct RocksDb {
    db: DB,
    value_bytes: usize,
    budget_bytes: usize,
    memtables_bytes: usize,
    write: WriteOptions,
    /// The options that hold the tickers. `None` if the database counts nothing.
    statistics: Option<Options>,
}

/// Opens a database.
///
/// # Errors
/// Returns any error of the store.
pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    let budget_bytes =
        usize::try_from(settings.memory_budget_bytes).context("--memory-budget is too large")?;
    // Memtables get at most a quarter of the budget. Blocks get the rest.
    let memtables_bytes = (budget_bytes / 4).max(2 << 20);
    let mut options = options(budget_bytes, memtables_bytes);
    if settings.counts_writes {
        options.enable_statistics();
        options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
    }
    // Only a column family that was opened by its descriptor has a handle, and MultiGet needs a
    // handle.
    let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
    let db = DB::open_cf_descriptors(&options, &settings.directory, [family])?;
    let mut write = WriteOptions::default();
    write.disable_wal(true);
    let value_bytes = settings.value_bytes;
    let statistics = settings.counts_writes.then_some(options);
    Ok(Box::new(RocksDb { db, value_bytes, budget_bytes, memtables_bytes, write, statistics }))
}

fn options(budget_bytes: usize, memtables_bytes: usize) -> Options {
    let cache = Cache::new_hyper_clock_cache(budget_bytes, 0);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    table.set_block_size(BLOCK_BYTES);
    table.set_bloom_filter(FILTER_BITS, false);
    table.set_whole_key_filtering(true);
    table.set_optimize_filters_for_memory(true);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    table.set_data_block_hash_ratio(HASH_RATIO);
    // A small cache holds the used parts of indexes and filters, and need not hold those of a file.
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(BLOCK_BYTES);
    table.set_pin_top_level_index_and_filter(true);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    let manager =
        WriteBufferManager::new_write_buffer_manager_with_cache(memtables_bytes, true, cache);
    options.set_write_buffer_manager(&manager);
    // Several memtables fit the manager's limit, so that writes continue during a flush.
    let memtable_bytes = (memtables_bytes / 3).max(1 << 20);
    options.set_write_buffer_size(memtable_bytes);
    options.set_max_write_buffer_number(3);
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.02);
    options.set_target_file_size_base((memtable_bytes as u64).clamp(2 << 20, 64 << 20));
    // Level 1 is as large as level 0 when its compaction begins.
    options.set_max_bytes_for_level_base(memtable_bytes as u64 * 4);
    options.set_compression_type(DBCompressionType::None);
    options.set_optimize_filters_for_hits(true);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as i32;
    options.increase_parallelism(cores.max(2));
    options
}

impl Engine for RocksDb {
    fn describe(&self) -> Named<String> {
        vec![
            ("store".into(), "RocksDB 11.8 through the crate rocksdb".into()),
            (
                "memory".into(),
                format!(
                    "HyperClockCache of {} bytes; memtables (at most {}), index and filter blocks are charged \
                     to it",
                    self.budget_bytes, self.memtables_bytes
                ),
            ),
            ("i/o".into(), "direct, for reads, flush and compaction; io_uring for MultiGet".into()),
            ("WAL, compression".into(), "off, none".into()),
            (
                "point lookups".into(),
                format!(
                    "whole-key bloom filters of {FILTER_BITS} bits (optimize_filters_for_hits), data-block \
                     hash index at {HASH_RATIO}, blocks of {BLOCK_BYTES} bytes, memtable filter of 2%, \
                     partitioned filters and indexes, of which the top levels and those of level 0 are pinned"
                ),
            ),
            ("batches".into(), "batched MultiGet, WriteBatch".into()),
            ("page cache".into(), "not used".into()),
        ]
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let family =
            self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).context("the default column family")?;
        Ok(Box::new(RocksDbSession { engine: self, family, read: ReadOptions::default() }))
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn persist(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn counters(&self) -> Named<u64> {
        let tickers = [
            ("flush_write_bytes", Ticker::FlushWriteBytes),
            ("compaction_write_bytes", Ticker::CompactWriteBytes),
        ];
        let Some(statistics) = &self.statistics else { return Vec::new() };
        let count =
            |(name, ticker): (&str, _)| (name.to_owned(), statistics.get_ticker_count(ticker));
        tickers.map(count).into()
    }
}

struct RocksDbSession<'a> {
    engine: &'a RocksDb,
    family: &'a ColumnFamily,
    read: ReadOptions,
}

impl Session for RocksDbSession<'_> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let db = &self.engine.db;
        if let [key] = keys {
            let found = db.get_pinned_opt(key.to_be_bytes(), &self.read)?;
            values.copy_from_slice(&found.with_context(|| missing(*key))?);
            return Ok(());
        }
        let encoded: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
        // The engine passes unsorted keys: MultiGet sorts them itself and moves only pointers.
        let found = db.batched_multi_get_cf_opt(self.family, encoded.iter(), false, &self.read);
        let places = values.chunks_exact_mut(self.engine.value_bytes);
        for ((found, &key), value) in found.into_iter().zip(keys).zip(places) {
            value.copy_from_slice(&found?.with_context(|| missing(key))?);
        }
        Ok(())
    }

    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        let RocksDb { db, write, value_bytes, .. } = self.engine;
        if let [key] = keys {
            return Ok(db.put_opt(key.to_be_bytes(), values, write)?);
        }
        let mut batch = WriteBatch::default();
        for (key, value) in keys.iter().zip(values.chunks_exact(*value_bytes)) {
            batch.put(key.to_be_bytes(), value);
        }
        Ok(db.write_opt(batch, write)?)
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
        let start = start.to_be_bytes();
        let rows = self.engine.db.iterator(IteratorMode::From(&start, Direction::Forward));
        for row in rows.take(limit) {
            let (key, value) = row?;
            let key = <[u8; 8]>::try_from(&*key).context("a key of another length")?;
            each(u64::from_be_bytes(key), &value)?;
        }
        Ok(())
    }
}
