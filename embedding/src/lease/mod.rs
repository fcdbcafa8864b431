//! Leases. A Get returns a lease. The lease's owner must update the rows through the lease, or end
//! the lease without an update.

pub(crate) mod ahead;
mod get;
mod release;
pub(crate) mod request;
pub(crate) mod step;
mod waiting;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embank_kv::{Clock, Leased, RowHints};

use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::lease::request::LeasedPer;
use crate::registry::part::KeyPart;
use crate::registry::turnstile::Entered;
use crate::registry::{LeaseEntry, LeasedRows, Taker};
use crate::table::Table;
use crate::table::gradients::{BatchGradients, Occurrences};
use crate::table::updates::Blind;

/// A lease on the rows of a Get. The Get has raised the staleness clock of each distinct key's row
/// by one, and the end of the lease lowers these clocks again.
///
/// [`apply`](Self::apply) and [`put`](Self::put) update the rows and end the lease. Dropping the
/// lease ends it without an update. An update that fails for any reason ends the lease too. If a
/// row was deleted since the Get, the end of the lease leaves that row's clock alone, even if the
/// row was made again.
///
/// A lease that is older than [`lease_timeout`](crate::BankOptions::lease_timeout) may expire: a
/// Get of the table then ends the lease, and a later update through the lease fails.
///
/// In the source, `lease/mod.rs` has the methods for one lease, and `lease/step.rs` a step through
/// several leases.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Optimizer, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(2).optimizer(Optimizer::sgd(0.5)))?;
/// let mut rows = [0.0; 6];
/// let lease = table.get(&[4, 9, 4], &mut rows)?;
/// assert_eq!(lease.unique().keys(), [4, 9]);
/// assert_eq!(table.outstanding(4)?, Some(1));
/// lease.apply(&[1.0; 6])?; // key 4 moves by the sum of its two gradients
/// assert_eq!(table.outstanding(4)?, Some(0));
/// # Ok::<(), embank::Error>(())
/// ```
#[must_use = "dropping a lease ends it without an update"]
pub struct Lease {
    pub(crate) table: Table,
    pub(crate) per: LeasedPer,
    pub(crate) entry: Arc<Leased<LeaseEntry>>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.name();
        let keys = self.unique().len();
        formatter.debug_struct("Lease").field("table", &table).field("keys", &keys).finish()
    }
}

impl Lease {
    pub(crate) fn new(
        table: Table,
        per: LeasedPer,
        unique: UniqueKeys,
        part: Option<KeyPart>,
        hints: RowHints,
        taker: Arc<Taker>,
        entered: &Entered<'_>,
    ) -> Self {
        let entry = table.shared.leases.register(unique, part, hints, taker, entered);
        Self { table, per, entry }
    }

    /// The distinct keys of the Get, and for each key of the batch its index among the distinct
    /// keys.
    pub fn unique(&self) -> &UniqueKeys {
        &self.entry.what().unique
    }

