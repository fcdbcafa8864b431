//! A shard of the cache, with its own memory, index, queues and lock.
//!
//! ```text
//! | index: buckets of 16 words of 32 bits | ghost: 16-bit marks | small queue | main queue |
//! ```
//!
//! The policy is S3-FIFO (Yang et al., SOSP 2023). A row from disk enters the small queue, which
//! has a tenth of the memory. At the end of the small queue, a row that was used there moves to the
//! main queue, and any other row leaves only a mark. A row that comes back while its mark exists
//! enters the main queue at once. At the end of the main queue, a row that was used returns to the
//! start of this queue. It returns once for each counted use, up to three times. A row that is read
//! only once therefore displaces no row of the main queue. A hit moves no record. It increments a
//! 2-bit counter in a cache line that the hit reads anyway.
//!
//! A record is stored in its form on disk, except for parts of the header words 1 and 3. These
//! parts are the checksum, which has been verified, the flags, which have no meaning on disk, and
//! the generation (a count of the row's changes), which is only a hint for `retention`. In a shard,
//! the bits of these parts hold the record's address and use count. A cached row therefore costs
//! its record, 6 bytes of index and 2 bytes of mark.

use super::ring::{Ring, record_words};
use crate::error::Result;
use crate::memory::region::Region;
use crate::record::address::Address;
use crate::testing::mechanisms::{Mechanism, is_on};

// A shard stores records as words and returns them as the little-endian bytes on disk.
const _: () = assert!(cfg!(target_endian = "little"));

/// Number of index words in a bucket, which fills one cache line.
const BUCKET_PLACES: usize = 16;
/// Low bits of an index word: the record's offset in the queues, in words, plus 1. The upper bits
/// are a tag from the hash. A word of 0 is free.
const PLACE_BITS: u32 = 26;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
/// Largest memory of a shard, in bytes. An index word can't address records beyond it.
pub(super) const SHARD_BYTES_MAX: usize = 1 << (PLACE_BITS + 2);
/// Largest use count of a row. The count's field has two bits.
const USES_MAX: u64 = 3;
const USES_SHIFT: u32 = 16;
const USES_MASK: u64 = 3 << USES_SHIFT;
/// Number of rows that one eviction may return to the start of the main queue. The limit bounds the
/// work of an eviction.
const ROUNDS_MAX: usize = 32;
/// The small queue has one part in `SMALL_PART` of the memory for rows.
const SMALL_PART: usize = 10;

/// Side effects of an insertion.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inserted {
    /// True if another row was evicted.
    pub(super) evicted: bool,
    /// True if the inserted row had been evicted recently, so that its mark still existed. A larger
    /// cache would still have had the row.
    pub(super) returned: bool,
}

/// A shard. A closed shard has no memory, finds no row and accepts no row.
#[derive(Debug, Default)]
pub(super) struct Shard(Option<Live>);

#[derive(Debug)]
struct Live {
    memory: Region,
    buckets: usize,
    marks: usize,
    /// Offset of the queues, in words of 64 bits.
    queues_at: usize,
    small: Ring,
    main: Ring,
}

/// The parts of a shard's memory.
struct Parts<'a> {
    index: &'a mut [u32],
    marks: &'a mut [u16],
    words: &'a mut [u64],
}

fn range(hash: u64, count: usize) -> usize {
    (((hash & 0xFFFF_FFFF) * count as u64) >> 32) as usize
}

fn mark_of(hash: u64) -> u16 {
    // The lowest bit is set, because a mark of 0 means "no mark".
    (hash >> 34) as u16 | 1
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32 & 63
}

fn index_word(hash: u64, at: usize) -> u32 {
    tag_of(hash) << PLACE_BITS | (at as u32 + 1)
}

/// Splits a shard's memory into the words of index and marks, and the words of the queues.
fn split(memory: &mut Region, queues_at: usize) -> (&mut [u64], &mut [u64]) {
    let words = memory.len() / 8;
    // SAFETY: the system has mapped the region's bytes and set them to 0. The region is aligned to
    // a page. `memory` is the only way to the bytes, and is borrowed exclusively.
    let all = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast::<u64>(), words) };
    all.split_at_mut(queues_at)
}

