//! Eviction: deletes rows by age, frequency or norm, on disk and in memory.
//!
//! **Problem.** An eviction must read the whole table, mostly from disk, while training changes it.
//! It must decide about each row by the row's present state, not by a state from minutes ago.
//!
//! **Approach.** A scan of the newest checkpoint returns the keys at the speed of sequential reads.
//! A row's uses can only have grown since the checkpoint. So the eviction skips a row if, in the
//! scan, the row is already too young or used too often. A norm may have changed in either
//! direction, so the eviction skips no row for its norm. For each remaining row, a conditional
//! deletion (`Store::delete_if`) locks the row and checks its present state. A row with outstanding
//! leases stays, because gradients for it will follow.
//!
//! Rows that were made after the checkpoint are not in the scan, so they stay. They are too young
//! to be evicted by age. To evict all rows by norm, take a checkpoint right before the eviction.

use std::ops::ControlFlow;

use embank_kv::{Access, Clock, Operation};

use crate::error::{Error, Result, StoreError};
use crate::row::layout::RowLayout;
use crate::row::tracking::{Tracker, Uses};
use crate::table::Table;
use crate::table::progress::{TransferProgress, report};

/// Number of scanned rows that one call of the store checks and deletes.
const BATCH_ROWS: usize = 4096;

/// Conditions for deleting rows. A row is deleted if it meets every condition that is set. At least
/// one condition must be set.
///
/// # Examples
/// ```
/// use embank::Eviction;
///
/// // Not used for 30 days (in a table that tracks minutes), and fewer than three times before.
/// let stale = Eviction::new().unused_for(30 * 24 * 60).used_fewer_than(3);
/// let small = Eviction::new().norm_below(1e-4).dry_run(true);
/// # assert!(small.dry_run && !stale.dry_run);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Eviction {
    /// Deletes rows whose last use was at least this long ago, in the table's unit of time
    /// ([`Tracking`](crate::Tracking)).
    pub unused_for: Option<u32>,
    /// Deletes rows with fewer than this number of uses.
    pub used_fewer_than: Option<u32>,
    /// Deletes rows whose vector has an L2 norm below this number.
    pub norm_below: Option<f32>,
    /// Counts the rows that meet the conditions and lists their keys, but deletes no row. Default:
    /// no.
    pub dry_run: bool,
}

impl Eviction {
    /// Makes an eviction without a condition.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time since the last use after which a row is deleted.
    #[must_use]
    pub fn unused_for(mut self, time: u32) -> Self {
        self.unused_for = Some(time);
        self
    }

    /// Sets the number of uses below which a row is deleted.
    #[must_use]
    pub fn used_fewer_than(mut self, uses: u32) -> Self {
        self.used_fewer_than = Some(uses);
        self
    }

    /// Sets the norm below which a row is deleted.
    #[must_use]
    pub fn norm_below(mut self, norm: f32) -> Self {
        self.norm_below = Some(norm);
        self
    }

    /// Sets whether the eviction only counts and lists rows.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    fn check(&self, table: &Table) -> Result<()> {
        let tracked = self.unused_for.is_some() || self.used_fewer_than.is_some();
        if !tracked && self.norm_below.is_none() {
            let what = "an eviction needs a condition: age, uses or norm".to_owned();
            return Err(StoreError::InvalidArgument(what).into());
        }
        if tracked && table.shared.layout().tracker().is_none() {
            let why = "does not track when and how often its rows are used; create it with tracking to evict by age or \
                       frequency, or evict by norm";
            return Err(Error::wrong_kind("table", table.name(), why));
        }
        let is_set = table.shared.set_tracker().is_none_or(Tracker::is_set);
        if self.unused_for.is_some() && !is_set {
            let why = "goes by the time that set_time gives, and none was ever given: no row could be old; call set_time \
                       first";
            return Err(Error::wrong_kind("table", table.name(), why));
        }
        if self.norm_below.is_some_and(|norm| !(norm.is_finite() && norm > 0.0)) {
            return Err(Error::option("norm_below", "must be finite and above 0"));
        }
        Ok(())
    }

    /// True if a row's uses meet the conditions on age and number of uses. Also true if `uses` is
    /// `None`, because the table tracks no uses.
    fn lets_go_by_uses(&self, uses: Option<Uses>, now: u32) -> bool {
        let Some(uses) = uses else { return true };
        self.unused_for.is_none_or(|time| now.saturating_sub(uses.last) >= time)
            && self.used_fewer_than.is_none_or(|count| uses.count < count)
    }

    fn lets_go(&self, layout: &RowLayout, value: &[u8], now: u32) -> bool {
        self.lets_go_by_uses(layout.uses(value), now)
            && self
                .norm_below
                .is_none_or(|norm| layout.squared_norm(value) < f64::from(norm).powi(2))
    }
}

