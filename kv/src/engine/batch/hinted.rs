//! Finds the rows of a chunk by the hints of an earlier batch, without the index. The essay of
//! `hints` says why using hints is safe.
//!
//! The batch prefetches the records of the next group of keys before it works on the current group.

use std::ops::Range;
use std::ptr;

use super::row::{self, InPlace, Peeked, ValueRoom};
use super::{Batch, Effect, GROUP_KEYS, Work};
use crate::hints::RowHint;
use crate::log::PageFull;
use crate::log::view::View;
use crate::memory::cpu_hint;
use crate::operation::Operation;
use crate::record::address::Address;
use crate::record::layout::{RecordRef, Shape};
use crate::sync::{Planted, planted};

/// The records of a group of keys.
struct Group {
    addresses: [Address; GROUP_KEYS],
    /// The addresses of the records in this process's memory.
    places: [*const u8; GROUP_KEYS],
    /// Number of the group's keys. 0 after the last group.
    keys: usize,
}

impl<W: Work, const VARIABLE: bool> Batch<'_, W, VARIABLE> {
    /// True if all these keys have hints that lead to the mutable region. The records stay in
    /// memory until the pin under which `view` was taken is released.
    pub(super) fn has_hints(&mut self, places: Range<usize>, view: View<'_>) -> bool {
        let first = if planted(Planted::HintUnchecked) { view.head } else { view.read_only };
        // A hint of 0 means "no hint".
        let first = first.max(1);
        // The accesses that `Operation::hints` names.
        matches!(W::EFFECT, Effect::Peek | Effect::Update | Effect::Put | Effect::Touch)
            && !VARIABLE
            && self.hints().is_some_and(|all| all[places].iter().all(|&at| at >= first))
    }

    /// Returns the hinted addresses of the rows of the whole batch. `None` if the operation has no
    /// hints.
    #[inline]
    fn hints(&mut self) -> Option<&[u64]> {
        let (store, keys) = (self.core.store, self.keys.len());
        self.work.caller().hints()?.of_store(store, keys)
    }

    /// Works on keys `at..end`, all of which have hints. Leaves in `at` the first key that was not
    /// completed.
    pub(super) fn run_hinted(
        &mut self,
        at: &mut usize,
        end: usize,
        view: View<'_>,
    ) -> Result<(), PageFull> {
        if cpu_hint::is_near_faster() {
            self.run_hinted_into::<true>(at, end, view)
        } else {
            self.run_hinted_into::<false>(at, end, view)
        }
    }

    fn run_hinted_into<const NEAR: bool>(
        &mut self,
        at: &mut usize,
        end: usize,
        view: View<'_>,
    ) -> Result<(), PageFull> {
        let shape = Shape::new(self.table.number, self.value_bytes);
        let mut next = self.begin_group::<NEAR>(*at..end, view);
        while next.keys > 0 {
            let group = next;
            next = self.begin_group::<NEAR>(*at + group.keys..end, view);
            let rows = group.addresses[..group.keys].iter().zip(&group.places);
            for (&address, &place) in rows {
                self.step_hinted(*at, address, place, shape, view)?;
                *at += 1;
            }
        }
        // Keys remain only if the operation stopped giving hints after `has_hints` had checked
        // them.
        if *at < end { self.run_stages(at, end, view) } else { Ok(()) }
    }

    /// Prefetches the records of the first keys of `places`, at most `GROUP_KEYS`, and returns them
    /// as a group.
    #[inline]
    fn begin_group<const NEAR: bool>(&mut self, places: Range<usize>, view: View<'_>) -> Group {
        let mut group = Group {
            addresses: [Address::NONE; GROUP_KEYS],
            places: [ptr::null(); GROUP_KEYS],
            keys: 0,
        };
        // The operation may give other hints at each call. Therefore `step_hinted` checks each
        // address again, although `has_hints` has checked all of them.
        let Some(all) = self.hints() else { return group };
        group.keys = places.len().min(GROUP_KEYS);
        let to = group.addresses.iter_mut().zip(&mut group.places);
        for ((address, place), &hint) in to.zip(&all[places]) {
            *address = Address::new(hint);
            *place = view.place(*address).cast_const();
            cpu_hint::line_into::<NEAR, _>(*place);
        }
        for &place in &group.places[..group.keys] {
            self.prefetch_rest::<NEAR>(place);
        }
        group
    }

    /// Works on one key. Its row was at `address` when the hint was noted.
    #[inline(always)]
    fn step_hinted(
        &mut self,
        i: usize,
        address: Address,
        place: *const u8,
        shape: Shape,
        view: View<'_>,
    ) -> Result<(), PageFull> {
        let is_there =
            view.mutable(address) || planted(Planted::HintUnchecked) && view.in_memory(address);
        if !address.is_none() && is_there {
            // SAFETY: the duty is to pass a complete record in memory. The thread has been pinned
            // since `begin_group` took `place` from `view` for this address. The mutable region
            // lies above the head, and the record was complete when the hint was made.
            let record = unsafe { RecordRef::new(place.cast(), address) };
            if record.has(shape, self.keys[i]) {
                let room =
                    ValueRoom { words: &mut self.scratch.value, value_bytes: self.value_bytes };
                if W::EFFECT == Effect::Peek {
                    // If the record is a tombstone, the key may have a newer record in another
                    // chain. So the batch searches for the key.
                    return match row::peek::<W, VARIABLE>(self.work, i, record, room) {
                        Peeked::Row => {
                            self.tally.hits_mutable += 1;
                            Ok(())
                        }
                        Peeked::Moved | Peeked::Missing => self.search(i, view),
                    };
                }
                let hint = RowHint::new(self.core.store, address);
                // If the outcome is `Tombstone`, dropping it unlocks the record.
                let done =
                    row::in_place::<W, VARIABLE>(self.work, i, record, hint, self.clock, room);
                match done {
                    InPlace::Row { promoted } => {
                        self.tally.hits_mutable += 1;
                        self.tally.promoted_used += u64::from(promoted);
                        return Ok(());
                    }
                    InPlace::Blocked => {
                        self.outcome.blocked.push(i as u32);
                        return Ok(());
                    }
                    InPlace::Moved
                    | InPlace::LeftAlone
                    | InPlace::Tombstone(_)
                    | InPlace::NoRoom
                    | InPlace::TooLong(_) => {}
                }
            }
        }
        self.search(i, view)
    }
}
