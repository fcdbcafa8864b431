//! Requests: every Get of rows is a request, and one path serves it (`lease::get`).

use std::time::Duration;

use crate::error::Result;
use crate::keys::UniqueKeys;
use crate::lease::Lease;
use crate::table::Table;
use crate::table::bags::{Bags, OwnedBags};
use crate::table::gate::Decision;

/// What the rows of a request stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowPer<'a> {
    /// One row per key of the batch, including duplicates.
    Key,
    /// One row per distinct key, in order of first appearance.
    Distinct,
    /// One pooled row per bag of the batch.
    Bag(Bags<'a>),
}

/// What the rows of a lease stand for: [`RowPer`] with bags of its own.
#[derive(Debug)]
pub(crate) enum LeasedPer {
    Key,
    Distinct,
    Bag(OwnedBags),
}

impl From<RowPer<'_>> for LeasedPer {
    fn from(per: RowPer<'_>) -> Self {
        match per {
            RowPer::Key => Self::Key,
            RowPer::Distinct => Self::Distinct,
            RowPer::Bag(bags) => Self::Bag(bags.into()),
        }
    }
}

/// A request for rows under a lease: the keys, what a row stands for, and how long the Get may
/// wait. [`Table::request`] makes one, and [`Table::get_rows`] serves it.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Optimizer, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(1).optimizer(Optimizer::sgd(1.0)))?;
/// let request = table.request(&[4, 9, 4])?.distinct();
/// assert_eq!((request.unique().keys(), request.row_count()), (&[4, 9][..], 2));
/// let mut rows = [0.0; 2];
/// let lease = table.get_rows(request, &mut rows)?;
/// lease.apply(&[1.0, 2.0])?; // one gradient per row of the request
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until `Table::get_rows` serves it"]
pub struct Request<'a> {
    pub(crate) keys: &'a [u64],
    pub(crate) unique: UniqueKeys,
    pub(crate) per: RowPer<'a>,
    pub(crate) earlier: &'a [u64],
    /// `None` for the bank's `wait_timeout`.
    pub(crate) timeout: Option<Duration>,
}

impl<'a> Request<'a> {
    /// Makes a request like [`Table::request`], before the table is at hand.
    ///
    /// # Errors
    /// The errors of [`Table::request`].
    pub fn new(keys: &'a [u64]) -> Result<Self> {
        let unique = UniqueKeys::new(keys)?;
        Ok(Self { keys, unique, per: RowPer::Key, earlier: &[], timeout: None })
    }

    /// Asks for one row per distinct key, in order of first appearance. Without this call or
    /// [`bags`](Self::bags), there is one row per key of the batch.
    pub fn distinct(self) -> Self {
        Self { per: RowPer::Distinct, ..self }
    }

    /// Asks for one pooled row per bag of the batch. The Get does not copy the single rows out. It
    /// needs memory for a few hundred rows per thread, 16 bytes per distinct key, and 4 bytes per
    /// key of the batch. The lease keeps a copy of the bags.
    ///
    /// # Examples
    /// See [`Bags`].
    pub fn bags(self, bags: Bags<'a>) -> Self {
        Self { per: RowPer::Bag(bags), ..self }
    }

    /// Names keys whose rows this training step has got before, for example for another part of the
    /// model. [`Admission`](crate::Admission) counts both Gets of such a key as one. `earlier` may
    /// hold any keys and duplicates.
    pub fn earlier(self, earlier: &'a [u64]) -> Self {
        Self { earlier, ..self }
    }

    /// Limits the wait for rows above their staleness bound. Default: the bank's
    /// [`wait_timeout`](crate::BankOptions::wait_timeout).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use std::time::Duration;
    ///
    /// use embank::{Bank, BankOptions, Error, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(1).staleness_bound(Some(0)))?;
    /// let lease = table.get(&[1], &mut [0.0])?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let brief = table.request(&[1])?.within(Duration::from_millis(1));
    ///         let failed = table.get_rows(brief, &mut [0.0]);
    ///         assert!(matches!(failed, Err(Error::StalenessTimeout { .. })));
    ///         Ok::<(), Error>(())
    ///     });
    /// });
    /// lease.release()?;
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// The distinct keys of the batch.
    pub fn unique(&self) -> &UniqueKeys {
        &self.unique
    }

    /// The number of rows: of keys, of distinct keys, or of bags.
    #[must_use]
    pub fn row_count(&self) -> usize {
        match &self.per {
            RowPer::Key => self.unique.batch_len(),
            RowPer::Distinct => self.unique.len(),
            RowPer::Bag(bags) => bags.len(),
        }
    }
}

impl Table {
    /// Makes a request for the rows of `keys`, which may repeat. Finds their distinct keys, and
    /// reads no row. The bank's threads that will share the Get wake up meanwhile.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) if the batch has 2^32 or more keys.
    pub fn request<'a>(&self, keys: &'a [u64]) -> Result<Request<'a>> {
        self.context().pool.rouse(keys.len());
        Request::new(keys)
    }

    /// Returns the decisions of a request about its distinct keys, if they have no row.
    pub(super) fn decided(&self, request: &Request<'_>) -> Option<Vec<Decision>> {
        self.decided_earlier(request.unique.keys(), request.earlier)
    }

    /// Finds the distinct keys of a batch.
    pub(crate) fn unique_keys(&self, keys: &[u64]) -> Result<UniqueKeys> {
        // The threads that will share the batch wake up while this one searches.
        self.context().pool.rouse(keys.len());
        UniqueKeys::new(keys)
    }
}

impl Lease {
    /// The number of rows of the Get: of keys, of distinct keys, or of bags.
    #[must_use]
    pub fn row_count(&self) -> usize {
        match &self.per {
            LeasedPer::Key => self.unique().batch_len(),
            LeasedPer::Distinct => self.unique().len(),
            LeasedPer::Bag(bags) => bags.as_bags().len(),
        }
    }
}
