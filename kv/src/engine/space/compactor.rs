//! Calls compaction for one page after another: in the compaction thread, and in the call
//! [`Store::compact`](crate::Store::compact).

use std::time::{Duration, Instant};

use super::compaction::Compaction;
use super::signal::Signal;
use crate::engine::core::Core;
use crate::error::{Error, Result};

/// The result of a pass of [`Store::compact`](crate::Store::compact).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of log that the pass read.
    pub scanned_bytes: u64,
    /// Bytes of rows copied to the tail.
    pub copied_bytes: u64,
    /// Bytes given back to the file system so far. Space that kept checkpoints need is given back
    /// only after these checkpoints are removed.
    pub freed_bytes: u64,
    /// True if the pass ended early because the disk has little room. Compaction leaves the room
    /// that the next checkpoint needs. Take a checkpoint, which frees the space that only the
    /// oldest checkpoint held, and then compact again.
    pub out_of_room: bool,
}

/// Makes one pass of compaction over the pages of the log that are on the device now.
pub(crate) fn compact_all(core: &Core) -> Result<Compacted> {
    let Core { log, space, .. } = core;
    log.check_poison()?;
    let end = log.flushed();
    let freed = space.freed();
    let mut done = Compacted::default();
    let mut compaction = Compaction::begin(core);
    space.signal.state.lock().stopped = None;
    // The loop ends: each round moves `begin` by one page towards `end`.
    while log.begin() + log.page_bytes() <= end {
        // A kept checkpoint or a scan needs the old records, so copies free no space now. The next
        // checkpoint may free some, and must find room on the disk.
        if space.has_holder() && core.headroom().lack_of_disk_for(0).is_some() {
            done.out_of_room = true;
            break;
        }
        let copied = match compaction.compact_page() {
            Err(Error::DiskFull { .. }) if done.scanned_bytes > 0 => {
                done.out_of_room = true;
                break;
            }
            worked => worked.inspect_err(|error| space.signal.stop(error))?,
        };
        done.scanned_bytes += log.page_bytes();
        done.copied_bytes += copied;
        free_in_strides(core)?;
        space.signal.raise();
    }
    drop(compaction);
    space.free(log, 0)?;
    space.signal.raise();
    done.freed_bytes = space.freed() - freed;
    Ok(done)
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
        match compact_next(core) {
            Ok(copied) => pace(core, copied),
            Err(error) => signal.stop(&error),
        }
    }
}

/// Compacts the oldest page. Returns the number of bytes copied.
fn compact_next(core: &Core) -> Result<u64> {
    let copied = {
        let mut compaction = Compaction::begin(core);
        // Another thread may have compacted these pages while this thread waited for the lock.
        if core.headroom().has_cold_page() { compaction.compact_page()? } else { 0 }
    };
    free_in_strides(core)?;
    Ok(copied)
}

/// Gives back unneeded space, if there is enough of it for a system call. A system call for each
/// small page would cost more than it gains. With a quota, or without room, each
/// page counts.
fn free_in_strides(core: &Core) -> Result<()> {
    let page_bytes = core.log.page_bytes();
    let urgent = core.space.quota_bytes.is_some() || core.headroom().was_short();
    let stride_bytes = match urgent {
        true => 0,
        false => (core.tables.live(page_bytes).footprint / 64).min(1 << 20).max(page_bytes),
    };
    core.space.free(&core.log, stride_bytes)
}

/// Wakes the waiting threads. If there is a throttle, then sleeps for the time that the page and
/// its `copied` bytes take.
fn pace(core: &Core, copied: u64) {
    let signal = &core.space.signal;
    let mut state = signal.state.lock();
    signal.changed.notify_all();
    let Some(throttle) = core.space.options.throttle_bytes_per_s else { return };
    let bytes = core.log.page_bytes() + copied;
    let until = Instant::now() + Duration::from_secs_f64(bytes as f64 / throttle as f64);
    // The loop ends at `until`, at shutdown, or when a writer waits for space.
    while !state.shutdown && !state.urgent {
        if signal.changed.wait_until(&mut state, until).timed_out() {
            return;
        }
    }
}
