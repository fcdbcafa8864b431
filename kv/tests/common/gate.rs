//! A device on which a test can stop all writes.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use embank_kv::Result;
use embank_kv::device::{Device, DeviceOptions, Freed, MemoryDevice, PartFile, Read};

/// A device that holds all writes while it is closed. A test can let single writes pass.
#[derive(Debug)]
pub(crate) struct Gate {
    inner: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Number of writes that may still pass while the gate is closed.
    passes: u64,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let inner = MemoryDevice::new(&DeviceOptions::default()).unwrap();
        Gate { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn set_closed(&self, closed: bool) {
        *self.state.lock().unwrap() = State { closed, passes: 0 };
        self.changed.notify_all();
    }

    /// Lets one more write pass while the gate is closed.
    pub(crate) fn let_one_through(&self) {
        self.state.lock().unwrap().passes += 1;
        self.changed.notify_all();
    }

    /// True if all writes that the test allowed have passed.
    pub(crate) fn all_passed(&self) -> bool {
        self.state.lock().unwrap().passes == 0
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
        let state = self.state.lock().unwrap();
        let held = |state: &mut State| state.closed && state.passes == 0;
        let mut state = self.changed.wait_while(state, held).unwrap();
        state.passes = state.passes.saturating_sub(1);
        drop(state);
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

/// A closed gate. Dropping the value opens the gate, also after a panic: a store that is dropped
/// waits for its writes.
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
