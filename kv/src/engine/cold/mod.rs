//! The cold tier of a running store: which parts its readers see, and when a part's file goes.
//!
//! - `view`: the parts as one reader sees them.
//! - `opening`: loads the parts of a checkpoint.
//! - `sort_buffer`: sorts the rows that leave the log. `dues`: which merge is next.
//! - `memory_plan`: how much of the fences and filters stays in memory.
//!
//! **Problem.** Batches look rows up in parts while the compactor adds and removes parts. A part's
//! file may go only when no batch reads it, no scan needs it, and no checkpoint names it.
//!
//! **Approach.** A [`ColdView`] is an immutable set of parts. The compactor publishes the next view
//! in place of the present one ([`Cold::publish`]). A reader takes the present view once
//! ([`Cold::view`]) and keeps its `Arc` over its reads. Each part is an `Arc` too, so its count
//! says whether a view of a reader has it. A checkpoint names its parts by number
//! ([`Cold::pin_checkpoint`]). A part that the present view lacks is *retired*. Its memory goes
//! with the last `Arc`, and its file goes after that, once no checkpoint names it
//! ([`Cold::remove_unneeded`]).
//!
//! **A mutex guards the view.** A reader takes the lock once for each batch with cold keys, clones
//! an `Arc` and releases the lock, which takes some 20 ns. A read of the disk for a cold key takes
//! thousands of times longer. A pointer under the epoch would need unsafe code for this price.
//! [`Cold::has_rows`] answers batches without the lock while the bank has no parts.
//!
//! **Order.** The compactor publishes a view, then moves the log's begin, then removes entries from
//! the index. A search loads the begin, then the index, then the view. The lock orders `publish`
//! before each `view` that follows it. So a search that misses a removed entry takes a view that
//! has the row.
//!
//! **Numbers.** Part numbers and run numbers only grow. A part that a crash or a roll back has
//! abandoned may have had the number of a later part. The salts of the two differ.

pub(crate) mod dues;
pub(crate) mod memory_plan;
mod opening;
mod scanning;
pub(crate) mod sort_buffer;
#[cfg(test)]
mod tests;
pub(crate) mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cold::head::part_address;
use crate::cold::keep::{Kept, PartMemory, PartNeeds};
use crate::cold::list::{ListedPart, PartList};
use crate::cold::part::Part;
use crate::device::Device;
use crate::error::Result;
use crate::memory::budget::Budget;
use crate::record::address::Address;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Planted, planted};
use memory_plan::MemoryPlan;
pub(crate) use opening::remove_unnamed;
use view::ColdView;

impl PartMemory for Cold {
    fn keep(&self, needs: &PartNeeds) -> Result<Kept> {
        let keep = self.memory_plan().keep(&self.budget, needs);
        let bytes = needs.memory_bytes(keep);
        if bytes > memory_plan::bytes_left(&self.budget, needs.kind) {
            return Err(self.budget.too_small_for_parts(self.budget.cold_bytes() + bytes));
        }
        let charge = self.budget.charge_cold(bytes)?;
        Ok(Kept { keep, charge: Some(charge) })
    }
}

/// The cold tier of a store.
#[derive(Debug)]
pub(crate) struct Cold {
    segment_bytes: u64,
    /// See `PartList::clean_from`.
    clean_from: u64,
    /// The present view.
    view: Mutex<Arc<ColdView>>,
    /// True if the present view has parts.
    has_rows: AtomicBool,
    /// True if the present view has a base. Once a bank has a base, it keeps one.
    has_base: AtomicBool,
    /// The hash at which the next base merge begins. Not in `state`: a thread with the lock of the
    /// compactor's signal reads it, and a scan may hold the lock of `state` while it loads parts.
    cursor: AtomicU64,
    state: Mutex<State>,
    /// The thread that removes files holds this lock. It takes `state` after it.
    removing: Mutex<()>,
    /// Bytes of the files of parts: those of the present view and retired ones.
    disk_bytes: AtomicU64,
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct State {
    next_part: u64,
    next_run: u64,
    /// The parts that each checkpoint names, in ascending order. `None` if its list can't be read:
    /// then it may name any part.
    checkpoints: Vec<(u64, Option<Vec<u64>>)>,
    retired: BTreeMap<u64, Retired>,
    /// Describes each file that could not be removed.
    not_removed: Vec<String>,
}

/// A part that the present view lacks.
#[derive(Debug)]
struct Retired {
    /// `None` once no reader has the part.
    part: Option<Arc<Part>>,
    file_bytes: u64,
}

/// Keeps the parts of a checkpoint that is being taken. If the checkpoint fails, dropping the pin
/// releases them.
pub(crate) struct PartsPin<'a> {
    cold: &'a Cold,
    number: u64,
    on_disk: bool,
    /// The parts of the checkpoint.
    pub(crate) list: PartList,
}

