//! Calls compaction for one page after another: in the compaction thread, and in the call
//! [`Store::compact`](crate::Store::compact). In a bank with two tiers, calls the spill or the
//! merge that is due.

use std::time::{Duration, Instant};

use super::compaction::Compaction;
use super::signal::{CompactorState, Signal};
use super::tiers::Work;
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::record::address::{Address, TableId};
use crate::sync::Ordering;

/// The result of a pass of [`Store::compact`](crate::Store::compact).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of log that the pass read.
    pub scanned_bytes: u64,
    /// Bytes of rows copied to the tail. Rows that go to the cold tier do not count.
    pub copied_bytes: u64,
    /// Bytes given back to the file system so far. Space that kept checkpoints need is given back
    /// only after these checkpoints are removed.
    pub freed_bytes: u64,
    /// True if the pass ended early because the disk has little room. Compaction leaves the room
    /// that the next checkpoint needs. Take a checkpoint, which frees the space that only the
    /// oldest checkpoint held, and then compact again.
    pub out_of_room: bool,
}

/// The uncounted versions that were written before a moment.
#[derive(Debug)]
pub(crate) struct Marked {
    /// The versions that the log has lie below this address, in settled pages.
    pub(crate) end: Address,
    /// For each table with such versions the number of all that were written.
    pub(crate) tables: Vec<(TableId, u64)>,
}

/// Makes one pass of compaction over the pages of the log that compaction can read now. Then counts
/// the rows of `marked`.
pub(crate) fn compact_all(core: &Core, marked: Option<&Marked>) -> Result<Compacted> {
    let Core { log, space, .. } = core;
    log.check_poison()?;
    core.headroom().decide_tiers();
    let end = core.headroom().readable();
    let freed = space.freed();
    let mut done = Compacted::default();
    let mut compaction = Compaction::begin(core);
    space.signal.state.lock().stopped = None;
    let has_two_tiers = core.headroom().has_two_tiers();
    // The loop ends: each round moves `begin` by one page towards `end`.
    while log.begin() + log.page_bytes() <= end {
        // A kept checkpoint or a scan needs the old records, so copies free no space now. The next
        // checkpoint may free some, and must find room on the disk.
        if space.has_holder() && core.headroom().lack_of_disk_for(0).is_some() {
            done.out_of_room = true;
            break;
        }
        let begin = log.begin();
        let worked = match has_two_tiers {
            true => make_memory(core, &mut compaction)
                .and_then(|()| or_base_merge(core, &mut compaction, false, Compaction::spill))
                .map(Option::unwrap_or_default),
            false => compaction.compact_page(),
        };
        let stop = |error: &Error| match has_two_tiers {
            true => space.signal.stop_tiers(error),
            false => space.signal.stop(error),
        };
        match worked {
            Err(Error::DiskFull { .. }) if done.scanned_bytes > 0 => {
                done.out_of_room = true;
                break;
            }
            worked => done.copied_bytes += worked.inspect_err(stop)?,
        }
        done.scanned_bytes += log.begin() - begin;
        // Merges in between keep the runs few. The loop ends: each merge makes the runs fewer, or
        // leaves some of them out because of damage.
        while has_two_tiers && merge_next(core, &mut compaction)? {}
        free_in_strides(core)?;
        space.signal.raise();
    }
    if let Some(marked) = marked
        && has_two_tiers
        && !done.out_of_room
    {
        // First, so that the merges find the space that the spills have left.
        space.free(log, 0)?;
        match count_marked(core, &mut compaction, marked) {
            Err(Error::DiskFull { .. }) => done.out_of_room = true,
            counted => counted?,
        }
    }
    drop(compaction);
    space.free(log, 0)?;
    space.signal.raise();
    done.freed_bytes = space.freed() - freed;
    Ok(done)
}

/// Moves all rows of the log to the cold tier, because the budget has no memory for their index.
/// The index must be empty. Called before any batch runs. A kept checkpoint still has the log, so
/// nothing is lost if this fails. The parts may exceed the quota until the next checkpoint.
///
/// # Errors
/// The errors of spills and merges. `DiskFull` if the disk would lack room for the next checkpoint,
/// which alone gives the log's space back. `BudgetTooSmall` if not even the parts' fewest fences
/// fit.
pub(crate) fn move_whole_log(core: &Core) -> Result<()> {
    let log = &core.log;
    core.space.second_tier.store(true, Ordering::Relaxed);
    let mut compaction = Compaction::without_index(core);
    // The loop ends: each round moves `begin` towards the log's end, or merges runs to make memory.
    while log.begin() + log.page_bytes() <= log.flushed() {
        core.headroom().check_disk()?;
        make_memory(core, &mut compaction)?;
        or_base_merge(core, &mut compaction, false, Compaction::spill)?;
        while merge_next(core, &mut compaction)? {}
        core.remove_unneeded_parts();
    }
    Ok(())
}

