//! A first-in, first-out ring of records, stored back to back in words.

use crate::record::layout::HEADER_BYTES;

/// Words of a record before its value.
pub(super) const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// Index of the header word that holds the record's length. This word is never 0 in a record.
const SHAPE_WORD: usize = 3;

/// The range of a shard's words that holds the records of one queue.
///
/// `head` and `tail` only grow. Modulo the capacity, they are positions in the range. A record does
/// not wrap. If the words before the range's end are too few for a record, the ring skips them. A
/// shape word of 0 marks the skipped words if they can hold a header.
#[derive(Debug)]
pub(super) struct Ring {
    base: usize,
    capacity: usize,
    head: u64,
    tail: u64,
}

/// Returns the number of words of the record at `at`.
pub(super) fn record_words(words: &[u64], at: usize) -> usize {
    HEADER_WORDS + (words[at + SHAPE_WORD] >> 48) as usize
}

impl Ring {
    pub(super) fn new(base: usize, capacity: usize) -> Self {
        Ring { base, capacity, head: 0, tail: 0 }
    }

    /// True if a record of this many words takes at most a quarter of the ring. A longer record
    /// would evict too many others.
    pub(super) fn suits(&self, words: usize) -> bool {
        words <= self.capacity / 4
    }

    fn offset(&self, at: u64) -> usize {
        (at % self.capacity as u64) as usize
    }

    /// Reserves `len` words at the tail and returns their place. `None` if the ring has no room.
    pub(super) fn push(&mut self, words: &mut [u64], len: usize) -> Option<usize> {
        let offset = self.offset(self.tail);
        let rest = self.capacity - offset;
        let skipped = if rest < len { rest } else { 0 };
        if (self.tail - self.head) as usize + skipped + len > self.capacity {
            return None;
        }
        if skipped >= HEADER_WORDS {
            words[self.base + offset + SHAPE_WORD] = 0;
        }
        self.tail += skipped as u64;
        let at = self.base + self.offset(self.tail);
        self.tail += len as u64;
        Some(at)
    }

    /// Removes the oldest record and returns its place. Its words stay valid until the next `push`.
    pub(super) fn pop(&mut self, words: &[u64]) -> Option<usize> {
        // The loop ends after at most two rounds: only one skipped end can precede a record.
        while self.head < self.tail {
            let offset = self.offset(self.head);
            let rest = self.capacity - offset;
            let at = self.base + offset;
            if rest < HEADER_WORDS || words[at + SHAPE_WORD] == 0 {
                self.head += rest as u64;
                continue;
            }
            self.head += record_words(words, at) as u64;
            return Some(at);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(words: &mut [u64], at: usize, len: usize, name: u64) {
        words[at..at + len].fill(name);
        words[at + SHAPE_WORD] = ((len - HEADER_WORDS) as u64) << 48 | 1 << 32;
    }

    #[test]
    fn records_of_any_length_come_out_in_order_and_whole() {
        // These lengths and capacities leave every possible remainder before the ring's end.
        for capacity in [40, 41, 42, 43, 44, 57] {
            let mut words = vec![0; 10 + capacity];
            let mut ring = Ring::new(10, capacity);
            let mut inside = std::collections::VecDeque::new();
            for name in 1..2000_u64 {
                let len = HEADER_WORDS + (name * 7 % 5) as usize;
                let at = loop {
                    if let Some(at) = ring.push(&mut words, len) {
                        break at;
                    }
                    let at = ring.pop(&words).unwrap();
                    let (expected, expected_len) = inside.pop_front().unwrap();
                    assert_eq!(record_words(&words, at), expected_len);
                    assert_eq!((words[at], words[at + expected_len - 1] > 0), (expected, true));
                };
                assert!(at >= 10 && at + len <= 10 + capacity);
                fill(&mut words, at, len, name);
                inside.push_back((name, len));
            }
            while let Some(at) = ring.pop(&words) {
                assert_eq!(words[at], inside.pop_front().unwrap().0);
            }
            assert!(inside.is_empty());
        }
    }
}
