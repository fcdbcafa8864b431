//! Merges the rows of runs and of the base, and gives the newest version of each row.
//!
//! The sources are ordered newest first, and each gives its rows in order. Of equal rows the one of
//! the first source counts. A base part has all that the runs up to its `through` had for its
//! hashes, and no tombstones. So rows of these runs are left out: the base part may lack a row
//! because its newest version was a tombstone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cold::row::{ColdRow, RowOrder};
use crate::error::Result;

/// Rows in order.
pub(crate) trait OrderedRows {
    /// Moves to the next row. False after the last one.
    fn advance(&mut self) -> Result<bool>;

    /// Returns the row to which `advance` has moved. `None` before the first call, and after the
    /// last row.
    fn row(&self) -> Option<ColdRow<'_>>;
}

/// The rows of a run, or of the base.
#[derive(Debug)]
pub(crate) struct Source<R> {
    pub(crate) rows: R,
    /// The last number of the run. `None` for the base.
    pub(crate) run: Option<u64>,
}

/// The newest version of each row, in order. Tombstones are versions too.
#[derive(Debug)]
pub(crate) struct Newest<R> {
    sources: Vec<Source<R>>,
    /// The last hash of each base part and its `through`, in ascending order.
    through: Vec<(u64, u64)>,
    /// The place in `through` of the base part that has the present hash.
    base: usize,
    /// The present row of each source that is not in `due` and not at its end.
    heads: BinaryHeap<Reverse<(RowOrder, usize)>>,
    /// The sources that have to move to their next row.
    due: Vec<usize>,
}

impl<R: OrderedRows> Newest<R> {
    /// `sources` are ordered newest first. `through` has the last hash of each base part and its
    /// `through`, by hash.
    pub(crate) fn new(sources: Vec<Source<R>>, through: Vec<(u64, u64)>) -> Self {
        Newest {
            due: (0..sources.len()).collect(),
            heads: BinaryHeap::with_capacity(sources.len()),
            sources,
            through,
            base: 0,
        }
    }

    /// Moves to the next row. Returns the place of its source in `sources`. `None` after the last
    /// row.
    ///
    /// # Errors
    /// The errors of the sources. The next call tries again.
    pub(crate) fn advance(&mut self) -> Result<Option<usize>> {
        // The loop ends: each turn moves at least one source to its next row.
        loop {
            while let Some(&place) = self.due.last() {
                let rows = &mut self.sources[place].rows;
                if rows.advance()?
                    && let Some(row) = rows.row()
                {
                    self.heads.push(Reverse((row.order(), place)));
                }
                self.due.pop();
            }
            let Some(Reverse((order, place))) = self.heads.pop() else { return Ok(None) };
            self.due.push(place);
            if self.is_merged(place, order.0) {
                continue;
            }
            while let Some(&Reverse((other, older))) = self.heads.peek()
                && other == order
            {
                self.heads.pop();
                self.due.push(older);
            }
            return Ok(Some(place));
        }
    }

    /// Returns the source at a place.
    pub(crate) fn source(&self, place: usize) -> &R {
        &self.sources[place].rows
    }

    /// True if the base part for `hash` has merged the run at `place`. Hashes come in ascending
    /// order.
    fn is_merged(&mut self, place: usize, hash: u64) -> bool {
        let Some(run) = self.sources[place].run else { return false };
        while self.through.get(self.base).is_some_and(|&(last, _)| last < hash) {
            self.base += 1;
        }
        self.through.get(self.base).is_some_and(|&(_, through)| run <= through)
    }
}