fn words_of(memory: &mut Region, queues_at: usize) -> &mut [u64] {
    split(memory, queues_at).1
}

fn address_of(words: &[u64], at: usize) -> u64 {
    (words[at + 1] >> 32 | (words[at + 3] & 0xFFFF) << 32) << 3
}

/// The sizes of index, marks and queues in a shard's memory.
struct Layout {
    buckets: usize,
    marks: usize,
    /// Offset of the queues in words. The next two fields, the queues' lengths, are in words too.
    queues_at: usize,
    small: usize,
    main: usize,
}

impl Layout {
    fn new(bytes: usize, record_bytes: usize) -> Self {
        let rows = bytes / (record_bytes + 9);
        // On average 5 of 8 index places are in use. About one row in 200 then finds its bucket
        // full.
        let buckets = (rows * 8 / 5).div_ceil(BUCKET_PLACES).max(1);
        let marks = rows.next_multiple_of(4).max(4);
        let queues_at = (buckets * BUCKET_PLACES * 4 + marks * 2) / 8;
        let words = (bytes / 8).saturating_sub(queues_at);
        let small = if is_on(Mechanism::SmallQueue) { words / SMALL_PART } else { 0 };
        Layout { buckets, marks, queues_at, small, main: words - small }
    }
}

/// True if a shard of `bytes`, laid out for records of `record_bytes`, would accept such a record.
pub(super) fn would_take(bytes: usize, record_bytes: usize) -> bool {
    Ring::new(0, Layout::new(bytes, record_bytes).main).suits(record_bytes / 8)
}

impl Shard {
    /// Allocates memory of `bytes`, laid out for records of about `record_bytes`. Any earlier rows
    /// of the shard are lost.
    pub(super) fn open(&mut self, bytes: usize, record_bytes: usize, huge: bool) -> Result<()> {
        debug_assert!(bytes <= SHARD_BYTES_MAX && bytes.is_multiple_of(4096));
        let Layout { buckets, marks, queues_at, small, main } = Layout::new(bytes, record_bytes);
        *self = Shard(Some(Live {
            memory: Region::reserve(bytes, huge)?,
            buckets,
            marks,
            queues_at,
            small: Ring::new(0, small.max(1)),
            main: Ring::new(small, main.max(1)),
        }));
        Ok(())
    }

