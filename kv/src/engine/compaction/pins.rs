//! What keeps space from being given back: checkpoints that name it, and scans that read it.

use std::sync::Arc;

use crate::engine::core::Core;
use crate::error::Result;
use crate::sync::Ordering;

/// Holds the log's space for a checkpoint that is being taken. Dropping it gives the space up, if
/// the checkpoint failed.
pub(crate) struct CheckpointPin<'a> {
    core: &'a Core,
    number: u64,
    /// Where the checkpoint's log begins.
    pub(crate) begin: u64,
    on_disk: bool,
}

impl CheckpointPin<'_> {
    /// The checkpoint is on disk: its space is held until `unpin`.
    pub(crate) fn keep(&mut self) {
        self.on_disk = true;
    }
}

impl Drop for CheckpointPin<'_> {
    fn drop(&mut self) {
        let mut pins = self.core.space.pins.lock();
        pins.taking = false;
        if !self.on_disk {
            // The space goes back with the next page of compaction or the next checkpoint.
            pins.checkpoints.retain(|&(number, _)| number != self.number);
        }
        drop(pins);
        self.core.space.signal.raise();
    }
}

/// Keeps the log from an address on for a scan. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct LogPin {
    core: Arc<Core>,
    begin: u64,
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let core = &self.core;
        {
            let mut pins = core.space.pins.lock();
            if let Some(i) = pins.scans.iter().position(|&begin| begin == self.begin) {
                pins.scans.swap_remove(i);
            }
        }
        // A failure here is no loss: the next page of compaction or the next checkpoint tries
        // again.
        let _ = core.free_space(0);
        core.space.signal.raise();
    }
}

impl Core {
    /// Notes that checkpoint `number`, which is being taken, needs the log from its present
    /// beginning on. Must be called while batches are paused.
    pub(crate) fn pin_checkpoint(&self, number: u64) -> CheckpointPin<'_> {
        let mut pins = self.space.pins.lock();
        // Read under the lock, so no space at or above it has been given back.
        let begin = self.log.begin();
        pins.checkpoints.retain(|&(other, _)| other != number);
        pins.checkpoints.push((number, begin));
        pins.taking = true;
        CheckpointPin { core: self, number, begin, on_disk: false }
    }

    /// Forgets checkpoints that were removed.
    pub(crate) fn unpin(&self, removed: &[u64]) {
        self.space.pins.lock().checkpoints.retain(|(number, _)| !removed.contains(number));
    }

    /// Keeps the log from `begin` on, which a checkpoint on disk names, until the lease is dropped.
    pub(crate) fn pin_log(self: &Arc<Self>, begin: u64) -> LogPin {
        self.space.pins.lock().scans.push(begin);
        LogPin { core: Arc::clone(self), begin }
    }

    /// The beginning of the log that is held; `None` if no log is held.
    pub(crate) fn pinned(&self) -> Option<u64> {
        self.space.pins.lock().lowest()
    }

    /// The numbers of the checkpoints that are on disk, or about to be.
    pub(crate) fn checkpoints_on_disk(&self) -> Vec<u64> {
        let pins = self.space.pins.lock();
        pins.checkpoints.iter().map(|&(number, _)| number).collect()
    }

    /// Whether a checkpoint is being taken.
    pub(super) fn is_taking_checkpoint(&self) -> bool {
        self.space.pins.lock().taking
    }

    /// True if no holder needs the log below.
    fn unneeded(&self) -> u64 {
        let pins = self.space.pins.lock();
        let begin = self.log.begin();
        pins.lowest().map_or(begin, |lowest| lowest.min(begin))
    }

    /// True if there is space that no holder needs and that has not been given back yet.
    pub(super) fn has_unneeded(&self) -> bool {
        self.space.tried.load(Ordering::Relaxed) < self.unneeded()
    }

    /// Gives back the space that no holder needs, if that is at least `stride_bytes`.
    ///
    /// # Errors
    /// A file that can't be removed. Nothing is lost; the next call tries again.
    pub(crate) fn free_space(&self, stride_bytes: u64) -> Result<()> {
        // One thread at a time. Pins may come and go during this call, but no pin below `begin`
        // comes: a checkpoint needs the log from `begin` on, and a scan needs it from the beginning
        // of a checkpoint that is pinned itself.
        let _freeing = self.space.freeing.lock();
        let below = self.unneeded();
        let tried = self.space.tried.load(Ordering::Relaxed);
        if below <= tried || below - tried < stride_bytes {
            return Ok(());
        }
        let freed = self.log.device.free(below)?;
        self.space.tried.store(below, Ordering::Relaxed);
        let before = self.space.freed.fetch_max(freed.end, Ordering::Relaxed);
        self.counters.freed_bytes.add(freed.end.saturating_sub(before));
        self.counters.segments_freed.add(freed.segments);
        Ok(())
    }
}
