//! What a device does.

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

/// What a device had to do without, for statistics and logs.
///
/// ```
/// use embank_kv::device::{Device, DeviceOptions, MemoryDevice};
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// assert!(device.report().io_uring_refused.is_none());
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// Why [`DeviceChoice::Auto`] took the thread pool; `None` if nothing was refused.
    pub io_uring_refused: Option<String>,
    /// Why reads and writes pass through the page cache, outside the memory budget; `None` with
    /// `O_DIRECT` and in memory.
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
    /// All space below this log offset has been given back.
    pub end: u64,
    /// Segment files that were removed by this call.
    pub segments: u64,
}

/// Block storage for the log.
pub trait Device: Send + Sync + fmt::Debug {
    /// The device's name as statistics print it: `"io_uring"`, `"threads"`, `"memory"`.
    fn name(&self) -> &'static str;

    /// What the device had to do without. Nothing, unless it says so.
    fn report(&self) -> DeviceReport {
        DeviceReport::default()
    }

    /// Reads all of `reads`, as many at once as the device takes, and returns when the last is
    /// done.
    ///
    /// What lies between written ranges of a segment reads as zeros, as in any sparse file; what
    /// lies beyond the last written block of a segment is [`Error::Truncated`].
    ///
    /// # Errors
    /// The first failure, naming file and offset; every request has been reaped by then. The
    /// contents of all buffers are then unspecified. [`Error::InvalidArgument`] for what is not
    /// block-aligned, empty or crosses a segment; nothing has been read then.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()>;

    /// As [`read_many`](Self::read_many), for reads that no caller waits for yet: reads with a
    /// waiting caller go first.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many).
    fn read_many_behind(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.read_many(reads)
    }

    /// Reads what `stream` asks for, as many at once as the device and `memory` take, and hands
    /// each read over as it completes, in any order. Returns when `stream` has no more and all
    /// is handed over: how many reads were in flight at most.
    ///
    /// `memory` is where the bytes arrive: its length at least that of the longest read.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many), or what [`ReadStream::done`] returned; of several the
    /// first. No read is begun after it, and none is in flight when this returns.
    fn read_stream(&self, memory: &mut AlignedBuffer, stream: &mut dyn ReadStream) -> Result<u64> {
        stream::in_bursts(memory, stream, |reads| self.read_many(reads), |_| {})
    }

    /// Writes `bytes` at log offset `offset`; both block-aligned; may cross no segment. Not yet
    /// durable.
    ///
    /// # Errors
    /// A failed or short write, naming file and offset. [`Error::InvalidArgument`] as for reads.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// A failed sync, naming the file. After one, the kernel may have dropped what it could not
    /// write, so every later sync of this device fails too.
    fn sync(&self) -> Result<()>;

    /// Drops everything at and beyond log offset `end`, rounded up to whole blocks (a recovery
    /// discards what no checkpoint holds). Durable on return.
    ///
    /// # Errors
    /// A failed truncate or remove, naming the file.
    fn truncate(&self, end: u64) -> Result<()>;

    /// Gives the space below log offset `below` back: files that lie wholly below it are removed,
    /// and where the file system can, the rest of the next one is punched out. Reads of what
    /// was given back fail, or find zeros. Not durable by itself: after a crash some of it may
    /// be there again. A file that can't be removed does not keep others: see
    /// [`not_removed`](Self::not_removed).
    ///
    /// # Errors
    /// The directory was moved, or can't be looked at.
    fn free(&self, below: u64) -> Result<Freed>;

    /// What earlier calls of [`free`](Self::free) could not remove, a line each with file and
    /// reason. It is tried again with the next call.
    fn not_removed(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes that the file system still has for this process; `None` if that is unknown, or there
    /// is no file system.
    fn room_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the handles of files that can be opened again, where the process has none left for
    /// another file.
    fn release_handles(&self) {}

    /// The file and the offset in it that hold log offset `offset`, for error messages.
    fn locate(&self, offset: u64) -> (std::path::PathBuf, u64);
}
