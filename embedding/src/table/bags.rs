//! Bags: pools several rows into one, as `torch.nn.EmbeddingBag` does.
//!
//! **Problem.** A model that pools 20 rows into one needs only the sum of their vectors. Copying
//! the 20 vectors out of the store takes longer than adding them up.
//!
//! **Approach.** A Get of bags first acquires the rows of the distinct keys, without copying their
//! vectors. Then it reads the rows of all places into a buffer, a few hundred at a time, and adds
//! them to their bags in the order of the places. The buffer stays in the processor's cache. These
//! reads need no index, because the Get has noted each row's address. Because the order of
//! additions is fixed, the sums do not depend on the number of threads. The lease takes one
//! gradient per bag. A row's gradient is the sum of the gradients of its places
//! ([`gradients`](crate::table::gradients)).

use std::ops::Range;

use embank_kv::{CallState, Clock, RowHints, check_batch};

use crate::error::{Error, Result};
use crate::registry::LeaseEntry;
use crate::table::Table;
use crate::table::operations::{PeekRows, cut};
use crate::table::peek::Missing;

/// Number of f32 values in the buffer that pooling reads rows into. This is 128 KiB, which fits the
/// processor's second-level cache together with the rows' records.
const BUFFER_VALUES: usize = 1 << 15;
/// Bounds of the number of rows that pooling reads into the buffer at a time. With fewer rows,
/// fewer memory accesses overlap. More rows gain nothing.
const ROWS_READ: Range<usize> = 64..1024;

/// How the rows of a bag are pooled into one.
///
/// # Examples
/// See [`Bags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The sum of the rows; zeros for an empty bag.
    Sum,
    /// The mean of the rows; zeros for an empty bag.
    Mean,
}

/// Divides the keys of a batch into bags, and says how the rows of a bag are pooled.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bags, Bank, BankOptions, Initializer, Optimizer, Pooling, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let config = TableConfig::new(2).optimizer(Optimizer::sgd(0.5));
/// let genres = bank.table("genre", config.initializer(Initializer::Constant(1.0)))?;
/// let bags = Bags { offsets: &[0, 2, 3], pooling: Pooling::Sum, weights: None };
/// let mut pooled = [0.0; 4];
/// let lease = genres.get_rows(genres.request(&[5, 6, 5])?.bags(bags), &mut pooled)?;
/// assert_eq!(pooled, [2.0, 2.0, 1.0, 1.0]);
/// lease.apply(&[1.0, 1.0, 2.0, 2.0])?; // one gradient per bag; key 5 is in both bags
/// let mut rows = [0.0; 4];
/// genres.peek(&[5, 6], &mut rows, embank::Missing::Error)?;
/// assert_eq!(rows, [-0.5, -0.5, 0.5, 0.5]);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Bags<'a> {
    /// Bag `i` has the keys at the places `offsets[i]..offsets[i + 1]` of the batch. The first
    /// offset is 0, the last one is the number of keys, and offsets never decrease. A bag may be
    /// empty.
    pub offsets: &'a [u64],
    /// How the rows of a bag are pooled.
    pub pooling: Pooling,
    /// One factor per key. The key's row is multiplied by it. Allowed only with [`Pooling::Sum`].
    /// `None` means 1 for each key.
    pub weights: Option<&'a [f32]>,
}

/// The bags of a lease. The lease needs them again for its gradients.
#[derive(Debug)]
pub(crate) struct OwnedBags {
    offsets: Vec<u64>,
    pooling: Pooling,
    weights: Option<Vec<f32>>,
}

impl From<Bags<'_>> for OwnedBags {
    fn from(bags: Bags<'_>) -> Self {
        let Bags { offsets, pooling, weights } = bags;
        Self { offsets: offsets.to_vec(), pooling, weights: weights.map(<[f32]>::to_vec) }
    }
}

impl OwnedBags {
    pub(crate) fn as_bags(&self) -> Bags<'_> {
        let Self { offsets, pooling, weights } = self;
        Bags { offsets, pooling: *pooling, weights: weights.as_deref() }
    }
}

impl Bags<'_> {
    /// Number of bags.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// True if there are no bags.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the places of the batch that belong to a bag.
    pub(crate) fn places(&self, bag: usize) -> Range<usize> {
        self.offsets[bag] as usize..self.offsets[bag + 1] as usize
    }

    /// Fails if the offsets or weights do not fit a batch of `keys` keys.
    fn check(&self, table: &str, keys: usize) -> Result<()> {
        let refused = |what: String| Err(Error::BadBags { table: table.to_owned(), what });
        let ends = (self.offsets.first(), self.offsets.last());
        if u32::try_from(self.len()).is_err() {
            let found = self.len();
            let bags = "a batch holds at most 4,294,967,295 bags, and this one has";
            return refused(format!("{bags} {found}; divide it into several batches"));
        }
        let is_whole = matches!(ends, (Some(0), Some(&end)) if end == keys as u64);
        if !is_whole || !self.offsets.is_sorted() {
            let found = match ends {
                (Some(first), Some(last)) => {
                    format!("{} offsets from {first} to {last}", self.offsets.len())
                }
                _ => "no offset".to_owned(),
            };
            return refused(format!(
                "offsets must begin with 0, never fall, and end with the number of keys, {keys}; found {found}"
            ));
        }
        match self.weights {
            Some(_) if self.pooling == Pooling::Mean => {
                refused("weights go with Pooling::Sum, not with Pooling::Mean".to_owned())
            }
            Some(weights) if weights.len() != keys => {
                refused(format!("{keys} keys need {keys} weights, found {}", weights.len()))
            }
            _ => Ok(()),
        }
    }
}

