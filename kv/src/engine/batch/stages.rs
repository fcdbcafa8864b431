//! Runs the keys of a chunk through the stages that the essay of `engine::batch` describes, so that
//! their cache misses overlap.

use std::ptr;

use super::{Batch, Effect, GROUP_KEYS, Pending, Place, Step, Work};
use crate::index::{Candidates, Entry};
use crate::log::PageFull;
use crate::log::view::View;
use crate::memory::cpu_hint;
use crate::record::address::Address;
use crate::record::layout::{RecordRef, Shape};

/// The search results of a group of keys that passes the stages together.
struct Group {
    /// Each key's first matching entry, as it was when the index was probed. The batch may have
    /// worked on as many as 64 keys since then.
    entries: [Entry; GROUP_KEYS],
    /// The addresses in memory of the entries' records; null for a record that is not in memory.
    places: [*const u8; GROUP_KEYS],
}

impl Group {
    #[inline]
    fn new() -> Self {
        Group { entries: [Entry::EMPTY; GROUP_KEYS], places: [ptr::null(); GROUP_KEYS] }
    }
}

/// The result of a search through memory.
enum Walk<'g> {
    Found(Place<'g>),
    /// The row is not in memory. The search continues on disk at this entry and address, and then
    /// in the listed chains.
    Disk(Entry, Address, Vec<(Entry, Address)>),
    Missing,
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// Works on keys `at..end` with their cache misses overlapped. Leaves in `at` the first key
    /// that was not completed.
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

    /// `cpu_hint` explains `NEAR`. `NEAR` is a compile-time constant, because a branch at each
    /// prefetch costs more than the choice gains.
    fn run_stages_into<const NEAR: bool>(
        &mut self,
        at: &mut usize,
        end: usize,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let index = self.core.index.outline();
        let key_hash = self.core.key_hash;
        // The hashes of the group whose buckets are being prefetched.
        let mut hashes = [0; GROUP_KEYS];
        let first = *at;
        for (to, &key) in hashes.iter_mut().zip(&self.keys[first..end]) {
            *to = key_hash.of(self.table.number, key);
            index.prefetch_into::<NEAR>(*to);
        }
        // While the records of `group` arrive, the batch works on the rows of the group before it.
        let (mut group, mut before) = (&mut Group::new(), &mut Group::new());
        let mut before_count = 0;
        for start in (first..end).step_by(GROUP_KEYS) {
            let count = GROUP_KEYS.min(end - start);
            index.first_matches(&hashes[..count], &mut group.entries);
            for (place, &entry) in group.places.iter_mut().zip(&group.entries[..count]) {
                *place = Self::prefetch_header::<NEAR>(entry, view);
            }
            for (to, &key) in hashes.iter_mut().zip(&self.keys[start + count..end]) {
                *to = key_hash.of(self.table.number, key);
                index.prefetch_into::<NEAR>(*to);
            }
            for &place in &group.places[..count] {
                self.prefetch_rest::<NEAR>(place);
            }
            self.run_steps(at, before, before_count, view)?;
            before_count = count;
            std::mem::swap(&mut group, &mut before);
        }
        self.run_steps(at, before, before_count, view)
    }

    /// Works on the `count` keys of `group`. The first of them is the key at index `at`. Leaves in
    /// `at` the first key that was not completed.
    #[inline(never)]
    fn run_steps(
        &mut self,
        at: &mut usize,
        group: &Group,
        count: usize,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let start = *at;
        let shape = Shape::new(self.table.number, self.value_bytes);
        let keys = &self.keys[start..][..count];
        let found = group.entries[..count].iter().zip(&group.places[..count]);
        for (k, (&key, (&entry, &place))) in keys.iter().zip(found).enumerate() {
            if self.step_in_place(start + k, key, entry, place, shape, view) {
                continue;
            }
            if entry == Entry::BEYOND {
                self.scratch.deferred.push((start + k) as u32);
                continue;
            }
            if let Err(full) = self.step(start + k, key, entry, view) {
                *at = start + k;
                return Err(full);
            }
        }
        *at = start + count;
        Ok(())
    }

    /// Completes a key whose row is in memory and stays there, which is the usual case. False if
    /// the key needs `step`. The call has then changed nothing, though a peek may have written to
    /// its destination. `shape` is the shape of the table's records. `place` is the place of the
    /// entry's record; null if that record is not in memory.
    #[inline(always)]
    fn step_in_place(
        &mut self,
        i: usize,
        key: u64,
        entry: Entry,
        place: *const u8,
        shape: Shape,
        view: View<'_>,
    ) -> bool {
        if VARIABLE || place.is_null() || !(W::IN_PLACE || W::EFFECT == Effect::Peek) {
            return false;
        }
        // SAFETY: the duty is to pass a complete record in memory. The thread has been pinned since
        // `prefetch_header` found the entry's address above the head of `view`, and took `place`
        // from `view` for this address. The address came from the index.
        let record = unsafe { RecordRef::new(place.cast(), entry.address()) };
        if !record.has(shape, key) {
            return false;
        }
        if W::EFFECT == Effect::Peek {
            return matches!(self.peek(i, record, view), Step::Done);
        }
        view.mutable(record.address()) && matches!(self.in_place(i, record), Some(Step::Done))
    }

    /// Works on the keys whose entries are in overflow buckets (a few percent of the keys). Their
    /// records are prefetched together, so their cache misses overlap too.
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

    /// Works on each key whose index in the batch is in `places`. `entries` holds each key's first
    /// matching entry, as it was when the index was probed. Adds one to `at` for each completed
    /// key.
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

    /// Prefetches the first line of an entry's record. Returns the record's address in memory, or
    /// null if the record is not in memory.
    #[inline]
    fn prefetch_header<const NEAR: bool>(entry: Entry, view: View<'_>) -> *const u8 {
        if entry.is_nowhere() || !view.in_memory(entry.address()) {
            return ptr::null();
        }
        let place = view.place(entry.address()).cast_const();
        cpu_hint::line_into::<NEAR, _>(place);
        place
    }

    /// Prefetches the other lines of a record.
    #[inline]
    pub(super) fn prefetch_rest<const NEAR: bool>(&self, place: *const u8) {
        if place.is_null() {
            return;
        }
        self.lines.each_after_first(|offset| {
            cpu_hint::line_into::<NEAR, _>(place.wrapping_add(offset));
        });
    }

    /// Works on one key. `entry` is the key's first matching entry, as it was when the index was
    /// probed. Not inlined, because `step_in_place` completes most keys of tables of fixed width.
    #[inline(never)]
    fn step(
        &mut self,
        i: usize,
        key: u64,
        entry: Entry,
        view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        if !entry.is_empty() && view.in_memory(entry.address()) {
            // SAFETY: the duty is to pass the address of a complete record in memory. The thread is
            // pinned, the address is above the head, and it came from the index.
            let record = unsafe { view.record(entry.address()) };
            if record.is(self.table.number, key) {
                let place = Place { entry, record };
                if let Step::Done = self.on_record(i, place, view)? {
                    return Ok(());
                }
            }
        }
        self.search(i, view)
    }

    /// Searches for a key from the index, in all chains that may hold it, and works on its row.
    #[inline(never)]
    pub(super) fn search(
        &mut self,
        i: usize,
        mut view: View<'_>,
    ) -> std::result::Result<(), PageFull> {
        let hash = self.core.key_hash.of(self.table.number, self.keys[i]);
        // The loop ends: a round repeats only if another thread moved this row or changed this
        // chain.
        loop {
            let mut searched = std::mem::take(&mut self.scratch.searched);
            // Loaded before the index, as `insert` requires.
            searched.settled = self.core.log.settled();
            self.core.index.candidates(hash, &mut searched.entries);
            let step = match self.walk(self.keys[i], &searched.entries, view) {
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
                        searched: searched.clone(),
                    });
                    Ok(Step::Done)
                }
                Walk::Missing if self.asks_cold() => self.beyond_log(i as u32, hash, &searched),
                Walk::Missing => self.on_missing(i, hash, &searched, false),
            };
            self.scratch.searched = searched;
            if let Step::Done = step? {
                return Ok(());
            }
            // The log's beginning may have passed the row that was found (see `publish`).
            view.begin = self.core.log.begin();
        }
    }

    /// Follows the key's chains as far as their records are in memory.
    fn walk<'g>(&self, key: u64, candidates: &Candidates, view: View<'g>) -> Walk<'g> {
        // Usually at most one chain continues on disk. `on_disk` holds one such chain without an
        // allocation.
        let mut on_disk = None;
        let mut rest = Vec::new();
        for entry in candidates.iter() {
            let mut address = entry.address();
            // The loop ends: addresses fall along a chain, and a chain ends at `NONE` or below the
            // log's beginning.
            while address.raw() >= view.begin.max(1) {
                if !view.in_memory(address) {
                    rest.extend(on_disk.replace((entry, address)));
                    break;
                }
                // SAFETY: the duty is to pass the address of a complete record in memory. The
                // thread is pinned, the address is above the head, and it came from the index or
                // from a link.
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
