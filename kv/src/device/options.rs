//! The choice of a device, and its options.

use crate::device::contract::BLOCK_BYTES;
use crate::device::segments::SEGMENT_SIZE_BYTES_DEFAULT;
use crate::error::{Error, Result};

/// Most segment files whose handles stay open. At the default size they hold 128 GiB.
const OPEN_FILES_MAX: usize = 512;

/// Which device to use.
///
/// ```
/// use embank_kv::DeviceChoice;
/// assert_eq!(DeviceChoice::default(), DeviceChoice::Auto);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// `io_uring` if the kernel allows it, else the thread pool.
    #[default]
    Auto,
    /// `io_uring`, or an error.
    IoUring,
    /// The portable thread pool.
    Threads,
    /// Memory, for tests: nothing is durable.
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
    /// Bytes of log in one segment file: a power of two, at least [`BLOCK_BYTES`]. A bank keeps
    /// the size it was created with. Default [`SEGMENT_SIZE_BYTES_DEFAULT`].
    pub segment_size_bytes: u64,
    /// Reads that one burst keeps in flight in its ring, 1 to 4096. Default 256.
    pub queue_depth: u32,
    /// Most rings. A ring is created when it is first needed. As many threads can have a burst in
    /// flight at once, and further threads wait. At least 1. Default 4.
    pub rings_max: usize,
    /// Most threads that the thread device starts for reads; the calling thread reads too. All
    /// thread devices of the process share their threads. A burst starts a thread only if it lacks
    /// one and if there are fewer than this. Default 32.
    pub threads: usize,
    /// Segment files whose handles stay open between uses; at least 1. Default: a quarter of the
    /// files that the process may have open (`ulimit -n`), at most 512.
    pub open_files_max: usize,
    /// Opens the files to read only. The device then makes, writes, cuts and removes nothing, and
    /// calls that would do so fail. Default: false.
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
    // Miri can't ask for the limits of the process.
    if cfg!(miri) {
        return OPEN_FILES_MAX;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(OPEN_FILES_MAX, |limit| (limit as usize / 4).clamp(1, OPEN_FILES_MAX))
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
        for (option, given) in
            [("rings_max", self.rings_max), ("open_files_max", self.open_files_max)]
        {
            if given == 0 {
                return Err(Error::option(option, "must be at least 1"));
            }
        }
        Ok(())
    }
}
