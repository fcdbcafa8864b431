//! Devices: the storage for pages of the log that are not in memory.
//!
//! The log is one address space of bytes. A device stores it in segment files of a fixed size and
//! transfers whole blocks. The addresses from 2^49 on belong to the parts of the cold tier, each in
//! a file of its own. There are three devices: `io_uring` with `O_DIRECT`; a thread pool with
//! `pread` and `pwrite`, for systems without io_uring; and memory, in which nothing is durable.
//! With the feature `testing`, `FaultyDevice` wraps another device and fails on request.
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
#[cfg(target_os = "linux")]
mod completion;
pub(crate) mod contract;
#[cfg(target_os = "linux")]
mod lent_files;
mod memory;
mod open_file;
pub(crate) mod options;
pub(crate) mod placement;
pub(crate) mod pool;
#[cfg(target_os = "linux")]
mod priority;
#[cfg(target_os = "linux")]
mod ring;
pub(crate) mod segments;
pub(crate) mod stream;
#[cfg(target_os = "linux")]
mod streaming;
#[cfg(test)]
mod tests;
mod threads;
pub(crate) mod transfer;
#[cfg(target_os = "linux")]
mod uring;

use std::path::Path;
use std::sync::Arc;

#[cfg(any(test, feature = "testing"))]
pub use crate::testing::faulty::{DeviceCalls, FaultyDevice, ReadFault, WriteFault};
pub use buffer::AlignedBuffer;
pub(crate) use contract::BLOCK_BYTES_MAX;
pub use contract::{BLOCK_BYTES, Device, DeviceReport, Freed, PartFile, Read};
pub use memory::MemoryDevice;
pub use options::{DeviceChoice, DeviceOptions};
pub use segments::SEGMENT_SIZE_BYTES_DEFAULT;
pub(crate) use segments::names::is_segment;
pub use stream::{Priority, ReadStream};
pub use threads::ThreadDevice;
#[cfg(target_os = "linux")]
pub use uring::UringDevice;

use crate::error::{Error, Result};
use crate::files::directory::Directory;

/// Opens the device `choice` for the log in `dir/log`. Creates that folder if it does not exist.
///
/// [`DeviceChoice::Auto`] first tests `io_uring` with one request. If the test fails for any
/// reason, it opens the thread pool, and [`Device::report`] contains the reason.
///
/// # Errors
/// [`Error::DeviceUnavailable`] if the caller chose `io_uring` and the system refuses it.
/// [`Error::Io`] if the folder can't be created or listed. [`Error::InvalidOption`] for an option
/// out of range, or for a segment size that differs from the size of the existing files.
pub fn open(dir: &Path, choice: DeviceChoice, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    match choice {
        DeviceChoice::Memory => Ok(Arc::new(MemoryDevice::new(options)?)),
        choice => open_in(&directory(dir, options)?, choice, options),
    }
}

/// Like [`open`], for an open directory.
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

/// Checks the options, then opens a bank's directory.
fn directory(dir: &Path, options: &DeviceOptions) -> Result<Arc<Directory>> {
    options.check()?;
    Directory::open(dir).map_err(|e| Error::io("open", dir, e))
}

/// Opens the thread pool if `io_uring` was refused. The pool's report contains the reason.
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
