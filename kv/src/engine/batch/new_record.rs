//! A record at the tail, from its space to its place in the index.

use super::{Batch, Mode, Step, Work, bytes_of};
use crate::index::{Candidates, Inserted};
use crate::log::PageFull;
use crate::operation::Width;
use crate::record::clock::ClockWord;
use crate::record::layout::{RecordRef, record_bytes};

impl<'a, W: Work> Batch<'a, W> {
    /// Space for a record with a value of `value_bytes`, its header written and marked invalid.
    pub(super) fn begin_record(
        &mut self,
        key: u64,
        value_bytes: usize,
    ) -> std::result::Result<RecordRef<'a>, PageFull> {
        let address = self.core.log.allocate(record_bytes(value_bytes))?;
        self.tally.appended += 1;
        // SAFETY: pinned; the space was allocated under this pin, so it is above the head, and it is
        // this thread's own until it is published.
        let record = unsafe { self.core.log.view().record(address) };
        record.begin(self.table.number, key, value_bytes);
        Ok(record)
    }

    /// Gives up a record that could not be published. Its space is not used again: what the next one would follow in
    /// its chain may have been appended since, and chains go back.
    pub(super) fn abandon(&self, record: RecordRef<'_>) {
        record.set_link(record.link().with_invalid(true));
    }

    /// A key that is in none of the `searched` chains.
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
                self.work.settled(i);
                self.note_inserted(record_bytes(value_bytes));
                Ok(Step::Done)
            }
            Inserted::Changed => {
                self.abandon(record);
                Ok(Step::Moved)
            }
        }
    }

    /// Lets the caller fill a new value in the scratch; returns its length, or none if the row is to stay
    /// missing.
    pub(super) fn make_missing_value(&mut self, i: usize) -> Option<usize> {
        match W::MODE {
            Mode::Peek
            | Mode::Delete
            | Mode::Promote
            | Mode::Compact
            | Mode::Locate
            | Mode::Retain => None,
            Mode::Get | Mode::Update | Mode::Put => {
                let value_bytes = self.next_value_bytes(i, None)?;
                self.scratch.value[..value_bytes.div_ceil(8)].fill(0);
                let value = bytes_of(&mut self.scratch.value, value_bytes);
                self.work.insert(i, value).then_some(value_bytes)
            }
        }
    }

    /// Bytes of a row's next value; none if the table does not admit it.
    #[inline]
    pub(super) fn next_value_bytes(&mut self, i: usize, old: Option<&[u8]>) -> Option<usize> {
        match W::WIDTH {
            Width::Fixed => Some(self.value_bytes),
            Width::Variable => self.asked_value_bytes(i, old),
        }
    }
}
