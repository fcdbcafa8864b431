//! A device for tests whose calls fail on request.

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::process::locks::Mutex;

use crate::device::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceReport, Freed, PartFile, Read, ReadStream, stream,
};
use crate::error::{Error, Result};

/// Wraps a device and makes chosen calls fail. Tests use it to reach every error path of the code
/// above the device. It is slow, because every call takes a lock.
///
/// A request names the call that fails by its number: 1 is the next call after the request. Each
/// kind of call has at most one request, and a new request replaces the old one. [`Self::mend`]
/// removes all requests.
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
    reads: Countdown<ReadFault>,
    writes: Countdown<WriteFault>,
    syncs: Countdown<io::ErrorKind>,
    truncates: Countdown<io::ErrorKind>,
    frees: Countdown<io::ErrorKind>,
    /// If set, all further writes and syncs fail with this error.
    broken: Option<io::ErrorKind>,
    /// While this is set, no file can be opened for a write: the number of the system's error.
    no_descriptor: Option<i32>,
    flips: Vec<(u64, u8)>,
    end: Option<u64>,
    /// If set, the free bytes that the device reports for its file system.
    room_bytes: Option<u64>,
    /// State of the random generator for the order of completions and for delays.
    shuffle: Option<u64>,
    delay_us_max: u64,
    calls: DeviceCalls,
}

/// Number of calls to a [`FaultyDevice`], failed calls included.
///
/// ```
/// use embank_kv::device::DeviceCalls;
/// assert_eq!(DeviceCalls::default().reads, 0);
/// ```
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCalls {
    /// Number of bursts. A burst is one call of the device with one or more reads.
    pub bursts: u64,
    /// Number of single reads in all bursts.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of syncs.
    pub syncs: u64,
    /// Number of truncates.
    pub truncates: u64,
    /// Number of calls that free space: of the log, or of a part.
    pub frees: u64,
}

/// A way in which a read goes wrong.
///
/// ```
/// use embank_kv::device::ReadFault;
/// let elsewhere = ReadFault::Misdirected { by: -8192 };
/// assert_ne!(elsewhere, ReadFault::CutShort);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFault {
    /// All reads of the burst fail with this error.
    Fails(io::ErrorKind),
    /// The burst fails with [`Error::Truncated`], as if the file ended in the middle of this read.
    CutShort,
    /// The read returns the bytes of another offset, or zeros if no bytes are there.
    Misdirected {
        /// Distance to the other offset in bytes, a multiple of [`BLOCK_BYTES`].
        by: i64,
    },
    /// The read returns the bytes with one bit flipped.
    Flipped {
        /// Position of the byte in the read, modulo the read's length.
        byte: usize,
        /// Number of the bit in the byte, 0 to 7.
        bit: u8,
    },
}

/// A way in which a write goes wrong. Only `Fails` returns an error; the other faults report
/// success.
///
/// ```
/// use embank_kv::device::WriteFault;
/// assert_ne!(WriteFault::Lost, WriteFault::Misdirected { by: 8192 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// The write fails after `kept_bytes` bytes, rounded down to blocks, reached the device.
    Fails {
        /// The error that the write returns.
        kind: io::ErrorKind,
        /// Number of bytes that reach the device.
        kept_bytes: usize,
    },
    /// No byte reaches the device.
    Lost,
    /// The bytes go to another offset. They are lost if the offset would be below 0 or the write
    /// would cross a segment's end.
    Misdirected {
        /// Distance to the other offset in bytes, a multiple of [`BLOCK_BYTES`].
        by: i64,
    },
    /// The bytes reach the device with one bit flipped.
    Flipped {
        /// Position of the byte in the write, modulo the write's length.
        byte: usize,
        /// Number of the bit in the byte, 0 to 7.
        bit: u8,
    },
}

/// A request: the number of calls until the chosen call, and the fault of that call.
#[derive(Debug)]
struct Countdown<F>(Option<(u64, F)>);

impl<F> Default for Countdown<F> {
    fn default() -> Self {
        Countdown(None)
    }
}

impl<F: Copy> Countdown<F> {
    fn set(&mut self, n: u64, fault: F) {
        assert!(n > 0, "calls are counted from 1, the next one");
        self.0 = Some((n, fault));
    }

    /// Counts `calls` calls. If the chosen call is one of them, returns its position among the
    /// `calls` calls, counted from 0, and its fault.
    fn pass(&mut self, calls: u64) -> Option<(usize, F)> {
        let (n, fault) = self.0?;
        self.0 = (n > calls).then(|| (n - calls, fault));
        (n <= calls).then_some((n as usize - 1, fault))
    }
}

