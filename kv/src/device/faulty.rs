//! A device that fails when it is told to. For tests.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{AlignedBuffer, BLOCK_BYTES, Device, DeviceReport, Freed, Read, ReadStream, stream};
use crate::error::{Error, Result};

/// Wraps a device and fails its calls on request: the seam by which tests force every error site above the
/// device. Not for production: it takes a lock on each call.
///
/// Calls are counted from the request on: `n` = 1 means the next call. One request of each kind stands at
/// a time; a new one replaces it. [`Self::mend`] takes all of them back.
///
/// ```
/// use std::{io, sync::Arc};
/// use embank_kv::device::{AlignedBuffer, Device, DeviceOptions, FaultyDevice, MemoryDevice};
/// let device = FaultyDevice::new(Arc::new(MemoryDevice::new(&DeviceOptions::default())?));
/// device.fail_write(2, io::ErrorKind::StorageFull);
/// let block = AlignedBuffer::zeroed(512);
/// assert!(device.write(0, &block).is_ok());
/// assert!(device.write(512, &block).is_err());
/// assert!(device.write(512, &block).is_ok());
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    reads: Countdown,
    writes: Countdown,
    syncs: Countdown,
    truncates: Countdown,
    frees: Countdown,
    /// Bytes that a write which fails leaves behind.
    torn_bytes: usize,
    /// Every write and sync from the next on.
    broken: Option<io::ErrorKind>,
    flips: Vec<(u64, u8)>,
    end: Option<u64>,
    /// The state of the generator that shuffles completions.
    shuffle: Option<u64>,
    calls: DeviceCalls,
}

/// How many calls a [`FaultyDevice`] has seen, failed ones included.
///
/// ```
/// use embank_kv::device::DeviceCalls;
/// assert_eq!(DeviceCalls::default().reads, 0);
/// ```
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCalls {
    /// Bursts of reads.
    pub bursts: u64,
    /// Single reads, over all bursts.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
}

/// Fails one call, so many from now.
#[derive(Debug, Default)]
struct Countdown(Option<(u64, io::ErrorKind)>);

impl Countdown {
    fn set(&mut self, n: u64, kind: io::ErrorKind) {
        assert!(n > 0, "calls are counted from 1, the next one");
        self.0 = Some((n, kind));
    }

    /// Counts `calls`; the kind to fail with if the chosen one is among them.
    fn pass(&mut self, calls: u64) -> Option<io::ErrorKind> {
        let (n, kind) = self.0?;
        self.0 = (n > calls).then(|| (n - calls, kind));
        (n <= calls).then_some(kind)
    }
}

