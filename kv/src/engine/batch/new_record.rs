//! How a batch allocates a new record at the tail, fills it, and inserts it into the index.

use super::scratch::Searched;
use super::{Batch, Step, Work, bytes_of};
use crate::hints::RowHint;
use crate::index::Inserted;
use crate::log::PageFull;
use crate::operation::Operation;
use crate::record::clock::ClockWord;
use crate::record::layout::RecordRef;
use crate::sync::{Planted, planted};

impl<'a, W: Work, const VARIABLE: bool> Batch<'a, W, VARIABLE> {
    /// Allocates a record for a value of `value_bytes` bytes. Writes the header, which marks the
    /// record as invalid.
    pub(super) fn begin_record(
        &mut self,
        key: u64,
        value_bytes: usize,
    ) -> std::result::Result<RecordRef<'a>, PageFull> {
        let view = self.core.log.view();
        let record = self.core.log.begin_record(view, self.table.number, key, value_bytes)?;
        self.tally.appended += 1;
        Ok(record)
    }

    /// Inserts a row for a key without a row, if the work makes a value for the key. `uncounted` is
    /// the mark of the key's newest version, a tombstone in the cold tier. False without a version.
    pub(super) fn on_missing(
        &mut self,
        i: usize,
        hash: u64,
        searched: &Searched,
        uncounted: bool,
    ) -> std::result::Result<Step, PageFull> {
        let Some(value_bytes) = self.make_missing_value(i) else {
            self.note_missing(i);
            return Ok(Step::Done);
        };
        let Some(new) = self.insert_made(i, value_bytes, hash, searched, uncounted)? else {
            return Ok(Step::Moved);
        };
        self.note_inserted(new);
        Ok(Step::Done)
    }

    /// Gives the key a record with the value that the work has made. `uncounted` is the record's
    /// mark. `None` if another thread may have given the key a record since the search.
    pub(super) fn insert_made(
        &mut self,
        i: usize,
        value_bytes: usize,
        hash: u64,
        searched: &Searched,
        uncounted: bool,
    ) -> std::result::Result<Option<RecordRef<'a>>, PageFull> {
        let record = self.begin_record(self.keys[i], value_bytes)?;
        record.store_value(&self.scratch.value[..value_bytes.div_ceil(8)]);
        if uncounted {
            record.mark_uncounted();
        }
        record.finish(ClockWord::at_rest(self.clock.after(0)), false);
        if !self.insert(record, hash, searched) {
            record.abandon();
            return Ok(None);
        }
        self.note_published(record);
        self.work.caller().settled(i, RowHint::new(self.core.store, record.address()));
        Ok(Some(record))
    }

    /// Makes the index lead to the finished record `new` of a key of which the search has found no
    /// record in the log. Returns false if another thread may have given the key a record since
    /// then.
    ///
    /// It is not enough that the bucket's matching slots are those that the search saw. Another
    /// thread may have given the key a record, which then went to the cold tier, and its entry was
    /// removed. So the log's beginning must not have passed the address up to which the log was
    /// settled before the search. A record that was published after the search lies above that
    /// address: pages below it were settled after their writers had unpinned.
    pub(super) fn insert(&self, new: RecordRef<'_>, hash: u64, searched: &Searched) -> bool {
        let Searched { entries, settled } = searched;
        let link = |previous| new.set_link(new.link().with_previous(previous));
        let still = || self.core.log.begin() <= *settled || planted(Planted::InsertStale);
        let core = self.core;
        let done = core.index.insert(&core.budget, hash, entries, new.address(), link, still);
        done == Inserted::Yes
    }

    /// Lets the work fill a new value in the scratch memory. Returns the value's length. `None` if
    /// the work inserts no row, or if the table does not admit the value.
    pub(super) fn make_missing_value(&mut self, i: usize) -> Option<usize> {
        if !W::INSERTS {
            return None;
        }
        let value_bytes = self.next_value_bytes(i, None)?;
        self.scratch.value[..value_bytes.div_ceil(8)].fill(0);
        let value = bytes_of(&mut self.scratch.value, value_bytes);
        self.work.caller().insert(i, value).then_some(value_bytes)
    }

    /// Returns the length in bytes of a row's next value. `None` if the table does not admit that
    /// length.
    #[inline]
    pub(super) fn next_value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> Option<usize> {
        if VARIABLE { self.asked_value_bytes(i, old) } else { Some(self.value_bytes) }
    }
}
