//! The segment files of the reads that a burst or a stream has in flight.
//!
//! A file is held while a read of it is in flight. The file that was taken last is held longer,
//! because the next read is most likely in the same file. While reads are in flight, the thread may
//! not wait for a further file ([`Wait::No`]): it ends reads first, which gives files back.

use super::segments::Segments;
use super::segments::open_files::{Held, Wait};
use crate::device::segments::segment::Segment;
use crate::error::Result;

/// A held file and the number of its reads in flight.
struct Lent<'a> {
    file: Held<'a>,
    reads: usize,
}

/// The files of the reads in flight. Dropping this gives them back, so it must outlive the requests
/// in the ring.
#[derive(Default)]
pub(super) struct LentFiles<'a> {
    /// `None` is an unused place.
    files: Vec<Option<Lent<'a>>>,
    /// Place of the file that was taken last.
    newest: usize,
    /// Number of reads in flight.
    reads: usize,
}

impl<'a> LentFiles<'a> {
    /// Returns the place of the file for a read of `len` bytes at log offset `offset`, and counts
    /// the read. `None` if no file can be opened before a read in flight has ended.
    pub(super) fn begin(
        &mut self,
        segments: &'a Segments,
        offset: u64,
        len: usize,
    ) -> Result<Option<usize>> {
        segments.check_written(offset, len)?;
        let Some(place) = self.place(segments, offset, len)? else { return Ok(None) };
        if let Some(lent) = &mut self.files[place] {
            lent.reads += 1;
            self.reads += 1;
        }
        Ok(Some(place))
    }

    fn place(&mut self, segments: &'a Segments, offset: u64, len: usize) -> Result<Option<usize>> {
        let holds = |lent: &Option<Lent<'_>>| {
            lent.as_ref().is_some_and(|lent| segments.holds(&lent.file, offset))
        };
        if self.files.get(self.newest).is_some_and(holds) {
            return Ok(Some(self.newest));
        }
        if let Some(place) = self.files.iter().position(holds) {
            return Ok(Some(place));
        }
        self.give_back(self.newest);
        let wait = if self.reads == 0 { Wait::Yes } else { Wait::No };
        let Some(file) = segments.try_for_reading(offset, len, wait)? else { return Ok(None) };
        let unused = self.files.iter().position(Option::is_none);
        let place = unused.unwrap_or_else(|| {
            self.files.push(None);
            self.files.len() - 1
        });
        self.files[place] = Some(Lent { file, reads: 0 });
        self.newest = place;
        Ok(Some(place))
    }

    /// Counts the end of a read of the file at `place`.
    pub(super) fn end(&mut self, place: usize) {
        if let Some(lent) = self.files[place].as_mut() {
            lent.reads -= 1;
            self.reads -= 1;
        }
        if place != self.newest {
            self.give_back(place);
        }
    }

    /// Gives a file back that no read uses.
    fn give_back(&mut self, place: usize) {
        if let Some(place) = self.files.get_mut(place) {
            place.take_if(|lent| lent.reads == 0);
        }
    }

    /// Returns the file of a read that has begun.
    pub(super) fn file(&self, place: usize) -> &Segment {
        &self.files[place].as_ref().expect("held while a read of it is in flight").file
    }
}
