//! Where pages lie when they are not in memory.
//!
//! The log is one address space of bytes. A device maps it to segment files of a fixed size and moves
//! whole blocks. Three implementations: `io_uring` with `O_DIRECT`, a thread pool of `pread`/`pwrite`
//! for where io_uring is refused, and memory for tests.

use std::fmt;

use crate::error::Result;

/// Offsets, lengths and buffer addresses of every transfer are multiples of this.
pub const BLOCK_BYTES: usize = 512;

/// One read of a burst: `buffer.len()` bytes from log offset `offset`.
#[derive(Debug)]
pub struct Read<'a> {
    /// Log offset, a multiple of [`BLOCK_BYTES`].
    pub offset: u64,
    /// Destination; its address and length are multiples of [`BLOCK_BYTES`]. Must not cross a segment.
    pub buffer: &'a mut [u8],
}

/// Which device to use.
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

/// Block storage for the log.
pub trait Device: Send + Sync + fmt::Debug {
    /// The device's name as statistics print it: `"io_uring"`, `"threads"`, `"memory"`.
    fn name(&self) -> &'static str;

    /// Reads all of `reads`, as many at once as the device takes, and returns when the last is done.
    ///
    /// # Errors
    /// The first failure, naming file and offset; every request has been reaped by then.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()>;

    /// Writes `bytes` at log offset `offset`; both block-aligned; may cross no segment. Not yet durable.
    ///
    /// # Errors
    /// A failed or short write, naming file and offset.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// A failed sync, naming the file.
    fn sync(&self) -> Result<()>;

    /// Drops everything at and beyond log offset `end` (a recovery discards what no checkpoint holds).
    ///
    /// # Errors
    /// A failed truncate or remove, naming the file.
    fn truncate(&self, end: u64) -> Result<()>;

    /// The file and the offset in it that hold log offset `offset`, for error messages.
    fn locate(&self, offset: u64) -> (std::path::PathBuf, u64);
}
