//! The portable device, in which each thread blocks in `pread`.
//!
//! This device serves systems and containers without io_uring. A burst is offered to the threads
//! that all devices of the process share (`pool`). The caller and these threads claim the burst's
//! reads one by one with an atomic counter. A read therefore needs no lock before its system call.
//! If no thread helps, the caller does all reads.
//!
//! **Danger.** A pool thread writes to a caller's buffer through a raw pointer. The caller must
//! neither return nor unwind while a claimed read runs. [`Waiting`] ensures this: its drop waits
//! until every read of the burst is accounted for. A thread accounts for its claim when the claim
//! is dropped, even after a panic. A thread may keep its reference to the burst longer. It then
//! finds no unclaimed read, and so uses no pointer.

use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use crate::process::locks::{Condvar, Mutex};

use super::pool::ReadPool;
use super::segments::Segments;
use super::segments::segment::read_failed;
use super::{Device, DeviceOptions, DeviceReport, Freed, PartFile, Read};
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::sync::{AtomicUsize, Ordering};

/// A device that reads by threads. All such devices of a process share the threads.
///
/// ```
/// use embank_kv::device::{Device, DeviceOptions, ThreadDevice};
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let device = ThreadDevice::open(dir.path(), &DeviceOptions::default())?;
/// assert_eq!(device.name(), "threads");
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug)]
pub struct ThreadDevice {
    segments: Arc<Segments>,
    pool: Arc<ReadPool>,
    /// A burst of this device starts a thread only while the pool has fewer threads than this.
    threads_max: usize,
    io_uring_refused: Option<String>,
}

impl ThreadDevice {
    /// Opens the segment files in `dir/log`. Threads are started by the bursts that need them. If
    /// [`DeviceOptions::threads`] is 0, each caller reads alone.
    ///
    /// # Errors
    /// The errors of [`super::open`].
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self> {
        Self::open_in(&super::directory(dir, options)?, options)
    }

    pub(crate) fn open_in(dir: &Arc<Directory>, options: &DeviceOptions) -> Result<Self> {
        Self::open_with(ReadPool::of_this_process(), dir, options)
    }

    fn open_with(
        pool: Arc<ReadPool>,
        dir: &Arc<Directory>,
        options: &DeviceOptions,
    ) -> Result<Self> {
        Ok(Self {
            segments: Arc::new(Segments::open(dir, options)?),
            pool,
            threads_max: options.threads,
            io_uring_refused: None,
        })
    }

    pub(super) fn instead_of_io_uring(mut self, reason: String) -> Self {
        self.io_uring_refused = Some(reason);
        self
    }
}