impl PartsPin<'_> {
    /// Called when the checkpoint is on disk. Its parts are then kept until [`Cold::unpin`].
    pub(crate) fn keep(&mut self) {
        self.on_disk = true;
    }
}

impl Drop for PartsPin<'_> {
    fn drop(&mut self) {
        if !self.on_disk {
            self.cold.unpin(&[self.number]);
        }
    }
}

impl Cold {
    /// Makes the cold tier with the numbers of `list` and its parts.
    fn new(
        segment_bytes: u64,
        budget: &Arc<Budget>,
        list: &PartList,
        parts: Vec<Arc<Part>>,
    ) -> Self {
        let view = ColdView::new(0, parts);
        Cold {
            segment_bytes,
            clean_from: list.clean_from,
            has_rows: AtomicBool::new(!view.is_empty()),
            has_base: AtomicBool::new(!view.base().is_empty()),
            disk_bytes: AtomicU64::new(view.file_bytes()),
            view: Mutex::new(Arc::new(view)),
            cursor: AtomicU64::new(list.cursor),
            state: Mutex::new(State {
                next_part: list.next_part,
                next_run: list.next_run,
                checkpoints: Vec::new(),
                retired: BTreeMap::new(),
                not_removed: Vec::new(),
            }),
            removing: Mutex::new(()),
            budget: Arc::clone(budget),
        }
    }

    /// Returns the present view.
    pub(crate) fn view(&self) -> Arc<ColdView> {
        Arc::clone(&self.view.lock())
    }

    /// False if the bank has no parts. A search that misses a row asks this before it takes a view.
    #[inline]
    pub(crate) fn has_rows(&self) -> bool {
        // Acquire: pairs with the Release in `publish`. The compactor removes entries from the
        // index after the store, so a search that misses a removed entry sees `true`.
        self.has_rows.load(Ordering::Acquire)
    }

    /// False if the bank had no base a moment ago. Only a view tells for sure.
    #[inline]
    pub(crate) fn has_base(&self) -> bool {
        // Relaxed: a caller that sees `false` too late takes a view, and one that sees `true` is
        // right.
        self.has_base.load(Ordering::Relaxed)
    }

    /// True if the mark *clean* of the record at a log address has its meaning.
    pub(crate) fn knows_clean(&self, address: Address) -> bool {
        self.has_rows() && address.raw() >= self.clean_from
    }

    /// Makes `next` the present view. Parts that only the view before has are retired. Only the
    /// compactor calls this.
    ///
    /// The added parts have taken memory of the budget, so the log's frames or the read cache may
    /// have too much (`Budget::is_over`): the caller makes them release it.
    ///
    /// # Panics
    /// If `next` does not follow the present view.
    pub(crate) fn publish(&self, next: ColdView) {
        let before = self.view();
        assert_eq!(next.number(), before.number() + 1, "one thread publishes views");
        let has =
            |view: &ColdView, part: &Arc<Part>| view.parts().any(|other| Arc::ptr_eq(other, part));
        let added = next.parts().filter(|part| !has(&before, part));
        let file_bytes = added.map(|part| part.file_bytes()).sum();
        self.disk_bytes.fetch_add(file_bytes, Ordering::Relaxed);
        let gone: Vec<Arc<Part>> =
            before.parts().filter(|part| !has(&next, part)).cloned().collect();
        let (has_rows, has_base) = (!next.is_empty(), !next.base().is_empty());
        drop(before);
        // Locked before the view changes, so that a thread with this lock finds each part in the
        // present view or in `retired`.
        let mut state = self.state.lock();
        // Both under the lock, so that no later view is overtaken. A view that is dropped here
        // leaves its parts to `retired`.
        let mut view = self.view.lock();
        let old = std::mem::replace(&mut *view, Arc::new(next));
        // Release: pairs with the Acquire in `has_rows`.
        self.has_rows.store(has_rows, Ordering::Release);
        self.has_base.store(has_base, Ordering::Relaxed);
        drop(view);
        drop(old);
        for part in gone {
            let file_bytes = part.file_bytes();
            let number = part.head().number;
            state.retired.insert(number, Retired { part: Some(part), file_bytes });
        }
    }

    /// Returns the number for a new part. No other part gets it.
    pub(crate) fn next_part(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_part += 1;
        state.next_part - 1
    }

