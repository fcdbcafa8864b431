//! What a Get hands out: the duty to update the rows it got, or to say that no update will come.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embank_kv::{Clock, Leased};

use crate::admission::HeldPart;
use crate::error::{Error, Result};
use crate::holders::{Held, Holding};
use crate::table::Table;
use crate::turnstile::Entered;
use crate::unique::UniqueKeys;

/// The counts that a Get took up in the staleness clocks of its rows, one per distinct key.
///
/// [`apply`](Self::apply) and [`put`](Self::put) update the rows and bring the counts down. Dropping the
/// lease gives the counts back without an update, and so does an update that fails, whatever the
/// reason. A row that was deleted meanwhile, also if it was made anew, or whose table was dropped, has no count of
/// this lease left to give back.
///
/// With [`lease_timeout`](crate::BankOptions::lease_timeout), a lease that is kept for longer may expire: its counts
/// are given back by whoever needs them, and an update through it is refused.
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
#[must_use = "dropping a lease gives its counts back without an update"]
pub struct Lease {
    table: Table,
    held: Arc<Leased<Holding>>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, keys) = (self.table.name(), self.unique().len());
        formatter.debug_struct("Lease").field("table", &table).field("keys", &keys).finish()
    }
}

impl Lease {
    pub(crate) fn new(
        table: Table,
        unique: UniqueKeys,
        part: Option<HeldPart>,
        entered: &Entered<'_>,
    ) -> Self {
        let held = table.shared.holders.register(unique, part, entered);
        Self { table, held }
    }

    /// The distinct keys of the Get, and the place of each key of the batch among them.
    pub fn unique(&self) -> &UniqueKeys {
        &self.held.what().unique
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether it has expired: its counts were given back, and an update through it would fail with
    /// [`LeaseExpired`](crate::Error::LeaseExpired).
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.held.is_expired()
    }

    /// From now on the counts are this call's to bring down, and nobody else's.
    fn begin_answer(&self) -> Result<()> {
        self.note_end();
        if self.held.begin_answer() { Ok(()) } else { Err(self.expired()) }
    }

    /// This thread ends the lease: the bank remembers it if another thread took it.
    fn note_end(&self) {
        let change_hands = &self.table.bank.leases_change_hands;
        // Relaxed: a flag of its own. A Get that misses it may be told once more that it waits for itself.
        if !self.held.what().is_taken_here() && !change_hands.load(Ordering::Relaxed) {
            change_hands.store(true, Ordering::Relaxed);
        }
    }