impl Device for ThreadDevice {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn block_bytes(&self) -> usize {
        self.segments.block_bytes()
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            io_uring_refused: self.io_uring_refused.clone(),
            direct_io_refused: self.segments.direct_refused().map(str::to_owned),
        }
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.segments.check_all(reads)?;
        match reads {
            [] => Ok(()),
            [read] => self.segments.read(read),
            reads => {
                let burst = Arc::new(Burst::new(&self.segments, reads));
                // From here on the caller must not use `reads` until `waiting` is dropped.
                let waiting = Waiting { burst: &burst, pool: &self.pool };
                if self.threads_max > 0 {
                    self.pool.offer(&burst, self.threads_max);
                }
                burst.work();
                drop(waiting);
                let error = burst.finished.lock().error.take();
                error.map_or(Ok(()), Err)
            }
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.segments.write(offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.segments.sync()
    }

    fn truncate(&self, end: u64) -> Result<()> {
        self.segments.truncate(end)
    }

    fn free(&self, below: u64) -> Result<Freed> {
        self.segments.free(below)
    }

    fn part_files(&self) -> Result<Vec<PartFile>> {
        self.segments.part_files()
    }

    fn remove_part(&self, begin: u64) -> Result<()> {
        self.segments.remove_part(begin)
    }

    fn return_surplus(&self) {
        // A failure leaves the surplus to the next sync.
        let _ = self.segments.cut();
    }

    fn not_removed(&self) -> Vec<String> {
        self.segments.not_removed()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.segments.room_bytes()
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.segments.locate(offset)
    }
}

/// A read with its caller's buffer as a raw pointer, for the threads.
#[derive(Debug)]
struct Destination {
    /// Log offset of the read.
    offset: u64,
    start: *mut u8,
    len: usize,
}

impl Destination {
    fn of(read: &mut Read<'_>) -> Self {
        Self { offset: read.offset, start: read.buffer.as_mut_ptr(), len: read.buffer.len() }
    }
}

// SAFETY: the value stands for a `&mut [u8]`, which may be sent to another thread. `Burst::work`
// ensures that one thread uses it.
unsafe impl Send for Destination {}
// SAFETY: a shared borrow only gives the pointer's value. Only the thread that claimed the read
// dereferences it.
unsafe impl Sync for Destination {}

/// The reads of one call.
#[derive(Debug)]
pub(super) struct Burst {
    segments: Arc<Segments>,
    buffers: Vec<Destination>,
    /// Number of the next unclaimed read. If it is not below the number of reads, all are claimed.
    next: AtomicUsize,
    finished: Mutex<Finished>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Finished {
    /// Number of reads that are done, have failed, or will not be claimed.
    count: usize,
    error: Option<Error>,
}

impl Burst {
    fn new(segments: &Arc<Segments>, reads: &mut [Read<'_>]) -> Self {
        Self {
            segments: Arc::clone(segments),
            buffers: reads.iter_mut().map(Destination::of).collect(),
            next: AtomicUsize::new(0),
            finished: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Number of reads of the burst, at least 1.
    pub(super) fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Number of unclaimed reads.
    pub(super) fn unclaimed(&self) -> usize {
        // Relaxed: the number only helps to decide how many threads to start.
        self.buffers.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }

    /// Claims and does reads until all are claimed.
    pub(super) fn work(&self) {
        loop {
            // Relaxed: `fetch_add` gives each number once. The queue's mutex publishes the reads to
            // the threads, and the mutex `finished` publishes the bytes to the caller.
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(destination) = self.buffers.get(i) else { return };
            let mut claim = Claim { burst: self, i, error: None, done: false };
            // SAFETY: the pointer and length come from a `&mut [u8]` that the caller of `read_many`
            // keeps borrowed. `Waiting` keeps the caller in `read_many` until this claim is
            // counted, which is after the last use here. Number `i` was given out once, so no other
            // slice to these bytes exists.
            let buffer = unsafe { slice::from_raw_parts_mut(destination.start, destination.len) };
            // A thread holds one file at a time, so it may wait for a free place (`OpenFiles`).
            claim.error =
                self.segments.read(&mut Read { offset: destination.offset, buffer }).err();
            claim.done = true;
        }
    }

    /// Prevents further claims. Returns the number of reads that no thread has claimed.
    fn stop(&self) -> usize {
        // Relaxed: the changes of one atomic have one order. A claim comes either before this swap
        // and counts, or after it and finds no read.
        let claimed = self.next.swap(self.buffers.len(), Ordering::Relaxed);
        self.buffers.len().saturating_sub(claimed)
    }

    fn account(&self, reads: usize, error: Option<Error>) {
        let mut finished = self.finished.lock();
        finished.count += reads;
        if finished.error.is_none() {
            finished.error = error;
        }
        if finished.count == self.buffers.len() {
            self.changed.notify_all();
        }
    }
}

/// A claimed read. Dropping it accounts for the read.
struct Claim<'b> {
    burst: &'b Burst,
    i: usize,
    error: Option<Error>,
    /// False while the read runs, and after a panic.
    done: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut error = self.error.take();
        if !self.done {
            let offset = self.burst.buffers[self.i].offset;
            let (path, offset) = self.burst.segments.locate(offset);
            let source = std::io::Error::other("the reading thread panicked");
            error = Some(read_failed(path, offset, &source));
        }
        let never_claimed = if error.is_some() { self.burst.stop() } else { 0 };
        self.burst.account(1 + never_claimed, error);
    }
}

/// Keeps the caller of a burst in place until no thread uses the burst's buffers.
struct Waiting<'a> {
    burst: &'a Arc<Burst>,
    pool: &'a ReadPool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // All reads are claimed here, unless the caller unwinds. In that case the unclaimed reads
        // are not done.
        let never_claimed = self.burst.stop();
        self.burst.account(never_claimed, None);
        self.pool.retire(self.burst);
        // The loop ends: each claimed read reads a regular file of this bank and ends. Dropping the
        // claim accounts for the read.
        let mut finished = self.burst.finished.lock();
        while finished.count < self.burst.buffers.len() {
            self.burst.changed.wait(&mut finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::pool::BURSTS_UNTIL_RETRY;
    use crate::device::{AlignedBuffer, directory};
    use crate::process::thread_start::with_threads_left;
    use std::time::{Duration, Instant};

    /// Opens a device that has its own pool.
    fn device(dir: &Path, threads: usize) -> ThreadDevice {
        beside(&Arc::new(ReadPool::new()), dir, threads)
    }

    fn beside(pool: &Arc<ReadPool>, dir: &Path, threads: usize) -> ThreadDevice {
        let options =
            DeviceOptions { segment_size_bytes: 1 << 20, threads, ..DeviceOptions::default() };
        let directory = directory(dir, &options).unwrap();
        ThreadDevice::open_with(Arc::clone(pool), &directory, &options).unwrap()
    }

    /// Returns a read for each block of `memory`.
    fn blocks(memory: &mut AlignedBuffer) -> Vec<Read<'_>> {
        let block = |(i, buffer)| Read { offset: i as u64 * 512, buffer };
        memory.chunks_mut(512).enumerate().map(block).collect()
    }

    fn write_blocks(device: &ThreadDevice, count: usize) {
        let mut memory = AlignedBuffer::zeroed(512 * count);
        memory.fill(3);
        device.write(0, &memory).unwrap();
    }

    /// Reads `count` blocks that [`write_blocks`] wrote, and checks them.
    fn read_blocks(device: &ThreadDevice, count: usize) {
        let mut memory = AlignedBuffer::zeroed(512 * count);
        device.read_many(&mut blocks(&mut memory)).unwrap();
        assert!(memory.iter().all(|&byte| byte == 3));
    }

    fn burst(device: &ThreadDevice, reads: &mut [Read<'_>]) -> Arc<Burst> {
        Arc::new(Burst::new(&device.segments, reads))
    }

    /// Offers a burst of the first `count` blocks to the threads. This thread claims no read.
    fn offer(device: &ThreadDevice, count: usize) {
        let mut memory = AlignedBuffer::zeroed(512 * count);
        let burst = burst(device, &mut blocks(&mut memory));
        let waiting = Waiting { burst: &burst, pool: &device.pool };
        device.pool.offer(&burst, device.threads_max);
        drop(waiting);
        assert_eq!(burst.finished.lock().count, count);
        assert!(burst.next.load(Ordering::SeqCst) >= count);
    }

    fn wait_for(what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_device_without_workers_reads_alone() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Arc::new(ReadPool::new());
        let device = beside(&pool, dir.path(), 0);
        write_blocks(&device, 8);
        read_blocks(&device, 8);
        assert_eq!(pool.threads_started(), 0);
    }

    #[test]
    fn threads_start_for_reads_that_none_would_claim() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 8);
        let pool = &device.pool;
        write_blocks(&device, 64);
        assert_eq!(pool.threads_started(), 0, "opening a device starts no thread");
        read_blocks(&device, 1);
        assert_eq!(pool.threads_started(), 0, "the caller reads");
        offer(&device, 5);
        assert_eq!(pool.threads_started(), 4, "the caller would claim one of 5");
        wait_for("threads are idle", || pool.threads_idle() == 4);
        offer(&device, 5);
        assert_eq!(pool.threads_started(), 4, "the idle ones claim all");
        wait_for("threads are idle", || pool.threads_idle() == 4);
        offer(&device, 64);
        assert_eq!(pool.threads_started(), 8, "the options allow no more");
    }

