//! Batches of updates: checks gradients and vectors, writes them to rows, and counts the calls and
//! the rows in the statistics.

use std::borrow::Cow;

use embank_kv::{Clock, Hints, Shortage};

use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::optimizer::Optimizer;
use crate::row::layout::Stepped;
use crate::table::Table;
use crate::table::bags::Bags;
use crate::table::gradients::{BatchGradients, Magnitudes, RowGradients, largest_magnitude};
use crate::table::operations::{ApplyGradients, Put, PutRows, Reached, RewriteVectors};

/// Whether a put leaves old rows of the cold tier unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blind {
    Yes,
    No,
}

impl Table {
    /// Replaces or inserts rows without a lease. `rows` holds keys * dim values. If a key repeats,
    /// its last row wins. An existing row keeps its optimizer state, and a new row starts with a
    /// fresh state. Does not change staleness clocks.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`] and [`Error::NonFiniteRow`], before any row
    /// is changed. A failure of the store, after which some rows may be changed.
    pub fn put(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        self.check_shape("rows", keys.len(), rows.len())?;
        self.check_rows(rows, |row| keys[row])?;
        self.put_unchecked(keys, rows)
    }

    /// Replaces or inserts rows as [`put`](Self::put) does, but reads fewer old rows (a blind
    /// write). In a bank with two tiers, the call does not read old rows of the cold tier. It still
    /// reads a row that the log has only on disk. In a bank with one tier, it does what `put` does.
    ///
    /// After blind puts in a bank with two tiers, [`rows`](Self::rows) may be wrong: it lacks new
    /// rows, or has rows that were deleted since. The number of rows of a [scan](Self::scan) is an
    /// upper bound. Merges in the background correct the numbers in time.
    /// [`Bank::compact`](crate::Bank::compact) corrects them at once, with the conditions and the
    /// cost that it names. Statistics that follow from the number of rows are off by the same rows.
    /// Values, scans and exports are exact.
    ///
    /// # Errors
    /// Those of `put`. [`InvalidOption`](crate::StoreError::InvalidOption) if a row has more than its
    /// vector, which a put must keep: a table with an optimizer that has state, with admission or
    /// with tracking.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Missing, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("features", TableConfig::new(2))?;
    /// table.put_blind(&[7, 8], &[0.5; 4])?;
    /// table.put_blind(&[8], &[1.5; 2])?;
    /// let mut rows = [0.0; 4];
    /// table.peek(&[7, 8], &mut rows, Missing::Error)?;
    /// assert_eq!(rows, [0.5, 0.5, 1.5, 1.5]);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn put_blind(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let layout = self.shared.layout();
        let problem = if layout.has_state() {
            "needs a table without optimizer state"
        } else if self.shared.gate.is_some() {
            "needs a table without admission"
        } else if layout.tracker().is_some() {
            "needs a table without tracking"
        } else {
            self.check_shape("rows", keys.len(), rows.len())?;
            self.check_rows(rows, |row| keys[row])?;
            return self.put_last(keys, rows, Blind::Yes);
        };
        let problem = format!("{problem}, and {:?} is not one; put rows without it", self.name());
        Err(Error::option("blind", problem))
    }

    /// Puts rows like [`put`](Self::put), but also accepts NaN and infinite values.
    pub(crate) fn put_unchecked(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        self.put_last(keys, rows, Blind::No)
    }

    /// Puts rows. The last row of a repeated key wins.
    fn put_last(&self, keys: &[u64], rows: &[f32], blind: Blind) -> Result<()> {
        let unique = self.unique_keys(keys)?;
        self.check_ids(unique.keys())?;
        let last_places = (!unique.all_distinct()).then(|| unique.last_places());
        let sources = last_places.as_deref();
        self.execute_put(unique.keys(), rows, sources, Clock::Keep, None, blind)
            .map_err(|(error, _)| error)
    }

    /// Applies gradients without a lease. `gradients` holds keys * dim values. The gradients of a
    /// repeated key are first summed in batch order. Inserts missing rows with their initial values
    /// before the step. Does not change staleness clocks.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`], [`Error::NoOptimizer`] and
    /// [`Error::NonFiniteGradient`], before any row is changed. [`Error::RowOverflow`], after all
    /// other rows are changed. A failure of the store, after which some rows may be changed.
    pub fn apply_gradients(&self, keys: &[u64], gradients: &[f32]) -> Result<()> {
        self.check_shape("gradients", keys.len(), gradients.len())?;
        let unique = self.unique_keys(keys)?;
        self.check_ids(unique.keys())?;
        let gradients = self.batch_gradients(&unique, None, gradients)?;
        let insert_missing = self.shared.gate.is_none();
        let magnitudes = gradients.magnitudes;
        let rows = gradients.rows(None);
        let mut apply = self.prepare_apply(unique.keys(), rows, magnitudes, insert_missing);
        self.execute_update(unique.keys(), Clock::Keep, &mut apply)
    }

    /// Checks the gradients of a batch: one per place, or one per bag if `bags` are given. Fails if
    /// a gradient or a row's sum is not finite.
    pub(crate) fn batch_gradients<'g>(
        &self,
        unique: &UniqueKeys,
        bags: Option<&Bags<'g>>,
        gradients: &'g [f32],
    ) -> Result<BatchGradients<'g>> {
        self.check_has_optimizer()?;
        let largest = self.largest_magnitude(gradients);
        BatchGradients::of_batch(self.name(), unique, bags, gradients, self.dim(), largest)
    }

    /// Checks gradients that are given once per distinct key. Fails if a gradient is not finite.
    pub(crate) fn distinct_gradients<'g>(
        &self,
        keys: &[u64],
        gradients: &'g [f32],
    ) -> Result<BatchGradients<'g>> {
        self.check_has_optimizer()?;
        let largest = self.largest_magnitude(gradients);
        let gradients = Cow::Borrowed(gradients);
        BatchGradients::of_distinct(self.name(), keys, gradients, self.dim(), largest)
    }

    fn check_has_optimizer(&self) -> Result<()> {
        if self.shared.live.now().optimizer == Optimizer::None {
            return Err(Error::NoOptimizer { table: self.name().to_owned() });
        }
        Ok(())
    }

    /// Returns the largest magnitude among the values of some rows; NaN if a value is NaN.
    fn largest_magnitude(&self, values: &[f32]) -> f32 {
        let dim = self.dim();
        let Some(mut turn) = self.context().pool.turn(values.len() / dim) else {
            return largest_magnitude(values);
        };
        let ranges = turn.ranges(values.len() / dim).into_iter();
        let mut parts: Vec<_> =
            ranges.map(|range| (&values[range.start * dim..range.end * dim], 0.0)).collect();
        turn.run(&mut parts, |(values, largest)| *largest = largest_magnitude(values));
        // Compared as bits, because the bits of a NaN are larger than the bits of any number.
        let largest = parts.iter().map(|(_, largest)| largest.to_bits()).max();
        f32::from_bits(largest.unwrap_or(0))
    }

    /// Makes the operation that applies `gradients`, one per key in `keys`. `magnitudes` is the
    /// size class of the whole batch.
    pub(crate) fn prepare_apply<'a>(
        &'a self,
        keys: &'a [u64],
        gradients: RowGradients<'a>,
        magnitudes: Magnitudes,
        insert_missing: bool,
    ) -> ApplyGradients<'a> {
        let live = self.shared.live.now();
        let careful = magnitudes == Magnitudes::Large || !live.is_ordinary;
        let norm_max = live.clip_row_norm;
        let layout = self.shared.layout();
        let reached = Reached::none_of(keys.len());
        ApplyGradients {
            layout,
            live,
            keys,
            gradients,
            norm_max,
            sum: vec![0.0; self.dim()],
            insert_missing,
            careful,
            shortage: Shortage::Whole,
            hints: None,
            reached,
            room: Vec::new(),
            noted: Vec::new(),
        }
    }

    pub(crate) fn execute_update(
        &self,
        keys: &[u64],
        clock: Clock,
        apply: &mut ApplyGradients<'_>,
    ) -> Result<()> {
        let outcome = self.execute_in_parts(keys, clock, apply)?;
        let counters = &self.shared.counters;
        counters.disk_reads.add(outcome.disk_reads);
        counters.applies.add(1);
        counters.apply_rows.add((keys.len() - outcome.missing.len()) as u64);
        if apply.noted.is_empty() { Ok(()) } else { self.settle_reports(keys, &apply.reports()) }
    }

    /// Counts the rows whose optimizer state is saturated. Fails if the operation left out the step
    /// of a row.
    #[cold]
    fn settle_reports(&self, keys: &[u64], reports: &[(u32, Stepped)]) -> Result<()> {
        let saturated = reports.iter().filter(|(_, stepped)| *stepped == Stepped::Saturated);
        self.shared.counters.saturated_rows.add(saturated.count() as u64);
        let mut refused = reports.iter().filter_map(|&(place, stepped)| match stepped {
            Stepped::Refused { column, value } => Some((keys[place as usize], column, value)),
            Stepped::Taken | Stepped::Saturated => None,
        });
        let Some((key, column, value)) = refused.next() else { return Ok(()) };
        Err(Error::RowOverflow {
            table: self.name().to_owned(),
            key,
            column,
            value,
            dtype: self.config().dtype,
            rows: 1 + refused.count(),
        })
    }

    /// Fails if a value is not finite in the table's dtype. `key_of` returns the key of a row.
    pub(crate) fn check_rows(&self, rows: &[f32], key_of: impl Fn(usize) -> u64) -> Result<()> {
        let Some(at) = self.shared.layout().first_beyond(rows) else { return Ok(()) };
        Err(Error::NonFiniteRow {
            table: self.name().to_owned(),
            key: key_of(at / self.dim()),
            column: at % self.dim(),
            value: rows[at],
            dtype: self.config().dtype,
        })
    }

    /// Puts one vector per distinct key. After a failure, returns the error and the places whose
    /// rows the put had already reached.
    pub(crate) fn execute_put(
        &self,
        keys: &[u64],
        rows: &[f32],
        sources: Option<&[u32]>,
        clock: Clock,
        hints: Option<Hints<'_>>,
        blind: Blind,
    ) -> std::result::Result<(), (Error, Reached)> {
        let layout = self.shared.layout();
        // A put through a lease counts as an update, so the vector is rounded like an update
        // (`PutRows::updates`).
        let updates = clock == Clock::Release;
        let reached = Reached::none_of(keys.len());
        let put = PutRows { layout, keys, updates, rows, sources, hints, reached };
        let (outcome, put) = match blind {
            Blind::Yes => {
                let mut put = Put::<true, true>(put);
                (self.execute_in_parts(keys, clock, &mut put), put.0)
            }
            Blind::No if layout.has_state() => {
                let mut put = Put::<false, false>(put);
                (self.execute_in_parts(keys, clock, &mut put), put.0)
            }
            Blind::No => {
                let mut put = Put::<true, false>(put);
                (self.execute_in_parts(keys, clock, &mut put), put.0)
            }
        };
        let outcome = outcome.map_err(|error| (error, put.reached))?;
        let counters = &self.shared.counters;
        counters.disk_reads.add(outcome.disk_reads);
        counters.puts.add(1);
        counters.put_rows.add(keys.len() as u64);
        Ok(())
    }

    /// Replaces the vectors of those `keys` that have rows. `sources` gives, for each key, its row
    /// in `rows`.
    pub(crate) fn execute_rewrite(
        &self,
        keys: &[u64],
        rows: &[f32],
        sources: &[u32],
    ) -> Result<()> {
        let layout = self.shared.layout();
        let reached = Reached::none_of(keys.len());
        let sources = Some(sources);
        let put = PutRows { layout, keys, updates: false, rows, sources, hints: None, reached };
        let outcome = self.execute(keys, Clock::Keep, &mut RewriteVectors(put))?;
        self.shared.counters.disk_reads.add(outcome.disk_reads);
        Ok(())
    }
}
