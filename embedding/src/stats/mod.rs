//! What banks and tables count. Counters count since the bank was opened; batches add once each.

pub(crate) mod counter;
pub(crate) mod lease_info;
pub(crate) mod seen;
pub(crate) mod unsaved;

use embank_kv::StoreStats;

use crate::stats::counter::Counter;
use crate::stats::seen::{SeenCounters, StalenessHistogram};

/// What went on around staleness clocks: of a table, and of the bank, whose counts outlive dropped tables.
#[derive(Debug, Default)]
pub(crate) struct WaitCounters {
    pub(crate) waits: Counter,
    pub(crate) wait_us: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) release_failures: Counter,
    pub(crate) leases_expired: Counter,
}

/// The live counters behind [`TableStats`].
#[derive(Debug, Default)]
pub(crate) struct TableCounters {
    pub(crate) gets: Counter,
    pub(crate) get_rows: Counter,
    pub(crate) peeks: Counter,
    pub(crate) peek_rows: Counter,
    pub(crate) puts: Counter,
    pub(crate) put_rows: Counter,
    pub(crate) applies: Counter,
    pub(crate) apply_rows: Counter,
    pub(crate) deleted_rows: Counter,
    pub(crate) evicted_rows: Counter,
    pub(crate) not_admitted_rows: Counter,
    pub(crate) saturated_rows: Counter,
    pub(crate) disk_reads: Counter,
    pub(crate) waiting: WaitCounters,
    pub(crate) seen: SeenCounters,
}

impl TableCounters {
    pub(crate) fn snapshot(&self) -> TableStats {
        TableStats {
            gets: self.gets.get(),
            get_rows: self.get_rows.get(),
            peeks: self.peeks.get(),
            peek_rows: self.peek_rows.get(),
            puts: self.puts.get(),
            put_rows: self.put_rows.get(),
            applies: self.applies.get(),
            apply_rows: self.apply_rows.get(),
            deleted_rows: self.deleted_rows.get(),
            evicted_rows: self.evicted_rows.get(),
            not_admitted_rows: self.not_admitted_rows.get(),
            saturated_rows: self.saturated_rows.get(),
            disk_reads: self.disk_reads.get(),
            waits: self.waiting.waits.get(),
            wait_us: self.waiting.wait_us.get(),
            timeouts: self.waiting.timeouts.get(),
            release_failures: self.waiting.release_failures.get(),
            leases_expired: self.waiting.leases_expired.get(),
            staleness: self.staleness(),
        }
    }
}

impl TableCounters {
    pub(crate) fn staleness(&self) -> StalenessHistogram {
        self.seen.snapshot()
    }
}

/// What a table has done since its bank was opened. Rows are counted once per batch.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
/// let table = bank.table("user", embank::TableConfig::new(2))?;
/// table.put(&[1, 2], &[0.0; 4])?;
/// assert_eq!((table.stats().puts, table.stats().put_rows), (1, 2));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// Batches got.
    pub gets: u64,
    /// Distinct rows got.
    pub get_rows: u64,
    /// Batches peeked at.
    pub peeks: u64,
    /// Rows peeked at, duplicates counted.
    pub peek_rows: u64,
    /// Batches put, with or without a lease.
    pub puts: u64,
    /// Distinct rows put.
    pub put_rows: u64,
    /// Batches of gradients applied, with or without a lease.
    pub applies: u64,
    /// Distinct rows that gradients were applied to.
    pub apply_rows: u64,
    /// Rows deleted.
    pub deleted_rows: u64,
    /// Rows evicted.
    pub evicted_rows: u64,
    /// Rows that Gets did not make, as their keys were not admitted: their gradients were dropped.
    pub not_admitted_rows: u64,
    /// Steps of rows whose optimizer state is at the largest value that its dtype holds, and stays there.
    pub saturated_rows: u64,
    /// Rows that a get, peek, put or apply had to read from disk.
    pub disk_reads: u64,
    /// Gets that had to wait for the staleness bound.
    pub waits: u64,
    /// How long they waited together, in microseconds.
    pub wait_us: u64,
    /// Gets that gave up waiting.
    pub timeouts: u64,
    /// Leases that were dropped or expired and whose counts could not all be given back.
    pub release_failures: u64,
    /// Leases that grew older than [`lease_timeout`](crate::BankOptions::lease_timeout) and were declared expired.
    pub leases_expired: u64,
    /// The staleness at which rows were got.
    pub staleness: StalenessHistogram,
}

/// What looking ahead has done since the bank was opened, in keys.
///
/// Every key asked for ends in one of `resident`, `merged`, `dropped`, `cancelled`, `moved`, `late`,
/// `missing` and `failed`, or is still `pending`.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
/// let table = bank.table("user", embank::TableConfig::new(2))?;
/// table.put(&[1, 2], &[0.0; 4])?;
/// table.lookahead(&[1, 2])?;
/// assert_eq!(bank.stats().lookahead.resident, 2);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LookaheadStats {
    /// Asked for; equal keys of one call count once.
    pub requested: u64,
    /// In mutable memory already, or in no table, when asked for.
    pub resident: u64,
    /// Put in the queue.
    pub queued: u64,
    /// Already pending when asked for again.
    pub merged: u64,
    /// Turned away because the queue was full.
    pub dropped: u64,
    /// Brought from disk, or from the read-only region, into mutable memory.
    pub moved: u64,
    /// Moved or kept, and then used from memory.
    pub on_time: u64,
    /// Whose turn came too late: somebody got the row first, and may have waited for the disk.
    pub late: u64,
    /// Moved or kept, and gone from memory again without a use.
    pub wasted: u64,
    /// Found to be in no table when their turn came.
    pub missing: u64,
    /// Given up before their turn: by [`Bank::cancel_lookahead`](crate::Bank::cancel_lookahead), or because
    /// their table was dropped.
    pub cancelled: u64,
    /// Left on disk because reading failed, or because the disk quota left no room.
    pub failed: u64,
    /// In memory, and copied to its mutable part again because they were about to leave it unused; a row may be kept
    /// more than once for one announcement.
    pub kept: u64,
    /// How long the thread that reads ahead was at work, in microseconds: on bursts, on prefetches, and on rows that it
    /// keeps in memory.
    pub reading_us: u64,
    /// Gauge: the batches to look ahead that an [`AutoDepth`](crate::AutoDepth) has chosen last; 0 without one.
    pub depth: u64,
    /// Gauge: waiting for their turn or being read.
    pub pending: u64,
    /// Gauge: the most keys that may be pending.
    pub capacity: u64,
    /// Gauge: memory that the queue may take, in bytes; part of the bank's budget.
    pub memory_bytes: u64,
}

