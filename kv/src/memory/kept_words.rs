//! Words that stay in memory for long.
//!
//! **Problem.** The filters of parts live for minutes or hours, and the buffers with which merges
//! make them live for milliseconds. In a heap, both lie side by side, so the heap cannot give back
//! the memory that becomes free between filters. A bank of 300 million rows with a budget of 1 GiB
//! had 160 MiB of such memory.
//!
//! **Approach.** Many words have a map of their own, which goes back to the system as a whole. Few
//! words stay in the heap, because a map has whole pages of the system.

use std::ops::Deref;

use super::region::Region;

/// Words of at least this number of bytes have a map. With system pages of 4 KiB, the last page of
/// a map then leaves at most 3% of it unused.
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// Words that do not change.
#[derive(Debug)]
pub(crate) struct KeptWords(Place);

#[derive(Debug)]
enum Place {
    Heap(Box<[u64]>),
    /// A map, and the number of words in it.
    Map(Region, usize),
}

impl From<Vec<u64>> for KeptWords {
    fn from(words: Vec<u64>) -> Self {
        let bytes = size_of_val(&*words);
        if bytes >= MAPPED_BYTES_MIN
            // A process that may have no more maps keeps the words in the heap.
            && let Ok(map) = Region::reserve(bytes, false)
        {
            // SAFETY: the map has this many bytes, begins at a page, and has no other user. The
            // words and the map do not overlap.
            unsafe {
                map.as_ptr().cast::<u64>().copy_from_nonoverlapping(words.as_ptr(), words.len())
            };
            return KeptWords(Place::Map(map, words.len()));
        }
        KeptWords(Place::Heap(words.into_boxed_slice()))
    }
}

impl Deref for KeptWords {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        match &self.0 {
            Place::Heap(words) => words,
            // SAFETY: `from` has filled this many words, and no code changes them. The slice
            // borrows the map.
            Place::Map(map, count) => unsafe {
                std::slice::from_raw_parts(map.as_ptr().cast::<u64>(), *count)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_in_the_heap_and_in_a_map() {
        for count in [0, 1, MAPPED_BYTES_MIN / 8 - 1, MAPPED_BYTES_MIN / 8, MAPPED_BYTES_MIN + 1] {
            let words: Vec<u64> = (0..count as u64).map(|i| i * i).collect();
            let kept = KeptWords::from(words.clone());
            assert_eq!(matches!(kept.0, Place::Map(..)), count * 8 >= MAPPED_BYTES_MIN);
            assert_eq!(*kept, *words);
        }
    }
}