    /// Says that another thread than the one that took it ends this lease. A Get of this thread that finds the row
    /// blocked by it then waits, up to the bank's `wait_timeout`; without this call it may fail at once with
    /// [`SelfBlocked`](crate::Error::SelfBlocked).
    ///
    /// Call it before the lease goes to the other thread. It is needed only until some lease of the bank has been ended by
    /// another thread than the one that took it: from then on all Gets of the bank wait.
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
        self.held.what().hand_over();
    }

    /// Fails if it has expired, as an update through it would.
    ///
    /// # Errors
    /// [`LeaseExpired`](crate::Error::LeaseExpired).
    pub fn check(&self) -> Result<()> {
        if self.is_expired() { Err(self.expired()) } else { Ok(()) }
    }

    fn expired(&self) -> Error {
        Error::LeaseExpired {
            table: self.table.name().to_owned(),
            keys: self.unique().len(),
            age: self.held.taken().elapsed(),
            timeout: self.table.bank.lease_timeout.unwrap_or_default(),
        }
    }

    /// Applies one gradient per key of the batch: `gradients` holds batch length * dim values. The
    /// gradients of equal keys are summed in batch order first, as torch does for a dense embedding. A row
    /// that was deleted since the Get gets none: it stays deleted, or as it was made anew.
    ///
    /// When the call returns, the rows are changed in memory; the next checkpoint makes them durable.
    ///
    /// # Errors
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`NoOptimizer`](crate::Error::NoOptimizer),
    /// [`NonFiniteGradient`](crate::Error::NonFiniteGradient) and [`LeaseExpired`](crate::Error::LeaseExpired) before
    /// any row is changed; a failure of the store, after which some of the rows are changed. The counts are given back
    /// in each case.
    pub fn apply(self, gradients: &[f32]) -> Result<()> {
        self.table.check_shape("gradients", self.unique().batch_len(), gradients.len())?;
        let sums = self.table.summed(self.unique(), gradients);
        self.apply_sums(sums)
    }

    /// Applies one gradient per distinct key: `gradients` holds distinct keys * dim values. As
    /// [`apply`](Self::apply) otherwise.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_distinct(self, gradients: &[f32]) -> Result<()> {
        self.table.check_shape("gradients", self.unique().len(), gradients.len())?;
        self.apply_sums(Cow::Borrowed(gradients))
    }

    /// Applies one gradient through several leases of one table: one step of the optimizer for each of `keys`, though
    /// several of the leases may be on its row. `gradients` holds keys * dim values; those of equal keys are summed.
    ///
    /// All leases are answered or none: if one has expired, no row changes. A row gets its gradient if one of the
    /// leases still holds it, so one that was deleted since the Gets gets none. The counts come down once the
    /// rows have changed.
    ///
    /// # Errors
    /// As [`apply`](Self::apply). The counts of all leases are given back in each case.
    ///
    /// # Panics
    /// If the leases are of several tables.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Lease, Optimizer, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1).optimizer(Optimizer::adagrad(0.5)))?;
    /// let mut rows = [0.0; 2];
    /// let leases = vec![table.get(&[4, 9], &mut rows)?, table.get(&[4], &mut rows[..1])?];
    /// Lease::apply_together(leases, &[4, 9], &[2.0, 1.0])?; // one step of each row
    /// assert_eq!(table.outstanding(4)?, Some(0));
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn apply_together(leases: Vec<Self>, keys: &[u64], gradients: &[f32]) -> Result<()> {
        let Some(first) = leases.first() else { return Ok(()) };
        let table = &first.table;
        assert!(
            leases.iter().all(|lease| Arc::ptr_eq(&lease.table.shared, &table.shared)),
            "leases that are answered together are of one table"
        );
        table.check_shape("gradients", keys.len(), gradients.len())?;
        let unique = UniqueKeys::new(keys);
        let sums = table.summed(&unique, gradients);
        // Once for all of them: a thread must not enter twice.
        let entered = first.enter();
        let held: Vec<_> = leases.iter().map(|lease| lease.held.what().held(&entered)).collect();
        let held_keys: HashSet<u64> = held.iter().flat_map(|held| held.keys()).copied().collect();
        let rows = unique.keys().iter().zip(sums.chunks_exact(table.dim()));
        let (keys, kept): (Vec<u64>, Vec<&[f32]>) =
            rows.filter(|(key, _)| held_keys.contains(key)).unzip();
        let mut apply = table.prepare_apply(&keys, Cow::Owned(kept.concat()), false)?;
        let release = |some: &[Held<'_>]| {
            some.iter().for_each(|held| table.release_or_count(held.keys(), &entered));
        };
        for (at, lease) in leases.iter().enumerate() {
            lease.begin_answer().inspect_err(|_| release(&held[..at]))?;
        }
        let applied = table.execute_update(&keys, Clock::Keep, &mut apply);
        release(&held);
        applied
    }

    /// Whoever answers holds this, from before the answer begins to its end.
    fn enter(&self) -> Entered<'_> {
        self.table.shared.holders.enter()
    }

    fn apply_sums(&self, sums: Cow<'_, [f32]>) -> Result<()> {
        let entered = self.enter();
        let held = self.held.what().held(&entered);
        let keys = held.keys();
        let sums = match held.part() {
            None => sums,
            Some(part) => Cow::Owned(part.gather(&sums, self.table.dim())),
        };
        let mut apply = self.table.prepare_apply(keys, sums, false)?;
        self.begin_answer()?;
        let applied = self.table.execute_update(keys, Clock::Release, &mut apply);
        if applied.is_err() {
            self.table.release_unreached(keys, &apply.reached, &entered);
        }
        applied
    }

    /// Replaces the vectors: `rows` holds batch length * dim values. Of equal keys the last one wins. The
    /// optimizer's state is kept. A row that was deleted since the Get is written as by a put without a lease.
    ///
    /// When the call returns, the rows are changed in memory; the next checkpoint makes them durable.
    ///
    /// # Errors
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch) and [`LeaseExpired`](crate::Error::LeaseExpired) before any row
    /// is changed; a failure of the store, after which some of the rows are changed. The counts are given back in each
    /// case.
    pub fn put(self, rows: &[f32]) -> Result<()> {
        self.table.check_shape("rows", self.unique().batch_len(), rows.len())?;
        if self.unique().all_distinct() {
            return self.put_from(rows, None);
        }
        let sources = self.unique().last_places();
        self.put_from(rows, Some(&sources))
    }

    /// Replaces the vectors: `rows` holds distinct keys * dim values. As [`put`](Self::put) otherwise.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_distinct(self, rows: &[f32]) -> Result<()> {
        self.table.check_shape("rows", self.unique().len(), rows.len())?;
        self.put_from(rows, None)
    }

    fn put_from(&self, rows: &[f32], sources: Option<&[u32]>) -> Result<()> {
        let entered = self.enter();
        self.begin_answer()?;
        let held = self.held.what().held(&entered);
        let sources_of = |part: &HeldPart| -> Vec<u32> {
            let source = |&place: &u32| sources.map_or(place, |of| of[place as usize]);
            part.places.iter().map(source).collect()
        };
        let of_part = held.part().map(sources_of);
        let (keys, sources) = (held.keys(), of_part.as_deref().or(sources));
        let put = self.table.execute_put(keys, rows, sources, Clock::Release);
        put.map_err(|(error, reached)| {
            self.table.release_unreached(keys, &reached, &entered);
            error
        })?;
        // As without a lease: they are other rows now, whose counts are not this lease's.
        let Some(deleted) = &held.deleted else { return Ok(()) };
        let put =
            self.table.execute_put(&deleted.keys, rows, Some(&sources_of(deleted)), Clock::Keep);
        put.map_err(|(error, _)| error)
    }

    /// Gives the counts back, if nobody has; then none.
    fn give_back<R>(&self, release: impl FnOnce(&[u64], &Entered<'_>) -> R) -> Option<R> {
        let entered = self.enter();
        self.note_end();
        let begun = self.held.begin_answer();
        begun.then(|| release(self.held.what().held(&entered).keys(), &entered))
    }

    /// Gives the counts back without an update, as dropping the lease does, and says if that failed. Nothing happens
    /// if the lease has expired.
    ///
    /// # Errors
    /// A failure of the store; some counts may still stand then.
    pub fn release(self) -> Result<()> {
        self.give_back(|keys, entered| self.table.release(keys, entered)).unwrap_or(Ok(()))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held.is_held() {
            self.give_back(|keys, entered| self.table.release_or_count(keys, entered));
        }
        self.table.shared.holders.end(&self.held);
    }
}
