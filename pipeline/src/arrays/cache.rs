//! A cache of arrays that decoders have made, for later epochs.
//!
//! **Problem.** Each epoch decodes the same values to the same arrays.
//!
//! **Approach.** An array's key is a hash of 128 bits of everything that made it: the decoder with
//! its version, the array's shape and dtype, and the value's bytes. So a changed input, another
//! spec and another version of a decoder have other keys, and equal values share an array. The
//! batches are the same with any arrays in the cache. What came first stays: passes are cyclic, and
//! a cache that replaced the oldest array would have lost each one before it is needed again.
//!
//! Arrays are in memory up to a budget ([`RunOptions::cache_bytes`]), and in the
//! [`spool`](super::spool).
//!
//! [`RunOptions::cache_bytes`]: crate::RunOptions::cache_bytes

use std::collections::HashMap;
use std::sync::Arc;

use embank::locks::{Mutex, RwLock};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use super::segment::{KeptArray, Segment};
use super::spool::{Spool, SpoolReader};
use super::{ArrayMaker, ArrayPlan};
use crate::error::{Result, refused};
use crate::options::RunOptions;

/// Bytes that an array in memory takes beside its values: its entry in the table.
const ENTRY_BYTES: u64 = 64;

/// The arrays of a pipeline's costly columns.
#[derive(Debug)]
pub(crate) struct ArrayCache {
    /// For each column of arrays, what its keys begin with.
    seeds: Vec<u64>,
    budget: u64,
    kept: RwLock<Kept>,
    /// What new arrays go into.
    segment: Mutex<Option<Arc<Segment>>>,
    spool: Option<Spool>,
}

#[derive(Debug, Default)]
struct Kept {
    arrays: HashMap<u128, KeptArray>,
    /// Bytes of these arrays, and of those that are being copied.
    bytes: u64,
}

/// Where the arrays of a run came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ArrayCounts {
    /// Arrays that decoders have made.
    pub(crate) made: u64,
    /// Arrays from memory.
    pub(crate) cached: u64,
    /// Arrays from the spool.
    pub(crate) spooled: u64,
    /// Groups of the spool that were damaged. Their arrays were made again.
    pub(crate) damaged: u64,
}

impl ArrayCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.made += other.made;
        self.cached += other.cached;
        self.spooled += other.spooled;
        self.damaged += other.damaged;
    }
}

impl ArrayCache {
    /// Returns the cache of a pipeline with these columns. `None` if it is to keep nothing.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) without such a column. [`Error::Io`](crate::Error::Io) if
    /// the spool's folder can't be read.
    pub(crate) fn new(arrays: &[ArrayPlan], options: &RunOptions) -> Result<Option<Self>> {
        let (budget, spool) = (options.cache_bytes, &options.spool);
        if budget == 0 && spool.is_none() {
            return Ok(None);
        }
        if arrays.is_empty() {
            return refused(
                "a cache and a spool keep arrays of Image and Decode, and no column has such an operator: text is \
                 faster to read than to keep",
            );
        }
        let seeds: Vec<_> = arrays.iter().map(seed).collect();
        let spool =
            spool.as_ref().map(|options| Spool::open(options, arrays, &seeds)).transpose()?;
        let (kept, segment) = (RwLock::default(), Mutex::default());
        Ok(Some(Self { seeds, budget, kept, segment, spool }))
    }

    /// The key of the array that column number `column` makes of `value`.
    pub(crate) fn key(&self, column: usize, value: &[u8]) -> u128 {
        xxh3_128_with_seed(value, self.seeds[column])
    }

    /// Copies the array of `key` into `array`. Returns false if it has to be made.
    pub(crate) fn read(
        &self,
        column: usize,
        key: u128,
        array: &mut [u8],
        reader: &mut SpoolReader,
        counts: &mut ArrayCounts,
    ) -> bool {
        let found = self.kept.read().arrays.get(&key).cloned();
        if let Some(found) = found {
            array.copy_from_slice(&found);
            counts.cached += 1;
            return true;
        }
        let Some(spool) = &self.spool else { return false };
        let is_spooled = spool.read(column, key, array, reader, counts);
        if is_spooled {
            counts.spooled += 1;
            self.keep(key, array);
        }
        is_spooled
    }

