//! What a Get hands out: the duty to update the rows it got, or to say that no update will come.

mod get;
mod release;
pub(crate) mod step;
mod waiting;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embank_kv::{Clock, Leased};

use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::registry::LeaseEntry;
use crate::registry::part::KeyPart;
use crate::registry::turnstile::Entered;
use crate::table::Table;
use crate::table::gradients::BatchGradients;

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
/// In the source, what a lease does alone stands in `lease/mod.rs`, and a step through several
/// leases in `lease/step.rs`.
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
    pub(crate) table: Table,
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
        unique: UniqueKeys,
        part: Option<KeyPart>,
        entered: &Entered<'_>,
    ) -> Self {
        let entry = table.shared.leases.register(unique, part, entered);
        Self { table, entry }
    }

    /// The distinct keys of the Get, and the place of each key of the batch among them.
    pub fn unique(&self) -> &UniqueKeys {
        &self.entry.what().unique
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether it has expired: its counts were given back, and an update through it would fail with
    /// [`LeaseExpired`](crate::Error::LeaseExpired).
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.entry.is_expired()
    }

    /// From now on the counts are this call's to bring down, and nobody else's.
    pub(crate) fn begin_answer(&self) -> Result<()> {
        self.note_end();
        if self.entry.begin_answer() { Ok(()) } else { Err(self.expired()) }
    }

    /// This thread ends the lease: the bank remembers it if another thread took it.
    fn note_end(&self) {
        let change_hands = &self.table.context().leases_change_hands;
        // Relaxed: a flag of its own. A Get that misses it may be told once more that it waits for itself.
        if !self.entry.what().is_taken_here() && !change_hands.load(Ordering::Relaxed) {
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
        self.entry.what().hand_over();
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
            age: self.entry.taken().elapsed(),
            timeout: self.table.context().lease_timeout.unwrap_or_default(),
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
    /// any row is changed; [`RowOverflow`](crate::Error::RowOverflow) after all other rows are; a failure of the store, after which some of the rows are changed. The counts are given back
    /// in each case.
    pub fn apply(self, gradients: &[f32]) -> Result<()> {
        let gradients = self.checked_gradients(None, gradients)?;
        self.apply_checked(&gradients)
    }

    /// Applies one gradient per distinct key: `gradients` holds distinct keys * dim values. As
    /// [`apply`](Self::apply) otherwise.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_distinct(self, gradients: &[f32]) -> Result<()> {
        self.table.check_shape("gradients", self.unique().len(), gradients.len())?;
        let gradients = self.table.distinct_gradients(self.unique().keys(), gradients)?;
        self.apply_checked(&gradients)
    }

    /// Whoever answers holds this, from before the answer begins to its end.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.table.shared.leases.enter()
    }

    /// Applies the gradients of the lease's batch.
    pub(crate) fn apply_checked(&self, gradients: &BatchGradients<'_>) -> Result<()> {
        let entered = self.enter();
        let held = self.entry.what().held(&entered);
        let keys = held.keys();
        let rows = gradients.rows(held.part().map(|part| &part.places[..]));
        let mut apply = self.table.prepare_apply(keys, rows, gradients.magnitudes, false);
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
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`NonFiniteRow`](crate::Error::NonFiniteRow) and
    /// [`LeaseExpired`](crate::Error::LeaseExpired) before any row is changed; a failure of the store, after which some of the rows are changed. The counts are given back in each
    /// case.
    pub fn put(self, rows: &[f32]) -> Result<()> {
        self.table.check_shape("rows", self.unique().batch_len(), rows.len())?;
        self.check_rows(rows, |place| self.unique().inverse()[place] as usize)?;
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
        self.check_rows(rows, |place| place)?;
        self.put_from(rows, None)
    }

    /// Writes vectors of rows that the lease holds, and keeps the lease: what a module does that shortens rows before it
    /// uses them. `places` are places among the [distinct keys](UniqueKeys::keys), each once; `rows` holds
    /// places * dim values, rounded to the nearest.
    ///
    /// A row that the lease does not hold, as its key was not admitted or it was deleted since, stays as it is. A
    /// rewrite is no use of a row, and no Get.
    ///
    /// # Errors
    /// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`NonFiniteRow`](crate::Error::NonFiniteRow) and
    /// [`LeaseExpired`](crate::Error::LeaseExpired) before any row is changed; a failure of the store.
    ///
    /// # Panics
    /// If a place is beyond the distinct keys.
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

    /// Refuses vectors that the table can't hold. `place` is where the key of each row is among the distinct keys.
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
        let begun = self.entry.begin_answer();
        begun.then(|| release(self.entry.what().held(&entered).keys(), &entered))
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
        if self.entry.is_held() {
            self.give_back(|keys, entered| self.table.release_or_count(keys, entered));
        }
        self.table.shared.leases.end(&self.entry);
    }
}
