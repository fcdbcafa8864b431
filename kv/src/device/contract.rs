//! The trait that all devices implement.

use crate::device::buffer::AlignedBuffer;
use crate::device::stream;
use crate::device::stream::ReadStream;
use crate::error::Result;
use std::fmt;

/// Smallest block size of a device in bytes. Offsets, lengths and buffer addresses of all transfers
/// are multiples of the device's block size ([`Device::block_bytes`]).
pub const BLOCK_BYTES: usize = 512;

/// Largest block size of a device in bytes: the sectors of some drives have this size.
pub(crate) const BLOCK_BYTES_MAX: usize = 4096;

/// One read of a burst. It reads `buffer.len()` bytes from log offset `offset`.
///
/// ```
/// use embank_kv::device::{AlignedBuffer, BLOCK_BYTES, Read};
/// let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
/// let read = Read { offset: 3 * BLOCK_BYTES as u64, buffer: &mut block };
/// assert_eq!(read.buffer.len(), BLOCK_BYTES);
/// ```
#[derive(Debug)]
pub struct Read<'a> {
    /// Log offset, a multiple of [`Device::block_bytes`].
    pub offset: u64,
    /// Receives the bytes. Its address and length are multiples of [`Device::block_bytes`]. The
    /// read must not cross a segment.
    pub buffer: &'a mut [u8],
}

/// System features that a device could not use, for statistics and logs.
///
/// ```
/// use embank_kv::device::{Device, DeviceOptions, MemoryDevice};
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// assert!(device.report().io_uring_refused.is_none());
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// Why [`DeviceChoice::Auto`](crate::DeviceChoice::Auto) chose the thread pool. `None` if
    /// `io_uring` works.
    pub io_uring_refused: Option<String>,
    /// Why reads and writes use the page cache, which the memory budget does not include. `None` if
    /// the device uses `O_DIRECT` or is in memory.
    pub direct_io_refused: Option<String>,
}

/// The result of [`Device::free`].
///
/// ```
/// use embank_kv::device::{Device, DeviceOptions, MemoryDevice};
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// assert_eq!(device.free(8192)?.end, 8192);
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// Log offset below which the space was returned to the file system.
    pub end: u64,
    /// Number of segment files that the call removed.
    pub segments: u64,
}

/// The file of a part of the cold tier.
///
/// ```
/// use embank_kv::device::{AlignedBuffer, Device, DeviceOptions, MemoryDevice, PartFile};
/// let device = MemoryDevice::new(&DeviceOptions::default())?;
/// let begin = 1 << 49; // The address of part 0.
/// device.write(begin, &AlignedBuffer::zeroed(512))?;
/// assert_eq!(device.part_files()?, [PartFile { begin, bytes: 512 }]);
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartFile {
    /// Log offset of the file's first byte: the part's address.
    pub begin: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Block storage for the log, and for the parts of the cold tier. A log offset below 2^49 belongs
/// to a segment of the log. From 2^49 on, each part has a span of 16 MiB or of a segment, whichever
/// is longer, and a file of its own.
pub trait Device: Send + Sync + fmt::Debug {
    /// The device's name in statistics: `"io_uring"`, `"threads"` or `"memory"`.
    fn name(&self) -> &'static str;

    /// Block size in bytes, 512 or 4096. A device with `O_DIRECT` has the sector size of its drive.
    /// Default: [`BLOCK_BYTES`].
    fn block_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    /// Returns the system features that the device could not use. Default: an empty report.
    fn report(&self) -> DeviceReport {
        DeviceReport::default()
    }

    /// Reads all of `reads`, with as many at the same time as the device allows. Returns when all
    /// have ended.
    ///
    /// Bytes between written ranges of a file read as zeros, as in a sparse file. A read beyond the
    /// last written block of a file fails with [`Error::Truncated`](crate::Error::Truncated).
    ///
    /// # Errors
    /// The first failure, with file and offset. All reads have ended when the call returns, and the
    /// contents of all buffers are unspecified.
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a read is empty, is not
    /// block-aligned or crosses a segment. In this case the call has read nothing.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()>;

    /// Does what [`read_many`](Self::read_many) does, for reads in the background, which no caller
    /// waits for. The device gives priority to reads with a waiting caller.
    ///
    /// # Errors
    /// The errors of [`read_many`](Self::read_many).
    fn read_many_behind(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.read_many(reads)
    }

    /// Reads everything that `stream` requests, with as many reads at the same time as the device
    /// and `memory` allow. Passes each read to `stream` when it completes, in any order. Returns
    /// when `stream` requests no more and has received all reads. The result is the largest number
    /// of simultaneous reads.
    ///
    /// The reads go into `memory`, which must be at least as long as the longest read.
    ///
    /// # Errors
    /// The errors of [`read_many`](Self::read_many) and of [`ReadStream::done`]. If there are
    /// several, returns the first. After an error no read begins, and all reads have ended when the
    /// call returns.
    fn read_stream(&self, memory: &mut AlignedBuffer, stream: &mut dyn ReadStream) -> Result<u64> {
        stream::in_bursts(memory, stream, |reads| self.read_many(reads), |_| {})
    }

    /// Writes `bytes` at log offset `offset`. Offset, length and address must be block-aligned, and
    /// the write must not cross a segment. The write is durable only after [`sync`](Self::sync).
    ///
    /// # Errors
    /// A failed or short write, with file and offset.
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for the same reasons as a read.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// A failed sync, with the file. The kernel may have dropped unwritten data then, so all later
    /// syncs of this device fail too.
    fn sync(&self) -> Result<()>;

    /// Drops all bytes of the log from log offset `end` on, rounded up to a block. An opening of
    /// the bank calls this with the end of its checkpoint's log, to discard what was written after
    /// that checkpoint. The change is durable on return. Parts stay.
    ///
    /// # Errors
    /// A failed truncation or removal, with the file.
    fn truncate(&self, end: u64) -> Result<()>;

    /// Returns the log's space below log offset `below` to the file system. Removes files that lie
    /// completely below `below`, and punches a hole into the next file if the file system supports
    /// holes. Later reads below `below` fail or return zeros. The change is not durable: after a
    /// crash some of the space may be in use again. If a file can't be removed, the call continues
    /// with the next file: see [`not_removed`](Self::not_removed).
    ///
    /// # Errors
    /// An error if the bank's directory was moved or can't be read.
    fn free(&self, below: u64) -> Result<Freed>;

    /// Returns the files of all parts, in ascending order of their addresses.
    ///
    /// # Errors
    /// A failed listing, with the folder.
    fn part_files(&self) -> Result<Vec<PartFile>>;

    /// Removes the file of the part at log offset `begin`. Does nothing if there is no such file.
    /// The change is not durable: after a crash the file may be there again.
    ///
    /// # Errors
    /// A failed removal, with the file.
    fn remove_part(&self, begin: u64) -> Result<()>;

    /// Returns to the file system what the device has allocated beyond the last write. A checkpoint
    /// that fails calls this, because it may have lacked that room. Default: does nothing.
    fn return_surplus(&self) {}

    /// Describes each file that [`free`](Self::free) could not remove, with the reason. The next
    /// call of `free` tries again.
    fn not_removed(&self) -> Vec<String> {
        Vec::new()
    }

    /// Free bytes of the file system for this process. `None` if they are unknown, or if there is
    /// no file system.
    fn room_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the file that contains log offset `offset`, and the offset in that file. For error
    /// messages.
    fn locate(&self, offset: u64) -> (std::path::PathBuf, u64);
}