    /// The table that the lease belongs to.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// True if the lease has expired. Its rows' clocks were lowered, and an update through it fails
    /// with [`LeaseExpired`](crate::Error::LeaseExpired).
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.entry.is_expired()
    }

    /// Claims the end of the lease for this call: from now on, no other thread lowers the clocks of
    /// its rows. Fails if the lease has expired.
    pub(crate) fn begin_answer(&self) -> Result<()> {
        self.note_end();
        if self.entry.begin_answer() { Ok(()) } else { Err(self.expired()) }
    }

    /// Must be called by the thread that ends the lease. If another thread took the lease and did
    /// not hand it over, the bank records that its leases change threads.
    fn note_end(&self) {
        let change_hands = &self.table.context().leases_change_hands;
        // Relaxed: no other data depends on the flag. A Get that misses the change may fail once
        // more with `SelfBlocked`.
        if !self.entry.what().may_end_here() && !change_hands.load(Ordering::Relaxed) {
            change_hands.store(true, Ordering::Relaxed);
        }
    }

    /// Declares that the lease will be ended by another thread than its *taker*. The taker is the
    /// thread whose Get returned the lease. If the lease then blocks a Get of the taker, the Get
    /// waits for at most the bank's `wait_timeout`. Without this call, that Get may fail at once
    /// with [`SelfBlocked`](crate::Error::SelfBlocked).
    ///
    /// Call `hand_over` before the other thread receives the lease. The call becomes unnecessary
    /// once a thread has ended a lease of the bank that another thread took and did not hand over.
    /// After that, all Gets of the bank wait.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1).staleness_bound(Some(0)))?;
    /// let lease = table.get(&[7], &mut [0.0])?;
    /// lease.hand_over();
    /// let worker = std::thread::spawn(move || lease.put(&[1.0]));
    /// table.get(&[7], &mut [0.0])?.release()?; // waits for the worker
    /// worker.join().unwrap()?;
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn hand_over(&self) {
        self.entry.what().hand_over();
    }

    /// Checks that an update through the lease would not fail because the lease has expired.
    ///
    /// # Errors
    /// [`LeaseExpired`](crate::Error::LeaseExpired) if the lease has expired.
    pub fn check(&self) -> Result<()> {
        if self.is_expired() { Err(self.expired()) } else { Ok(()) }
    }

    fn expired(&self) -> Error {
        Error::LeaseExpired {
            table: self.table.name().to_owned(),
            keys: self.unique().len(),
            age: self.entry.what().age(),
            timeout: self.table.context().lease_timeout.unwrap_or_default(),
        }
    }

    /// Applies one gradient per row of the Get: `gradients` holds [`row_count`](Self::row_count) *
    /// dim values. The gradients of a repeated key are first summed in batch order, as torch does
    /// for a dense embedding. The gradient of a bag goes to each of its places. A row that was
    /// deleted since the Get receives no gradient, even if it was made again.
    ///
    /// When the call returns, the rows are changed in memory. The next checkpoint makes the change
    /// durable.
    ///
    /// # Errors
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`NoOptimizer`](crate::Error::NoOptimizer),
    /// [`NonFiniteGradient`](crate::Error::NonFiniteGradient) and
    /// [`LeaseExpired`](crate::Error::LeaseExpired), before any row is changed.
    /// [`RowOverflow`](crate::Error::RowOverflow), after all other rows are changed. A failure of
    /// the store, after which some rows may be changed. After any error the lease has ended.
    pub fn apply(self, gradients: &[f32]) -> Result<()> {
        let gradients = self.checked_gradients(gradients)?;
        self.apply_checked(&gradients)
    }

    /// Sums the gradients of the Get's rows for each of the [distinct keys](UniqueKeys::keys).
    /// Returns distinct keys * dim values. Serves callers that add up the gradients of several
    /// leases before they apply the sums.
    ///
    /// # Errors
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch).
    pub fn sum_gradients(&self, gradients: &[f32]) -> Result<Vec<f32>> {
        self.table.check_shape("gradients", self.row_count(), gradients.len())?;
        let sums = |bags| Occurrences::of(self.unique(), bags).sums(gradients, self.table.dim());
        Ok(match &self.per {
            LeasedPer::Distinct => gradients.to_vec(),
            LeasedPer::Key => sums(None),
            LeasedPer::Bag(bags) => sums(Some(&bags.as_bags())),
        })
    }

    /// Checks the gradients of the Get's rows. Fails if a gradient or a row's sum is not finite.
    pub(crate) fn checked_gradients<'g>(
        &'g self,
        gradients: &'g [f32],
    ) -> Result<BatchGradients<'g>> {
        self.table.check_shape("gradients", self.row_count(), gradients.len())?;
        let unique = self.unique();
        match &self.per {
            LeasedPer::Distinct => self.table.distinct_gradients(unique.keys(), gradients),
            LeasedPer::Key => self.table.batch_gradients(unique, None, gradients),
            LeasedPer::Bag(bags) => {
                self.table.batch_gradients(unique, Some(&bags.as_bags()), gradients)
            }
        }
    }

    /// Enters the turnstile, which keeps deletions away from the lease's rows. A call that ends the
    /// lease enters before it claims that end, and leaves after it has lowered the clocks.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.table.shared.leases.enter()
    }

    /// Applies checked gradients of the lease's batch.
    pub(crate) fn apply_checked(&self, gradients: &BatchGradients<'_>) -> Result<()> {
        let entered = self.enter();
        let held = self.entry.what().held(&entered);
        let keys = held.keys();
        let rows = gradients.rows(held.part().map(|part| &part.places[..]));
        let mut apply = self.table.prepare_apply(keys, rows, gradients.magnitudes, false);
        apply.hints = held.hints();
        self.begin_answer()?;
        let applied = self.table.execute_update(keys, Clock::Release, &mut apply);
        if applied.is_err() {
            self.table.release_unreached(keys, &apply.reached, &entered);
        }
        applied
    }

    /// Replaces the vectors: `rows` holds [`row_count`](Self::row_count) * dim values. If a key
    /// repeats, its last row wins. The optimizer's state stays. If a row was deleted since the Get,
    /// the call inserts it, as a put without a lease does.
    ///
    /// When the call returns, the rows are changed in memory. The next checkpoint makes the change
    /// durable.
    ///
    /// # Errors
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`NonFiniteRow`](crate::Error::NonFiniteRow)
    /// and [`LeaseExpired`](crate::Error::LeaseExpired), before any row is changed;
    /// [`BadBags`](crate::Error::BadBags) for a lease on bags, which has no single rows. A failure
    /// of the store, after which some rows may be changed. After any error the lease has ended.
    pub fn put(self, rows: &[f32]) -> Result<()> {
        self.table.check_shape("rows", self.row_count(), rows.len())?;
        let sources = match &self.per {
            LeasedPer::Bag(_) => {
                return Err(Error::BadBags {
                    table: self.table.name().to_owned(),
                    what: "a pooled row can't be put: get the rows per key or per distinct key"
                        .to_owned(),
                });
            }
            LeasedPer::Key if !self.unique().all_distinct() => {
                self.check_rows(rows, |place| self.unique().inverse()[place] as usize)?;
                Some(self.unique().last_places())
            }
            LeasedPer::Key | LeasedPer::Distinct => {
                self.check_rows(rows, |place| place)?;
                None
            }
        };
        self.put_from(rows, sources.as_deref())
    }

    /// Writes vectors of rows that the lease holds, without ending the lease. A module that limits
    /// the length of vectors (`max_norm` in torch) writes the shortened rows with this call.
    /// `places` are distinct indices into the [distinct keys](UniqueKeys::keys). `rows` holds
    /// places * dim values, which are rounded to nearest.
    ///
    /// The lease does not hold a row if the row's key was not admitted, or if the row was deleted
    /// since the Get. Such a row stays unchanged. A rewrite does not count as a use or a Get.
    ///
    /// # Errors
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`NonFiniteRow`](crate::Error::NonFiniteRow)
    /// and [`LeaseExpired`](crate::Error::LeaseExpired), before any row is changed. A failure of
    /// the store.
    ///
    /// # Panics
    /// If a place is not below the number of distinct keys.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1))?;
    /// let lease = table.get(&[7, 8], &mut [0.0; 2])?;
    /// lease.rewrite(&[1], &[0.5])?;
    /// lease.release()?;
    /// let mut row = [0.0];
    /// table.peek(&[8], &mut row, embank::Missing::Error)?;
    /// assert_eq!(row, [0.5]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn rewrite(&self, places: &[u32], rows: &[f32]) -> Result<()> {
        self.table.check_shape("rows", places.len(), rows.len())?;
        let distinct = self.unique().keys();
        self.table.check_rows(rows, |row| distinct[places[row] as usize])?;
        let entered = self.enter();
        self.check()?;
        let held = self.entry.what().held(&entered);
        let held_keys: HashSet<u64> = held.keys().iter().copied().collect();
        let mut keys = Vec::new();
        let mut sources = Vec::new();
        for (source, &place) in (0_u32..).zip(places) {
            let key = distinct[place as usize];
            if held_keys.contains(&key) {
                keys.push(key);
                sources.push(source);
            }
        }
        self.table.execute_rewrite(&keys, rows, &sources)
    }

    /// Fails if a value is not finite in the table's dtype. `place` returns the index of a row's
    /// key among the distinct keys.
    fn check_rows(&self, rows: &[f32], place: impl Fn(usize) -> usize) -> Result<()> {
        self.table.check_rows(rows, |row| self.unique().keys()[place(row)])
    }

    fn put_from(&self, rows: &[f32], sources: Option<&[u32]>) -> Result<()> {
        let entered = self.enter();
        self.begin_answer()?;
        let held = self.entry.what().held(&entered);
        let sources_of = |part: &KeyPart| -> Vec<u32> {
            let source = |&place: &u32| sources.map_or(place, |of| of[place as usize]);
            part.places.iter().map(source).collect()
        };
        let of_part = held.part().map(sources_of);
        let keys = held.keys();
        let sources = of_part.as_deref().or(sources);
        // Rows with outstanding gets are in the log, so there is nothing to gain by a blind put.
        let hints = held.hints();
        let put = self.table.execute_put(keys, rows, sources, Clock::Release, hints, Blind::No);
        put.map_err(|(error, reached)| {
            self.table.release_unreached(keys, &reached, &entered);
            error
        })?;
        // Writes rows that were deleted while the lease held them as a put without a lease does,
        // because their clocks hold no count of this lease.
        let Some(deleted) = &held.deleted else { return Ok(()) };
        let put = self.table.execute_put(
            &deleted.keys,
            rows,
            Some(&sources_of(deleted)),
            Clock::Keep,
            None,
            Blind::No,
        );
        put.map_err(|(error, _)| error)
    }

    /// Calls `release`, which lowers the clocks of the lease's rows. Returns `None`, without that
    /// call, if another call has already ended the lease.
    fn give_back<R>(&self, release: impl FnOnce(&LeasedRows<'_>, &Entered<'_>) -> R) -> Option<R> {
        let entered = self.enter();
        self.note_end();
        let begun = self.entry.begin_answer();
        begun.then(|| release(&self.entry.what().held(&entered), &entered))
    }

    /// Ends the lease without an update, as dropping the lease does, but reports a failure. Does
    /// nothing if the lease has expired.
    ///
    /// # Errors
    /// A failure of the store, after which some clocks may still be raised.
    pub fn release(self) -> Result<()> {
        self.give_back(|held, entered| self.table.release(held.keys(), held.hints(), entered))
            .unwrap_or(Ok(()))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.entry.is_held() {
            if !self.table.context().store.is_of_this_process() {
                // A forked child does not have the store's threads, and the lease is the parent's.
                return;
            }
            self.give_back(|held, entered| self.table.release_held(held, entered));
        }
        self.table.shared.leases.end(&self.entry);
    }
}
