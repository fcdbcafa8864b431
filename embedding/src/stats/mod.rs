//! The counters of banks and tables. They count from the open of the bank; a batch adds to a
//! counter once.

pub(crate) mod counter;
pub(crate) mod lease_info;
pub(crate) mod seen;
pub(crate) mod unsaved;

#[cfg(feature = "prometheus")]
use std::collections::BTreeMap;

use embank_kv::{StoreStats, statistics};

use crate::stats::counter::Counter;
use crate::stats::seen::{SeenCounters, StalenessHistogram};

/// The counters of waits for staleness clocks, for a table and for the bank. The bank's counters
/// outlive dropped tables.
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
        TableStats { staleness: self.staleness(), ..TableStats::counted(self) }
    }

    pub(crate) fn staleness(&self) -> StalenessHistogram {
        self.seen.snapshot()
    }
}

statistics! {
    /// The work on a table since its bank was opened. A batch adds its rows once.
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
    pub struct TableStats counted by TableCounters {
        /// Batches got.
        gets: Counter Count in gets from |c| c.gets.get();
        /// Distinct rows got.
        get_rows: Counter Count in get_rows from |c| c.get_rows.get();
        /// Batches peeked at.
        peeks: Counter Count in peeks from |c| c.peeks.get();
        /// Rows peeked at, duplicates counted.
        peek_rows: Counter Count in peek_rows from |c| c.peek_rows.get();
        /// Batches put, with or without a lease, and batches changed by a function.
        puts: Counter Count in puts from |c| c.puts.get();
        /// Distinct rows put or changed by a function.
        put_rows: Counter Count in put_rows from |c| c.put_rows.get();
        /// Batches of gradients applied, with or without a lease.
        applies: Counter Count in applies from |c| c.applies.get();
        /// Distinct rows that gradients were applied to.
        apply_rows: Counter Count in apply_rows from |c| c.apply_rows.get();
        /// Rows deleted.
        deleted_rows: Counter Count in deleted_rows from |c| c.deleted_rows.get();
        /// Rows evicted.
        evicted_rows: Counter Count in evicted_rows from |c| c.evicted_rows.get();
        /// Rows that Gets did not make, because their keys were not admitted. Their gradients were
        /// dropped.
        not_admitted_rows: Counter Count in not_admitted_rows from |c| c.not_admitted_rows.get();
        /// Steps that left a value of the optimizer's state at the largest value of its dtype,
        /// where it stays.
        saturated_rows: Counter Count in saturated_rows from |c| c.saturated_rows.get();
        /// Rows that a get, peek, put, apply or update had to read from disk.
        disk_reads: Counter Count in disk_reads from |c| c.disk_reads.get();
        /// Gets that had to wait for the staleness bound.
        waits: Counter Count in waits from |c| c.waiting.waits.get();
        /// Total time that Gets waited for a staleness bound, in microseconds.
        wait_us: Counter Microseconds in wait_us from |c| c.waiting.wait_us.get();
        /// Gets that failed because they had waited for `wait_timeout`.
        timeouts: Counter Count in timeouts from |c| c.waiting.timeouts.get();
        /// Dropped or expired leases that could not lower the clocks of all their rows.
        release_failures: Counter Count in release_failures from |c| c.waiting.release_failures.get();
        /// Leases that grew older than [`lease_timeout`](crate::BankOptions::lease_timeout) and
        /// were declared expired.
        leases_expired: Counter Count in leases_expired from |c| c.waiting.leases_expired.get();
    } and {
        /// The staleness of rows at their Gets.
        pub staleness: StalenessHistogram,
    }
}