impl FaultyDevice {
    /// Wraps `inner`. Until a fault is requested, every call goes to `inner` unchanged.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, plan: Mutex::default() }
    }

    /// Makes the `n`-th single read from now fail. The other reads of its burst then fail too and
    /// read no bytes.
    ///
    /// # Panics
    /// If `n` is 0. The other methods with an `n` also panic if `n` is 0.
    pub fn fail_read(&self, n: u64, kind: io::ErrorKind) {
        self.spoil_read(n, ReadFault::Fails(kind));
    }

    /// Applies `fault` to the `n`-th single read from now.
    pub fn spoil_read(&self, n: u64, fault: ReadFault) {
        self.plan.lock().reads.set(n, fault);
    }

    /// Applies `fault` to the `n`-th write from now.
    pub fn spoil_write(&self, n: u64, fault: WriteFault) {
        self.plan.lock().writes.set(n, fault);
    }

    /// Makes the `n`-th write from now fail. No byte of it reaches the device.
    pub fn fail_write(&self, n: u64, kind: io::ErrorKind) {
        self.tear_write(n, 0, kind);
    }

    /// Makes the `n`-th write from now fail after `kept_bytes` bytes, rounded down to blocks,
    /// reached the device. A power cut or a full disk leaves such a partial page.
    pub fn tear_write(&self, n: u64, kept_bytes: usize, kind: io::ErrorKind) {
        self.spoil_write(n, WriteFault::Fails { kind, kept_bytes });
    }

    /// Makes the `n`-th sync from now fail.
    pub fn fail_sync(&self, n: u64, kind: io::ErrorKind) {
        self.plan.lock().syncs.set(n, kind);
    }

    /// Makes the `n`-th truncate from now fail.
    pub fn fail_truncate(&self, n: u64, kind: io::ErrorKind) {
        self.plan.lock().truncates.set(n, kind);
    }

    /// Makes the `n`-th call that frees space, of the log or of a part, fail. No space is freed.
    pub fn fail_free(&self, n: u64, kind: io::ErrorKind) {
        self.plan.lock().frees.set(n, kind);
    }

    /// Makes all further writes and syncs fail, as on a broken or full disk.
    pub fn break_writes(&self, kind: io::ErrorKind) {
        self.plan.lock().broken = Some(kind);
    }

    /// Makes each write fail with the system's error `code` in the opening of its file, such as
    /// `EMFILE`, until [`mend`](Self::mend).
    pub fn refuse_descriptors(&self, code: i32) {
        self.plan.lock().no_descriptor = Some(code);
    }

    /// Makes the device report `bytes` free bytes from now on. Writes do not change the number.
    pub fn set_room(&self, bytes: u64) {
        self.plan.lock().room_bytes = Some(bytes);
    }

    /// Flips one bit of the byte at log offset `offset` in every read that contains this byte.
    /// `bit` is the number of the bit, 0 to 7.
    ///
    /// # Panics
    /// If `bit` is above 7.
    pub fn flip_bit_on_read(&self, offset: u64, bit: u8) {
        assert!(bit < 8, "a byte has bits 0 to 7");
        self.plan.lock().flips.push((offset, bit));
    }

    /// Makes every read beyond log offset `end` fail with [`Error::Truncated`].
    pub fn cut_reads_at(&self, end: u64) {
        self.plan.lock().end = Some(end);
    }

    /// Completes the reads of a stream in a random order, which `seed` determines.
    pub fn shuffle_completions(&self, seed: u64) {
        self.plan.lock().shuffle = Some(seed);
    }

    /// Delays each read and write by a random time of at most `us_max` microseconds. Also completes
    /// the reads of a stream in a random order. `seed` determines both.
    pub fn delay(&self, seed: u64, us_max: u64) {
        let mut plan = self.plan.lock();
        plan.shuffle = Some(seed);
        plan.delay_us_max = us_max;
    }

    fn wait(&self) {
        let mut plan = self.plan.lock();
        let us_max = plan.delay_us_max;
        let Some(state) = plan.shuffle.as_mut().filter(|_| us_max > 0) else { return };
        let us = next(state) % (us_max + 1);
        drop(plan);
        std::thread::sleep(Duration::from_micros(us));
    }

    /// Removes all requests. The counts of calls are kept.
    pub fn mend(&self) {
        let mut plan = self.plan.lock();
        *plan = Plan { calls: plan.calls, ..Plan::default() };
    }

    /// Number of calls since the device was made.
    pub fn calls(&self) -> DeviceCalls {
        self.plan.lock().calls
    }

    fn read_elsewhere(&self, read: &mut Read<'_>, by: i64) {
        let there = moved(read.offset, by).is_some_and(|offset| {
            let elsewhere = Read { offset, buffer: &mut *read.buffer };
            self.inner.read_many(&mut [elsewhere]).is_ok()
        });
        if !there {
            read.buffer.fill(0);
        }
    }

    fn error(&self, operation: &'static str, offset: u64, kind: io::ErrorKind) -> Error {
        let (path, offset) = self.inner.locate(offset);
        Error::io(operation, path, io::Error::new(kind, format!("at offset {offset}: injected")))
    }
}