/// What a bank has done since it was opened.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let options = embank::BankOptions { memory_budget_bytes: 8 << 20, ..Default::default() };
/// let bank = embank::Bank::open(dir.path().join("bank"), options)?;
/// assert_eq!(bank.stats().memory_budget_bytes, 8 << 20);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BankStats {
    /// The store: regions, disk, memory. Its budget is the bank's without the lookahead queue.
    pub store: StoreStats,
    /// Looking ahead.
    pub lookahead: LookaheadStats,
    /// The bank's memory budget, in bytes, as given at open.
    pub memory_budget_bytes: u64,
    /// A text if the budget is above the memory limit of the process's control group, as of the open.
    pub memory_budget_warning: Option<String>,
    /// Gets that had to wait for a staleness bound, in all tables.
    pub waits: u64,
    /// How long they waited together, in microseconds.
    pub wait_us: u64,
    /// Gets that gave up waiting.
    pub timeouts: u64,
    /// Leases that were dropped or expired and whose counts could not all be given back.
    pub release_failures: u64,
    /// Leases that grew older than [`lease_timeout`](crate::BankOptions::lease_timeout) and were declared expired.
    pub leases_expired: u64,
    /// The staleness at which rows were got, in all tables, dropped ones included.
    pub staleness: StalenessHistogram,
}

#[cfg(feature = "prometheus")]
impl BankStats {
    /// All numbers of the bank in the text format that Prometheus scrapes (OpenMetrics 1.0; serve it as
    /// `application/openmetrics-text; version=1.0.0; charset=utf-8`).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// let bank = embank::Bank::open(dir.path().join("bank"), embank::BankOptions::default())?;
    /// assert!(bank.stats().to_prometheus().contains("embank_lookahead_keys_total{fate=\"late\"} 0.0"));
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        use embank_kv::metrics::{Metric, to_prometheus};

        let ahead = &self.lookahead;
        let keys = |fate, value| {
            Metric::counter("embank_lookahead_keys", "Keys announced ahead", value)
                .labelled("fate", fate)
        };
        let mut metrics = self.store.metrics();
        metrics.extend([
            keys("requested", ahead.requested),
            keys("resident", ahead.resident),
            keys("queued", ahead.queued),
            keys("merged", ahead.merged),
            keys("dropped", ahead.dropped),
            keys("moved", ahead.moved),
            keys("on_time", ahead.on_time),
            keys("late", ahead.late),
            keys("wasted", ahead.wasted),
            keys("missing", ahead.missing),
            keys("cancelled", ahead.cancelled),
            keys("failed", ahead.failed),
            keys("kept", ahead.kept),
            Metric::seconds(
                "embank_lookahead_reading_seconds",
                "How long the thread that reads ahead was at work",
                ahead.reading_us,
            ),
            Metric::gauge("embank_lookahead_depth", "Batches ahead, as chosen", ahead.depth),
            Metric::gauge("embank_lookahead_pending", "Keys waiting or being read", ahead.pending),
            Metric::gauge("embank_lookahead_capacity", "Keys that may wait", ahead.capacity),
            Metric::gauge("embank_lookahead_bytes", "Memory of the queue", ahead.memory_bytes),
            Metric::gauge(
                "embank_bank_memory_budget_bytes",
                "The bank's memory budget",
                self.memory_budget_bytes,
            ),
            Metric::counter("embank_staleness_waits", "Gets that waited for a bound", self.waits),
            Metric::seconds("embank_staleness_waits_seconds", "How long they waited", self.wait_us),
            Metric::counter("embank_staleness_timeouts", "Gets that gave up", self.timeouts),
            Metric::counter(
                "embank_leases_expired",
                "Leases that grew too old",
                self.leases_expired,
            ),
            Metric::counter(
                "embank_release_failures",
                "Dropped leases that could not give back all counts",
                self.release_failures,
            ),
        ]);
        for (label, clocks) in [
            ("0", 0..=0),
            ("1", 1..=1),
            ("2", 2..=2),
            ("3-4", 3..=4),
            ("5-8", 5..=8),
            ("9-16", 9..=16),
            ("17-64", 17..=64),
            ("65-", 65..=u32::MAX),
        ] {
            let within = self.staleness.buckets().filter(|(largest, _)| clocks.contains(largest));
            let rows = within.map(|(_, rows)| rows).sum();
            let help = "Rows got, by updates that were outstanding then";
            metrics.push(
                Metric::counter("embank_staleness_rows", help, rows).labelled("outstanding", label),
            );
        }
        to_prometheus(&metrics)
    }
}
