//! The choice of a device, and options of devices.

use crate::device::contract::BLOCK_BYTES;
use crate::device::segments::SEGMENT_SIZE_BYTES_DEFAULT;
use crate::device::segments::open_files::OPEN_FILES_MIN;
use crate::error::{Error, Result};
use crate::process::descriptors::{RINGS_MAX, SEGMENT_FILES_MAX};

/// The device to use.
///
/// ```
/// use embank_kv::DeviceChoice;
/// assert_eq!(DeviceChoice::default(), DeviceChoice::Auto);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// `io_uring` if the system allows it. Otherwise the thread pool.
    #[default]
    Auto,
    /// `io_uring`. Fails if the system refuses it.
    IoUring,
    /// The thread pool, which works on every system.
    Threads,
    /// Memory, for tests. Nothing is durable.
    Memory,
}

/// Options of a device.
///
/// ```
/// use embank_kv::device::DeviceOptions;
/// let options = DeviceOptions { segment_size_bytes: 1 << 20, ..DeviceOptions::default() };
/// assert_eq!(options.queue_depth, 256);
/// ```
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Bytes of log in a segment file: a power of two, at least [`BLOCK_BYTES`]. A bank keeps the
    /// size with which it was created. Default [`SEGMENT_SIZE_BYTES_DEFAULT`].
    pub segment_size_bytes: u64,
    /// Limit of the simultaneous reads of a burst, 1 to 4096. Default 256.
    pub queue_depth: u32,
    /// Limit of the rings, at least 1. Default 4. A ring is created when it is first needed. Each
    /// ring serves one thread's burst at a time, and further threads wait.
    pub rings_max: usize,
    /// Limit of the threads that the thread pool starts for reads. Default 32. The calling thread
    /// reads too. All thread devices of a process share these threads. A burst starts a thread only
    /// if too few are idle.
    pub threads: usize,
    /// Limit of the open segment files, at least 5. A bank also stays within a quarter of the files
    /// that the process may open (`ulimit -n`), but takes at least 5 segment files. Default 512.
    pub open_files_max: usize,
    /// Allocates blocks beyond the log's end, so that reads wait less for writes. A store sets this
    /// unless it has a disk quota. Default: true.
    pub allocates_ahead: bool,
    /// Opens the files only for reading. The device then creates, changes and removes no file, and
    /// calls that would do so fail. Default: false.
    pub read_only: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            segment_size_bytes: SEGMENT_SIZE_BYTES_DEFAULT,
            queue_depth: 256,
            rings_max: RINGS_MAX,
            threads: 32,
            open_files_max: SEGMENT_FILES_MAX,
            allocates_ahead: true,
            read_only: false,
        }
    }
}

impl DeviceOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let size = self.segment_size_bytes;
        if !size.is_power_of_two() || size < BLOCK_BYTES as u64 {
            return Err(Error::option(
                "segment_size_bytes",
                format!("must be a power of two of at least {BLOCK_BYTES} bytes, not {size}"),
            ));
        }
        if !(1..=4096).contains(&self.queue_depth) {
            return Err(Error::option(
                "queue_depth",
                format!("must be from 1 to 4096, not {}", self.queue_depth),
            ));
        }
        for (option, given, least) in [
            ("rings_max", self.rings_max, 1),
            ("open_files_max", self.open_files_max, OPEN_FILES_MIN),
        ] {
            if given < least {
                return Err(Error::option(
                    option,
                    format!("must be at least {least}, not {given}"),
                ));
            }
        }
        Ok(())
    }
}
