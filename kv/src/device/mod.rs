//! Where pages lie when they are not in memory.
//!
//! The log is one address space of bytes. A device maps it to segment files of a fixed size and
//! moves whole blocks. There are three devices: `io_uring` with `O_DIRECT`; a thread pool of
//! `pread` and `pwrite`, for systems that refuse io_uring; and memory, in which nothing is durable.
//! With the feature `testing` there is a fourth, `FaultyDevice`, which wraps another device and
//! fails on request.
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
mod memory;
mod open_file;
pub(crate) mod options;
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
pub use contract::{BLOCK_BYTES, Device, DeviceReport, Freed, Read};
pub use memory::MemoryDevice;
pub use options::{DeviceChoice, DeviceOptions};
pub use segments::SEGMENT_SIZE_BYTES_DEFAULT;
pub(crate) use segments::is_out_of_handles;
pub(crate) use segments::names::is_segment;
pub use stream::{Priority, ReadStream};
pub use threads::ThreadDevice;
#[cfg(target_os = "linux")]
pub use uring::UringDevice;

use crate::error::{Error, Result};
use crate::files::directory::Directory;

/// Opens the device `choice` over `dir/log`, and makes the folder if it is absent.
///
/// [`DeviceChoice::Auto`] tries `io_uring` with a ring and one request. If that fails for any
/// reason, it takes the thread pool, and [`Device::report`] has the reason.
///
/// # Errors
/// [`Error::DeviceUnavailable`] if the caller chose `io_uring` and the system refuses it.
/// [`Error::Io`] if the folder can't be made or listed. [`Error::InvalidOption`] for options out of
/// range, or if the segment files have another size.
pub fn open(dir: &Path, choice: DeviceChoice, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    match choice {
        DeviceChoice::Memory => Ok(Arc::new(MemoryDevice::new(options)?)),
        choice => open_in(&directory(dir, options)?, choice, options),
    }
}

/// As [`open`], in a directory that is open already.
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

/// The directory of a bank. Checks the options first.
fn directory(dir: &Path, options: &DeviceOptions) -> Result<Arc<Directory>> {
    options.check()?;
    Directory::open(dir).map_err(|e| Error::io("open", dir, e))
}

/// The thread pool in place of an `io_uring` that was refused; the pool keeps the reason.
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
