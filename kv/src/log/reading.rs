//! Reads whole pages of the log, for compaction and scans.

use super::Log;
use super::page::{check_image, write_image};
use crate::device::Read;
use crate::epoch::Gate;
use crate::error::Result;
use crate::sync::Ordering;

/// Number of concurrent requests that read one page. Each request has at least `READ_BYTES_MIN`
/// bytes, so a small page takes fewer requests.
const READS: usize = 4;
const READ_BYTES_MIN: usize = 64 << 10;

impl Log {
    /// Copies the settled page that begins at `start`, which is not below the log's beginning. The
    /// page comes from memory, or from the device if it has been evicted, and is verified then.
    /// Returns the number of its bytes in use.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if the page cannot be read.
    pub(crate) fn copy_page(&self, page: &mut [u8], start: u64, gate: &Gate) -> Result<usize> {
        debug_assert!(self.begin() <= start && start < self.settled());
        let pinned = gate.enter();
        if start >= self.view().head {
            let number = start >> self.page_bits;
            // Relaxed: see `visit_settled`.
            let used = self.used_bytes[self.slot(number)].load(Ordering::Relaxed);
            let identity = self.lineage.page(number);
            // SAFETY: the page is settled, so its records are complete and their values do not
            // change. It is at or above the head of a view, and the thread is pinned, so its frame
            // is not reused.
            unsafe {
                write_image(self.frame_pointer(number), start, u64::from(used), identity, page);
            }
            return Ok(used as usize);
        }
        drop(pinned);
        self.read_page(page, start)
    }

    /// Reads the page that begins at `start` and is on the device, and verifies it. Returns the
    /// number of its bytes in use.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if the page cannot be read.
    pub(crate) fn read_page(&self, page: &mut [u8], start: u64) -> Result<usize> {
        let each = page.len().div_ceil(READS).next_multiple_of(4096).max(READ_BYTES_MIN);
        let mut reads = Vec::with_capacity(READS);
        let mut offset = start;
        for buffer in page.chunks_mut(each) {
            let length = buffer.len() as u64;
            reads.push(Read { offset, buffer });
            offset += length;
        }
        self.counters.disk_reads.add(reads.len() as u64);
        self.counters.disk_read_bytes.add(offset - start);
        self.device.read_many_behind(&mut reads)?;
        let identity = self.lineage.page(start >> self.page_bits);
        check_image(page, identity, || self.device.locate(start)).map(|used| used as usize)
    }
}
