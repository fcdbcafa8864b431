//! Fills the shuffle buffer of a feed that resumes.
//!
//! **Problem.** A shuffle buffer holds rows from everywhere before a position. A feed that resumes
//! needs these rows, but only these: the rows that were returned are in no later batch.
//!
//! **Approach.** The draws of the shuffle depend on numbers of rows alone, so they tell which rows
//! the buffer holds at a place ([`Holder`]). A first pass over the inputs up to the place counts
//! the rows of each chunk, which gives each row its number. A second pass decodes the rows that are
//! held, and gives them to the buffer. The feed's run then begins at the place.
//!
//! **Limits.** Numbers count good rows, and only decoding tells whether a row is good. So no row
//! before the place may have been bad. Rows must be lines or packed rows. A compressed text would
//! be decompressed three times, by one thread, which takes longer than to decode its rows. So it
//! is read as a whole, unless rows have arrays.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Pipeline;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::execute::{
    self, BadRowLimit, CommitOptions, Committer, FeedPlace, Holder, KeptRows, Outcome, Setup,
};
use crate::input::{FileStates, Input};
use crate::plan::Plans;
use crate::spec::BadRows;
use crate::vocabulary::RunNumbering;

/// The inputs of a run, and how it sees them.
pub(super) struct Refilled<'a, 'i> {
    pub(super) inputs: &'a [Input<'i>],
    pub(super) plans: &'a Arc<Plans>,
    pub(super) states: &'a Arc<FileStates>,
    pub(super) numberings: &'a [RunNumbering],
}

impl Pipeline {
    /// Gives the rows that `holder` holds at the place to it. `None` if the feed must read all rows
    /// in its own run.
    pub(super) fn refill(
        &self,
        holder: &dyn Holder,
        place: &FeedPlace,
        run: &Refilled<'_, '_>,
    ) -> Result<Option<Outcome>> {
        let chunks = || {
            let mut chunks = self.chunks(run.inputs, run.plans, run.states)?;
            chunks.end_at(place.input, place.offset);
            Ok::<_, Error>(chunks)
        };
        let row_ends = run.plans.row_ends();
        let (holds_all, has_arrays) = (holder.holds(place.rows), !self.decoders.is_empty());
        if holds_all || place.bad_rows > 0 || !row_ends.are_plain() {
            return Ok(None);
        }
        let to_count = chunks()?;
        if !has_arrays && to_count.is_compressed(place.input)? {
            return Ok(None);
        }
        let counts = to_count.count_rows(self.options.threads)?;
        if counts.total() != place.rows {
            return Ok(None);
        }
        let kept = KeptRows::new(holder.held_after(place.rows, &self.stop)?, counts, row_ends);
        let chunks = chunks()?;
        let setup = Setup {
            plan: run.plans.own(),
            format: run.plans.format(),
            options: &self.options,
            root: self.root.as_deref(),
            decoders: &self.decoders,
            cache: self.cache.as_deref(),
            infos: &self.infos,
            numberings: run.numberings,
            generates: false,
            chunks: &chunks,
            kept: Some(&kept),
        };
        let options = CommitOptions {
            bad_rows: BadRowLimit { policy: BadRows::Skip, share_max: 1.0 },
            saves: false,
            learns: false,
            trace: self.options.trace,
            stop: Arc::<AtomicBool>::clone(&self.stop),
            before: Default::default(),
            places: None,
        };
        let mut fill = |batch: &mut Batch| {
            holder.refill(batch);
            Ok(())
        };
        let committer = Committer::new(&self.numberings, Some(&mut fill), options);
        let outcome = execute::run(&setup, committer)?;
        if outcome.rows == kept.len() {
            return Ok(Some(outcome));
        }
        // The lines of the kept rows are not those of the input.
        let bad = outcome.first_bad_rows.first();
        let bad = bad.map_or_else(String::new, |bad| format!("{}: {}", bad.input, bad.what));
        Err(Error::Inputs(format!(
            "of the {} rows from before the feed's position that its shuffle buffer holds, {} are bad now, and were not \
             when the feed read them; the inputs or the files that they name have changed: give the feed the files as they \
             were: {bad}",
            kept.len(),
            kept.len() - outcome.rows
        )))
    }
}