    #[test]
    fn devices_share_their_threads() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let pool = Arc::new(ReadPool::new());
        let [first, second] = dirs.each_ref().map(|dir| beside(&pool, dir.path(), 4));
        for device in [&first, &second] {
            write_blocks(device, 64);
            read_blocks(device, 64);
        }
        assert_eq!(pool.threads_started(), 4);
        drop(first);
        read_blocks(&second, 64);
        assert_eq!(pool.threads_started(), 4);
    }

    #[test]
    fn a_dropped_device_has_joined_its_workers() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 8);
        write_blocks(&device, 64);
        read_blocks(&device, 64);
        assert_eq!(device.pool.threads_started(), 8);
        let queue = device.pool.queue();
        drop(device);
        assert_eq!(Arc::strong_count(&queue), 1, "a thread still holds the queue");
    }

    #[cfg(not(any(miri, embank_shuttle)))]
    #[test]
    fn a_device_that_a_forked_child_drops_waits_for_no_thread() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 4);
        write_blocks(&device, 64);
        read_blocks(&device, 64);
        // SAFETY: the child has one thread, drops the device and ends. The alarm ends it if it
        // hangs.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call only requests a signal.
            unsafe { libc::alarm(60) };
            drop(device);
            // SAFETY: `_exit` ends the process without running code that needs the parent's
            // threads.
            unsafe { libc::_exit(0) }
        }
        let mut status = -1;
        // SAFETY: the call waits for a child of this process, and `status` is a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        read_blocks(&device, 64);
    }

    #[test]
    fn refused_threads_leave_the_reads_to_those_that_there_are() {
        let dir = tempfile::tempdir().unwrap();
        for left in [0, 1, 3] {
            let device = device(dir.path(), 8);
            write_blocks(&device, 64);
            with_threads_left(left, || read_blocks(&device, 64));
            assert_eq!(device.pool.threads_started(), left);
            read_blocks(&device, 64);
            assert_eq!(device.pool.threads_started(), left, "no burst soon after tries again");
        }
    }

    #[test]
    fn a_pool_that_was_refused_threads_asks_again_after_a_thousand_bursts() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 8);
        write_blocks(&device, 2);
        with_threads_left(0, || read_blocks(&device, 2));
        for _ in 0..BURSTS_UNTIL_RETRY {
            read_blocks(&device, 2);
            assert_eq!(device.pool.threads_started(), 0);
        }
        read_blocks(&device, 2);
        assert_eq!(device.pool.threads_started(), 1);
    }

    /// Shows that a burst's own caller does its reads if the pool's only thread has claimed another
    /// bank's read that does not end.
    #[test]
    fn a_burst_ends_while_another_bank_occupies_every_thread() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let pool = Arc::new(ReadPool::new());
        let [slow, other] = dirs.each_ref().map(|dir| beside(&pool, dir.path(), 1));
        write_blocks(&slow, 2);
        write_blocks(&other, 64);
        let mut memory = AlignedBuffer::zeroed(512 * 2);
        let burst = burst(&slow, &mut blocks(&mut memory));
        let waiting = Waiting { burst: &burst, pool: &pool };
        // While this lock is held, no thread can account for its claimed read.
        let finished = burst.finished.lock();
        pool.offer(&burst, 1);
        wait_for("the thread claims a read", || burst.unclaimed() < 2);
        read_blocks(&other, 64);
        assert_eq!(pool.threads_idle(), 0, "the thread has not ended its read");
        drop(finished);
        drop(waiting);
        assert_eq!(pool.threads_started(), 1);
    }

    #[test]
    fn a_burst_that_failed_leaves_the_queue_empty_and_counts_every_read() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 4);
        device.write(0, &AlignedBuffer::zeroed(512)).unwrap();
        let mut memory = AlignedBuffer::zeroed(512 * 64);
        for _ in 0..50 {
            let error = device.read_many(&mut blocks(&mut memory)).unwrap_err();
            assert!(matches!(error, Error::Truncated { .. }), "{error}");
            assert!(device.pool.has_no_bursts());
        }
    }

    #[test]
    fn an_unwinding_caller_calls_off_what_is_unclaimed_and_waits_for_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 2);
        write_blocks(&device, 64);
        // The caller unwinds before it has claimed a read.
        offer(&device, 64);
        assert!(device.pool.has_no_bursts());
    }
}
