//! Memory of the arrays that a cache keeps.
//!
//! An allocation for each array would make the system map and clear its pages one by one, which
//! takes longer than the copy. A segment is a large map with advice for huge pages, which arrays
//! fill one after the other. A cache frees no array before its end, so a segment has no holes.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// Bytes of a segment, if no larger array is to fit.
const SEGMENT_BYTES: usize = 32 << 20;

/// Memory that arrays fill one after the other.
pub(super) struct Segment {
    map: MmapRaw,
    /// Bytes that arrays have or are about to fill.
    used: AtomicUsize,
}

/// A kept array.
#[derive(Debug, Clone)]
pub(super) enum KeptArray {
    /// In a segment.
    Shared {
        segment: Arc<Segment>,
        begin: usize,
        bytes: usize,
    },
    Own(Box<[u8]>),
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Segment").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Segment {
    /// Makes a segment that has room for an array of `bytes` bytes.
    pub(super) fn for_array(bytes: usize) -> io::Result<Arc<Self>> {
        let map = MmapOptions::new().len(bytes.max(SEGMENT_BYTES)).map_anon()?;
        #[cfg(target_os = "linux")]
        {
            // The advice may fail: small pages are slower but correct.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Arc::new(Self { map: map.into(), used: AtomicUsize::new(0) }))
    }

    /// Copies an array into the segment. `None` if there is no room.
    pub(super) fn push(self: &Arc<Self>, array: &[u8]) -> Option<KeptArray> {
        let bytes = array.len();
        let end = |begin: usize| begin.checked_add(bytes).filter(|&end| end <= self.map.len());
        // Relaxed: the update gives each call a range of its own, and orders nothing else.
        let begin = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).ok()?;
        // SAFETY: the range lies within the map, which lives as long as `self`. No other call gets
        // bytes of it, and `deref` reads them only through the value that is returned below, so
        // no thread reads or writes them now. `array` is no part of the map that is being written.
        unsafe {
            let into = self.map.as_mut_ptr().add(begin);
            std::ptr::copy_nonoverlapping(array.as_ptr(), into, bytes);
        }
        Some(KeptArray::Shared { segment: Arc::clone(self), begin, bytes })
    }
}

impl Deref for KeptArray {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(array) => array,
            // SAFETY: `push` has written the range before it returned this value or the one that
            // this is a clone of. What moved the value to this thread orders the write before the
            // read. Nothing writes the range again. The map lives as long as `segment`.
            Self::Shared { segment, begin, bytes } => unsafe {
                std::slice::from_raw_parts(segment.map.as_ptr().add(*begin), *bytes)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_several_threads_keep_their_values() {
        let segment = Segment::for_array(0).unwrap();
        let fill = |thread: u8| {
            let array = |n: usize| vec![thread ^ n as u8; 1000 + n % 700];
            (0..2000).map(|n| (array(n), segment.push(&array(n)).unwrap())).collect::<Vec<_>>()
        };
        let kept: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || fill(n))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(kept.iter().all(|(expected, kept)| **kept == **expected));
    }

    #[test]
    fn an_array_that_does_not_fit_leaves_the_segment_as_it_is() {
        let segment = Segment::for_array(SEGMENT_BYTES + 1).unwrap();
        assert!(segment.push(&vec![1; SEGMENT_BYTES + 2]).is_none());
        let kept = segment.push(&vec![2; SEGMENT_BYTES + 1]).unwrap();
        assert!(segment.push(&[3]).is_none() && segment.push(&[]).is_some());
        assert!(kept.iter().all(|&byte| byte == 2));
    }
}
