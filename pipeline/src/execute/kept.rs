//! Leaves rows out of the chunks of a run before they are decoded.
//!
//! A feed that shuffles and resumes needs, of all rows before a place, those that its buffer holds
//! there ([`Holder`]). Their numbers are known before the run. Finding where a row begins is much
//! faster than decoding it.

use std::sync::atomic::AtomicBool;

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::input::{Claim, RowCounts, RowEnds};

/// A feed's buffer, as the run of a feed that resumes sees it.
pub(crate) trait Holder: Sync {
    /// True if the buffer holds all of the first `rows` rows of a run.
    fn holds(&self, rows: u64) -> bool;

    /// Returns the numbers of the rows that the buffer holds after the first `rows` rows of a run,
    /// in ascending order.
    ///
    /// # Errors
    /// [`Error::Stopped`] once `stop` is true. [`Error::Spec`] if there is no memory for them.
    fn held_after(&self, rows: u64, stop: &AtomicBool) -> Result<Vec<u64>>;

    /// Takes the next of these rows in, in their order.
    fn refill(&self, batch: &Batch);
}

/// The rows that a run keeps.
pub(crate) struct KeptRows {
    /// Their numbers, in ascending order.
    rows: Vec<u64>,
    counts: RowCounts,
    row_ends: RowEnds,
}

impl KeptRows {
    pub(crate) fn new(rows: Vec<u64>, counts: RowCounts, row_ends: RowEnds) -> Self {
        Self { rows, counts, row_ends }
    }

    pub(crate) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Replaces `into` by the kept rows of a chunk, which has the rows of `text`.
    ///
    /// # Errors
    /// [`Error::Inputs`] if the chunks are not those that were counted.
    pub(super) fn copy(
        &self,
        claim: &Claim<'_>,
        input: &str,
        text: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<()> {
        into.clear();
        let Some(first) = self.counts.first_row(claim) else {
            return Err(Error::Inputs(format!(
                "{input}: it has other rows than when the run counted them: leave it alone while a feed resumes"
            )));
        };
        let mut kept = &self.rows[self.rows.partition_point(|&row| row < first)..];
        for (number, row) in (first..).zip(self.row_ends.rows(&claim.plan, text)) {
            let Some((&next, others)) = kept.split_first() else { break };
            if next == number {
                into.extend_from_slice(row);
                kept = others;
            }
        }
        Ok(())
    }
}
