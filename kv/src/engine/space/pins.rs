//! Pins keep log space from being given back to the file system, for checkpoints that need the
//! space and for scans that read it.
//!
//! Compaction moves current rows out of old log. That part of the log is given back once no holder
//! needs it. A holder needs all log from one address on: the beginning of the log of its
//! checkpoint. So it also keeps the dead records after that address.

use std::sync::Arc;

use super::Space;
use super::signal::Until;
use crate::engine::core::Core;
use crate::error::Result;
use crate::log::Log;
use crate::stats::space_holder::SpaceHolder;
use crate::sync::Ordering;

/// The holders of the log, and the addresses from which they need it.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// The checkpoints that are on disk or being taken. Each has its number and the address at
    /// which its log begins.
    pub(super) checkpoints: Vec<(u64, u64)>,
    /// For each scan, the address at which its log begins.
    pub(super) scans: Vec<u64>,
    /// True while a checkpoint is being taken. At its end, older checkpoints may release space.
    pub(super) taking: bool,
}

impl Pins {
    fn lowest(&self) -> Option<u64> {
        let checkpoints = self.checkpoints.iter().map(|&(_, begin)| begin);
        checkpoints.chain(self.scans.iter().copied()).min()
    }
}

/// Keeps the log's space for a checkpoint that is being taken. If the checkpoint fails, dropping
/// the pin releases the space.
pub(crate) struct CheckpointPin<'a> {
    space: &'a Space,
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
        let mut pins = self.space.pins.lock();
        pins.taking = false;
        if !self.on_disk {
            // Compaction gives the space back after its next page, or the next checkpoint does.
            pins.checkpoints.retain(|&(number, _)| number != self.number);
        }
        drop(pins);
        self.space.signal.state.lock().go_on_after(Until::Checkpoint);
        self.space.signal.raise();
    }
}

/// Keeps the log from an address on for a scan, until the pin is dropped.
#[derive(Debug)]
pub(crate) struct LogPin {
    core: Arc<Core>,
    begin: u64,
}

impl LogPin {
    /// Keeps the log from `begin` on until the pin is dropped. `begin` must be the beginning of the
    /// log of a checkpoint on disk.
    pub(crate) fn new(core: &Arc<Core>, begin: u64) -> Self {
        core.space.pins.lock().scans.push(begin);
        LogPin { core: Arc::clone(core), begin }
    }
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let Core { space, log, home, .. } = &*self.core;
        if !home.is_here() {
            return;
        }
        {
            let mut pins = space.pins.lock();
            if let Some(i) = pins.scans.iter().position(|&begin| begin == self.begin) {
                pins.scans.swap_remove(i);
            }
        }
        // A failure here has no consequence: the next page of compaction or the next checkpoint
        // tries again.
        let _ = space.free(log, 0);
        space.signal.raise();
    }
}

impl Space {
    /// Notes that checkpoint `number`, which is being taken, needs the log from its present
    /// beginning on. Must be called while batches are paused.
    pub(crate) fn pin_checkpoint(&self, log: &Log, number: u64) -> CheckpointPin<'_> {
        let mut pins = self.pins.lock();
        // Read under the lock, so no space at or above `begin` has been given back.
        let begin = log.begin();
        pins.checkpoints.retain(|&(other, _)| other != number);
        pins.checkpoints.push((number, begin));
        pins.taking = true;
        CheckpointPin { space: self, number, begin, on_disk: false }
    }

    /// Releases the space of checkpoints that were removed.
    pub(crate) fn unpin(&self, removed: &[u64]) {
        self.pins.lock().checkpoints.retain(|(number, _)| !removed.contains(number));
    }

    /// Returns the numbers of the checkpoints that are on disk or being taken.
    pub(crate) fn checkpoints_on_disk(&self) -> Vec<u64> {
        self.pins.lock().checkpoints.iter().map(|&(number, _)| number).collect()
    }

    /// Returns the holders of log. The holder of the most bytes comes first.
    pub(crate) fn holders(&self, log: &Log) -> Vec<SpaceHolder> {
        let freed = self.freed();
        let end = log.tail_address();
        let bytes_from = |begin: u64| end.saturating_sub(begin.max(freed));
        let (checkpoints, scans) = {
            let pins = self.pins.lock();
            (pins.checkpoints.clone(), pins.scans.clone())
        };
        let of_scan =
            |begin| SpaceHolder { checkpoint: None, readers: None, bytes: bytes_from(begin) };
        let of_checkpoint = |(number, begin)| SpaceHolder {
            checkpoint: Some(number),
            readers: self.checkpoints.as_ref().and_then(|all| all.readers(number)),
            bytes: bytes_from(begin),
        };
        let scans = scans.into_iter().map(of_scan);
        let mut holders: Vec<SpaceHolder> =
            scans.chain(checkpoints.into_iter().map(of_checkpoint)).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders
    }

    /// True if a checkpoint or a scan needs log.
    pub(super) fn has_holder(&self) -> bool {
        self.pins.lock().lowest().is_some()
    }

    /// Returns the address below which no holder needs the log.
    fn unneeded(&self, log: &Log) -> u64 {
        let pins = self.pins.lock();
        let begin = log.begin();
        pins.lowest().map_or(begin, |lowest| lowest.min(begin))
    }

    /// True if there is space that no holder needs and that was not given back yet.
    pub(super) fn has_unneeded(&self, log: &Log) -> bool {
        self.tried.load(Ordering::Relaxed) < self.unneeded(log)
    }

    /// Gives back the space that no holder needs, if it has at least `stride_bytes` bytes.
    ///
    /// # Errors
    /// Fails if a file cannot be removed. The next call tries again.
    pub(crate) fn free(&self, log: &Log, stride_bytes: u64) -> Result<()> {
        // One thread frees at a time. Pins may come and go during this call, but no pin below
        // `below` can come. A checkpoint needs the log from its present beginning on. A scan needs
        // it from the beginning of a checkpoint, which is pinned itself.
        let _freeing = self.freeing.lock();
        let below = self.unneeded(log);
        let tried = self.tried.load(Ordering::Relaxed);
        if below <= tried || below - tried < stride_bytes {
            return Ok(());
        }
        let freed = log.device.free(below)?;
        self.tried.store(below, Ordering::Relaxed);
        let before = self.freed.fetch_max(freed.end, Ordering::Relaxed);
        self.counters.freed_bytes.add(freed.end.saturating_sub(before));
        self.counters.segments_freed.add(freed.segments);
        Ok(())
    }
}
