//! The trait of a device.

use crate::device::buffer::AlignedBuffer;
use crate::device::stream;
use crate::device::stream::ReadStream;
use crate::error::Result;
use std::fmt;

/// Offsets, lengths and buffer addresses of every transfer are multiples of this.
pub const BLOCK_BYTES: usize = 512;

/// One read of a burst: `buffer.len()` bytes from log offset `offset`.
///
/// ```
/// use embank_kv::device::{AlignedBuffer, BLOCK_BYTES, Read};
/// let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
/// let read = Read { offset: 3 * BLOCK_BYTES as u64, buffer: &mut block };
/// assert_eq!(read.buffer.len(), BLOCK_BYTES);
/// ```
#[derive(Debug)]
pub struct Read<'a> {
    /// Log offset, a multiple of [`BLOCK_BYTES`].
    pub offset: u64,
    /// Destination; its address and length are multiples of [`BLOCK_BYTES`]. Must not cross a
    /// segment.
    pub buffer: &'a mut [u8],
}

/// What a device could not use on this system, for statistics and logs.
///
/// ```
/// use embank_kv::device::{Device, DeviceOptions, MemoryDevice};
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// assert!(device.report().io_uring_refused.is_none());
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// The reason why [`DeviceChoice::Auto`] took the thread pool; `None` if `io_uring` works.
    pub io_uring_refused: Option<String>,
    /// The reason why reads and writes pass through the page cache, which the memory budget does
    /// not count. `None` with `O_DIRECT`, and for a device in memory.
    pub direct_io_refused: Option<String>,
}

/// What [`Device::free`] did.
///
/// ```
/// use embank_kv::device::{Device, DeviceOptions, MemoryDevice};
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// assert_eq!(device.free(8192)?.end, 8192);
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// The file system has the space below this log offset back.
    pub end: u64,
    /// Segment files that were removed by this call.
    pub segments: u64,
}

/// Block storage for the log.
pub trait Device: Send + Sync + fmt::Debug {
    /// The device's name as statistics print it: `"io_uring"`, `"threads"`, `"memory"`.
    fn name(&self) -> &'static str;

    /// What the device could not use. Default: an empty report.
    fn report(&self) -> DeviceReport {
        DeviceReport::default()
    }

    /// Reads all of `reads`, with as many in flight at once as the device allows. Returns when the
    /// last one is done.
    ///
    /// A gap between written ranges of a segment reads as zeros, as in any sparse file. A read
    /// behind the last written block of a segment fails with [`Error::Truncated`].
    ///
    /// # Errors
    /// The first failure, with file and offset. No read is in flight then, and the contents of all
    /// buffers are unspecified. [`Error::InvalidArgument`] for a read that is not block-aligned, is
    /// empty or crosses a segment; then nothing was read.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()>;

    /// As [`read_many`](Self::read_many), for reads that no caller waits for yet. Reads with a
    /// waiting caller go first.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many).
    fn read_many_behind(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.read_many(reads)
    }

    /// Reads what `stream` asks for, with as many reads in flight as the device and `memory` allow.
    /// Hands each read to `stream` when it completes, in any order. Returns when `stream` has no
    /// more reads and got all of them. The result is the largest number of reads that were in
    /// flight.
    ///
    /// `memory` receives the bytes. It is at least as long as the longest read.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many), or the error of [`ReadStream::done`]; the first one if
    /// there are several. No read begins after an error, and no read is in flight when the call
    /// returns.
    fn read_stream(&self, memory: &mut AlignedBuffer, stream: &mut dyn ReadStream) -> Result<u64> {
        stream::in_bursts(memory, stream, |reads| self.read_many(reads), |_| {})
    }

    /// Writes `bytes` at log offset `offset`. Both are block-aligned, and the write crosses no
    /// segment. It is not durable yet.
    ///
    /// # Errors
    /// A failed or short write, naming file and offset. [`Error::InvalidArgument`] as for reads.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// A failed sync, with the file. The kernel may then have dropped data that it could not write,
    /// so every later sync of this device fails too.
    fn sync(&self) -> Result<()>;

    /// Drops all bytes from log offset `end` on, rounded up to whole blocks. A recovery discards
    /// what no checkpoint holds. Durable when the call returns.
    ///
    /// # Errors
    /// A failed truncate or remove, with the file.
    fn truncate(&self, end: u64) -> Result<()>;

    /// Gives the space below log offset `below` back. The device removes files that lie wholly
    /// below it, and punches a hole into the next file if the file system can. Reads below the
    /// offset then fail or find zeros. The call is not durable: after a crash some of the space may
    /// be in use again. A file that can't be removed does not stop the removal of others: see
    /// [`not_removed`](Self::not_removed).
    ///
    /// # Errors
    /// The directory was moved, or can't be read.
    fn free(&self, below: u64) -> Result<Freed>;

    /// A line with file and reason for each file that earlier calls of [`free`](Self::free) could
    /// not remove. The next call tries again.
    fn not_removed(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes that the file system still has for this process. `None` if that is unknown, or if
    /// there is no file system.
    fn room_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the handles of files that can be opened again. Called when the process may open no
    /// further file.
    fn release_handles(&self) {}

    /// The file that holds log offset `offset`, and the offset in that file, for error messages.
    fn locate(&self, offset: u64) -> (std::path::PathBuf, u64);
}
