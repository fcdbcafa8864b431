//! Takes the keys of a chunk through the stages, with their cache misses overlapped (see the essay
//! of `engine::batch`).

use std::ptr;

use super::{Batch, Effect, GROUP_KEYS, LINE_BYTES, Pending, Place, Step, Work};
use crate::index::{Candidates, Entry};
use crate::log::PageFull;
use crate::log::view::View;
use crate::memory::cpu_hint;
use crate::record::address::Address;

/// A group of keys that goes through the stages together. It stays in the first-level cache beside
/// its rows.
struct Group {
    /// The hashes of the keys whose buckets are being fetched.
    hashes: [u64; GROUP_KEYS],
    entries: [Entry; GROUP_KEYS],
    /// Where the entries' records lie; null for a record that is not in memory.
    places: [*const u8; GROUP_KEYS],
}

impl Group {
    #[inline]
    fn new() -> Self {
        Group {
            hashes: [0; GROUP_KEYS],
            entries: [Entry::EMPTY; GROUP_KEYS],
            places: [ptr::null(); GROUP_KEYS],
        }
    }
}

/// Where a search through memory ended.
enum Walk<'g> {
    Found(Place<'g>),
    /// The row is not in memory. The search continues on disk, in this chain at this address, and
    /// in the other chains listed.
    Disk(Entry, Address, Vec<(Entry, Address)>),
    Missing,
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Works on keys `at..end` with their cache misses overlapped. Leaves in `at` the first key
    /// that it did not complete.
    pub(super) fn run_stages(
        &mut self,
        at: &mut usize,
        end: usize,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        if cpu_hint::is_near_faster() {
            self.run_stages_into::<true>(at, end, view)
        } else {
            self.run_stages_into::<false>(at, end, view)
        }
    }

    /// `NEAR` is explained in `cpu_hint`. It is a constant, because a branch beside each fetch
    /// costs more than the choice gains.
    fn run_stages_into<const NEAR: bool>(
        &mut self,
        at: &mut usize,
        end: usize,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let index = self.core.index.outline();
        let key_hash = self.core.key_hash;
        let mut group = Group::new();
        let start = *at;
        // Fetches the buckets of the first group. Those of each later group are fetched while the
        // group before it waits for its records.
        for (to, &key) in group.hashes.iter_mut().zip(&self.keys[start..end]) {
            *to = key_hash.of(self.table.number, key);
            index.prefetch_into::<NEAR>(*to);
        }
        for start in (start..end).step_by(GROUP_KEYS) {
            let keys = &self.keys[start..end.min(start + GROUP_KEYS)];
            let next_keys = &self.keys[start + keys.len()..end];
            let found = group.entries.iter_mut().zip(&mut group.places);
            for (((to, place), &hash), _) in found.zip(&group.hashes).zip(keys) {
                *to = index.first_match(hash);
                *place = Self::prefetch_header::<NEAR>(*to, view);
            }
            for (to, &key) in group.hashes.iter_mut().zip(next_keys) {
                *to = key_hash.of(self.table.number, key);
                index.prefetch_into::<NEAR>(*to);
            }
            for &place in &group.places[..keys.len()] {
                self.prefetch_rest::<NEAR>(place);
            }
            *at = start;
            self.run_steps(at, &group.entries[..keys.len()], view)?;
        }
        Ok(())
    }

    /// Works on the keys from `at` on; `entries` are what their first matching slots held when they
    /// were probed. Leaves in `at` the first key that it did not complete.
    #[inline(never)]
    fn run_steps(
        &mut self,
        at: &mut usize,
        entries: &[Entry],
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let start = *at;
        for (k, &entry) in entries.iter().enumerate() {
            if entry == Entry::BEYOND {
                self.scratch.deferred.push((start + k) as u32);
                continue;
            }
            if let Err(full) = self.step(start + k, self.keys[start + k], entry, view) {
                *at = start + k;
                return Err(full);
            }
        }
        *at = start + entries.len();
        Ok(())
    }

    /// Works on the keys whose slots are in overflow buckets, a few in a hundred. Their records are
    /// prefetched together, so their cache misses overlap too.
    pub(super) fn run_deferred_stages(
        &mut self,
        at: &mut usize,
        places: &[u32],
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        if cpu_hint::is_near_faster() {
            self.run_deferred_stages_into::<true>(at, places, view)
        } else {
            self.run_deferred_stages_into::<false>(at, places, view)
        }
    }

    fn run_deferred_stages_into<const NEAR: bool>(
        &mut self,
        at: &mut usize,
        places: &[u32],
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let mut group = Group::new();
        for places in places[*at..].chunks(GROUP_KEYS) {
            let found = group.entries.iter_mut().zip(&mut group.places);
            for ((to, place), &i) in found.zip(places) {
                let hash = self.core.key_hash.of(self.table.number, self.keys[i as usize]);
                *to = self.core.index.first_match_beyond(hash);
                *place = Self::prefetch_header::<NEAR>(*to, view);
            }
            for &place in &group.places[..places.len()] {
                self.prefetch_rest::<NEAR>(place);
            }
            self.run_deferred_steps(at, places, &group.entries, view)?;
        }
        Ok(())
    }

    /// Runs the step of each key whose index in the batch is in `places`. `entries` holds the first
    /// matching slot of each key, as it was when it was probed. Adds one to `at` for each key.
    #[inline(never)]
    fn run_deferred_steps(
        &mut self,
        at: &mut usize,
        places: &[u32],
        entries: &[Entry],
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        for (&entry, &i) in entries.iter().zip(places) {
            self.step(i as usize, self.keys[i as usize], entry, view)?;
            *at += 1;
        }
        Ok(())
    }

    /// Fetches the first line of an entry's record. Returns the record's place, or null if it is
    /// not in memory.
    #[inline]
    fn prefetch_header<const NEAR: bool>(entry: Entry, view: View<'_>) -> *const u8 {
        if entry.is_nowhere() || !view.in_memory(entry.address()) {
            return ptr::null();
        }
        let place = view.place(entry.address()).cast_const();
        cpu_hint::line_into::<NEAR, _>(place);
        place
    }

    /// Fetches a record's other lines.
    #[inline]
    pub(super) fn prefetch_rest<const NEAR: bool>(&self, place: *const u8) {
        if place.is_null() || W::HEADERS_ALONE {
            return;
        }
        // Fetches only the lines that the record touches, because each fetch takes a fill buffer.
        // The address of the last byte stands for the last line. If that is the line before, the
        // second fetch costs nothing.
        let mut line = LINE_BYTES;
        while line < self.prefetch_bytes {
            cpu_hint::line_into::<NEAR, _>(place.wrapping_add(line));
            line += LINE_BYTES;
        }
        cpu_hint::line_into::<NEAR, _>(place.wrapping_add(self.last_byte));
    }

    /// Works on one key; `entry` is what its first matching slot held when it was probed.
    #[inline(always)]
    fn step(
        &mut self,
        i: usize,
        key: u64,
        entry: Entry,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        if !entry.is_empty() && view.in_memory(entry.address()) {
            // SAFETY: pinned, above the head; the address came from the index.
            let record = unsafe { view.record(entry.address()) };
            if record.is(self.table.number, key) {
                let place = Place { entry, record };
                let step = if VARIABLE {
                    self.on_record(i, place, view)?
                } else if W::EFFECT == Effect::Peek {
                    self.peek(i, record, view)
                } else if self.may_change_in_place(record, view) {
                    match self.in_place(i, record) {
                        Some(step) => step,
                        None => unreachable!("a value of fixed width has room"),
                    }
                } else {
                    self.on_record(i, place, view)?
                };
                if let Step::Done = step {
                    return Ok(());
                }
            }
        }
        self.search(i, view)
    }

    /// Looks for a key from the index on, in all chains that may hold it.
    #[inline(never)]
    pub(super) fn search(
        &mut self,
        i: usize,
        mut view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let hash = self.core.key_hash.of(self.table.number, self.keys[i]);
        // Ends: each further round means that another thread moved this row or changed this chain.
        loop {
            let mut candidates = std::mem::take(&mut self.scratch.candidates);
            self.core.index.candidates(hash, &mut candidates);
            let step = match self.walk(self.keys[i], &candidates, view) {
                Walk::Found(place) => self.on_record(i, place, view),
                Walk::Disk(entry, address, rest) => {
                    self.scratch.pending.push(Pending {
                        i: i as u32,
                        hash,
                        entry,
                        address,
                        begin: view.begin,
                        bytes: self.read_bytes,
                        rest,
                        done: false,
                        searched: candidates.clone(),
                    });
                    Ok(Step::Done)
                }
                Walk::Missing => self.on_missing(i, hash, &candidates),
            };
            self.scratch.candidates = candidates;
            if let Step::Done = step? {
                return Ok(());
            }
            // The row that was found may lie below the log's beginning by now (`publish`).
            view.begin = self.core.log.begin();
        }
    }

    /// Follows the chains as far as they are in memory.
    fn walk<'g>(&self, key: u64, candidates: &Candidates, view: View<'g>) -> Walk<'g> {
        // Rarely more than one chain leaves memory; the first one needs no allocation.
        let mut on_disk = None;
        let mut rest = Vec::new();
        for entry in candidates.iter() {
            let mut address = entry.address();
            // Ends: addresses fall along a chain, which ends at `NONE` or below the log's
            // beginning.
            while address.raw() >= view.begin.max(1) {
                if !view.in_memory(address) {
                    rest.extend(on_disk.replace((entry, address)));
                    break;
                }
                // SAFETY: pinned, above the head; the address came from the index or a link.
                let record = unsafe { view.record(address) };
                if record.is(self.table.number, key) {
                    return Walk::Found(Place { entry, record });
                }
                address = record.link().previous();
            }
        }
        match on_disk {
            Some((entry, address)) => Walk::Disk(entry, address, rest),
            None => Walk::Missing,
        }
    }
}