/// Returns the generator's next number.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *state >> 33
}

/// Returns `offset` plus `by`. `None` if the sum is negative.
fn moved(offset: u64, by: i64) -> Option<u64> {
    offset.checked_add_signed(by)
}

fn flip(bytes: &mut [u8], byte: usize, bit: u8) {
    let byte = byte % bytes.len();
    bytes[byte] ^= 1 << (bit % 8);
}

impl Device for FaultyDevice {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn report(&self) -> DeviceReport {
        self.inner.report()
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.wait();
        let (fault, flips, end) = {
            let mut plan = self.plan.lock();
            plan.calls.bursts += 1;
            plan.calls.reads += reads.len() as u64;
            (plan.reads.pass(reads.len() as u64), plan.flips.clone(), plan.end)
        };
        match fault {
            Some((_, ReadFault::Fails(kind))) => {
                let first = reads.first().map_or(0, |read| read.offset);
                return Err(self.error("read", first, kind));
            }
            Some((at, ReadFault::CutShort)) => {
                let (path, offset) = self.inner.locate(reads[at].offset);
                let expected = reads[at].buffer.len() as u64;
                return Err(Error::Truncated { path, offset, expected, found: expected / 2 });
            }
            _ => {}
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
        match fault {
            Some((at, ReadFault::Misdirected { by })) => self.read_elsewhere(&mut reads[at], by),
            Some((at, ReadFault::Flipped { byte, bit })) => flip(reads[at].buffer, byte, bit),
            _ => {}
        }
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
                order.swap(i, next(state) as usize % (i + 1));
            }
        };
        stream::in_bursts(memory, stream, |reads| self.read_many(reads), shuffle)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.wait();
        let fault = {
            let mut plan = self.plan.lock();
            plan.calls.writes += 1;
            if let Some(code) = plan.no_descriptor {
                let (path, _) = self.inner.locate(offset);
                return Err(Error::io("open", path, io::Error::from_raw_os_error(code)));
            }
            match plan.broken {
                Some(kind) => Some(WriteFault::Fails { kind, kept_bytes: 0 }),
                None => plan.writes.pass(1).map(|(_, fault)| fault),
            }
        };
        match fault {
            None => self.inner.write(offset, bytes),
            Some(WriteFault::Fails { kind, kept_bytes }) => {
                let kept = kept_bytes.min(bytes.len()) / BLOCK_BYTES * BLOCK_BYTES;
                if kept > 0 {
                    self.inner.write(offset, &bytes[..kept])?;
                }
                Err(self.error("write", offset + kept as u64, kind))
            }
            Some(WriteFault::Lost) => Ok(()),
            Some(WriteFault::Misdirected { by }) => {
                if let Some(elsewhere) = moved(offset, by) {
                    // The error is ignored: a write to an impossible offset is lost.
                    let _ = self.inner.write(elsewhere, bytes);
                }
                Ok(())
            }
            Some(WriteFault::Flipped { byte, bit }) => {
                let mut flipped = AlignedBuffer::zeroed(bytes.len());
                flipped.copy_from_slice(bytes);
                flip(&mut flipped, byte, bit);
                self.inner.write(offset, &flipped)
            }
        }
    }

    fn return_surplus(&self) {
        self.inner.return_surplus();
    }

    fn not_removed(&self) -> Vec<String> {
        self.inner.not_removed()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.plan.lock().room_bytes.or_else(|| self.inner.room_bytes())
    }

    fn sync(&self) -> Result<()> {
        let failure = {
            let mut plan = self.plan.lock();
            plan.calls.syncs += 1;
            plan.broken.or_else(|| plan.syncs.pass(1).map(|(_, kind)| kind))
        };
        failure.map_or_else(|| self.inner.sync(), |kind| Err(self.error("sync", 0, kind)))
    }

    fn truncate(&self, end: u64) -> Result<()> {
        let failure = {
            let mut plan = self.plan.lock();
            plan.calls.truncates += 1;
            plan.truncates.pass(1)
        };
        match failure {
            Some((_, kind)) => Err(self.error("truncate", end, kind)),
            None => self.inner.truncate(end),
        }
    }

    fn free(&self, below: u64) -> Result<Freed> {
        let failure = {
            let mut plan = self.plan.lock();
            plan.calls.frees += 1;
            plan.frees.pass(1)
        };
        match failure {
            Some((_, kind)) => Err(self.error("remove", below, kind)),
            None => self.inner.free(below),
        }
    }

    fn part_files(&self) -> Result<Vec<PartFile>> {
        self.inner.part_files()
    }

    fn remove_part(&self, begin: u64) -> Result<()> {
        let failure = {
            let mut plan = self.plan.lock();
            plan.calls.frees += 1;
            plan.frees.pass(1)
        };
        match failure {
            Some((_, kind)) => Err(self.error("remove", begin, kind)),
            None => self.inner.remove_part(begin),
        }
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.inner.locate(offset)
    }
}
