//! Bringing rows into mutable memory before they are wanted, and keeping them there.

use super::Store;
use crate::engine::batch::{Announce, Promote, PromoteUnused};
use crate::error::Result;
use crate::operation::{Promoted, RowMark};
use crate::record::address::TableId;

impl Store {
    /// Looks where rows are. Adds to `wanted` those keys that [`promote`](Self::promote) would move: on disk, or in the
    /// read-only region and so next in line for it; and to `resident` the others that there are, with their marks.
    /// Reads nothing from disk itself, so a key whose hash only looks like that of a row on disk may be
    /// among the wanted.
    ///
    /// # Errors
    /// `NoSuchTable`.
    pub fn announce(
        &self,
        table: TableId,
        keys: &[u64],
        wanted: &mut Vec<u64>,
        resident: &mut Vec<(u64, RowMark)>,
    ) -> Result<()> {
        let resident = |i: usize, mark| resident.push((keys[i], mark));
        let elsewhere = |i: usize| wanted.push(keys[i]);
        self.run_job(table, keys, &mut Announce { resident, elsewhere })?;
        Ok(())
    }

    /// Brings rows from disk and from the read-only region into mutable memory, their clocks kept. A row
    /// in the read-only region would be copied by its next Get anyway, unless it is evicted first:
    /// then the Get would wait for the disk.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn promote(&self, table: TableId, keys: &[u64]) -> Result<Promoted> {
        self.promote_marking(table, keys, &mut Vec::new())
    }

    /// As [`promote`](Self::promote), and adds the marks of the rows that are in mutable memory then to `marks`.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn promote_marking(
        &self,
        table: TableId,
        keys: &[u64],
        marks: &mut Vec<(u64, RowMark)>,
    ) -> Result<Promoted> {
        let marked = &mut |i: usize, mark| marks.push((keys[i], mark));
        let (outcome, tally) = self.run_job(table, keys, &mut Promote(marked))?;
        Ok(Promoted {
            moved: tally.moved,
            resident: tally.resident,
            missing: outcome.missing.len() as u64,
            overtaken: tally.overtaken,
        })
    }

    /// Copies rows that are as they were when they were marked, neither got nor changed nor moved since, from the
    /// read-only region to mutable memory, where they live on for another round of it; `place` of `moved` is the
    /// place among `keys`. Rows that are not as they were, or not in the read-only region any more, are left alone.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn promote_unused(
        &self,
        table: TableId,
        keys: &[u64],
        marks: &[RowMark],
        moved: &mut Vec<(usize, RowMark)>,
    ) -> Result<()> {
        assert_eq!(keys.len(), marks.len());
        let marked = &mut |i: usize, mark| moved.push((i, mark));
        self.run_job(table, keys, &mut PromoteUnused { marks, marked })?;
        Ok(())
    }

    /// Where the mutable region begins and where memory does: a row whose mark has a smaller
    /// [`address`](RowMark::address) than the first is next in line for eviction, than the second on disk.
    #[must_use]
    pub fn boundaries(&self) -> (u64, u64) {
        let core = self.core();
        let view = core.log.view();
        (view.read_only, view.head)
    }

    /// Has `told` called whenever the boundaries have moved, by the thread that writes pages: it should be short and
    /// must not call the store. Only the first call of this method counts.
    pub fn when_boundaries_move(&self, told: Box<dyn Fn() + Send + Sync>) {
        self.core().log.when_boundaries_move(told);
    }
}
