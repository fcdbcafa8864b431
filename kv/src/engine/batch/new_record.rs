//! A record at the tail, from its space to its place in the index.

use super::{Batch, Step, Work, bytes_of};
use crate::engine::core::Core;
use crate::hints::RowHint;
use crate::index::{Candidates, Inserted};
use crate::log::PageFull;
use crate::log::view::View;
use crate::record::address::Address;
use crate::record::address::TableNumber;
use crate::record::clock::ClockWord;
use crate::record::layout::RecordImage;
use crate::record::layout::{RecordRef, record_bytes};

impl Core {
    /// Space at the tail for a record with a value of `value_bytes`, its header written and marked
    /// invalid. Must be called while pinned, before `view` can have become stale.
    pub(crate) fn begin_record<'g>(
        &self,
        view: View<'g>,
        table: TableNumber,
        key: u64,
        value_bytes: usize,
    ) -> std::result::Result<RecordRef<'g>, PageFull> {
        let address = self.log.allocate(record_bytes(value_bytes))?;
        // SAFETY: pinned; the space was allocated under this pin, so it is above the head, and it
        // is this thread's own until it is published.
        let record = unsafe { view.record(address) };
        record.begin(table, key, value_bytes);
        Ok(record)
    }

    /// The clock of a row whose record lies on disk. Counts do not survive a restart, so only a
    /// record of this session has counts.
    pub(crate) fn word_on_disk(&self, image: RecordImage<'_>, address: Address) -> ClockWord {
        let word = image.clock().for_disk();
        if address.raw() >= self.session_start { word } else { word.with_outstanding(0) }
    }
}

impl<'a, W: Work, const VARIABLE: bool> Batch<'a, W, VARIABLE> {
    /// Space for a record with a value of `value_bytes`, its header written and marked invalid.
    pub(super) fn begin_record(
        &mut self,
        key: u64,
        value_bytes: usize,
    ) -> std::result::Result<RecordRef<'a>, PageFull> {
        let view = self.core.log.view();
        let record = self.core.begin_record(view, self.table.number, key, value_bytes)?;
        self.tally.appended += 1;
        Ok(record)
    }

    /// Inserts a key that no searched chain holds.
    pub(super) fn on_missing(
        &mut self,
        i: usize,
        hash: u64,
        searched: &Candidates,
    ) -> std::result::Result<Step, PageFull> {
        let Some(value_bytes) = self.make_missing_value(i) else {
            self.note_missing(i);
            return Ok(Step::Done);
        };
        let record = self.begin_record(self.keys[i], value_bytes)?;
        record.store_value(&self.scratch.value[..value_bytes.div_ceil(8)]);
        record.finish(ClockWord::at_rest(self.clock.after(0)), false);
        let link = |previous| record.set_link(record.link().with_previous(previous));
        match self.core.index.insert(&self.core.budget, hash, searched, record.address(), link) {
            Inserted::Yes => {
                self.work.settled(i, RowHint::new(self.core.store, record.address()));
                self.note_inserted(record_bytes(value_bytes));
                Ok(Step::Done)
            }
            Inserted::Changed => {
                record.abandon();
                Ok(Step::Moved)
            }
        }
    }

    /// Lets the work fill a new value in the scratch; returns its length. `None` if the row is to
    /// stay missing, or the table does not admit the value.
    pub(super) fn make_missing_value(&mut self, i: usize) -> Option<usize> {
        if !W::INSERTS {
            return None;
        }
        let value_bytes = self.next_value_bytes(i, None)?;
        self.scratch.value[..value_bytes.div_ceil(8)].fill(0);
        let value = bytes_of(&mut self.scratch.value, value_bytes);
        self.work.insert(i, value).then_some(value_bytes)
    }

    /// Bytes of a row's next value. `None` if the table does not admit that length.
    #[inline]
    pub(super) fn next_value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> Option<usize> {
        if VARIABLE { self.asked_value_bytes(i, old) } else { Some(self.value_bytes) }
    }
}
