//! Loads the parts of a checkpoint, and removes the files of parts that no checkpoint names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::memory_plan::{BaseSize, MemoryPlan};
use super::{Cold, Retired};
use crate::cold::head::{PartSite, part_number};
use crate::cold::keep::{Kept, PartNeeds};
use crate::cold::list::{ListedPart, PartList};
use crate::cold::loading::PartFound;
use crate::cold::part::Part;
use crate::device::{Device, PartFile};
use crate::error::Result;
use crate::memory::budget::Budget;
use crate::process::thread_start;

/// Most threads that load parts, the calling thread among them. Each has one part's reads in
/// flight, so that the drive has work while a thread checks what it has read.
const LOADERS_MAX: usize = 8;
/// The threads that load parts take at most the budget divided by this number for what they read,
/// unless one part needs more.
const LOADING_PART: u64 = 8;

impl Cold {
    /// Loads the parts of `list`. The budget says how much of their fences and filters stays in
    /// memory, and is charged for it.
    ///
    /// # Errors
    /// `BudgetTooSmall` if the budget has no memory for the parts. `Damaged` or `Truncated` if a
    /// part fails its checks. The errors of the device.
    pub(crate) fn load(list: &PartList, site: PartSite<'_>, budget: &Arc<Budget>) -> Result<Self> {
        let parts = Loading { site, budget, parts: &list.parts }.run()?;
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
    budget: &'a Arc<Budget>,
    parts: &'a [ListedPart],
}

impl Loading<'_> {
    /// Loads all parts. The trailers come first: they tell how many fences and filters stay in
    /// memory of each part.
    fn run(&self) -> Result<Vec<Arc<Part>>> {
        let found = in_threads(self.parts.len(), LOADERS_MAX, &|place| {
            let ListedPart { head, file_bytes, trailer_crc } = &self.parts[place];
            PartFound::read(self.site, head, *file_bytes, *trailer_crc)
        })?;
        let needs: Vec<PartNeeds> = found.iter().map(PartFound::needs).collect();
        let sizes = found.iter().map(|part| (part.needs(), part.rows()));
        let plan = MemoryPlan::of(self.budget, BaseSize::of(sizes)).lowered(self.budget, &needs)?;
        // A thread has the whole fences and filters of the part that it loads.
        let longest = found.iter().map(PartFound::sections_bytes).max().unwrap_or(0);
        let threads = self.budget.total_bytes() / LOADING_PART / longest.max(1);
        in_threads(found.len(), LOADERS_MAX.min(threads as usize).max(1), &|place| {
            let keep = plan.keep(self.budget, &needs[place]);
            let charge = self.budget.charge_cold(needs[place].memory_bytes(keep))?;
            let kept = Kept { keep, charge: Some(charge) };
            found[place].load(self.site, kept).map(Arc::new)
        })
    }
}

/// Calls `work` with each number below `count`, in at most `threads` threads, the calling one among
/// them. Returns the results in order, or the error of a call. The threads begin no call after an
/// error.
fn in_threads<T: Send>(
    count: usize,
    threads: usize,
    work: &(dyn Fn(usize) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let run = || {
        let mut done = Vec::new();
        // Relaxed: a thread that overlooks a failure only does more work.
        while !failed.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= count {
                break;
            }
            let result = work(place);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.push((place, result));
        }
        done
    };
    let helpers = count.min(threads).saturating_sub(1);
    let mut done = std::thread::scope(|scope| {
        // Fewer threads load more slowly, so a refused thread is no error.
        let start = |i| thread_start::start_scoped(scope, format!("embank-loader-{i}"), run);
        let started: Vec<_> = (0..helpers).map_while(|i| start(i).ok()).collect();
        let mut done = run();
        for thread in started {
            done.extend(thread.join().unwrap_or_else(|panic| {
                std::panic::resume_unwind(panic);
            }));
        }
        done
    });
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}