/// Merges the rows of all present runs into the base, where no version is uncounted.
fn count_marked(core: &Core, compaction: &mut Compaction<'_>, marked: &Marked) -> Result<()> {
    let signal = &core.space.signal;
    let newest_run = core.cold.view().runs().map(|(numbers, _)| *numbers.end()).max().unwrap_or(0);
    let is_merged = || {
        let view = core.cold.view();
        let mut base = view.base().iter();
        newest_run == 0
            || !view.base().is_empty() && base.all(|p| *p.head().runs.end() >= newest_run)
    };
    // The loop ends: each merge brings runs into the base parts at the cursor, which passes all of
    // them in turn. Damaged parts are left out.
    while !is_merged() {
        let due = core.headroom().base_merge(&mut signal.state.lock());
        let Some(due) = due else { return Ok(()) };
        compaction.merge(&due, false).inspect_err(|error| match error {
            // The program compacts again when the disk has room, and background work goes on.
            Error::DiskFull { .. } => {}
            _ => signal.stop_tiers(error),
        })?;
        if signal.state.lock().shutdown {
            return Ok(());
        }
    }
    if core.log.begin() >= marked.end.raw() {
        for &(table, versions) in &marked.tables {
            core.tables.note_counted(table, versions);
        }
    }
    Ok(())
}

/// The loop of the compaction thread. Returns at shutdown.
pub(crate) fn run(core: &Core) {
    /// A guard that acts if this thread panics: it stops compaction, and wakes the writers that
    /// wait for compaction.
    struct StopOnPanic<'a>(&'a Signal);
    impl Drop for StopOnPanic<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let reason = "the compaction thread panicked".into();
                self.0.stop(&Error::Poisoned { reason });
            }
        }
    }
    let signal = &core.space.signal;
    let _stop_on_panic = StopOnPanic(signal);
    while core.headroom().await_work() {
        if core.headroom().has_two_tiers() {
            let started = Instant::now();
            match work_on_tiers(core) {
                Ok(bytes) => rest(core, bytes, started.elapsed()),
                Err(error) => signal.stop_tiers(&error),
            }
            continue;
        }
        match compact_next(core) {
            Ok(copied) => pace(core, core.log.page_bytes() + copied),
            Err(error) => signal.stop(&error),
        }
    }
}

/// Does the work that is next in a bank with two tiers. Returns the bytes of log that it passed.
pub(super) fn work_on_tiers(core: &Core) -> Result<u64> {
    let mut compaction = Compaction::begin(core);
    // Another thread may have done the work while this thread waited for the lock.
    let next = core.headroom().next_work(&mut core.space.signal.state.lock());
    let begin = core.log.begin();
    match next {
        Some(Work::Spill) => _ = or_base_merge(core, &mut compaction, true, Compaction::spill)?,
        Some(Work::Merge(merge)) => {
            _ = or_base_merge(core, &mut compaction, true, |compaction| {
                compaction.merge(&merge, true)
            })?;
        }
        Some(Work::Free | Work::Page) | None => {}
    }
    drop(compaction);
    free_in_strides(core)?;
    Ok(core.log.begin() - begin)
}

/// Makes the merge that is due in a bank with two tiers. Returns false if none is due.
fn merge_next(core: &Core, compaction: &mut Compaction<'_>) -> Result<bool> {
    let next = core.headroom().merge_work(&mut core.space.signal.state.lock(), false);
    let Some(merge) = next else { return Ok(false) };
    or_base_merge(core, compaction, false, |compaction| compaction.merge(&merge, false))
        .inspect_err(|error| core.space.signal.stop_tiers(error))?;
    Ok(!core.space.signal.state.lock().shutdown)
}

/// Does `work`. If the budget has no memory for a part that `work` writes, makes a base merge in
/// its place, which frees the memory of runs, and returns `None`. The caller then tries again; that
/// ends, because each base merge leaves fewer runs to merge.
///
/// # Errors
/// Those of `work`; `BudgetTooSmall` only if no runs are left to merge.
fn or_base_merge<'c, R>(
    core: &Core,
    compaction: &mut Compaction<'c>,
    rests: bool,
    work: impl FnOnce(&mut Compaction<'c>) -> Result<R>,
) -> Result<Option<R>> {
    let too_small = match work(compaction) {
        Err(error @ Error::BudgetTooSmall { .. }) => error,
        done => return done.map(Some),
    };
    let due = core.headroom().base_merge(&mut core.space.signal.state.lock());
    compaction.merge(&due.ok_or(too_small)?, rests)?;
    Ok(None)
}

