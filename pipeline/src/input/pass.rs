//! Passes over the rows before the place at which a feed's run begins.
//!
//! Inputs before the place are not read. Of files of columns, the names and types of the columns
//! are read, because they decide what the columns of later files may be. In the input of the place:
//!
//! - Ranges of lines and packed rows begin at the place. A place is the beginning of a chunk, and
//!   a chunk has the lines that begin in its range, for any chunk size.
//! - Text with quotes is read from the place on, which is the end of a row.
//! - A compressed text is decompressed up to the place, and not decoded.
//! - Row groups of a Parquet file before the place are not read. The rows before the place in its
//!   own row group, and those of other files of columns, are read and dropped.
//!
//! The first row of a text decides its plan, so it is read for any place.

use std::ops::Range;

use super::Input;
use super::begin::{Begin, TextBegin};
use super::chunks::{ChunkPlace, Chunks, Current, Reader};
use super::open::Open;
use super::stream::{Broken, RowEnds};
use crate::error::{Error, Result};

/// Returns the error for a place at which no row begins.
#[cold]
pub(super) fn misplaced(input: &Open<'_>, offset: u64) -> Error {
    Error::Inputs(format!(
        "{}: a feed is to continue at offset {offset}, where no row can begin: resume with the position as it was \
         saved, or skip by the number of rows alone",
        input.name
    ))
}

impl<'a> Chunks<'a> {
    /// True if a run can begin in input number `input`. A pipe is read in any case: a program
    /// writes to it, and the system does not tell what was in it.
    pub(crate) fn has(&self, input: usize) -> bool {
        self.inputs.get(..=input).is_some_and(|inputs| !inputs.iter().any(Input::is_pipe))
    }

    /// Begins at a chunk that begins at `offset` of input number `input`. Must be called before the
    /// first claim, and [`has`](Self::has) must be true.
    ///
    /// # Errors
    /// The errors of a run for the columns of earlier inputs.
    pub(crate) fn begin_at(&mut self, input: usize, offset: u64) -> Result<()> {
        #[cfg(feature = "parquet")]
        if self.row_ends == RowEnds::Columns {
            (0..input).try_for_each(|place| self.check_passed(place))?;
        }
        let bytes: Result<u64> = self.inputs[..input].iter().map(Input::bytes).sum();
        let bytes = bytes?;
        let mut at = self.at.lock();
        at.input = input;
        at.bytes_before = bytes;
        at.passed_bytes = bytes;
        drop(at);
        self.from = Some(ChunkPlace { input, offset });
        Ok(())
    }

    /// Checks the columns of an input whose rows are not read.
    #[cfg(feature = "parquet")]
    fn check_passed(&self, place: usize) -> Result<()> {
        let mut current = self.open(place)?;
        let Reader::Columns(stream) = &mut current.reader else { return Ok(()) };
        let has_rows = self.has_rows(&current.open, stream)?;
        if has_rows { self.check_columns(&current.open, stream) } else { Ok(()) }
    }

    /// Bytes of input before the place at which the run began. Those that had to be read do not
    /// count.
    pub(crate) fn passed_bytes(&self) -> u64 {
        self.at.lock().passed_bytes
    }

    /// Moves a newly opened input on from the beginning of `passed` to its end. Returns the bytes
    /// of it that need not be read.
    pub(super) fn pass_over(&self, current: &mut Current<'a>, passed: Range<u64>) -> Result<u64> {
        let Range { start, end: offset } = passed;
        if offset == start {
            return Ok(0);
        }
        let input = &current.open;
        let misplaced = || misplaced(input, offset);
        let first = |plan| TextBegin { begin: Begin::default(), plan };
        match &mut current.reader {
            Reader::Ranges => {
                let is_end = match self.row_ends {
                    RowEnds::Rows(row_bytes) => (offset - start).is_multiple_of(row_bytes as u64),
                    _ => true,
                };
                if offset < start || offset > input.range().end || !is_end {
                    return Err(misplaced());
                }
                current.first.begin = Begin::default();
                Ok(offset - start)
            }
            Reader::Text(stream) if stream.is_compressed() => {
                let told = |broken| self.broken(input, true, broken);
                let mut piece = Vec::new();
                // Reads one row at least.
                let read = stream.next(self.row_ends, 1, &mut piece);
                input.check_unchanged()?;
                read.map_err(told)?;
                current.first = first(self.begins.of(&input.name, &piece)?.plan);
                let last = stream.pass_to(offset, piece);
                input.check_unchanged()?;
                let last = last.map_err(|error| told(Broken::Io(error)))?.ok_or_else(misplaced)?;
                let ends_row = match self.row_ends {
                    RowEnds::Rows(row_bytes) => offset.is_multiple_of(row_bytes as u64),
                    _ => last == b'\n',
                };
                if ends_row { Ok(0) } else { Err(misplaced()) }
            }
            Reader::Text(stream) => {
                let told = |error| self.broken(input, false, Broken::Io(error));
                *stream = input.stream_from(offset).map_err(told)?.ok_or_else(misplaced)?;
                current.first = first(self.plan_of_beginning(input)?);
                Ok(offset - start)
            }
            #[cfg(feature = "parquet")]
            Reader::Columns(stream) => {
                let told = |what| Error::Columns { input: input.name.clone(), what };
                self.check_columns(input, stream)?;
                let from = input.columns(&self.fields, self.chunk_bytes as usize, offset);
                input.check_unchanged()?;
                *stream = from.map_err(told)?;
                Ok(0)
            }
        }
    }
}
