//! Where pages lie when they are not in memory.
//!
//! The log is one address space of bytes. A device maps it to segment files of a fixed size and moves
//! whole blocks. Three implementations: `io_uring` with `O_DIRECT`, a thread pool of `pread`/`pwrite`
//! for where io_uring is refused, and memory for tests. A fourth, [`FaultyDevice`], wraps any of them
//! and fails on request.
//!
//! ```
//! use embank_kv::device::{self, AlignedBuffer, DeviceChoice, DeviceOptions, Read};
//! # fn main() -> embank_kv::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! let device = device::open(dir.path(), DeviceChoice::Auto, &DeviceOptions::default())?;
//! let mut page = AlignedBuffer::zeroed(4096);
//! page.fill(7);
//! device.write(8192, &page)?;
//! device.sync()?; // Durable from here on.
//!
//! let mut back = AlignedBuffer::zeroed(4096);
//! device.read_many(&mut [Read { offset: 8192, buffer: &mut back }])?;
//! assert_eq!(*back, *page);
//! # Ok(())
//! # }
//! ```

mod buffer;
mod open_file;
pub(crate) mod pool;
#[cfg(target_os = "linux")]
mod priority;
#[cfg(target_os = "linux")]
mod ring;
mod segments;
pub(crate) mod stream;
#[cfg(target_os = "linux")]
mod streaming;
#[cfg(test)]
mod tests;
mod threads;
pub(crate) mod transfer;
#[cfg(target_os = "linux")]
mod uring;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use crate::testing::faulty::{DeviceCalls, FaultyDevice, ReadFault, WriteFault};
pub use crate::testing::memory_device::MemoryDevice;
pub use buffer::AlignedBuffer;
pub use segments::SEGMENT_SIZE_BYTES_DEFAULT;
pub(crate) use segments::{is_out_of_handles, is_segment, segment_place};
pub use stream::{Priority, ReadStream};
pub use threads::ThreadDevice;
#[cfg(target_os = "linux")]
pub use uring::UringDevice;

use crate::error::{Error, Result};
use crate::files::directory::Directory;

/// Offsets, lengths and buffer addresses of every transfer are multiples of this.
pub const BLOCK_BYTES: usize = 512;

/// Most segment files whose handles stay open: 128 GiB of the default size.
const OPEN_FILES_MAX: usize = 512;

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
    /// Destination; its address and length are multiples of [`BLOCK_BYTES`]. Must not cross a segment.
    pub buffer: &'a mut [u8],
}

/// Which device to use.
///
/// ```
/// use embank_kv::DeviceChoice;
/// assert_eq!(DeviceChoice::default(), DeviceChoice::Auto);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// `io_uring` where the kernel grants it, else the thread pool.
    #[default]
    Auto,
    /// `io_uring` or an error.
    IoUring,
    /// The portable thread pool.
    Threads,
    /// Memory: nothing is durable. For tests.
    Memory,
}

/// How a device is set up.
///
/// ```
/// use embank_kv::device::DeviceOptions;
/// let options = DeviceOptions { segment_size_bytes: 1 << 20, ..DeviceOptions::default() };
/// assert_eq!(options.queue_depth, 256);
/// ```
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Bytes of log in one segment file: a power of two, at least [`BLOCK_BYTES`]. A bank keeps the size
    /// it was created with. Default [`SEGMENT_SIZE_BYTES_DEFAULT`].
    pub segment_size_bytes: u64,
    /// Reads that one burst keeps in flight in its ring, 1 to 4096. Default 256: a virtual drive read 4%
    /// more per second than with 128, and no more with 512.
    pub queue_depth: u32,
    /// Rings, created when first needed: as many threads can have a burst in flight at once, later ones
    /// wait. At least 1. Default 4.
    pub rings_max: usize,
    /// The most threads that the thread device starts to read; the thread that calls reads too. All thread devices of the
    /// process share their threads: a burst starts another one only if it lacks some and there are fewer than this.
    /// Default 32: it read about a sixth more per second than 16 (bursts of 256 reads, virtual disk, two cores).
    pub threads: usize,
    /// Segment files whose handles stay open between uses; at least 1. Default: a quarter of the files that the process
    /// may have open (`ulimit -n`), at most 512.
    pub open_files_max: usize,
    /// Files are opened to read only; nothing is made, written, cut or removed: what would, fails. Default false.
    pub read_only: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            segment_size_bytes: SEGMENT_SIZE_BYTES_DEFAULT,
            queue_depth: 256,
            rings_max: 4,
            threads: 32,
            open_files_max: open_files_max(),
            read_only: false,
        }
    }
}

fn open_files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(OPEN_FILES_MAX, |limit| (limit as usize / 4).clamp(1, OPEN_FILES_MAX))
}

