//! Gets: calls that read rows for training and return a lease on them.
//!
//! Each public call ends in `serve`, and a Get ahead (`ahead`) in `get_for_later`. `get_into` makes
//! the lease. `acquire` tries once to raise the clocks of all rows. If a row is blocked, `acquire`
//! calls the code in `waiting`, where the Get waits.

use std::sync::Arc;
use std::time::Duration;

use embank_kv::{Clock, RowHints};

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::keys::{Places, UniqueKeys};
use crate::lease::Lease;
use crate::lease::ahead::Ahead;
use crate::lease::release::places_keys;
use crate::lease::request::{LeasedPer, Request, RowPer};
use crate::lease::waiting::Obstacle;
use crate::registry::part::KeyPart;
use crate::registry::turnstile::Entered;
use crate::registry::{self, Taker};
use crate::stats::seen::SeenClocks;
use crate::table::Table;
use crate::table::gate::Decision;
use crate::table::operations::{GetRows, GotRows};

/// Says how long a Get waits for rows that are at their staleness bound.
#[derive(Debug, Clone, Copy)]
enum Waits<'a> {
    Within(Duration),
    No,
    /// The Get is one ahead. The time limit begins when a thread waits for it.
    Ahead(Duration, Ahead<'a>),
}

impl Table {
    /// Gets rows for training: [`get_rows`](Self::get_rows) with one row per key. `rows` holds keys
    /// * dim values and receives one row per key, including duplicates.
    ///
    /// # Errors
    /// The errors of [`get_rows`](Self::get_rows).
    pub fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<Lease> {
        self.get_rows(self.request(keys)?, rows)
    }

    /// Gets rows like [`get`](Self::get), but never waits for a row: see
    /// [`try_get_rows`](Self::try_get_rows).
    ///
    /// # Errors
    /// The errors of [`try_get_rows`](Self::try_get_rows).
    pub fn try_get(&self, keys: &[u64], rows: &mut [f32]) -> Result<Option<Lease>> {
        self.try_get_rows(self.request(keys)?, rows)
    }

