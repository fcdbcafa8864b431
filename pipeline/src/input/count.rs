//! Counts the rows of text and packed inputs without decoding them.

use embank::locks::Mutex;

use super::chunks::{ChunkPlace, ChunkRows, Chunks, Claim};
use super::open::{Open, Serial};
use super::stream::RowEnds;
use crate::error::{Error, Result};
use crate::plan::Plan;

/// The rows of the chunks of a run, up to a place.
#[derive(Debug)]
pub(crate) struct RowCounts {
    /// The chunks, in the order of their numbers.
    chunks: Vec<ChunkCount>,
    total: u64,
}

#[derive(Debug)]
struct ChunkCount {
    input: usize,
    /// Begin of the chunk in its input.
    start: u64,
    /// Number of rows of the run before the chunk.
    first_row: u64,
}

impl RowCounts {
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The number of the chunk's first row. `None` if it was not counted.
    pub(crate) fn first_row(&self, claim: &Claim<'_>) -> Option<u64> {
        let chunk = self.chunks.get(claim.sequence as usize)?;
        let is_same = chunk.input == claim.input && chunk.start == claim.range.start;
        is_same.then_some(chunk.first_row)
    }
}

impl RowEnds {
    /// True if [`rows`](Self::rows) finds the rows.
    pub(crate) fn are_plain(self) -> bool {
        matches!(self, Self::Lines | Self::Rows(_))
    }

    /// The rows of a chunk: its lines or its packed rows. An empty line is a row if rows have one
    /// field.
    pub(crate) fn rows<'a>(
        self,
        plan: &Plan,
        text: &'a [u8],
    ) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let all = matches!(self, Self::Rows(_)) || plan.layout.fields() == 1;
        let mut rest = text;
        std::iter::from_fn(move || {
            // The loop ends: each turn takes a row from the rest.
            loop {
                let end = match self {
                    _ if rest.is_empty() => return None,
                    Self::Rows(bytes) => bytes,
                    _ => memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1),
                };
                let (row, others) = rest.split_at(end.min(rest.len()));
                rest = others;
                if all || !matches!(row, b"\n" | b"\r\n" | b"\r") {
                    return Some(row);
                }
            }
        })
    }
}

impl<'a> Chunks<'a> {
    /// Ends before a chunk that begins at `offset` of input number `input`. Must be called before
    /// the first claim, and [`has`](Self::has) must be true.
    pub(crate) fn end_at(&mut self, input: usize, offset: u64) {
        self.until = Some(ChunkPlace { input, offset });
    }

    /// True if input number `input` is a compressed text.
    pub(crate) fn is_compressed(&self, input: usize) -> Result<bool> {
        let open = Open::new(&self.inputs[input], self.row_ends)?;
        Ok(matches!(open.serial, Some(Serial::Text(Some(_)))))
    }

    /// Reads all chunks, and counts their rows. Bad rows count. Uses `threads` threads, or fewer if
    /// the system refuses some. The rows must be [plain](RowEnds::are_plain).
    pub(crate) fn count_rows(&self, threads: usize) -> Result<RowCounts> {
        let counted = Mutex::new(Vec::new());
        self.each(threads, |claim, rows| {
            if self.is_stopped() {
                return Err(Error::Stopped);
            }
            let rows = match rows {
                ChunkRows::Bytes(text) => {
                    self.row_ends.rows(&claim.plan, &text[claim.begin.bytes..]).count()
                }
                #[cfg(feature = "parquet")]
                ChunkRows::Columns(_) => unreachable!("the rows are plain"),
            };
            let rows = rows as u64;
            counted.lock().push((claim.sequence, claim.input, claim.range.start, rows));
            Ok(())
        })?;
        let mut counted = counted.into_inner();
        counted.sort_unstable();
        let mut total = 0;
        let chunks = counted.into_iter().map(|(_, input, start, rows)| {
            let first_row = total;
            total += rows;
            ChunkCount { input, start, first_row }
        });
        let chunks = chunks.collect();
        Ok(RowCounts { chunks, total })
    }
}