impl FaultyDevice {
    /// Passes everything on to `inner` until told otherwise.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, plan: Mutex::default() }
    }

    /// Fails the burst that holds the `n`-th single read from now; the burst reads nothing.
    ///
    /// # Panics
    /// If `n` is 0, here and below.
    pub fn fail_read(&self, n: u64, kind: io::ErrorKind) {
        self.plan.lock().reads.set(n, kind);
    }

    /// Fails the `n`-th write from now; nothing of it reaches the device.
    pub fn fail_write(&self, n: u64, kind: io::ErrorKind) {
        self.tear_write(n, 0, kind);
    }

    /// Fails the `n`-th write from now after its first `kept_bytes` bytes, rounded down to blocks, have
    /// reached the device: what a power cut or a full disk leaves of a page.
    pub fn tear_write(&self, n: u64, kept_bytes: usize, kind: io::ErrorKind) {
        let mut plan = self.plan.lock();
        plan.writes.set(n, kind);
        plan.torn_bytes = kept_bytes;
    }

    /// Fails the `n`-th sync from now.
    pub fn fail_sync(&self, n: u64, kind: io::ErrorKind) {
        self.plan.lock().syncs.set(n, kind);
    }

    /// Fails the `n`-th truncate from now.
    pub fn fail_truncate(&self, n: u64, kind: io::ErrorKind) {
        self.plan.lock().truncates.set(n, kind);
    }

    /// Fails the `n`-th giving back of space from now; nothing is given back.
    pub fn fail_free(&self, n: u64, kind: io::ErrorKind) {
        self.plan.lock().frees.set(n, kind);
    }

    /// Fails every write and sync from now on, as a disk that died or filled up.
    pub fn break_writes(&self, kind: io::ErrorKind) {
        self.plan.lock().broken = Some(kind);
    }

    /// Turns bit `bit` (0 to 7) of the byte at log offset `offset` around in every read that covers it.
    ///
    /// # Panics
    /// If `bit` is above 7.
    pub fn flip_bit_on_read(&self, offset: u64, bit: u8) {
        assert!(bit < 8, "a byte has bits 0 to 7");
        self.plan.lock().flips.push((offset, bit));
    }

    /// Answers reads that reach beyond log offset `end` with [`Error::Truncated`].
    pub fn cut_reads_at(&self, end: u64) {
        self.plan.lock().end = Some(end);
    }

    /// Hands the reads of a stream over in an order that `seed` decides, late ones first or last.
    pub fn shuffle_completions(&self, seed: u64) {
        self.plan.lock().shuffle = Some(seed);
    }

    /// Takes back all that was asked for. Counts stay.
    pub fn mend(&self) {
        let mut plan = self.plan.lock();
        *plan = Plan { calls: plan.calls, ..Plan::default() };
    }

    /// How many calls have come so far.
    pub fn calls(&self) -> DeviceCalls {
        self.plan.lock().calls
    }

    fn error(&self, operation: &'static str, offset: u64, kind: io::ErrorKind) -> Error {
        let (path, offset) = self.inner.locate(offset);
        Error::io(operation, path, io::Error::new(kind, format!("at offset {offset}: injected")))
    }
}

impl Device for FaultyDevice {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn report(&self) -> DeviceReport {
        self.inner.report()
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        let (failure, flips, end) = {
            let mut plan = self.plan.lock();
            plan.calls.bursts += 1;
            plan.calls.reads += reads.len() as u64;
            (plan.reads.pass(reads.len() as u64), plan.flips.clone(), plan.end)
        };
        if let Some(kind) = failure {
            return Err(self.error("read", reads.first().map_or(0, |read| read.offset), kind));
        }
        for read in reads.iter() {
            let len = read.buffer.len() as u64;
            if let Some(end) = end.filter(|&end| read.offset + len > end) {
                let (path, offset) = self.inner.locate(read.offset);
                let found = end.saturating_sub(read.offset);
                return Err(Error::Truncated { path, offset, expected: len, found });
            }
        }
        self.inner.read_many(reads)?;
        for read in reads {
            for &(offset, bit) in &flips {
                let byte = offset.checked_sub(read.offset).and_then(|at| usize::try_from(at).ok());
                if let Some(byte) = byte.and_then(|at| read.buffer.get_mut(at)) {
                    *byte ^= 1 << bit;
                }
            }
        }
        Ok(())
    }

    fn read_stream(&self, memory: &mut AlignedBuffer, stream: &mut dyn ReadStream) -> Result<u64> {
        let shuffle = |order: &mut [usize]| {
            let mut plan = self.plan.lock();
            let Some(state) = &mut plan.shuffle else { return };
            for i in (1..order.len()).rev() {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                order.swap(i, (*state >> 33) as usize % (i + 1));
            }
        };
        stream::in_bursts(memory, stream, |reads| self.read_many(reads), shuffle)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (failure, kept) = {
            let mut plan = self.plan.lock();
            plan.calls.writes += 1;
            match plan.broken {
                Some(kind) => (Some(kind), 0),
                None => (plan.writes.pass(1), plan.torn_bytes),
            }
        };
        let Some(kind) = failure else { return self.inner.write(offset, bytes) };
        let kept = kept.min(bytes.len()) / BLOCK_BYTES * BLOCK_BYTES;
        if kept > 0 {
            self.inner.write(offset, &bytes[..kept])?;
        }
        Err(self.error("write", offset + kept as u64, kind))
    }

