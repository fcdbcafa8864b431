//! The engine for Embank's tables with leases, as training uses them.
//!
//! A read-modify-write gets the rows of a batch and keeps the lease, as training does while the
//! gradients of the batch are computed. Before a later get, the thread applies gradients through
//! its oldest lease, so that it never holds more than [`Leases::per_thread`] leases. Its other
//! leases stay open during the get, and a get waits while a row is above the staleness bound. The
//! MLKV paper measures YCSB in this way, with several staleness bounds.
//!
//! **No deadlock.** A thread in a get holds at most `per_thread - 1` leases. `threads *
//! (per_thread - 1)` is at most the bound ([`Leases::check`]). So if a row is above the bound, at
//! least one of its leases belongs to a thread that does not wait.
//!
//! **Rows.** A row has `value_bytes / 4` values of f32. Each value is a whole number: a base of key
//! and column, plus the row's version. Gradients of -1 at a learning rate of 1 add 1 to each value.
//! The sum of the versions is therefore exact, whatever the order of the threads. The worker's
//! values are bytes ([`content`]), and this engine translates them from and to rows. A
//! read-modify-write needs no translation.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use embank::{
    Bank, BankOptions, CompactionOptions, Initializer, Lease, Optimizer, Table, TableConfig,
};
use serde::{Deserialize, Serialize};

use super::embank::{device, store_counters};
use super::map::missing;
use super::{Engine, Named, Session, Settings};
use crate::content;
use crate::random::mix;

const TABLE: &str = "rows";

/// The smallest value of a row of version 0. From here on, f32 has every whole number up to 2^24.
const BASE_MIN: i32 = -(1 << 24);
/// The number of bases.
const BASES: u32 = 1 << 20;
/// The first version that a get refuses. Up to 2^20 increments beyond it, which can be under way
/// when the get reads the row, all values of the row are below 2^24 and exact.
const VERSION_END: u32 = (1 << 25) - (1 << 21);

/// The leases of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leases {
    /// The table's staleness bound. `None` for no bound.
    pub(crate) staleness_bound: Option<u32>,
    /// The largest number of leases that a thread holds open.
    pub(crate) per_thread: usize,
}

impl Leases {
    /// Returns the leases for a bound. Each thread holds the largest number of leases with which
    /// threads cannot wait for each other in a cycle. Without a bound this number has no limit, and
    /// a thread holds one lease.
    pub(crate) fn of(staleness_bound: Option<u32>, threads: usize) -> Self {
        let per_thread = staleness_bound.map_or(1, |bound| most(bound, threads));
        Leases { staleness_bound, per_thread }
    }

    /// Checks that threads cannot wait for each other in a cycle.
    ///
    /// # Errors
    /// Returns an error for no lease, or for more leases than the bound permits.
    pub(crate) fn check(&self, threads: usize) -> Result<()> {
        let per_thread = self.per_thread;
        ensure!(per_thread > 0, "--leases must be positive");
        let Some(bound) = self.staleness_bound else { return Ok(()) };
        let most = most(bound, threads);
        ensure!(
            per_thread <= most,
            "--leases {per_thread}: with --staleness-bound {bound} and {threads} threads, the threads could \
             wait for each other's leases for ever; lower --leases to {most}, or raise the bound to {}",
            (per_thread - 1).saturating_mul(threads)
        );
        Ok(())
    }
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bound, per_thread) = (self.staleness_bound, self.per_thread);
        let bound = bound.map_or("no bound".to_owned(), |bound| format!("bound {bound}"));
        write!(f, "{bound}, {per_thread} lease{} a thread", if per_thread == 1 { "" } else { "s" })
    }
}

fn most(bound: u32, threads: usize) -> usize {
    bound as usize / threads + 1
}

struct Tables {
    bank: Bank,
    table: Table,
    dim: usize,
    /// [`Leases::per_thread`] of the sessions that open next.
    per_thread: AtomicUsize,
}

/// Opens a bank with one table.
///
/// # Errors
/// Returns any error of the bank, and an error if a reopened bank lacks the table.
pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    let options = BankOptions {
        memory_budget_bytes: settings.memory_budget_bytes,
        create: !settings.reopen,
        lookahead_queue_keys: Some(0),
        compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
        // The threads of the measurement share the work already.
        threads: 1,
        ..BankOptions::default()
    };
    let bank = Bank::open(&settings.directory, options)?;
    if let Some(warning) = bank.stats().memory_budget_warning {
        crate::output::warn(&warning);
    }
    let dim = settings.value_bytes / size_of::<f32>();
    // A get makes rows that are missing. Their values are zeros, and no other row has zeros.
    let config = TableConfig::new(u32::try_from(dim).context("--value-size is too large")?)
        .optimizer(Optimizer::sgd(1.0))
        .initializer(Initializer::Zeros);
    let table = bank.table(TABLE, config)?;
    if settings.reopen && table.rows()? == 0 {
        bail!("{} holds no rows", settings.directory.display());
    }
    let per_thread = AtomicUsize::new(Leases::of(None, 1).per_thread);
    Ok(Box::new(Tables { bank, table, dim, per_thread }))
}