    /// Returns the number that the next part gets. All parts so far have lower numbers.
    pub(crate) fn parts_end(&self) -> u64 {
        self.state.lock().next_part
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Returns the number for a new run. No other run gets it.
    pub(crate) fn next_run(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_run += 1;
        state.next_run - 1
    }

    /// Returns the hash at which the next base merge begins.
    pub(crate) fn cursor(&self) -> u64 {
        // Acquire: pairs with the Release in `set_cursor`.
        self.cursor.load(Ordering::Acquire)
    }

    pub(crate) fn set_cursor(&self, hash: u64) {
        // Release: pairs with the Acquire in `cursor`.
        self.cursor.store(hash, Ordering::Release);
    }

    /// True if there is memory for the fewest fences of a run with `data_bytes` bytes of rows.
    pub(crate) fn has_memory_for_run(&self, data_bytes: u64) -> bool {
        self.memory_plan().fits_run(&self.budget, data_bytes)
    }

    /// Returns how much of the fences and filters stays in memory.
    pub(crate) fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::of(&self.budget, self.view().base_size())
    }

    /// Returns the bytes of the files of all parts.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Describes each part's file that could not be removed.
    pub(crate) fn not_removed(&self) -> Vec<String> {
        self.state.lock().not_removed.clone()
    }

    /// Notes that checkpoint `number`, which is being taken, names the parts of the present view.
    /// Must be called while batches are paused.
    pub(crate) fn pin_checkpoint(&self, number: u64) -> PartsPin<'_> {
        // The lock is held until the view's parts are noted. Otherwise the compactor could retire
        // one of them and remove its file in between.
        let mut state = self.state.lock();
        let view = self.view();
        let mut parts: Vec<u64> = view.parts().map(|part| part.head().number).collect();
        parts.sort_unstable();
        state.checkpoints.retain(|&(other, _)| other != number);
        state.checkpoints.push((number, Some(parts)));
        let listed = |part: &Arc<Part>| ListedPart {
            head: part.head().clone(),
            file_bytes: part.file_bytes(),
            trailer_crc: part.trailer_crc(),
        };
        let list = PartList {
            next_part: state.next_part,
            next_run: state.next_run,
            cursor: self.cursor(),
            clean_from: self.clean_from,
            parts: view.parts().map(listed).collect(),
        };
        PartsPin { cold: self, number, on_disk: false, list }
    }

    /// Releases the parts of checkpoints that were removed.
    pub(crate) fn unpin(&self, removed: &[u64]) {
        self.state.lock().checkpoints.retain(|(number, _)| !removed.contains(number));
    }

    /// Frees the memory of retired parts that no reader has, and removes the files of those that no
    /// checkpoint names. If a file can't be removed, notes it and continues; the next call tries
    /// again.
    ///
    /// The files are removed without the lock of `state`, for which a checkpoint's pause waits. No
    /// checkpoint can name one of them meanwhile: a checkpoint names the parts of the present view,
    /// and a retired part never comes back to a view.
    ///
    /// Calls `note` for each file. Returns true if memory went back to the budget. A thread may
    /// wait for a frame of it, so the caller must then call `Log::allowance_changed`
    /// (`Core::remove_unneeded_parts` does).
    #[must_use]
    pub(crate) fn remove_unneeded(&self, device: &dyn Device, mut note: impl FnMut()) -> bool {
        // One thread removes at a time, so that each file's bytes are subtracted once.
        let _removing = self.removing.lock();
        let mut not_removed = Vec::new();
        let (unneeded, has_freed) = self.unneeded();
        for number in unneeded {
            match device.remove_part(part_address(number, self.segment_bytes)) {
                Ok(()) => {
                    if let Some(gone) = self.state.lock().retired.remove(&number) {
                        self.disk_bytes.fetch_sub(gone.file_bytes, Ordering::Relaxed);
                    }
                }
                Err(error) => not_removed.push(error.to_string()),
            }
            note();
        }
        self.state.lock().not_removed = not_removed;
        has_freed
    }

    /// Frees the memory of retired parts that no reader has. Returns the numbers of those that no
    /// checkpoint names, and whether memory was freed.
    fn unneeded(&self) -> (Vec<u64>, bool) {
        let mut state = self.state.lock();
        let State { checkpoints, retired, .. } = &mut *state;
        let names = |of: &Option<Vec<u64>>, number| {
            of.as_ref().is_none_or(|parts| parts.binary_search(&number).is_ok())
        };
        let mut unneeded = Vec::new();
        let mut has_freed = false;
        for (&number, Retired { part, .. }) in retired {
            // Only this list clones the `Arc` of a retired part, so a part that no reader has gets
            // no new reader.
            let early = planted(Planted::PartRemovedEarly);
            has_freed |= part.take_if(|part| Arc::get_mut(part).is_some() || early).is_some();
            if part.is_none() && !checkpoints.iter().any(|(_, parts)| names(parts, number)) {
                unneeded.push(number);
            }
        }
        (unneeded, has_freed)
    }
}
