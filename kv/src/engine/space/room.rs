//! The room that a log has: below its disk quota, and on the disk.

use super::Space;
use crate::engine::cold::Cold;
use crate::engine::tables::Tables;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::memory::budget::Budget;
use crate::sync::Ordering;

/// Smallest number of pages of disk room that writers leave for compaction. Compaction copies rows
/// into that room until the next checkpoint frees space.
const WORKING_PAGES: u64 = 8;
/// Writers leave at least the memory budget divided by this number as disk room for compaction.
/// With more room, compaction needs fewer checkpoints.
const WORKING_BUDGET_PART: u64 = 16;
/// Number of pages below the quota that only compaction and deletions may use.
const QUOTA_RESERVE_PAGES: u64 = 4;

/// Returns the bytes below the quota that a batch must leave free: the pages for compaction, and
/// the pages for rows that other batches are reading.
pub(crate) fn quota_reserve_bytes(page_bytes: u64, budget_bytes: u64) -> u64 {
    QUOTA_RESERVE_PAGES * page_bytes + Budget::read_buffer_bytes_for(budget_bytes)
}

/// The reason why the log may not take another page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lack {
    /// The log has reached its quota.
    Quota {
        /// The quota in bytes.
        bytes: u64,
    },
    /// After another page, the next checkpoint might find no room on the disk.
    Disk {
        /// Bytes that are free in the file system.
        room_bytes: u64,
        /// Largest number of bytes that a checkpoint and compaction need.
        needed_bytes: u64,
    },
}

/// The parts of a store that decide if its log may take another page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headroom<'c> {
    pub(crate) space: &'c Space,
    pub(crate) log: &'c Log,
    pub(crate) tables: &'c Tables,
    pub(crate) cold: &'c Cold,
}

impl Headroom<'_> {
    /// True if a batch has met a lack of room that may still exist. A batch checks this before it
    /// changes its first row.
    pub(crate) fn was_short(&self) -> bool {
        // Relaxed: this is only a hint, and the caller then checks the room itself.
        self.space.short.load(Ordering::Relaxed) || self.log.is_disk_full()
    }

    /// True if the log may not take another page now.
    pub(crate) fn is_short(&self) -> bool {
        self.lack().is_some()
    }

    /// # Errors
    /// Returns `QuotaExceeded` or `DiskFull` if the log may not take another page.
    pub(crate) fn check(&self) -> Result<()> {
        self.lack().map_or(Ok(()), |lack| Err(self.error_of(lack)))
    }

    /// # Errors
    /// Returns `DiskFull` if the disk has no room for the next checkpoint.
    pub(super) fn check_disk(&self) -> Result<()> {
        self.lack_of_disk_for(0).map_or(Ok(()), |lack| Err(self.error_of(lack)))
    }

    /// Returns the reason why the log may not take another page. `None` if it may.
    fn lack(&self) -> Option<Lack> {
        let lack = self.lack_of_quota().or_else(|| self.lack_of_disk());
        self.space.short.store(lack.is_some(), Ordering::Relaxed);
        lack
    }

    fn lack_of_quota(&self) -> Option<Lack> {
        let bytes = self.space.quota_bytes?;
        let next_bytes = self.log.page_bytes() + self.reserve_bytes();
        (self.disk_bytes() + next_bytes > bytes).then_some(Lack::Quota { bytes })
    }

    /// Returns the bytes of the log below its beginning that checkpoints and scans hold.
    pub(crate) fn held_log_bytes(&self) -> u64 {
        self.log.begin().saturating_sub(self.space.freed())
    }

    /// Returns the bytes of the parts and of the log up to its tail, without those given back.
    fn disk_bytes(&self) -> u64 {
        self.log.tail_address() - self.space.freed() + self.cold.disk_bytes()
    }

    /// Returns a reason if the disk has less room than another page of the log, the next checkpoint
    /// and compaction need together. With that room, a bank on a full disk can still compact and
    /// take checkpoints in turn.
    ///
    /// The function asks the file system once for each page of the log, and on every call while
    /// there is no room.
    fn lack_of_disk(&self) -> Option<Lack> {
        let page = self.log.tail_address() / self.log.page_bytes();
        // Relaxed: if two threads check for the same page, both may ask the file system.
        if self.space.page_with_room.load(Ordering::Relaxed) == page {
            return None;
        }
        let budget = &self.space.budget;
        // `working_bytes` is at least the size of the index. So after a checkpoint that writes a
        // whole image of the index, there is still room for the next checkpoint.
        let working_bytes = (WORKING_PAGES * self.log.page_bytes())
            .max(budget.total_bytes() / WORKING_BUDGET_PART)
            .max(budget.index_bytes());
        let lack = self.lack_of_disk_for(working_bytes);
        if lack.is_none() {
            self.space.page_with_room.store(page, Ordering::Relaxed);
        }
        lack
    }

    /// Returns a reason if the disk has less room than the next checkpoint, another page of the log
    /// and `more_bytes` need together.
    pub(super) fn lack_of_disk_for(&self, more_bytes: u64) -> Option<Lack> {
        let room_bytes = self.log.device.room_bytes()?;
        let unwritten_bytes = self.log.tail_address().saturating_sub(self.log.flushed());
        let index_bytes = self.space.budget.index_bytes();
        let checkpoint_bytes =
            unwritten_bytes + self.log.page_bytes() + self.reserve_bytes() + index_bytes;
        let needed_bytes = checkpoint_bytes + more_bytes;
        (room_bytes < needed_bytes).then_some(Lack::Disk { room_bytes, needed_bytes })
    }

    fn reserve_bytes(&self) -> u64 {
        quota_reserve_bytes(self.log.page_bytes(), self.space.budget.total_bytes())
    }

    fn error_of(&self, lack: Lack) -> Error {
        let quota_bytes = match lack {
            Lack::Quota { bytes } => bytes,
            Lack::Disk { room_bytes, needed_bytes } => {
                let (path, _) = self.log.device.locate(self.log.tail_address());
                let reason = format!(
                    "{room_bytes} bytes are left, and compaction and the next checkpoint need {needed_bytes}"
                );
                return Error::disk_full(path, &reason);
            }
        };
        Error::QuotaExceeded {
            quota_bytes,
            log_bytes: self.disk_bytes(),
            live_bytes: self.tables.live(self.log.page_bytes()).bytes,
            held_bytes: self.held_log_bytes(),
            holders: self.space.holders(self.log),
        }
    }
}