impl Table {
    /// Reads rows for evaluation and pools them. `pooled` holds bags * dim values and receives one
    /// pooled row per bag of `keys`. For a key without a row, the pooling takes the initial values.
    /// Does not change or wait for any staleness clock, and writes nothing.
    ///
    /// # Errors
    /// [`Error::BadBags`], and the errors of [`peek`](Self::peek) with [`Missing::Initial`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bags, Bank, BankOptions, Pooling, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("item", TableConfig::new(1))?;
    /// table.put(&[1, 2], &[3.0, 5.0])?;
    /// let bags = Bags { offsets: &[0, 2, 2], pooling: Pooling::Mean, weights: None };
    /// let mut pooled = [7.0; 2];
    /// table.peek_bags(&[1, 2], bags, &mut pooled)?;
    /// assert_eq!(pooled, [4.0, 0.0]); // the second bag is empty
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn peek_bags(&self, keys: &[u64], bags: Bags<'_>, pooled: &mut [f32]) -> Result<()> {
        self.check_bags(keys.len(), &bags)?;
        self.check_shape("pooled", bags.len(), pooled.len())?;
        self.check_numbering()?;
        let counters = &self.shared.counters;
        self.pool_bags(keys, None, &bags, pooled)?;
        counters.peeks.add(1);
        counters.peek_rows.add(keys.len() as u64);
        Ok(())
    }

    /// Fails if `bags` do not fit a batch of `keys` keys.
    pub(crate) fn check_bags(&self, keys: usize, bags: &Bags<'_>) -> Result<()> {
        check_batch(keys)?;
        bags.check(self.name(), keys)
    }

    /// Reads the rows of `keys` and pools them. `entry` is that of the lease on these keys, which
    /// has noted where their rows are in the store. `None` for an evaluation, which takes no lease.
    pub(crate) fn pool_bags(
        &self,
        keys: &[u64],
        entry: Option<&LeaseEntry>,
        bags: &Bags<'_>,
        pooled: &mut [f32],
    ) -> Result<()> {
        // All parts read one state of the store: the state when the call began, even if a read-only
        // bank is refreshed meanwhile.
        let state = &self.context().store.call_state();
        let Some(mut turn) = self.context().pool.turn(keys.len()) else {
            return self.pool_some(state, keys, entry, bags, 0..bags.len(), pooled);
        };
        // Each part gets about the same number of keys. A bag is never divided between two parts.
        let starts = turn.ranges(keys.len()).into_iter().map(|range| range.start as u64);
        let bag_at = |start: u64| bags.offsets.partition_point(|&offset| offset < start);
        let starts: Vec<usize> = starts.map(|start| bag_at(start).min(bags.len())).collect();
        let ends = starts.iter().skip(1).copied().chain([bags.len()]);
        let parts = cut(pooled, starts.iter().map(|start| start * self.dim()));
        let mut parts: Vec<_> = parts
            .into_iter()
            .zip(starts.iter().zip(ends))
            .map(|(pooled, (&start, end))| (start..end, pooled, Ok(())))
            .collect();
        turn.run(&mut parts, |(some, pooled, done)| {
            *done = self.pool_some(state, keys, entry, bags, some.clone(), pooled);
        });
        parts.into_iter().try_for_each(|(_, _, done)| done)
    }

    /// Pools the bags `some` into `pooled`, which holds one row for each of these bags.
    fn pool_some(
        &self,
        state: &CallState<'_>,
        keys: &[u64],
        entry: Option<&LeaseEntry>,
        bags: &Bags<'_>,
        some: Range<usize>,
        pooled: &mut [f32],
    ) -> Result<()> {
        pooled.fill(0.0);
        if some.is_empty() {
            return Ok(());
        }
        let dim = self.dim();
        let layout = &self.shared.layout;
        let rows_read = (BUFFER_VALUES / dim).clamp(ROWS_READ.start, ROWS_READ.end);
        let end = bags.places(some.end - 1).end;
        let mut bag = some.start;
        let mut place = bags.places(bag).start;
        let mut buffer = vec![0.0; rows_read.min(end - place) * dim];
        let mut hints = RowHints::default();
        while place < end {
            let places = place..end.min(place + rows_read);
            let keys = &keys[places.clone()];
            let rows = &mut buffer[..keys.len() * dim];
            let hints = entry.map(|entry| {
                let numbers = &entry.unique.inverse()[places];
                hints.pick(entry.hints(), numbers);
                hints.all()
            });
            let mut peek = PeekRows { layout, rows, hints };
            let outcome = self.execute_in(state, keys, Clock::Keep, &mut peek)?;
            self.shared.counters.disk_reads.add(outcome.disk_reads);
            let key_at = |place: u32| keys[place as usize];
            self.settle_missing(key_at, rows, outcome.missing, Missing::Initial)?;
            for row in rows.chunks_exact(dim) {
                while bags.places(bag).end <= place {
                    bag += 1;
                }
                let sum = &mut pooled[(bag - some.start) * dim..][..dim];
                match bags.weights {
                    None => sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += value),
                    Some(weights) => {
                        let weight = weights[place];
                        sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += weight * value);
                    }
                }
                place += 1;
            }
        }
        if bags.pooling == Pooling::Mean {
            for (bag, sum) in some.zip(pooled.chunks_exact_mut(dim)) {
                let rows = bags.places(bag).len().max(1) as f32;
                sum.iter_mut().for_each(|sum| *sum /= rows);
            }
        }
        Ok(())
    }
}
