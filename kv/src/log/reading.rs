//! Reads whole pages of the log, for compaction and scans.

use super::Log;
use super::page::check_image;
use crate::device::Read;
use crate::error::Result;

/// Number of concurrent requests that read one page. Each request has at least `READ_BYTES_MIN`
/// bytes, so a small page takes fewer requests.
const READS: usize = 4;
const READ_BYTES_MIN: usize = 64 << 10;

impl Log {
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
