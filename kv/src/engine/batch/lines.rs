//! The cache lines of a record that a batch prefetches.

/// Size in bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;
/// Largest number of lines of one record that a batch prefetches, besides the record's last line.
/// The processor's own prefetcher loads the remaining lines of a longer record.
const LINES_AHEAD_MAX: usize = 8;

/// Offsets in a record whose lines a batch prefetches. A record begins at any multiple of 8 bytes,
/// so two records of one length may touch different numbers of lines.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordLines {
    /// The offsets are the multiples of [`LINE_BYTES`] below `end`, and `last_byte`.
    end: usize,
    last_byte: usize,
}

impl RecordLines {
    pub(super) fn of(record_bytes: usize) -> Self {
        let lines = record_bytes.div_ceil(LINE_BYTES).min(LINES_AHEAD_MAX);
        Self { end: lines * LINE_BYTES, last_byte: record_bytes - 1 }
    }

    /// Calls `prefetch` with each offset except 0. Together with offset 0, the offsets touch every
    /// line of a record of at most 512 bytes. Two offsets may touch one line. The second prefetch
    /// of a line costs less than a branch that avoids it.
    #[inline(always)]
    pub(super) fn each_after_first(self, mut prefetch: impl FnMut(usize)) {
        let mut offset = LINE_BYTES;
        while offset < self.end {
            prefetch(offset);
            offset += LINE_BYTES;
        }
        prefetch(self.last_byte);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Regression test: the batch did not prefetch one middle line of some records (a quarter of
    /// those of 88 bytes, half of those of 104 bytes). Each operation on such a record waited for
    /// memory.
    #[test]
    fn every_line_of_a_record_is_prefetched_wherever_the_record_begins() {
        for record_bytes in (24..=LINES_AHEAD_MAX * LINE_BYTES).step_by(8) {
            for start in (0..LINE_BYTES).step_by(8) {
                let mut lines = BTreeSet::from([start / LINE_BYTES]);
                RecordLines::of(record_bytes).each_after_first(|offset| {
                    assert!(offset < record_bytes);
                    lines.insert((start + offset) / LINE_BYTES);
                });
                let touched = (start + record_bytes - 1) / LINE_BYTES + 1;
                assert_eq!(lines, (0..touched).collect(), "{record_bytes} bytes at {start}");
            }
        }
    }

    #[test]
    fn a_long_record_has_a_limited_number_of_lines_prefetched() {
        let mut offsets = Vec::new();
        RecordLines::of(4096).each_after_first(|offset| offsets.push(offset));
        assert_eq!(offsets, [64, 128, 192, 256, 320, 384, 448, 4095]);
    }
}
