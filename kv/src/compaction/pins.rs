//! What keeps space from being given back: checkpoints that name it, and scans that read it.

use crate::error::Result;
use crate::store::Core;
use crate::sync::Ordering;

/// Who needs the log from where on.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// Checkpoints that are on disk, or about to be: number, and where their log begins.
    checkpoints: Vec<(u64, u64)>,
    /// Scans: where the log that they read begins.
    scans: Vec<u64>,
    /// All space below has been given back, or can only be given back with more.
    tried: u64,
}

impl Pins {
    pub(crate) fn new(checkpoints: Vec<(u64, u64)>) -> Self {
        Pins { checkpoints, ..Pins::default() }
    }

    fn lowest(&self) -> Option<u64> {
        let checkpoints = self.checkpoints.iter().map(|&(_, begin)| begin);
        checkpoints.chain(self.scans.iter().copied()).min()
    }
}

impl Core {
    /// Notes that checkpoint `number`, which is being taken, needs the log from its present beginning on;
    /// returns that. To be called while batches are paused.
    pub(crate) fn pin_checkpoint(&self, number: u64) -> u64 {
        let mut pins = self.space.pins.lock();
        // Read under the lock, so that nothing at or above it has been given back.
        let begin = self.log.begin();
        pins.checkpoints.retain(|&(other, _)| other != number);
        let newest = pins.checkpoints.iter().map(|&(_, begin)| begin).max();
        pins.checkpoints.push((number, begin));
        let progress = newest.map_or(0, |newest| begin.saturating_sub(newest));
        self.space.expect_held(progress * pins.checkpoints.len() as u64);
        begin
    }

    /// Forgets checkpoints that are not on disk any more.
    pub(crate) fn unpin_all_but(&self, on_disk: &[u64]) {
        self.space.pins.lock().checkpoints.retain(|(number, _)| on_disk.contains(number));
    }

    /// Keeps the log from `begin` on, which a checkpoint on disk names, until `end_lease`.
    pub(crate) fn lease(&self, begin: u64) -> u64 {
        self.space.pins.lock().scans.push(begin);
        begin
    }

    pub(crate) fn end_lease(&self, lease: u64) {
        {
            let mut pins = self.space.pins.lock();
            if let Some(i) = pins.scans.iter().position(|&begin| begin == lease) {
                pins.scans.swap_remove(i);
            }
        }
        // What fails here is tried again with the next page of compaction or the next checkpoint.
        let _ = self.free_space(0);
        self.space.signal.raise();
    }

    /// The log's beginning that space below is held for; none if nothing is held.
    pub(crate) fn pinned(&self) -> Option<u64> {
        self.space.pins.lock().lowest()
    }

    /// Gives back what nobody needs, if that is at least `stride_bytes`.
    ///
    /// # Errors
    /// A file that can't be removed. Nothing is lost; the next call tries again.
    pub(crate) fn free_space(&self, stride_bytes: u64) -> Result<()> {
        // Held throughout: no checkpoint that needs the space can come in between.
        let mut pins = self.space.pins.lock();
        let begin = self.log.begin();
        let below = pins.lowest().map_or(begin, |lowest| lowest.min(begin));
        if below <= pins.tried || below - pins.tried < stride_bytes {
            return Ok(());
        }
        let freed = self.log.device.free(below)?;
        pins.tried = below;
        let before = self.space.freed.fetch_max(freed.end, Ordering::Relaxed);
        self.counters.freed_bytes.add(freed.end.saturating_sub(before));
        self.counters.segments_freed.add(freed.segments);
        Ok(())
    }
}