statistics! {
    /// The work of Lookahead since the bank was opened, in keys.
    ///
    /// Every requested key ends as one of `resident`, `merged`, `dropped`, `cancelled`, `moved`,
    /// `late`, `missing` and `failed`, or is still `pending`.
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
        /// Requested keys. Equal keys of one call count once.
        requested: Counter Count in lookahead.requested
            as "embank_lookahead_keys" { fate: "requested" } "Keys announced ahead";
        /// Keys that had no row at the request, or whose row was already in mutable memory.
        resident: Counter Count in lookahead.resident
            as "embank_lookahead_keys" { fate: "resident" } "Keys announced ahead";
        /// Keys put in the queue.
        queued: Counter Count in lookahead.queued
            as "embank_lookahead_keys" { fate: "queued" } "Keys announced ahead";
        /// Keys that were already pending because of an earlier request.
        merged: Counter Count in lookahead.merged
            as "embank_lookahead_keys" { fate: "merged" } "Keys announced ahead";
        /// Keys that the full queue refused.
        dropped: Counter Count in lookahead.dropped
            as "embank_lookahead_keys" { fate: "dropped" } "Keys announced ahead";
        /// Rows brought from disk, or from the read-only region, into mutable memory.
        moved: Counter Count in lookahead.moved
            as "embank_lookahead_keys" { fate: "moved" } "Keys announced ahead";
        /// Rows that were moved or kept, and then used from memory.
        on_time: Counter Count in lookahead.on_time
            as "embank_lookahead_keys" { fate: "on_time" } "Keys announced ahead";
        /// Keys whose turn came too late: another call had got the row, and may have waited for the
        /// disk.
        late: Counter Count in lookahead.late
            as "embank_lookahead_keys" { fate: "late" } "Keys announced ahead";
        /// Rows that were moved or kept, and left memory without a use.
        wasted: Counter Count in lookahead.wasted
            as "embank_lookahead_keys" { fate: "wasted" } "Keys announced ahead";
        /// Keys that had no row when their turn came.
        missing: Counter Count in lookahead.missing
            as "embank_lookahead_keys" { fate: "missing" } "Keys announced ahead";
        /// Keys that were given up before their turn, by
        /// [`Bank::cancel_lookahead`](crate::Bank::cancel_lookahead) or because their table was
        /// dropped.
        cancelled: Counter Count in lookahead.cancelled
            as "embank_lookahead_keys" { fate: "cancelled" } "Keys announced ahead";
        /// Rows left on disk because reading failed, or because the disk quota left no room.
        failed: Counter Count in lookahead.failed
            as "embank_lookahead_keys" { fate: "failed" } "Keys announced ahead";
        /// Rows that were copied to the mutable region because they were about to leave memory
        /// before their use. One announcement may keep a row several times.
        kept: Counter Count in lookahead.kept
            as "embank_lookahead_keys" { fate: "kept" } "Keys announced ahead";
        /// Working time of the lookahead thread, in microseconds: for reading announced rows, for
        /// prefetches, and for rows that it keeps in memory.
        reading_us: Counter Microseconds in lookahead.reading_us
            as "embank_lookahead_reading_seconds" "How long the thread that reads ahead was at work";
        /// Gauge: the last depth that an [`AutoDepth`](crate::AutoDepth) has chosen; 0 without one.
        depth: Gauge Count in lookahead.depth
            as "embank_lookahead_depth" "Batches ahead, as chosen";
        /// Gauge: keys that wait for their turn or are being read.
        pending: Gauge Count in lookahead.pending
            as "embank_lookahead_pending" "Keys waiting or being read";
        /// Gauge: largest number of pending keys.
        capacity: Gauge Count in lookahead.capacity
            as "embank_lookahead_capacity" "Keys that may wait";
        /// Gauge: most bytes of memory for the queue, a part of the bank's budget.
        memory_bytes: Gauge Bytes in memory.lookahead_bytes
            as "embank_lookahead_bytes" "Memory of the queue";
    } and {
    }
}

statistics! {
    /// The work of a bank since it was opened.
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
        /// The bank's memory budget, in bytes, as given at open.
        memory_budget_bytes: Gauge Bytes in memory.budget_bytes
            as "embank_bank_memory_budget_bytes" "The bank's memory budget";
        /// Gets that had to wait for a staleness bound, in all tables.
        waits: Counter Count in waits
            as "embank_staleness_waits" "Gets that waited for a bound";
        /// Total time that Gets waited for a staleness bound, in microseconds.
        wait_us: Counter Microseconds in wait_us
            as "embank_staleness_waits_seconds" "How long they waited";
        /// Gets that failed because they had waited for `wait_timeout`.
        timeouts: Counter Count in timeouts
            as "embank_staleness_timeouts" "Gets that gave up";
        /// Leases that grew older than [`lease_timeout`](crate::BankOptions::lease_timeout) and
        /// were declared expired.
        leases_expired: Counter Count in leases_expired
            as "embank_leases_expired" "Leases that grew too old";
        /// Dropped or expired leases that could not lower the clocks of all their rows.
        release_failures: Counter Count in release_failures
            as "embank_release_failures" "Dropped leases that could not give back all counts";
    } and {
        /// The store: regions, disk, memory. The store's budget is the bank's budget without the
        /// lookahead queue.
        pub store: StoreStats,
        /// The work of Lookahead.
        pub lookahead: LookaheadStats,
        /// A warning if, when the bank was opened, the budget was above the memory limit of the
        /// process's control group.
        pub memory_budget_warning: Option<String>,
        /// The staleness of rows at their Gets, in all tables, also dropped ones.
        pub staleness: StalenessHistogram,
    }
}

