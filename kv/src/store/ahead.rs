//! Moves rows into mutable memory before a batch needs them, and keeps them there.

use super::Store;
use crate::engine::batch::{Announce, Promote, PromoteUnused, Tally};
use crate::error::Result;
use crate::operation::{Clock, Promoted, RowMark};
use crate::record::address::TableId;

impl Store {
    /// Looks up where rows are, without reading from disk. Adds to `wanted` the keys whose rows
    /// [`promote`](Self::promote) would move. These are rows on disk, and rows in the read-only
    /// region, which the log evicts next. Adds to `resident` the keys of the rows in mutable
    /// memory, with their marks ([`RowMark`]). A row on disk is recognised only by its key's hash,
    /// so `wanted` may contain a key that has no row.
    ///
    /// # Errors
    /// `NoSuchTable` if the table does not exist.
    pub fn announce(
        &self,
        table: TableId,
        keys: &[u64],
        wanted: &mut Vec<u64>,
        resident: &mut Vec<(u64, RowMark)>,
    ) -> Result<()> {
        let resident = |i: usize, mark| resident.push((keys[i], mark));
        let elsewhere = |i: usize| wanted.push(keys[i]);
        let mut job = Announce { resident, elsewhere };
        self.core().run(table, keys, Clock::Keep, &mut job, &mut Tally::default())?;
        Ok(())
    }

    /// Moves rows from disk and from the read-only region into mutable memory. Their clocks do not
    /// change. The log evicts the read-only region next, and a later get of an evicted row would
    /// wait for the disk.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn promote(&self, table: TableId, keys: &[u64]) -> Result<Promoted> {
        self.promote_marking(table, keys, &mut Vec::new())
    }

    /// Moves rows as [`promote`](Self::promote) does. Adds to `marks` the marks of the rows that
    /// are in mutable memory afterwards.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn promote_marking(
        &self,
        table: TableId,
        keys: &[u64],
        marks: &mut Vec<(u64, RowMark)>,
    ) -> Result<Promoted> {
        let marked = &mut |i: usize, mark| marks.push((keys[i], mark));
        let mut tally = Tally::default();
        let outcome =
            self.core().run(table, keys, Clock::Keep, &mut Promote(marked), &mut tally)?;
        Ok(Promoted {
            moved: tally.moved,
            resident: tally.resident,
            missing: outcome.missing.len() as u64,
            overtaken: tally.overtaken,
        })
    }

    /// Copies rows from the read-only region to mutable memory, if no thread has got, changed or
    /// moved them since `marks` were taken. The copy stays in memory until the log has filled the
    /// mutable region once more. Leaves all other rows alone. For each copied row, adds to `moved`
    /// the row's index in `keys` and its new mark.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute).
    pub fn promote_unused(
        &self,
        table: TableId,
        keys: &[u64],
        marks: &[RowMark],
        moved: &mut Vec<(usize, RowMark)>,
    ) -> Result<()> {
        assert_eq!(keys.len(), marks.len());
        let marked = &mut |i: usize, mark| moved.push((i, mark));
        let mut job = PromoteUnused { marks, marked };
        self.core().run(table, keys, Clock::Keep, &mut job, &mut Tally::default())?;
        Ok(())
    }

    /// Returns the address at which the mutable region begins, and the address at which memory
    /// begins. Rows whose mark has an [`address`](RowMark::address) between the two are in memory,
    /// and the log evicts them next. Rows with an address below the second are on disk.
    #[must_use]
    pub fn boundaries(&self) -> (u64, u64) {
        let core = self.core();
        let view = core.log.view();
        (view.read_only, view.head)
    }

    /// Makes the writer thread call `told` after each move of the [`boundaries`](Self::boundaries).
    /// `told` must be short and must not call the store. Only the first call of this method has an
    /// effect.
    pub fn when_boundaries_move(&self, told: Box<dyn Fn() + Send + Sync>) {
        self.core().log.when_boundaries_move(told);
    }
}
