//! A disk that stands still for as long as a test wants it to.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use embank_kv::Result;
use embank_kv::device::{Device, DeviceOptions, Freed, MemoryDevice, Read};

/// Holds every write while it is closed.
#[derive(Debug)]
pub(crate) struct Gate {
    inner: MemoryDevice,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let inner = MemoryDevice::new(&DeviceOptions::default()).unwrap();
        Gate { inner, closed: Mutex::new(false), opened: Condvar::new() }
    }

    pub(crate) fn set_closed(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.opened.notify_all();
    }
}

impl Device for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.inner.read_many(reads)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let closed = self.closed.lock().unwrap();
        drop(self.opened.wait_while(closed, |closed| *closed).unwrap());
        self.inner.write(offset, bytes)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn truncate(&self, end: u64) -> Result<()> {
        self.inner.truncate(end)
    }
    fn free(&self, below: u64) -> Result<Freed> {
        self.inner.free(below)
    }
    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.inner.locate(offset)
    }
}

/// A closed gate that opens at the end, whatever happens: a store waits for its writes before it is gone.
pub(crate) struct Opens(Arc<Gate>);

impl Opens {
    pub(crate) fn after_closing(gate: &Arc<Gate>) -> Self {
        gate.set_closed(true);
        Opens(Arc::clone(gate))
    }
}

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}
