//! Pins keep log space from being given back to the file system, for checkpoints that need the
//! space and for scans that read it.

use std::sync::Arc;

use crate::engine::core::Core;
use crate::error::Result;
use crate::sync::Ordering;

/// Keeps the log's space for a checkpoint that is being taken. If the checkpoint fails, dropping
/// the pin releases the space.
pub(crate) struct CheckpointPin<'a> {
    core: &'a Core,
    number: u64,
    /// The address at which the checkpoint's log begins.
    pub(crate) begin: u64,
    on_disk: bool,
}

impl CheckpointPin<'_> {
    /// Called when the checkpoint is on disk. Its space is then kept until `unpin`.
    pub(crate) fn keep(&mut self) {
        self.on_disk = true;
    }
}

impl Drop for CheckpointPin<'_> {
    fn drop(&mut self) {
        let mut pins = self.core.space.pins.lock();
        pins.taking = false;
        if !self.on_disk {
            // Compaction gives the space back after its next page, or the next checkpoint does.
            pins.checkpoints.retain(|&(number, _)| number != self.number);
        }
        drop(pins);
        self.core.space.signal.raise();
    }
}

/// Keeps the log from an address on for a scan, until the pin is dropped.
#[derive(Debug)]
pub(crate) struct LogPin {
    core: Arc<Core>,
    begin: u64,
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let core = &self.core;
        if !core.home.is_here() {
            return;
        }
        {
            let mut pins = core.space.pins.lock();
            if let Some(i) = pins.scans.iter().position(|&begin| begin == self.begin) {
                pins.scans.swap_remove(i);
            }
        }
        // A failure here has no consequence: the next page of compaction or the next checkpoint
        // tries again.
        let _ = core.free_space(0);
        core.space.signal.raise();
    }
}

impl Core {
    /// Notes that checkpoint `number`, which is being taken, needs the log from its present
    /// beginning on. Must be called while batches are paused.
    pub(crate) fn pin_checkpoint(&self, number: u64) -> CheckpointPin<'_> {
        let mut pins = self.space.pins.lock();
        // Read under the lock, so no space at or above `begin` has been given back.
        let begin = self.log.begin();
        pins.checkpoints.retain(|&(other, _)| other != number);
        pins.checkpoints.push((number, begin));
        pins.taking = true;
        CheckpointPin { core: self, number, begin, on_disk: false }
    }

    /// Releases the space of checkpoints that were removed.
    pub(crate) fn unpin(&self, removed: &[u64]) {
        self.space.pins.lock().checkpoints.retain(|(number, _)| !removed.contains(number));
    }

    /// Keeps the log from `begin` on until the pin is dropped. `begin` must be the beginning of the
    /// log of a checkpoint on disk.
    pub(crate) fn pin_log(self: &Arc<Self>, begin: u64) -> LogPin {
        self.space.pins.lock().scans.push(begin);
        LogPin { core: Arc::clone(self), begin }
    }

    /// Returns the lowest address of the log that a holder needs. `None` if there is no holder.
    pub(crate) fn pinned(&self) -> Option<u64> {
        self.space.pins.lock().lowest()
    }

    /// Returns the numbers of the checkpoints that are on disk or being taken.
    pub(crate) fn checkpoints_on_disk(&self) -> Vec<u64> {
        let pins = self.space.pins.lock();
        pins.checkpoints.iter().map(|&(number, _)| number).collect()
    }

    /// True if a checkpoint is being taken.
    pub(super) fn is_taking_checkpoint(&self) -> bool {
        self.space.pins.lock().taking
    }

    /// Returns the address below which no holder needs the log.
    fn unneeded(&self) -> u64 {
        let pins = self.space.pins.lock();
        let begin = self.log.begin();
        pins.lowest().map_or(begin, |lowest| lowest.min(begin))
    }

    /// True if there is space that no holder needs and that was not given back yet.
    pub(super) fn has_unneeded(&self) -> bool {
        self.space.tried.load(Ordering::Relaxed) < self.unneeded()
    }

    /// Gives back the space that no holder needs, if it has at least `stride_bytes` bytes.
    ///
    /// # Errors
    /// Fails if a file cannot be removed. The next call tries again.
    pub(crate) fn free_space(&self, stride_bytes: u64) -> Result<()> {
        // One thread frees at a time. Pins may come and go during this call, but no pin below
        // `below` can come. A checkpoint needs the log from its present beginning on. A scan needs
        // it from the beginning of a checkpoint, which is pinned itself.
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