/// Makes the merges without which there is no memory for another run.
fn make_memory(core: &Core, compaction: &mut Compaction<'_>) -> Result<()> {
    let next = || core.headroom().merge_before_spill(&mut core.space.signal.state.lock());
    // The loop ends: see `merge_before_spill`.
    while let Some(merge) = next() {
        compaction.merge(&merge, false)?;
        if core.space.signal.state.lock().shutdown {
            break;
        }
    }
    Ok(())
}

/// Compacts the oldest page. Returns the number of bytes copied.
fn compact_next(core: &Core) -> Result<u64> {
    let copied = {
        let mut compaction = Compaction::begin(core);
        // Another thread may have compacted these pages while this thread waited for the lock. Or
        // it may have moved rows to the cold tier, where rows lie that the page's tombstones hide:
        // compaction would drop these tombstones.
        let headroom = core.headroom();
        let is_due = headroom.has_cold_page() && !headroom.has_two_tiers();
        if is_due { compaction.compact_page()? } else { 0 }
    };
    free_in_strides(core)?;
    Ok(copied)
}

/// Gives back unneeded space, if there is enough of it for a system call. A system call for each
/// small page would cost more than it gains. With a quota, or without room, each
/// page counts.
pub(super) fn free_in_strides(core: &Core) -> Result<()> {
    let page_bytes = core.log.page_bytes();
    let urgent = core.space.quota_bytes.is_some() || core.headroom().was_short();
    let stride_bytes = match urgent {
        true => 0,
        false => (core.tables.live(page_bytes).footprint / 64).min(1 << 20).max(page_bytes),
    };
    core.remove_unneeded_parts();
    core.space.free(&core.log, stride_bytes)
}

/// Wakes the waiting threads. If there is a throttle, then sleeps for the time that reading and
/// writing `bytes` bytes takes.
fn pace(core: &Core, bytes: u64) {
    pause(core, throttled(core, bytes), |_| false);
}

/// Wakes the waiting threads. Then rests after the compactor has worked for `worked` in a bank with
/// two tiers, and has read or written `bytes` bytes. Rests longer if there is a throttle.
pub(super) fn rest(core: &Core, bytes: u64, worked: Duration) {
    let rest = core.headroom().debt(&mut core.space.signal.state.lock()).rest_after(worked);
    match throttled(core, bytes) {
        Duration::ZERO => pause(core, rest, |state| is_late(core, state)),
        throttled => pause(core, rest.max(throttled), |_| false),
    }
}

/// True if the compactor of a bank in two tiers should not rest. A writer waits for a unit of work,
/// or a spill is due, whose pages would soon have to be written.
fn is_late(core: &Core, state: &mut CompactorState) -> bool {
    let headroom = core.headroom();
    headroom.debt(state).makes_writers_wait() || headroom.is_spill_due(state, false)
}

/// Lets batches run for `length` between two pauses of a fold. Returns false if the compactor has
/// more urgent work.
pub(super) fn rest_in_fold(core: &Core, length: Duration) -> bool {
    pause(core, length, |state| is_late(core, state));
    let state = &mut core.space.signal.state.lock();
    !state.shutdown && !state.urgent && !is_late(core, state)
}

/// Returns the time that `bytes` bytes take at the throttle.
fn throttled(core: &Core, bytes: u64) -> Duration {
    let throttle = core.space.options.throttle_bytes_per_s;
    throttle.map_or(Duration::ZERO, |most| Duration::from_secs_f64(bytes as f64 / most as f64))
}

/// Wakes the waiting threads, and sleeps for `length`, or until `is_over` returns true after a
/// signal.
fn pause(core: &Core, length: Duration, is_over: impl Fn(&mut CompactorState) -> bool) {
    let signal = &core.space.signal;
    let mut state = signal.state.lock();
    signal.changed.notify_all();
    if length.is_zero() {
        return;
    }
    let until = Instant::now() + length;
    // The loop ends at `until`, at shutdown, or when a writer waits for space.
    while !state.shutdown && !state.urgent && !is_over(&mut state) {
        if signal.changed.wait_until(&mut state, until).timed_out() {
            return;
        }
    }
}