impl DeviceOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let size = self.segment_size_bytes;
        if !size.is_power_of_two() || size < BLOCK_BYTES as u64 {
            return Err(Error::InvalidArgument(format!(
                "a segment size of {size} bytes won't do: give a power of two of at least \
                 {BLOCK_BYTES} bytes"
            )));
        }
        if !(1..=4096).contains(&self.queue_depth) {
            return Err(Error::InvalidArgument(format!(
                "a queue depth of {} won't do: give 1 to 4096",
                self.queue_depth
            )));
        }
        if self.rings_max == 0 || self.open_files_max == 0 {
            return Err(Error::InvalidArgument(
                "rings_max and open_files_max must be at least 1".to_owned(),
            ));
        }
        Ok(())
    }
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

    /// Reads all of `reads`, as many at once as the device takes, and returns when the last is done.
    ///
    /// What lies between written ranges of a segment reads as zeros, as in any sparse file; what lies
    /// beyond the last written block of a segment is [`Error::Truncated`].
    ///
    /// # Errors
    /// The first failure, naming file and offset; every request has been reaped by then. The contents of
    /// all buffers are then unspecified. [`Error::InvalidArgument`] for what is not block-aligned, empty
    /// or crosses a segment; nothing has been read then.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()>;

    /// As [`read_many`](Self::read_many), for reads that nobody waits for: those that somebody waits for go first.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many).
    fn read_many_behind(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.read_many(reads)
    }

    /// Reads what `stream` asks for, as many at once as the device and `memory` take, and hands each read
    /// over as it completes, in any order. Returns when `stream` has no more and all is handed over:
    /// how many reads were in flight at most.
    ///
    /// `memory` is where the bytes arrive: its length at least that of the longest read.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many), or what [`ReadStream::done`] returned; of several the first. No
    /// read is begun after it, and none is in flight when this returns.
    fn read_stream(&self, memory: &mut AlignedBuffer, stream: &mut dyn ReadStream) -> Result<u64> {
        stream::in_bursts(memory, stream, |reads| self.read_many(reads), |_| {})
    }

    /// Writes `bytes` at log offset `offset`; both block-aligned; may cross no segment. Not yet durable.
    ///
    /// # Errors
    /// A failed or short write, naming file and offset. [`Error::InvalidArgument`] as for reads.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// A failed sync, naming the file. After one, the kernel may have dropped what it could not write,
    /// so every later sync of this device fails too.
    fn sync(&self) -> Result<()>;

    /// Drops everything at and beyond log offset `end`, rounded up to whole blocks (a recovery discards
    /// what no checkpoint holds). Durable on return.
    ///
    /// # Errors
    /// A failed truncate or remove, naming the file.
    fn truncate(&self, end: u64) -> Result<()>;

    /// Gives the space below log offset `below` back: files that lie wholly below it are removed, and where
    /// the file system can, the rest of the next one is punched out. Reads of what was given back fail, or
    /// find zeros. Not durable by itself: after a crash some of it may be there again. A file that can't be
    /// removed does not keep others: see [`not_removed`](Self::not_removed).
    ///
    /// # Errors
    /// The directory was moved, or can't be looked at.
    fn free(&self, below: u64) -> Result<Freed>;

    /// What earlier calls of [`free`](Self::free) could not remove, a line each with file and reason. It is tried again
    /// with the next call.
    fn not_removed(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes that the file system still has for this process; `None` if that is unknown, or there is no file system.
    fn room_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the handles of files that can be opened again, where the process has none left for another file.
    fn release_handles(&self) {}

    /// The file and the offset in it that hold log offset `offset`, for error messages.
    fn locate(&self, offset: u64) -> (std::path::PathBuf, u64);
}

/// Opens the device that `choice` names over `dir/log`, creating the folder if it is absent.
///
/// [`DeviceChoice::Auto`] tries `io_uring` with a ring and one request through it, and takes the thread
/// pool if that fails for whatever reason; [`Device::report`] then tells the reason.
///
/// # Errors
/// [`Error::DeviceUnavailable`] if `io_uring` is asked for by name and refused; [`Error::Io`] if the
/// folder can't be made or listed; [`Error::InvalidArgument`] for options out of range, or segment files
/// of another size.
pub fn open(dir: &Path, choice: DeviceChoice, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    match choice {
        DeviceChoice::Memory => Ok(Arc::new(MemoryDevice::new(options)?)),
        choice => open_in(&directory(dir, options)?, choice, options),
    }
}

/// As [`open`], in a directory that is held open.
pub(crate) fn open_in(
    dir: &Arc<Directory>,
    choice: DeviceChoice,
    options: &DeviceOptions,
) -> Result<Arc<dyn Device>> {
    match choice {
        DeviceChoice::Memory => Ok(Arc::new(MemoryDevice::new(options)?)),
        DeviceChoice::Threads => Ok(Arc::new(ThreadDevice::open_in(dir, options)?)),
        DeviceChoice::IoUring => open_uring(dir, options),
        DeviceChoice::Auto => or_threads(open_uring(dir, options), dir, options),
    }
}

/// The directory of a bank, once the options are known to be right.
fn directory(dir: &Path, options: &DeviceOptions) -> Result<Arc<Directory>> {
    options.check()?;
    Directory::open(dir).map_err(|e| Error::io("open", dir, e))
}

/// The thread pool in place of an `io_uring` that was refused, with the reason kept.
fn or_threads(
    tried: Result<Arc<dyn Device>>,
    dir: &Arc<Directory>,
    options: &DeviceOptions,
) -> Result<Arc<dyn Device>> {
    match tried {
        Err(Error::DeviceUnavailable { reason, .. }) => {
            Ok(Arc::new(ThreadDevice::open_in(dir, options)?.instead_of_io_uring(reason)))
        }
        opened => opened,
    }
}

#[cfg(target_os = "linux")]
fn open_uring(dir: &Arc<Directory>, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(UringDevice::open_in(dir, options)?))
}

#[cfg(not(target_os = "linux"))]
fn open_uring(_dir: &Arc<Directory>, _options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    Err(Error::DeviceUnavailable {
        device: "io_uring",
        reason: "it is a Linux interface".to_owned(),
    })
}
