//! Which file holds a log offset.
//!
//! The address space has two areas. Below [`COLD_BEGIN`] lie the segments of the log, one file for
//! each segment. From there on lie the parts of the cold tier. Each part has a span of its own, and
//! one file for the span. A part is at most as long as its span, so no transfer of a part crosses a
//! file.

/// The log offset at which the area of the cold tier begins. All addresses of the log lie below.
pub(crate) const COLD_BEGIN: u64 = 1 << 49;

/// Smallest span of a part in bytes. A bank with small segments has longer parts than segments.
const PART_SPAN_BYTES_MIN: u64 = 16 << 20;

/// Set in the number of each part's file. So the files of parts come after those of segments.
const PART_FILE: u64 = 1 << 63;

/// Returns the bytes of the address space that each part has. No part is longer.
pub(crate) fn part_span_bytes(segment_size_bytes: u64) -> u64 {
    segment_size_bytes.max(PART_SPAN_BYTES_MIN)
}

/// Returns the largest length of the file that holds log offset `offset`.
pub(crate) fn file_bytes_max(offset: u64, segment_size_bytes: u64) -> u64 {
    if is_of_part(offset) { part_span_bytes(segment_size_bytes) } else { segment_size_bytes }
}

/// True if a part, and not the log, has the byte at `offset`.
pub(crate) fn is_of_part(offset: u64) -> bool {
    offset >= COLD_BEGIN
}

/// The files of a device whose segments have `segment_size_bytes` bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    pub(super) segment_size_bytes: u64,
}

impl Placement {
    /// Returns the number of the file that holds log offset `offset`. Segments have numbers from 0
    /// on, and parts have larger numbers.
    pub(super) fn number(self, offset: u64) -> u64 {
        if is_of_part(offset) {
            PART_FILE | ((offset - COLD_BEGIN) / part_span_bytes(self.segment_size_bytes))
        } else {
            offset / self.segment_size_bytes
        }
    }

    /// Returns the log offset of the first byte of file `number`.
    pub(super) fn first(self, number: u64) -> u64 {
        if number & PART_FILE == 0 {
            number * self.segment_size_bytes
        } else {
            COLD_BEGIN + (number & !PART_FILE) * part_span_bytes(self.segment_size_bytes)
        }
    }

    /// Returns the offset of log offset `offset` in its file.
    pub(super) fn within(self, offset: u64) -> u64 {
        // Both areas begin at a multiple of the largest file.
        offset & (file_bytes_max(offset, self.segment_size_bytes) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_offset_has_one_file() {
        for segment_size_bytes in [512, 1 << 20, 16 << 20, 256 << 20, 64 << 30] {
            let files = Placement { segment_size_bytes };
            let span = part_span_bytes(segment_size_bytes);
            let last = COLD_BEGIN - segment_size_bytes;
            for first in [0, segment_size_bytes, last, COLD_BEGIN, COLD_BEGIN + 3 * span] {
                let bytes = file_bytes_max(first, segment_size_bytes);
                for within in [0, 511, bytes - 1] {
                    let number = files.number(first + within);
                    assert_eq!(number, files.number(first));
                    assert_eq!(
                        (files.first(number), files.within(first + within)),
                        (first, within)
                    );
                }
                assert_ne!(files.number(first + bytes), files.number(first));
            }
            assert!(files.number(last) < files.number(COLD_BEGIN));
            assert!(files.number(COLD_BEGIN) < files.number(COLD_BEGIN + span));
        }
    }
}