    pub(super) fn close(&mut self) {
        self.0 = None;
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Prefetches the index line of a row.
    pub(super) fn prefetch_index(&self, hash: u64) {
        if let Some(live) = &self.0 {
            let bucket = range(hash, live.buckets);
            crate::memory::cpu_hint::line(
                live.memory.as_ptr().wrapping_add(bucket * BUCKET_PLACES * 4),
            );
        }
    }

    /// Prefetches the first two lines of each row whose index word has the right tag.
    pub(super) fn prefetch_row(&mut self, hash: u64) {
        let Some(live) = &mut self.0 else { return };
        let bucket = live.bucket(hash);
        let queues_at = live.queues_at;
        let memory = live.memory.as_ptr();
        let tag = tag_of(hash);
        let index = &live.parts().index[bucket];
        for &word in index.iter().filter(|&&word| word != 0 && word >> PLACE_BITS == tag) {
            let place = queues_at + (word & PLACE_MASK) as usize - 1;
            let row = memory.wrapping_add(place * 8);
            crate::memory::cpu_hint::line(row);
            crate::memory::cpu_hint::line(row.wrapping_add(64));
        }
    }

    /// Copies the record at `address` into `into` and counts a use. Returns false if the shard does
    /// not have the record.
    pub(super) fn get(&mut self, address: Address, hash: u64, into: &mut Vec<u64>) -> bool {
        let Some(live) = &mut self.0 else { return false };
        let Some((_, at)) = live.find(address, hash) else { return false };
        let words = live.parts().words;
        let uses = words[at + 3] & USES_MASK;
        if uses < USES_MAX << USES_SHIFT {
            words[at + 3] += 1 << USES_SHIFT;
        }
        into.clear();
        into.extend_from_slice(&words[at..at + record_words(words, at)]);
        true
    }

    /// Removes the record at `address`, for which no search will ask again. Does nothing if the
    /// shard does not have the record.
    pub(super) fn remove(&mut self, address: Address, hash: u64) {
        let Some(live) = &mut self.0 else { return };
        if let Some((place, _)) = live.find(address, hash) {
            live.parts().index[place] = 0;
        }
    }

    /// Adds the verified record `image` of the log's `address`.
    pub(super) fn insert(&mut self, address: Address, hash: u64, image: &[u8]) -> Inserted {
        let mut done = Inserted::default();
        let Some(live) = &mut self.0 else { return done };
        let len = image.len() / 8;
        if !live.main.suits(len) || live.find(address, hash).is_some() {
            return done;
        }
        let mark = range(hash, live.marks);
        let marks = live.parts().marks;
        if marks[mark] == mark_of(hash) {
            marks[mark] = 0;
            done.returned = true;
        }
        let at = if done.returned || !live.small.suits(len) {
            live.room_in_main(len, &mut done)
        } else {
            live.room_in_small(len, &mut done)
        };
        let words = live.parts().words;
        for (word, bytes) in words[at..at + len].iter_mut().zip(image.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
        }
        let number = address.raw() >> 3;
        words[at + 1] = words[at + 1] & 0xFFFF_FFFF | number << 32;
        words[at + 3] = words[at + 3] & !0xFFFF_FFFF | number >> 32;
        live.enter(hash, at, &mut done);
        done
    }
}

impl Live {
    fn parts(&mut self) -> Parts<'_> {
        let index = self.buckets * BUCKET_PLACES;
        let marks = self.marks;
        let (front, words) = split(&mut self.memory, self.queues_at);
        // SAFETY: `queues_at` counts the index and the marks, so both slices lie in `front` and do
        // not overlap. `front` begins at a page and `index` is a multiple of 16, so both are
        // aligned. Any bits are valid integers. The slices keep the exclusive borrow of `front`.
        unsafe {
            let start = front.as_mut_ptr().cast::<u32>();
            Parts {
                index: std::slice::from_raw_parts_mut(start, index),
                marks: std::slice::from_raw_parts_mut(start.add(index).cast(), marks),
                words,
            }
        }
    }

    fn bucket(&self, hash: u64) -> std::ops::Range<usize> {
        let first = range(hash, self.buckets) * BUCKET_PLACES;
        first..first + BUCKET_PLACES
    }

    /// Returns the record's place in the index, and its offset in the queues, in words. `None` if
    /// the shard does not have the record.
    fn find(&mut self, address: Address, hash: u64) -> Option<(usize, usize)> {
        let bucket = self.bucket(hash);
        let tag = tag_of(hash);
        let Parts { index, words, .. } = self.parts();
        bucket.into_iter().find_map(|place| {
            let word = index[place];
            let at = ((word & PLACE_MASK) as usize).wrapping_sub(1);
            let found =
                word != 0 && word >> PLACE_BITS == tag && address_of(words, at) == address.raw();
            found.then_some((place, at))
        })
    }

    /// Adds the record at `at` to the index.
    fn enter(&mut self, hash: u64, at: usize, done: &mut Inserted) {
        let bucket = self.bucket(hash);
        let index = &mut self.parts().index[bucket];
        let free = index.iter().position(|&word| word == 0);
        let place = free.unwrap_or_else(|| {
            // If the bucket is full, the record displaces an arbitrary row of the bucket. The
            // displaced record stays in its queue until it reaches the queue's end.
            done.evicted = true;
            (hash >> 50) as usize % BUCKET_PLACES
        });
        index[place] = index_word(hash, at);
    }

    /// Returns the index place that leads to the record at `at`, and the hash of the record's
    /// address. `None` if the record was removed or displaced.
    fn place_of(&mut self, at: usize) -> Option<(usize, u64)> {
        let hash = super::hash(Address::new(address_of(self.parts().words, at)));
        let bucket = self.bucket(hash);
        let word = index_word(hash, at);
        let first = bucket.start;
        let found = self.parts().index[bucket].iter().position(|&other| other == word)?;
        Some((first + found, hash))
    }

