//! What a batch of updates does to a table: gradients and vectors are checked, written, and counted.

use std::borrow::Cow;

use embank_kv::{Clock, Shortage};

use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::optimizer::Optimizer;
use crate::row::layout::Stepped;
use crate::table::Table;
use crate::table::gradients::{Magnitudes, check_finite, clip_rows, sum_duplicates};
use crate::table::operations::{ApplyGradients, Put, PutRows, Reached, RewriteVectors};

impl Table {
    /// Replaces or inserts rows without a lease: `rows` holds keys * dim values; of equal keys the last
    /// one wins. The optimizer's state of an existing row is kept, that of a new one starts afresh. Touches
    /// no clock.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`] and [`Error::NonFiniteRow`] before any row is changed; a failure
    /// of the store, after which some are.
    pub fn put(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        self.check_shape("rows", keys.len(), rows.len())?;
        self.check_rows(rows, |row| keys[row])?;
        self.put_unchecked(keys, rows)
    }

    /// As [`put`](Self::put), of values that may be NaN or infinite.
    pub(crate) fn put_unchecked(&self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let unique = UniqueKeys::new(keys);
        self.check_ids(unique.keys())?;
        let last_places = (!unique.all_distinct()).then(|| unique.last_places());
        self.execute_put(unique.keys(), rows, last_places.as_deref(), Clock::Keep)
            .map_err(|(error, _)| error)
    }

    /// Applies gradients without a lease: `gradients` holds keys * dim values; those of equal keys are
    /// summed in batch order first. Missing rows start from their initial values. Touches no clock.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::KeyIsNoId`], [`Error::NoOptimizer`] and [`Error::NonFiniteGradient`] before
    /// any row is changed; [`Error::RowOverflow`] after all other rows are; a failure of the store, after which some are.
    pub fn apply_gradients(&self, keys: &[u64], gradients: &[f32]) -> Result<()> {
        self.check_shape("gradients", keys.len(), gradients.len())?;
        let unique = UniqueKeys::new(keys);
        self.check_ids(unique.keys())?;
        let sums = self.summed(&unique, gradients);
        let magnitudes = self.check_gradients(unique.keys(), &sums)?;
        let insert_missing = self.shared.gate.is_none();
        let mut apply = self.prepare_apply(unique.keys(), sums, magnitudes, insert_missing);
        self.execute_update(unique.keys(), Clock::Keep, &mut apply)
    }

    /// The gradients of `unique`'s batch, one per distinct key.
    pub(crate) fn summed<'g>(&self, unique: &UniqueKeys, gradients: &'g [f32]) -> Cow<'g, [f32]> {
        sum_duplicates(unique, gradients, self.dim())
    }

    /// Refuses gradients, one per distinct key, that must not reach a row.
    pub(crate) fn check_gradients(&self, keys: &[u64], gradients: &[f32]) -> Result<Magnitudes> {
        if self.shared.live.now().optimizer == Optimizer::None {
            return Err(Error::NoOptimizer { table: self.name().to_owned() });
        }
        check_finite(self.name(), keys, gradients, self.dim())
    }

    /// Clips the gradients, one per distinct key, and makes the operation that applies them. `magnitudes` are those of
    /// the gradients.
    pub(crate) fn prepare_apply<'a>(
        &'a self,
        keys: &'a [u64],
        mut gradients: Cow<'a, [f32]>,
        magnitudes: Magnitudes,
        insert_missing: bool,
    ) -> ApplyGradients<'a> {
        let live = self.shared.live.now();
        let careful = magnitudes == Magnitudes::Large || !live.is_ordinary;
        if let Some(norm_max) = live.clip_row_norm {
            gradients = clip_rows(gradients, self.dim(), norm_max);
        }
        let layout = self.shared.layout();
        let reached = Reached::none_of(keys.len());
        ApplyGradients {
            layout,
            live,
            keys,
            gradients,
            insert_missing,
            careful,
            shortage: Shortage::Whole,
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
        let outcome = self.execute(keys, clock, apply)?;
        let counters = &self.shared.counters;
        counters.disk_reads.add(outcome.disk_reads);
        counters.applies.add(1);
        counters.apply_rows.add((keys.len() - outcome.missing.len()) as u64);
        if apply.noted.is_empty() { Ok(()) } else { self.settle_reports(keys, &apply.reports()) }
    }

    /// Counts the rows whose state is saturated, and fails for those whose step was refused.
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

    /// Refuses vectors that the table can't hold. `key_of` is the key of each row.
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

    /// Puts one vector per distinct key. After a failure the second part tells how far it came.
    pub(crate) fn execute_put(
        &self,
        keys: &[u64],
        rows: &[f32],
        sources: Option<&[u32]>,
        clock: Clock,
    ) -> std::result::Result<(), (Error, Reached)> {
        let layout = self.shared.layout();
        // What comes back through a lease is an update of what was got.
        let updates = clock == Clock::Release;
        let reached = Reached::none_of(keys.len());
        let put = PutRows { layout, keys, updates, rows, sources, reached };
        let (outcome, put) = if layout.has_state() {
            let mut put = Put::<false>(put);
            (self.execute(keys, clock, &mut put), put.0)
        } else {
            let mut put = Put::<true>(put);
            (self.execute(keys, clock, &mut put), put.0)
        };
        let outcome = outcome.map_err(|error| (error, put.reached))?;
        let counters = &self.shared.counters;
        counters.disk_reads.add(outcome.disk_reads);
        counters.puts.add(1);
        counters.put_rows.add(keys.len() as u64);
        Ok(())
    }

    /// Replaces the vectors of those of `keys` that have rows; `sources` says where each lies in `rows`.
    pub(crate) fn execute_rewrite(
        &self,
        keys: &[u64],
        rows: &[f32],
        sources: &[u32],
    ) -> Result<()> {
        let layout = self.shared.layout();
        let reached = Reached::none_of(keys.len());
        let sources = Some(sources);
        let put = PutRows { layout, keys, updates: false, rows, sources, reached };
        let outcome = self.execute(keys, Clock::Keep, &mut RewriteVectors(put))?;
        self.shared.counters.disk_reads.add(outcome.disk_reads);
        Ok(())
    }
}