/// The result of an eviction or of its dry run.
///
/// # Examples
/// See [`Table::evict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Evicted {
    /// Number of the checkpoint whose rows were examined.
    pub checkpoint: u64,
    /// Number of rows that were examined.
    pub examined: u64,
    /// Number of rows that were deleted, or that a dry run would delete.
    pub rows: u64,
    /// Number of rows that met the conditions but stayed because leases hold them.
    pub leased: u64,
    /// Number of keys without a row whose count of Gets
    /// ([`Admission::AfterGets`](crate::Admission)) was forgotten, or that a dry run would forget.
    /// An eviction with `unused_for` and without `norm_below` forgets the counts of keys whose last
    /// Get is at least `unused_for` ago.
    pub counts: u64,
}

impl Table {
    /// Deletes all rows that now meet every condition of `eviction`, in memory and on disk, while
    /// training continues. With [`dry_run`](Eviction::dry_run), deletes nothing and only counts
    /// these rows. Examines only rows in the newest checkpoint; newer rows stay. Rows with
    /// outstanding leases stay. A later Get of a deleted row starts from the initial values.
    ///
    /// The rows are deleted when the call returns. The next checkpoint makes the deletion durable,
    /// and compaction frees the space.
    ///
    /// # Errors
    /// The errors of [`scan`](Self::scan). [`InvalidArgument`](crate::StoreError::InvalidArgument)
    /// if no condition is set. [`InvalidOption`](crate::StoreError::InvalidOption) if the norm is
    /// not finite and above 0. [`WrongKind`](crate::StoreError::WrongKind) if age or uses are
    /// conditions and the table does not track them. A failure of the store, after which some of
    /// the rows may be deleted.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Eviction, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(2))?;
    /// table.put(&[1, 2], &[0.0, 1e-6, 3.0, 4.0])?;
    /// bank.checkpoint(b"")?;
    /// let small = Eviction::new().norm_below(1e-3);
    /// assert_eq!(table.evict(&small.dry_run(true))?.rows, 1);
    /// assert_eq!(table.evict(&small)?.rows, 1);
    /// assert_eq!(table.contains(&[1, 2])?, [false, true]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn evict(&self, eviction: &Eviction) -> Result<Evicted> {
        self.evict_with(eviction, |_| (), |_| ControlFlow::Continue(()))
    }

    /// Evicts like [`evict`](Self::evict). After each batch, calls `gone` with the keys of the
    /// deleted rows, and `progress` with the progress. In a dry run, `gone` gets the keys of the
    /// rows that would be deleted. If `progress` returns `Break`, the call fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled); rows deleted so far stay deleted.
    ///
    /// # Errors
    /// The errors of [`evict`](Self::evict), and [`Cancelled`](crate::Error::Cancelled).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Eviction, TableConfig};
    /// use std::ops::ControlFlow;
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1))?;
    /// table.put(&[1, 2, 3], &[0.0, 5.0, 0.0])?;
    /// bank.checkpoint(b"")?;
    /// let mut gone = Vec::new();
    /// table.evict_with(
    ///     &Eviction::new().norm_below(0.1),
    ///     |keys| gone.extend_from_slice(keys),
    ///     |progress| {
    ///         println!("{} of {} rows", progress.rows_done, progress.rows_total);
    ///         ControlFlow::Continue(())
    ///     },
    /// )?;
    /// gone.sort_unstable();
    /// assert_eq!(gone, [1, 3]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn evict_with(
        &self,
        eviction: &Eviction,
        mut gone: impl FnMut(&[u64]),
        mut progress: impl FnMut(TransferProgress) -> ControlFlow<()>,
    ) -> Result<Evicted> {
        eviction.check(self)?;
        let mut scan = self.scan()?;
        let layout = self.shared.layout();
        let now = layout.tracker().map_or(0, |tracker| {
            tracker.refresh();
            tracker.now()
        });
        let mut evicted = Evicted { checkpoint: scan.checkpoint(), ..Evicted::default() };
        let mut keys = Vec::with_capacity(BATCH_ROWS);
        // The loop ends when the scan has no more rows.
        loop {
            keys.clear();
            let mut looked_at = 0;
            while looked_at < BATCH_ROWS
                && let Some((key, value)) = scan.next_value()?
            {
                looked_at += 1;
                if eviction.lets_go_by_uses(layout.uses(value), now) {
                    keys.push(key);
                }
            }
            if looked_at == 0 {
                // The scan must end before `forget_counts` begins another one: a small memory
                // budget has room for only one.
                drop(scan);
                if let (Some(time), None) = (eviction.unused_for, eviction.norm_below) {
                    evicted.counts = self.forget_counts(time, eviction.dry_run)?.counts;
                }
                return Ok(evicted);
            }
            evicted.examined += looked_at as u64;
            let verdicts = self.look_at(&keys, eviction, now, &mut evicted)?;
            let went = keys.iter().zip(verdicts);
            let went: Vec<u64> = went
                .filter_map(|(&key, verdict)| (verdict == Verdict::Goes).then_some(key))
                .collect();
            if !went.is_empty() {
                gone(&went);
            }
            report(&mut progress, evicted.examined, scan.rows())?;
        }
    }

    /// Checks the present rows of `keys`. Deletes those that meet the conditions, or in a dry run
    /// only counts them.
    fn look_at(
        &self,
        keys: &[u64],
        eviction: &Eviction,
        now: u32,
        evicted: &mut Evicted,
    ) -> Result<Vec<Verdict>> {
        let layout = self.shared.layout();
        let mut verdicts = vec![Verdict::Stays; keys.len()];
        let verdict = |value: &[u8], outstanding: u32| match (
            eviction.lets_go(layout, value, now),
            outstanding,
        ) {
            (false, _) => Verdict::Stays,
            (true, 0) => Verdict::Goes,
            (true, _) => Verdict::Leased,
        };
        let count =
            |verdicts: &[Verdict], of| verdicts.iter().filter(|&&found| found == of).count();
        if eviction.dry_run {
            let mut judge = Judge { verdict, verdicts: &mut verdicts };
            self.execute(keys, Clock::Keep, &mut judge)?;
            evicted.rows += count(&verdicts, Verdict::Goes) as u64;
        } else {
            let condition = |i: usize, value: &[u8], outstanding: u32| {
                verdicts[i] = verdict(value, outstanding);
                verdicts[i] == Verdict::Goes
            };
            let deleted = self.context().store.delete_if(self.shared.id, keys, condition);
            let deleted = deleted.map_err(|error| self.in_terms_of_the_table(error))?;
            evicted.rows += deleted;
            self.shared.counters.evicted_rows.add(deleted);
        }
        evicted.leased += count(&verdicts, Verdict::Leased) as u64;
        Ok(verdicts)
    }
}

/// The decision about a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Stays,
    Goes,
    /// The row meets the conditions, but leases hold it.
    Leased,
}

/// Checks rows for a dry run, and changes nothing.
struct Judge<'a, V> {
    verdict: V,
    verdicts: &'a mut [Verdict],
}

impl<V: Fn(&[u8], u32) -> Verdict> Operation for Judge<'_, V> {
    const ACCESS: Access = Access::Peek;

    fn read(&mut self, i: usize, value: &[u8]) {
        self.verdicts[i] = (self.verdict)(value, 0);
    }

    /// Called after `read` for the same row.
    fn seen(&mut self, i: usize, outstanding: u32) {
        if outstanding > 0 && self.verdicts[i] == Verdict::Goes {
            self.verdicts[i] = Verdict::Leased;
        }
    }
}