    fn sync(&self) -> Result<()> {
        let failure = {
            let mut plan = self.plan.lock();
            plan.calls.syncs += 1;
            plan.broken.or_else(|| plan.syncs.pass(1))
        };
        failure.map_or_else(|| self.inner.sync(), |kind| Err(self.error("sync", 0, kind)))
    }

    fn truncate(&self, end: u64) -> Result<()> {
        let failure = self.plan.lock().truncates.pass(1);
        match failure {
            Some(kind) => Err(self.error("truncate", end, kind)),
            None => self.inner.truncate(end),
        }
    }

    fn free(&self, below: u64) -> Result<Freed> {
        let failure = self.plan.lock().frees.pass(1);
        match failure {
            Some(kind) => Err(self.error("remove", below, kind)),
            None => self.inner.free(below),
        }
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.inner.locate(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{AlignedBuffer, DeviceOptions, MemoryDevice};

    fn device() -> FaultyDevice {
        let memory = MemoryDevice::new(&DeviceOptions::default()).unwrap();
        FaultyDevice::new(Arc::new(memory))
    }

    fn block(device: &FaultyDevice, offset: u64) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
        device.read_many(&mut [Read { offset, buffer: &mut buffer }])?;
        Ok(buffer)
    }

    #[test]
    fn the_chosen_call_fails_and_its_neighbours_do_not() {
        let device = device();
        let bytes = AlignedBuffer::zeroed(BLOCK_BYTES);
        device.write(0, &bytes).unwrap();
        device.fail_read(2, io::ErrorKind::Other);
        device.fail_sync(1, io::ErrorKind::Other);
        device.fail_truncate(1, io::ErrorKind::Other);
        assert!(block(&device, 0).is_ok());
        assert!(block(&device, 0).is_err());
        assert!(block(&device, 0).is_ok());
        assert!(device.sync().is_err());
        assert!(device.sync().is_ok());
        assert!(device.truncate(512).is_err());
        assert!(device.truncate(512).is_ok());
        let expected = DeviceCalls { bursts: 3, reads: 3, writes: 1, syncs: 2 };
        assert_eq!(device.calls(), expected);
    }

    #[test]
    fn a_torn_write_leaves_its_first_blocks() {
        let device = device();
        let mut bytes = AlignedBuffer::zeroed(4 * BLOCK_BYTES);
        bytes.fill(9);
        device.tear_write(1, 2 * BLOCK_BYTES + 5, io::ErrorKind::StorageFull);
        let error = device.write(0, &bytes).unwrap_err();
        assert!(error.to_string().contains("at offset 1024"), "{error}");
        assert_eq!(block(&device, 512).unwrap()[511], 9);
        assert!(matches!(block(&device, 1024), Err(Error::Truncated { .. })));
    }

    #[test]
    fn broken_writes_stay_broken_until_mended() {
        let device = device();
        let bytes = AlignedBuffer::zeroed(BLOCK_BYTES);
        device.break_writes(io::ErrorKind::StorageFull);
        for _ in 0..3 {
            assert!(device.write(0, &bytes).is_err());
            assert!(device.sync().is_err());
        }
        device.mend();
        assert!(device.write(0, &bytes).is_ok());
        assert!(device.sync().is_ok());
    }

    #[test]
    fn flipped_bits_and_cut_ends_show_in_the_reads_that_reach_them() {
        let device = device();
        device.write(0, &AlignedBuffer::zeroed(3 * BLOCK_BYTES)).unwrap();
        device.flip_bit_on_read(513, 7);
        device.cut_reads_at(1024 + 100);
        assert!(block(&device, 0).unwrap().iter().all(|&byte| byte == 0));
        assert_eq!(block(&device, 512).unwrap()[1], 0x80);
        let error = block(&device, 1024).unwrap_err();
        let Error::Truncated { offset, expected, found, .. } = error else { panic!("{error}") };
        assert_eq!((offset, expected, found), (1024, 512, 100));
    }
}