    fn room_in_small(&mut self, len: usize, done: &mut Inserted) -> usize {
        // The loop ends: each round removes a record from the small queue, and an empty queue has
        // room (`suits`).
        loop {
            let words = words_of(&mut self.memory, self.queues_at);
            if let Some(at) = self.small.push(words, len) {
                return at;
            }
            if let Some(at) = self.small.pop(words) {
                self.leave_small(at, done);
            }
        }
    }

    /// Moves a record from the end of the small queue to the main queue, or evicts it.
    fn leave_small(&mut self, at: usize, done: &mut Inserted) {
        let Some((place, hash)) = self.place_of(at) else { return };
        let words = self.parts().words;
        let len = record_words(words, at);
        let used = words[at + 3] & USES_MASK != 0;
        // While the main queue has free words, it also takes rows that were not used.
        let free = self.main.push(words_of(&mut self.memory, self.queues_at), len);
        if !used && free.is_none() {
            self.evict(place, hash, done);
            return;
        }
        self.parts().index[place] = 0;
        let to = free.unwrap_or_else(|| self.room_in_main(len, done));
        let words = self.parts().words;
        words.copy_within(at..at + len, to);
        words[to + 3] &= !USES_MASK;
        self.enter(hash, to, done);
    }

    fn room_in_main(&mut self, len: usize, done: &mut Inserted) -> usize {
        let mut rounds = 0;
        // The loop ends: at most `ROUNDS_MAX` of the removed records are added again, and an empty
        // queue has room (`suits`).
        loop {
            let words = words_of(&mut self.memory, self.queues_at);
            if let Some(at) = self.main.push(words, len) {
                return at;
            }
            let Some(at) = self.main.pop(words) else { continue };
            let Some((place, hash)) = self.place_of(at) else { continue };
            let words = words_of(&mut self.memory, self.queues_at);
            let len = record_words(words, at);
            let goes_round = words[at + 3] & USES_MASK != 0 && is_on(Mechanism::CacheRounds);
            let again = goes_round && rounds < ROUNDS_MAX;
            // The record's new place may overlap its old place, which `copy_within` allows. `push`
            // may skip the ring's end and write a shape of 0 there. That cannot overwrite the
            // record: `push` skips the end only if the free words continue at the ring's start, and
            // the record is the last part of the free words.
            match again.then(|| self.main.push(words, len)).flatten() {
                Some(to) => {
                    rounds += 1;
                    words.copy_within(at..at + len, to);
                    words[to + 3] -= 1 << USES_SHIFT;
                    self.parts().index[place] = index_word(hash, to);
                }
                None => self.evict(place, hash, done),
            }
        }
    }