impl Engine for Tables {
    fn describe(&self) -> Named<String> {
        let stats = self.bank.stats().store;
        let how = "read = get, then the lease is released; update = put; rmw = get, then gradients through the \
                   lease before a later get";
        vec![
            ("store".into(), format!("embank {}", env!("CARGO_PKG_VERSION"))),
            ("operations".into(), how.into()),
            ("rows".into(), format!("{} values of f32, sgd", self.dim)),
            ("device".into(), device(&stats)),
            ("memory_budget_bytes".into(), stats.memory_budget_bytes.to_string()),
            ("page_size_bytes".into(), stats.page_size_bytes.to_string()),
            ("durability".into(), "none between checkpoints; none is taken while measuring".into()),
        ]
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LeaseSession {
            table: &self.table,
            dim: self.dim,
            // Relaxed: the threads of a measurement start after the store, and their start orders
            // it before this load.
            per_thread: self.per_thread.load(Ordering::Relaxed),
            held: VecDeque::new(),
            rows: Vec::new(),
            gradients: Vec::new(),
        }))
    }

    fn atomic_rmw(&self) -> bool {
        true
    }

    fn set_leases(&self, leases: Leases) {
        self.table.set_staleness_bound(leases.staleness_bound);
        self.per_thread.store(leases.per_thread, Ordering::Relaxed);
    }

    fn persist(&self) -> Result<()> {
        self.bank.checkpoint(b"").map(|_| ()).context("the checkpoint after the load")
    }

    fn counters(&self) -> Named<u64> {
        let table = self.table.stats();
        let own = [("gets", table.gets), ("waits", table.waits), ("wait_us", table.wait_us)];
        let mut counters = store_counters(&self.bank.stats().store);
        counters.extend(own.map(|(name, count)| (name.to_owned(), count)));
        counters
    }
}

struct LeaseSession<'a> {
    table: &'a Table,
    dim: usize,
    per_thread: usize,
    /// The open leases, the oldest first, each with the number of its rows.
    held: VecDeque<(Lease, usize)>,
    /// The rows of the present batch.
    rows: Vec<f32>,
    /// One gradient for each row of the largest batch so far. All values are -1.
    gradients: Vec<f32>,
}

impl LeaseSession<'_> {
    /// Gets the rows of a batch. Before the get, applies gradients through the oldest leases until
    /// the thread may take one more lease.
    fn get(&mut self, keys: &[u64]) -> Result<Lease> {
        while self.held.len() >= self.per_thread {
            self.apply_oldest()?;
        }
        self.rows.resize(keys.len() * self.dim, 0.0);
        Ok(self.table.get(keys, &mut self.rows)?)
    }

    fn apply_oldest(&mut self) -> Result<()> {
        let Some((lease, rows)) = self.held.pop_front() else { return Ok(()) };
        let values = rows * self.dim;
        if self.gradients.len() < values {
            self.gradients.resize(values, -1.0);
        }
        Ok(lease.apply(&self.gradients[..values])?)
    }

    /// Puts the rows of a batch of bytes.
    fn put(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        self.rows.resize(keys.len() * self.dim, 0.0);
        let rows = self.rows.chunks_exact_mut(self.dim);
        let value_bytes = self.dim * size_of::<f32>();
        for ((&key, value), row) in keys.iter().zip(values.chunks_exact(value_bytes)).zip(rows) {
            let version = content::check(key, value)?;
            ensure!(version < VERSION_END, full(key, version));
            fill(key, version, row);
        }
        Ok(self.table.put(keys, &self.rows)?)
    }
}

impl Session for LeaseSession<'_> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        self.get(keys)?.release()?;
        let rows = self.rows.chunks_exact(self.dim);
        let places = values.chunks_exact_mut(self.dim * size_of::<f32>());
        for ((&key, row), value) in keys.iter().zip(rows).zip(places) {
            content::fill(key, check_whole(key, row)?, value);
        }
        Ok(())
    }

    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        self.put(keys, values)
    }

    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        self.put(keys, values)
    }

    fn read_modify_write(&mut self, keys: &[u64], _values: &mut [u8]) -> Result<()> {
        let lease = self.get(keys)?;
        for (&key, row) in keys.iter().zip(self.rows.chunks_exact(self.dim)) {
            check(key, row)?;
        }
        self.held.push_back((lease, keys.len()));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while !self.held.is_empty() {
            self.apply_oldest()?;
        }
        Ok(())
    }
}