impl BankStats {
    /// Every number of the bank: of the store, of Lookahead, and of the bank itself.
    ///
    /// ```
    /// let fields = embank::BankStats::default().all_fields();
    /// assert!(fields.iter().any(|field| field.name == "retained"));
    /// ```
    #[must_use]
    pub fn all_fields(&self) -> Vec<embank_kv::metrics::Field> {
        let mut all = self.store.fields();
        all.extend(self.lookahead.fields());
        all.extend(self.fields());
        all
    }

    /// Bytes of the memory budget that are in use.
    #[must_use]
    pub fn memory_used_bytes(&self) -> u64 {
        self.store.memory_frames_bytes
            + self.store.memory_index_bytes
            + self.store.memory_cache_bytes
            + self.store.memory_buffers_bytes
            + self.store.memory_cold_bytes
            + self.store.memory_lent_bytes
            + self.lookahead.memory_bytes
    }
}

#[cfg(feature = "prometheus")]
impl BankStats {
    /// All numbers of the bank in the text format of Prometheus (OpenMetrics 1.0; serve it as
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
        embank_kv::metrics::to_prometheus(&self.metrics())
    }

    /// The numbers of several banks in one text, in the format of
    /// [`to_prometheus`](Self::to_prometheus). Each number has the label `bank` with the name that
    /// the caller gives the bank. The texts of `to_prometheus` can't be joined, because they have
    /// the same series.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use std::collections::BTreeMap;
    ///
    /// use embank::{Bank, BankOptions, BankStats};
    ///
    /// let train = Bank::open(dir.path().join("train"), BankOptions::default())?;
    /// let serve = Bank::open(dir.path().join("serve"), BankOptions::default())?;
    /// let stats = BTreeMap::from([("train", train.stats()), ("serve", serve.stats())]);
    /// let text = BankStats::banks_to_prometheus(&stats);
    /// assert!(text.contains("embank_keys_total{bank=\"serve\",operation=\"get\"} 0.0"));
    /// # Ok::<(), embank::Error>(())
    /// ```
    #[must_use]
    pub fn banks_to_prometheus(banks: &BTreeMap<&str, BankStats>) -> String {
        let metrics = banks.iter().map(|(&name, stats)| (name.to_owned(), stats.metrics()));
        embank_kv::metrics::banks_to_prometheus(metrics.collect())
    }

    fn metrics(&self) -> Vec<embank_kv::metrics::Metric> {
        use embank_kv::metrics::{Field, Metric};

        let mut metrics = self.store.metrics();
        metrics.extend(self.lookahead.fields().iter().filter_map(Field::metric));
        metrics.extend(self.fields().iter().filter_map(Field::metric));
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
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number for each field. All numbers differ.
    fn count_up(numbers: Vec<&mut u64>, first: u64) {
        for (value, number) in (first..).zip(numbers) {
            *number = value;
        }
    }

    #[test]
    fn every_field_is_named_once() {
        let mut table = TableStats::default();
        count_up(table.numbers_mut(), 1);
        assert!((1..).zip(table.fields()).all(|(value, field)| field.value == value));
        let mut bank = BankStats::default();
        count_up(bank.numbers_mut(), 1_000);
        count_up(bank.lookahead.numbers_mut(), 2_000);
        let fields = bank.all_fields();
        let mut places: Vec<_> = fields.iter().filter_map(|field| field.place).collect();
        let places_before = places.len();
        places.sort_by_key(|place| (place.group, place.name));
        places.dedup();
        assert_eq!(places.len(), places_before);
        let all = |first: u64| fields.iter().filter(|of| of.value >= first).count();
        assert_eq!((all(1_000), all(2_000)), (24, 18));
    }
}