    /// Gets rows for training. `rows` holds [`row_count`](Request::row_count) * dim values and
    /// receives the rows of the request. Missing rows are inserted with their initial values. The
    /// staleness clock of each distinct key rises by one until the lease ends. If a clock is above
    /// the table's bound, the call waits, at most as long as the request says.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::BadBags`], [`Error::KeyIsNoId`],
    /// [`Error::StalenessTimeout`], [`Error::SelfBlocked`], or a failure of the store. After an
    /// error, the call has raised no clock, and the content of `rows` is unspecified. Missing rows
    /// that the call has inserted before the error stay, with their initial values.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn get_rows(&self, request: Request<'_>, rows: &mut [f32]) -> Result<Lease> {
        let timeout = request.timeout.unwrap_or(self.context().wait_timeout);
        let waits = Waits::Within(timeout);
        let lease = self.serve(request, rows, waits)?;
        Ok(lease.expect("a Get that waits ends with a lease or an error"))
    }

    /// Gets rows like [`get_rows`](Self::get_rows), but never waits for a row. Returns `None` if a
    /// row is above its staleness bound, or is reserved for a Get that has waited for a long time.
    /// The call does wait for reads of rows on disk. [`Request::within`] has no effect.
    ///
    /// # Errors
    /// The errors of [`get_rows`](Self::get_rows) except [`Error::StalenessTimeout`] and
    /// [`Error::SelfBlocked`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1).staleness_bound(Some(0)))?;
    /// let mut row = [0.0];
    /// let lease = table.try_get(&[1], &mut row)?.expect("no lease is out");
    /// assert!(table.try_get(&[1], &mut row)?.is_none());
    /// lease.release()?;
    /// assert!(table.try_get(&[1], &mut row)?.is_some());
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn try_get_rows(&self, request: Request<'_>, rows: &mut [f32]) -> Result<Option<Lease>> {
        self.serve(request, rows, Waits::No)
    }

    /// Serves a request. The one path of all Gets.
    fn serve(
        &self,
        request: Request<'_>,
        rows: &mut [f32],
        waits: Waits<'_>,
    ) -> Result<Option<Lease>> {
        let count = request.row_count();
        let decisions = self.decided(&request);
        let Request { keys, unique, per, .. } = request;
        if let RowPer::Bag(bags) = &per {
            self.check_bags(keys.len(), bags)?;
        }
        self.check_shape("rows", count, rows.len())?;
        let get =
            |unique, to| self.get_into(unique, per, to, decisions, waits, registry::this_thread());
        match per {
            RowPer::Key if !unique.all_distinct() => {
                let Places { first, later } = unique.places();
                let to = GotRows::To { places: &first, first: 0, rows };
                let Some(lease) = get(unique, to)? else { return Ok(None) };
                let (dim, inverse) = (self.dim(), lease.unique().inverse());
                for place in later {
                    let first = first[inverse[place as usize] as usize] as usize;
                    rows.copy_within(first * dim..(first + 1) * dim, place as usize * dim);
                }
                Ok(Some(lease))
            }
            RowPer::Key | RowPer::Distinct => get(unique, GotRows::InOrder(rows)),
            RowPer::Bag(bags) => {
                let Some(lease) = get(unique, GotRows::Nowhere)? else { return Ok(None) };
                self.pool_bags(keys, Some(lease.entry.what()), &bags, rows)?;
                Ok(Some(lease))
            }
        }
    }

    /// Makes a Get ahead: takes the lease of a request, and copies no row.
    pub(super) fn get_for_later(
        &self,
        unique: UniqueKeys,
        per: LeasedPer,
        decisions: Option<Vec<Decision>>,
        timeout: Duration,
        taker: Arc<Taker>,
        ahead: Ahead<'_>,
    ) -> Result<Lease> {
        let waits = Waits::Ahead(timeout, ahead);
        let lease = self.get_into(unique, per, GotRows::Nowhere, decisions, waits, taker)?;
        Ok(lease.expect("a Get that waits ends with a lease or an error"))
    }

    fn get_into(
        &self,
        unique: UniqueKeys,
        per: impl Into<LeasedPer>,
        rows: GotRows<'_>,
        decisions: Option<Vec<Decision>>,
        waits: Waits<'_>,
        taker: Arc<Taker>,
    ) -> Result<Option<Lease>> {
        self.check_ids(unique.keys())?;
        self.expire_due_leases();
        let layout = &self.shared.layout;
        let keys = unique.keys();
        let reached = RowHints::none_of(keys.len());
        let seen = SeenClocks::default();
        let refused = Vec::new();
        let mut get = GetRows { layout, keys, rows, reached, seen, decisions, refused };
        let Some(entered) = self.acquire(&mut get, waits)? else { return Ok(None) };
        let seen = get.seen;
        let hints = get.reached;
        let refused = get.refused;
        let counters = &self.shared.counters;
        counters.seen.add(&seen, unique.len());
        counters.not_admitted_rows.add(refused.len() as u64);
        counters.gets.add(1);
        counters.get_rows.add(unique.len() as u64);
        let part = (!refused.is_empty()).then(|| KeyPart::without(unique.keys(), &refused));
        Ok(Some(Lease::new(self.clone(), per.into(), unique, part, hints, taker, &entered)))
    }

    /// Executes `get`, whose keys must be distinct, and raises the clocks of all its rows by one.
    /// Returns `None` if the Get would have to wait for a row and `waits` does not allow that. The
    /// caller keeps the returned `Entered` until the lease is registered.
    ///
    /// # Errors
    /// A failure of the store, or the timeout of the wait. After an error the Get holds no count.
    fn acquire(&self, get: &mut GetRows<'_>, waits: Waits<'_>) -> Result<Option<Entered<'_>>> {
        let ahead_of_time = match waits {
            Waits::Ahead(_, ahead) => Some(ahead),
            Waits::Within(_) | Waits::No => None,
        };
        // `make_way` may wait for a burst of reads, so the Get calls it before it holds a row.
        self.context().lookahead.make_way(self.shared.id, get.keys);
        let ahead = match self.shared.line.is_empty() {
            true => None,
            false => {
                let thread = match ahead_of_time {
                    Some(ahead) => ahead.waiter().map(|waiter| waiter.thread),
                    None => Some(registry::this_number()),
                };
                self.place_ahead(get.keys, None, thread)
            }
        };
        let obstacle = match ahead {
            Some(place) => Obstacle::Line(place),
            None => match self.try_acquire(get)? {
                Attempt::Acquired(entered) => return Ok(Some(entered)),
                Attempt::Blocked(key) => Obstacle::Row(key),
            },
        };
        match waits {
            Waits::Within(timeout) | Waits::Ahead(timeout, _) => {
                self.acquire_waiting(get, obstacle, timeout, ahead_of_time).map(Some)
            }
            Waits::No => Ok(None),
        }
    }

    /// Tries once to acquire all rows. If a row is blocked, the Get lowers the clocks of its other
    /// rows again. A failure of this only raises a counter.
    pub(super) fn try_acquire(&self, get: &mut GetRows<'_>) -> Result<Attempt<'_>> {
        let entered = self.shared.leases.enter();
        let clock = Clock::Acquire { bound: self.staleness_bound() };
        let keys = get.keys;
        let outcome = match self.execute_in_parts(keys, clock, get) {
            Ok(outcome) => outcome,
            Err(error) => {
                let taken = places_keys(keys, |place| get.reached.get(place).is_some());
                self.release_or_count(&taken, &entered);
                return Err(error);
            }
        };
        self.shared.counters.disk_reads.add(outcome.disk_reads);
        let first_blocked = outcome.blocked.iter().min().map(|&first| keys[first as usize]);
        if first_blocked.is_none() && outcome.missing.is_empty() {
            return Ok(Attempt::Acquired(entered));
        }
        let mut held = vec![true; keys.len()];
        for &place in outcome.blocked.iter().chain(&outcome.missing) {
            held[place as usize] = false;
        }
        for &place in &outcome.missing {
            // The row is missing, but an earlier pass of this batch may have found it.
            get.reached.remove(place as usize);
        }
        let blocked = match first_blocked {
            Some(key) => Ok(key),
            None => match self.admit(get, &outcome.missing) {
                Ok(None) => return Ok(Attempt::Acquired(entered)),
                Ok(Some(key)) => Ok(key),
                Err(error) => Err(error),
            },
        };
        for &place in &outcome.missing {
            held[place as usize] = get.reached.get(place as usize).is_some();
        }
        get.reached.clear();
        get.seen = SeenClocks::default();
        // At the next attempt, a key that this attempt did not admit may have a row.
        get.refused.clear();
        self.release_or_count(&places_keys(keys, |place| held[place]), &entered);
        blocked.map(Attempt::Blocked)
    }
}

/// The result of an attempt to acquire all rows of a Get.
pub(super) enum Attempt<'a> {
    Acquired(Entered<'a>),
    /// The row of this key is blocked by its staleness bound.
    Blocked(u64),
}
