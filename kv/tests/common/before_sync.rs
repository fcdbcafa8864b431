//! A device that runs a function of the test before each sync. The files of a checkpoint are open
//! then, and the checkpoint has its number.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use embank_kv::device::{self, Device, DeviceOptions, Freed, PartFile, Read};
use embank_kv::{DeviceChoice, Result};

struct BeforeSync {
    inner: Arc<dyn Device>,
    act: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for BeforeSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeforeSync")
    }
}

/// Returns a function that opens such a device for the bank in `dir`, for `Store::open_on`.
pub(crate) fn before_sync(
    dir: &Path,
    act: impl Fn() + Send + Sync + 'static,
) -> impl FnOnce(u64) -> Result<Arc<dyn Device>> {
    move |segment_size_bytes| {
        let options = DeviceOptions { segment_size_bytes, ..DeviceOptions::default() };
        let inner = device::open(dir, DeviceChoice::Threads, &options)?;
        Ok(Arc::new(BeforeSync { inner, act: Box::new(act) }))
    }
}

impl Device for BeforeSync {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.inner.read_many(reads)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.write(offset, bytes)
    }
    fn sync(&self) -> Result<()> {
        (self.act)();
        self.inner.sync()
    }
    fn truncate(&self, end: u64) -> Result<()> {
        self.inner.truncate(end)
    }
    fn free(&self, below: u64) -> Result<Freed> {
        self.inner.free(below)
    }
    fn part_files(&self) -> Result<Vec<PartFile>> {
        self.inner.part_files()
    }
    fn remove_part(&self, begin: u64) -> Result<()> {
        self.inner.remove_part(begin)
    }
    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.inner.locate(offset)
    }
}