/// Returns the value of a column in a row of version 0.
#[inline]
fn base(hash: u32, column: usize) -> i32 {
    let base = hash.wrapping_add(column as u32).wrapping_mul(0x9e37_79b1) & (BASES - 1);
    BASE_MIN + base as i32
}

#[inline]
fn value(hash: u32, column: usize, version: u32) -> f32 {
    base(hash, column).wrapping_add(version as i32) as f32
}

#[inline]
fn hash(key: u64) -> u32 {
    mix(key) as u32
}

/// Writes a row.
fn fill(key: u64, version: u32, row: &mut [f32]) {
    let hash = hash(key);
    row.iter_mut().enumerate().for_each(|(column, to)| *to = value(hash, column, version));
}

/// Checks the first and the last value of a row and returns the row's version.
#[inline]
fn check(key: u64, row: &[f32]) -> Result<u32> {
    let (hash, last) = (hash(key), row.len() - 1);
    let version = (row[0] as i32).wrapping_sub(base(hash, 0)) as u32;
    if row[0] == value(hash, 0, version) && row[last] == value(hash, last, version) {
        ensure!(version < VERSION_END, full(key, version));
        return Ok(version);
    }
    ensure!(row.iter().any(|&value| value != 0.0), missing(key));
    bail!(wrong(key, row))
}

/// Checks every value of a row and returns the row's version.
fn check_whole(key: u64, row: &[f32]) -> Result<u32> {
    let (version, hash) = (check(key, row)?, hash(key));
    let right = |(column, &found): (usize, &f32)| found == value(hash, column, version);
    ensure!(row.iter().enumerate().all(right), wrong(key, row));
    Ok(version)
}

fn wrong(key: u64, row: &[f32]) -> String {
    let (first, last) = (row[0], row[row.len() - 1]);
    format!(
        "wrong answer: the row of key {key:#018x} begins with {first} and ends with {last}; no version of it does"
    )
}

fn full(key: u64, version: u32) -> String {
    format!(
        "the row of key {key:#018x} has version {version}, and f32 counts exactly up to {VERSION_END} only; load \
         the store anew, or spread the work over more rows"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_filled_checked_and_counted_exactly() {
        for dim in [2, 3, 16, 64] {
            for version in [0, 1, VERSION_END - 1] {
                let mut row = vec![0.0; dim];
                fill(77, version, &mut row);
                assert_eq!(check_whole(77, &row).unwrap(), version, "{dim} values");
                row.iter_mut().for_each(|value| *value += 1.0);
                let next = check_whole(77, &row).map_err(|error| error.to_string());
                match version + 1 {
                    VERSION_END => assert!(next.unwrap_err().contains("load the store anew")),
                    version => assert_eq!(next, Ok(version)),
                }
            }
        }
    }

    #[test]
    fn increments_that_are_under_way_beyond_the_last_version_are_exact() {
        let mut row = vec![0.0; 64];
        fill(77, VERSION_END - 1, &mut row);
        row.iter_mut().for_each(|value| *value += (1 << 20) as f32);
        let exact = 16_777_216.0;
        assert!(row.iter().all(|&value| value < exact));
    }

    #[test]
    fn zeros_another_rows_values_and_a_torn_row_are_wrong() {
        let error = |row: &[f32]| check_whole(77, row).unwrap_err().to_string();
        assert!(error(&[0.0; 4]).contains("is missing"));
        let mut row = [0.0; 4];
        fill(78, 5, &mut row);
        assert!(error(&row).contains("wrong answer"), "another row");
        for column in 0..4 {
            fill(77, 5, &mut row);
            row[column] += 1.0;
            assert!(error(&row).contains("wrong answer"), "column {column}");
        }
        fill(77, 5, &mut row);
        row[2] = f32::NAN;
        assert!(error(&row).contains("wrong answer"));
    }

    #[test]
    fn leases_that_could_wait_for_each_other_are_refused() {
        for (bound, threads, most) in [(0, 1, 1), (0, 2, 1), (1, 2, 1), (4, 2, 3), (16, 2, 9)] {
            let leases = Leases::of(Some(bound), threads);
            assert_eq!(leases.per_thread, most, "bound {bound}, {threads} threads");
            leases.check(threads).unwrap();
            let more = Leases { per_thread: most + 1, ..leases };
            let error = more.check(threads).unwrap_err().to_string();
            assert!(error.contains(&format!("lower --leases to {most},")), "{error}");
            let bound = Some((most * threads) as u32);
            Leases { staleness_bound: bound, ..more }.check(threads).unwrap();
        }
        assert!(Leases { staleness_bound: None, per_thread: 0 }.check(1).is_err());
        Leases { staleness_bound: None, per_thread: 99 }.check(2).unwrap();
    }
}
