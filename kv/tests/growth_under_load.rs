//! Tests that the index grows while batches run, and that no batch waits for the disk because of
//! the growth.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::compacting::ends;
use common::gate::{Gate, Opens};
use common::{options, peek, put, value};
use embank_kv::device::Device;
use embank_kv::{Store, StoreOptions, TableId};

const VALUE_BYTES: usize = 8;
const RECORD_BYTES: u64 = 40;
/// Number of rows in a batch.
const BATCH: u64 = 128;

/// A store whose memory is full of rows, on a device that can hold all writes.
struct Bank {
    store: Store,
    gate: Arc<Gate>,
    table: TableId,
    rows: u64,
    _dir: tempfile::TempDir,
}

impl Bank {
    fn new(options: &StoreOptions) -> Bank {
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::new());
        let device: Arc<dyn Device> = Arc::<Gate>::clone(&gate);
        let store = Store::open_on(dir.path(), options, |_| Ok(device)).unwrap();
        let table = store.create_table("rows", VALUE_BYTES as u32, b"").unwrap();
        Bank { store, gate, table, rows: 0, _dir: dir }
    }

    fn insert(&mut self, rows: u64) {
        let keys: Vec<u64> = (self.rows..self.rows + rows).collect();
        put(&self.store, self.table, &keys, 0, VALUE_BYTES);
        self.rows += rows;
        let stats = self.store.stats();
        let used = stats.memory_frames_bytes
            + stats.memory_index_bytes
            + stats.memory_cache_bytes
            + stats.memory_buffers_bytes;
        assert!(used <= stats.memory_budget_bytes, "{stats:?}");
    }

    /// Inserts until rows are on disk, and makes the read cache take its memory. Otherwise the
    /// first read from disk would make the cache take memory later, at the cost of page frames.
    fn warm_up(&mut self) {
        while self.store.stats().log_head == 0 {
            self.insert(BATCH);
        }
        let until = Instant::now() + Duration::from_secs(30);
        while self.store.stats().memory_cache_bytes == 0 {
            assert!(Instant::now() < until, "{:?}", self.store.stats());
            peek(&self.store, self.table, &(0..BATCH).collect::<Vec<_>>()).unwrap();
        }
    }

    /// Returns the number of page frames that the budget allows and the log does not use. The
    /// budget less index, buffers and read cache gives the allowed frames; one page of them stays
    /// free.
    fn free_frames(&self) -> u64 {
        let stats = self.store.stats();
        let page = stats.page_size_bytes;
        let taken =
            stats.memory_index_bytes + stats.memory_buffers_bytes + stats.memory_cache_bytes;
        let allowed = (stats.memory_budget_bytes - taken) / page - 1;
        // The tail may be at the end of its page, so the division rounds up.
        allowed.saturating_sub(stats.log_tail.div_ceil(page) - stats.log_head / page)
    }

    fn wait_for_free_frames(&self, wanted: u64) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.free_frames() < wanted {
            assert!(Instant::now() < until, "{:?}", self.store.stats());
            std::thread::yield_now();
        }
    }

    /// Fills all unused frames while the gate is closed.
    fn fill_while_closed(&mut self) {
        let _opens = Opens::after_closing(&self.gate);
        self.fill_what_is_free();
    }

    /// Inserts until less than a batch fits into the unused frames. Begins each new page with a
    /// single row, because a whole batch might need index memory and take it from the unused frame.
    fn fill_what_is_free(&mut self) {
        let page = self.store.stats().page_size_bytes;
        loop {
            let tail = self.store.stats().log_tail;
            let room = tail.next_multiple_of(page) - tail;
            if room >= BATCH * RECORD_BYTES {
                self.insert(BATCH);
            } else if self.free_frames() > 0 {
                self.insert(1);
            } else {
                return;
            }
        }
    }
}

/// Regression test: each time the index took memory, batches waited until the writer thread had
/// evicted a page. While the disk wrote nothing, they waited for ever.
#[test]
fn batches_with_room_in_memory_go_on_while_the_disk_stands_still() {
    for (budget_bytes, rounds) in [(1 << 20, 12), (8 << 20, 8)] {
        let mut grown = 0;
        let ended = ends(120, move || {
            let mut bank = Bank::new(&options(budget_bytes));
            bank.warm_up();
            for _ in 0..rounds {
                bank.wait_for_free_frames(1);
                let before = bank.store.stats();
                bank.fill_while_closed();
                let after = bank.store.stats();
                grown += after.growth_steps - before.growth_steps;
            }
            assert!(grown > 4 * rounds, "{grown} steps in {rounds} rounds");
            // Late growth must give a normal index: almost no two rows share a slot, and the
            // buckets have the usual load.
            bank.wait_for_free_frames(1);
            bank.insert(BATCH);
            let stats = bank.store.stats();
            assert!(stats.index_entries + bank.rows / 1000 > bank.rows, "{stats:?}");
            assert!(stats.memory_index_bytes >= 13 * bank.rows, "{stats:?}");
            let keys: Vec<u64> = (0..bank.rows).collect();
            for (key, row) in keys.iter().zip(peek(&bank.store, bank.table, &keys).unwrap()) {
                assert_eq!(row, Some(value(*key, 0, VALUE_BYTES)));
            }
        });
        assert!(ended, "a batch hangs, with {budget_bytes} bytes");
    }
}

/// While the disk writes nothing and memory is full, only a thread that begins a new page waits.
/// Memory stays within the budget.
#[test]
fn memory_is_within_the_budget_while_frames_have_yet_to_give_way() {
    let ended = ends(120, || {
        let mut bank = Bank::new(&options(2 << 20));
        bank.warm_up();
        for round in 0..300 {
            if round % 50 == 0 {
                bank.wait_for_free_frames(1);
                bank.fill_while_closed();
            }
            bank.insert(BATCH);
        }
    });
    assert!(ended, "a batch hangs");
}