    /// Keeps an array that a decoder has made.
    pub(crate) fn insert(&self, column: usize, key: u128, array: &[u8]) {
        let kept = self.keep(key, array);
        if let Some(spool) = self.spool.as_ref().filter(|spool| spool.takes(key)) {
            spool.write(column, key, kept.unwrap_or_else(|| KeptArray::Own(array.into())));
        }
    }

    /// Keeps an array in memory, if there is room for it. Returns it if it is new.
    fn keep(&self, key: u128, array: &[u8]) -> Option<KeptArray> {
        let bytes = array.len() as u64 + ENTRY_BYTES;
        let takes =
            |kept: &Kept| kept.bytes + bytes <= self.budget && !kept.arrays.contains_key(&key);
        if !takes(&self.kept.read()) {
            return None;
        }
        // Two threads may copy equal arrays at a time. The second copy then takes room for nothing.
        {
            let mut kept = self.kept.write();
            if !takes(&kept) {
                return None;
            }
            kept.bytes += bytes;
        }
        let copied = self.copy(array);
        let mut kept = self.kept.write();
        match &copied {
            Some(array) => drop(kept.arrays.insert(key, array.clone())),
            None => kept.bytes -= bytes,
        }
        copied
    }

    /// Copies an array into a segment. `None` if the system gives no memory.
    fn copy(&self, array: &[u8]) -> Option<KeptArray> {
        let mut segment = self.segment.lock().clone();
        // The loop ends: a new segment has room, and other threads fill a limited number of them.
        loop {
            if let Some(kept) = segment.as_ref().and_then(|segment| segment.push(array)) {
                return Some(kept);
            }
            let mut current = self.segment.lock();
            let is_full = match (&*current, &segment) {
                (Some(current), Some(full)) => Arc::ptr_eq(current, full),
                (current, _) => current.is_none(),
            };
            if is_full {
                *current = Some(Segment::for_array(array.len()).ok()?);
            }
            segment.clone_from(&current);
        }
    }

    /// Waits until all arrays are in the spool's files.
    pub(crate) fn end_run(&self) {
        if let Some(spool) = &self.spool {
            spool.end_run();
        }
    }

    /// Returns why the spool takes no more arrays, once.
    pub(crate) fn take_failure(&self) -> Option<String> {
        self.spool.as_ref().and_then(Spool::take_failure)
    }
}

/// Returns a hash of how a column's arrays are made. A pipeline reads the spools of other versions
/// of this crate, so equal hashes must stand for equal arrays in all versions.
fn seed(array: &ArrayPlan) -> u64 {
    let made = match &array.maker {
        // The number is the version of the decoder of pictures. A change of its arrays raises it.
        ArrayMaker::Image(image) => serde_json::json!(["image", 1, image]),
        ArrayMaker::Named { decoder, version } => serde_json::json!(["decode", decoder, version]),
    };
    xxh3_64(serde_json::json!([made, array.shape, array.dtype]).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY_BYTES: usize = 5 << 20;

    /// Six arrays fill a segment.
    #[test]
    fn arrays_fill_one_segment_after_the_other_up_to_the_budget() {
        let kept_arrays = 20;
        let cache = ArrayCache {
            seeds: Vec::new(),
            budget: kept_arrays * (ARRAY_BYTES as u64 + ENTRY_BYTES),
            kept: RwLock::default(),
            segment: Mutex::default(),
            spool: None,
        };
        let array = |key: u128| vec![key as u8; ARRAY_BYTES];
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let cache = &cache;
                scope.spawn(move || {
                    for key in (0..10).map(|n| n * 3 + thread) {
                        cache.keep(key, &array(key));
                    }
                });
            }
        });
        let kept = cache.kept.read();
        assert_eq!((kept.arrays.len() as u64, kept.bytes), (kept_arrays, cache.budget));
        assert!(kept.arrays.iter().all(|(&key, kept)| **kept == *array(key)));
    }
}
