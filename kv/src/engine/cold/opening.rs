//! Loads the parts of a checkpoint, and removes the files of parts that no checkpoint names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::{Cold, Retired};
use crate::cold::head::{PartSite, part_number};
use crate::cold::list::{ListedPart, PartList};
use crate::cold::part::Part;
use crate::device::{Device, PartFile};
use crate::error::Result;
use crate::memory::budget::Budget;
use crate::process::thread_start;

/// Most threads that load parts, the calling thread among them. Each has one part's reads in
/// flight, so that the drive has work while a thread checks what it has read.
const LOADERS_MAX: usize = 8;

impl Cold {
    /// Loads the parts of `list`, and charges the budget for their memory.
    ///
    /// # Errors
    /// `BudgetTooSmall` if the budget has no memory for the parts. `Damaged` or `Truncated` if a
    /// part fails its checks. The errors of the device.
    pub(crate) fn load(list: &PartList, site: PartSite<'_>, budget: &Arc<Budget>) -> Result<Self> {
        let loading = Loading {
            site,
            budget,
            parts: &list.parts,
            next: AtomicUsize::new(0),
            loaded_bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        };
        let parts = loading.run()?;
        Ok(Cold::new(site.segment_size_bytes, budget, list, parts))
    }

    /// Notes which parts the bank's checkpoints name, and removes the files of all other parts: a
    /// crash or a roll back has left them. `checkpoints` has the number of each checkpoint on disk,
    /// and its list. The list is `None` if it can't be read.
    ///
    /// # Errors
    /// The error of a file that can't be removed and whose number a later part gets. The errors of
    /// the listing.
    pub(crate) fn keep_only(
        &self,
        checkpoints: Vec<(u64, Option<PartList>)>,
        device: &dyn Device,
    ) -> Result<()> {
        let files = remove_unnamed(&checkpoints, self.segment_bytes, device)?;
        let mut state = self.state.lock();
        let present: BTreeSet<u64> = self.view().parts().map(|part| part.head().number).collect();
        let named = checkpoints.into_iter().map(|(number, list)| (number, list.map(numbers_of)));
        state.checkpoints = named.collect();
        for PartFile { begin, bytes } in files {
            let number = part_number(begin, self.segment_bytes);
            if !present.contains(&number) {
                self.disk_bytes.fetch_add(bytes, super::Ordering::Relaxed);
                state.retired.insert(number, Retired { part: None, file_bytes: bytes });
            }
        }
        Ok(())
    }
}

/// Removes the files of parts that no checkpoint names, and returns the other files. `checkpoints`
/// has the number of each checkpoint on disk, oldest first, and its list of parts. The list is
/// `None` if it can't be read: then each part with a number below the newest checkpoint's
/// `next_part` stays, and all parts if the newest checkpoint's list can't be read.
///
/// # Errors
/// The error of a file that can't be removed and whose number a later part gets. The errors of the
/// listing.
pub(crate) fn remove_unnamed(
    checkpoints: &[(u64, Option<PartList>)],
    segment_bytes: u64,
    device: &dyn Device,
) -> Result<Vec<PartFile>> {
    let lists = || checkpoints.iter().filter_map(|(_, list)| list.as_ref());
    let all_known = lists().count() == checkpoints.len();
    // Numbers only grow, so no checkpoint names a part from the newest `next_part` on. If the
    // newest list can't be read, any number may be named.
    let next_part = match checkpoints.last() {
        None => 0,
        Some((_, newest)) => newest.as_ref().map_or(u64::MAX, |newest| newest.next_part),
    };
    let named: BTreeSet<u64> =
        lists().flat_map(|list| &list.parts).map(|part| part.head.number).collect();
    let mut kept = Vec::new();
    for file in device.part_files()? {
        let number = part_number(file.begin, segment_bytes);
        if number >= next_part {
            device.remove_part(file.begin)?;
        } else if !all_known || named.contains(&number) || device.remove_part(file.begin).is_err() {
            kept.push(file);
        }
    }
    Ok(kept)
}

/// Returns the numbers of a list's parts, in ascending order.
fn numbers_of(list: PartList) -> Vec<u64> {
    let mut numbers: Vec<u64> = list.parts.iter().map(|part| part.head.number).collect();
    numbers.sort_unstable();
    numbers
}

/// Parts that several threads load.
struct Loading<'a> {
    site: PartSite<'a>,
    budget: &'a Budget,
    parts: &'a [ListedPart],
    /// Place of the next part that no thread has taken.
    next: AtomicUsize,
    /// Bytes of the files of the loaded parts.
    loaded_bytes: AtomicU64,
    /// True if a part failed: the threads then take no more.
    failed: AtomicBool,
}

impl Loading<'_> {
    /// Loads all parts. After an error, the memory of the loaded parts stays charged, because the
    /// opening fails and drops the budget.
    fn run(&self) -> Result<Vec<Arc<Part>>> {
        let helpers = self.parts.len().min(LOADERS_MAX).saturating_sub(1);
        let mut loaded = std::thread::scope(|scope| {
            // Fewer threads load more slowly, so a refused thread is no error.
            let start =
                |i| thread_start::start_scoped(scope, format!("embank-loader-{i}"), || self.work());
            let started: Vec<_> = (0..helpers).map_while(|i| start(i).ok()).collect();
            let mut loaded = self.work();
            for thread in started {
                loaded.extend(thread.join().unwrap_or_else(|panic| {
                    std::panic::resume_unwind(panic);
                }));
            }
            loaded
        });
        loaded.sort_unstable_by_key(|(place, _)| *place);
        loaded.into_iter().map(|(_, part)| part.map(Arc::new)).collect()
    }

    /// Loads parts until all are taken or one has failed.
    fn work(&self) -> Vec<(usize, Result<Part>)> {
        let mut loaded = Vec::new();
        while !self.failed.load(Ordering::Relaxed) {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(listed) = self.parts.get(place) else { break };
            let part = self.one(listed);
            if part.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            loaded.push((place, part));
        }
        loaded
    }

    fn one(&self, listed: &ListedPart) -> Result<Part> {
        let part = Part::load(self.site, &listed.head, listed.file_bytes, listed.trailer_crc)?;
        let loaded_bytes =
            self.loaded_bytes.fetch_add(listed.file_bytes, Ordering::Relaxed) + listed.file_bytes;
        let memory_bytes = part.memory_bytes() as u64;
        self.budget.charge_cold(memory_bytes).map_err(|_| {
            // Assumes that the other parts take as much memory for each byte of their files.
            let so_far = self.budget.cold_bytes() + memory_bytes;
            let all_bytes: u64 = self.parts.iter().map(|part| part.file_bytes).sum();
            let all = so_far as f64 / loaded_bytes as f64 * all_bytes as f64;
            self.budget.too_small_for_parts(all as u64)
        })?;
        Ok(part)
    }
}