    fn evict(&mut self, place: usize, hash: u64, done: &mut Inserted) {
        let mark = range(hash, self.marks);
        let parts = self.parts();
        parts.index[place] = 0;
        parts.marks[mark] = mark_of(hash);
        done.evicted = true;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::record::address::TableNumber;
    use crate::record::layout::{HEADER_BYTES, RecordImage, Shape, record_bytes};

    const SHARD_BYTES: usize = 64 << 10;

    /// Returns the bytes of a record on disk: link, clock, key, shape with a checksum, and value.
    fn image(address: u64, value_bytes: usize) -> Vec<u8> {
        let shape = Shape::new(TableNumber(3), value_bytes).0 | 0xDEAD_BEEF;
        let clock = 0x1234_5678_0000_0007;
        let mut image: Vec<u8> = [address >> 4, clock, address ^ 5, shape]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        image.resize(HEADER_BYTES + value_bytes, address as u8);
        image
    }

    fn shard(record_bytes: usize) -> Shard {
        let mut shard = Shard::default();
        shard.open(SHARD_BYTES, record_bytes, false).unwrap();
        shard
    }

    fn insert(shard: &mut Shard, address: u64, value_bytes: usize) -> Inserted {
        let at = Address::new(address);
        shard.insert(at, super::super::hash(at), &image(address, value_bytes))
    }

    /// True if the shard has the record. Checks that it equals the inserted record.
    fn has(shard: &mut Shard, address: u64, value_bytes: usize) -> bool {
        let at = Address::new(address);
        let mut into = Vec::new();
        if !shard.get(at, super::super::hash(at), &mut into) {
            return false;
        }
        let found = RecordImage::of_words(&into);
        let expected = image(address, value_bytes);
        let expected = RecordImage::new(&expected);
        assert!(found.is(TableNumber(3), address ^ 5));
        assert_eq!(found.link(), expected.link());
        assert_eq!(found.clock().outstanding(), 7);
        assert_eq!(found.padded_value(), expected.padded_value());
        true
    }

    #[test]
    fn what_is_found_is_what_was_kept_for_any_mixture_of_lengths() {
        let mut shard = shard(80);
        let mut lengths = HashMap::new();
        let mut found = 0;
        let mut x = 1_u64;
        for round in 0..if cfg!(miri) { 2_000_u64 } else { 100_000 } {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            let address = ((x >> 33) % 3000 + 1) << 32 | 8;
            let value_bytes = *lengths.entry(address).or_insert((x >> 20) as usize % 40 * 8);
            if has(&mut shard, address, value_bytes) {
                found += 1;
                if x >> 60 == 0 {
                    let at = Address::new(address);
                    shard.remove(at, super::super::hash(at));
                    assert!(!has(&mut shard, address, value_bytes));
                }
            } else {
                insert(&mut shard, address, value_bytes);
                assert!(has(&mut shard, address, value_bytes), "just put in");
            }
        }
        assert!(found > 100);
    }

    #[test]
    fn rows_fill_nearly_all_of_the_memory() {
        for value_bytes in [8, 64, 512] {
            let bytes = record_bytes(value_bytes);
            let mut shard = shard(bytes);
            let addresses: Vec<u64> = (1..20_000).map(|i| i * bytes as u64 / 8 * 8).collect();
            for &address in &addresses {
                insert(&mut shard, address, value_bytes);
            }
            let kept = addresses.iter().filter(|&&a| has(&mut shard, a, value_bytes)).count();
            let share = (kept * bytes) as f64 / SHARD_BYTES as f64;
            let least = SHARD_BYTES as f64 * 0.93 - bytes as f64 * 2.0;
            let overhead = 9.0 / bytes as f64;
            assert!((kept * bytes) as f64 > least * (1.0 - overhead), "{value_bytes}: {share}");
        }
    }

    #[test]
    fn a_row_that_comes_back_soon_enters_the_main_queue_and_stays() {
        let mut shard = shard(96);
        for address in (1..2000_u64).map(|i| i * 96) {
            insert(&mut shard, address, 64);
        }
        // The first 600 rows fill the memory. Most later rows passed through the small queue and
        // left only their marks. The last 60 rows are still in the small queue.
        let again: Vec<u64> = (1850..1900_u64).map(|i| i * 96).collect();
        let returned =
            again.iter().filter(|&&address| insert(&mut shard, address, 64).returned).count();
        assert!(returned > 30, "{returned} of 50 marks stood");
        for address in (3000..5000_u64).map(|i| i * 96) {
            insert(&mut shard, address, 64);
        }
        let kept = again.iter().filter(|&&address| has(&mut shard, address, 64)).count();
        // A full bucket may have displaced a few rows.
        assert!(kept + 3 >= returned, "{kept} of {returned} outlived a scan");
    }

    #[test]
    fn a_closed_shard_and_a_record_too_long_are_no_matter() {
        let mut closed = Shard::default();
        assert_eq!(insert(&mut closed, 96, 64), Inserted::default());
        assert!(!has(&mut closed, 96, 64));
        let mut shard = shard(96);
        insert(&mut shard, 96, SHARD_BYTES / 2);
        assert!(!has(&mut shard, 96, SHARD_BYTES / 2));
        assert!(would_take(SHARD_BYTES, 96) && !would_take(SHARD_BYTES, SHARD_BYTES / 2));
        shard.close();
        assert!(!has(&mut shard, 96, 64));
    }
}
