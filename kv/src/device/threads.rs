//! The portable device: a pool of threads that each block in `pread`.
//!
//! For systems without io_uring and containers that refuse it. A burst goes on a queue; the workers and
//! the caller itself claim its reads one by one with an atomic counter, so that a read costs no lock
//! before its system call. With nothing to do the workers sleep on a condition variable.
//!
//! The one danger is the same as with io_uring: a worker fills a caller's buffer through a raw pointer,
//! so the caller must not return, nor unwind, while a claimed read runs. [`Waiting`] sees to it: it
//! waits on drop until every read of the burst is accounted for, and each worker accounts for its
//! claim on drop too, even if it panics. After that a worker may still hold the burst, finds nothing left
//! to claim, and touches no pointer.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::locks::{Condvar, Mutex};

use super::segments::{Located, Segments};
use super::{Device, DeviceOptions, DeviceReport, Freed, Read};
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::sync::{AtomicUsize, Ordering};

/// Direct reads by a pool of threads.
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
    segments: Segments,
    queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
    io_uring_refused: Option<String>,
}

impl ThreadDevice {
    /// Opens the segment files under `dir/log` and starts the threads. Zero threads will do: each caller
    /// then reads alone.
    ///
    /// # Errors
    /// [`Error::Io`] if a thread can't be started; else as [`super::open`].
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self> {
        Self::open_in(&super::directory(dir, options)?, options)
    }

    pub(crate) fn open_in(dir: &Arc<Directory>, options: &DeviceOptions) -> Result<Self> {
        let mut device = Self {
            segments: Segments::open(dir, options)?,
            queue: Arc::default(),
            workers: Vec::with_capacity(options.threads),
            io_uring_refused: None,
        };
        for number in 0..options.threads {
            let queue = Arc::clone(&device.queue);
            let started = thread::Builder::new()
                .name(format!("embank-read-{number}"))
                .spawn(move || queue.serve());
            // On failure the drop of `device` ends the workers that were started.
            device
                .workers
                .push(started.map_err(|e| Error::io("start a reader of", dir.path(), e))?);
        }
        Ok(device)
    }

    pub(super) fn instead_of_io_uring(mut self, reason: String) -> Self {
        self.io_uring_refused = Some(reason);
        self
    }
}

impl Drop for ThreadDevice {
    fn drop(&mut self) {
        self.queue.close();
        for worker in self.workers.drain(..) {
            // A worker's panic has been printed, and its burst has failed, by now.
            let _ = worker.join();
        }
    }
}

impl Device for ThreadDevice {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            io_uring_refused: self.io_uring_refused.clone(),
            direct_io_refused: self.segments.direct_refused().map(str::to_owned),
        }
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        let located = self.segments.locate_all(reads)?;
        match reads {
            [] => Ok(()),
            [read] => {
                let (segment, offset) = located.place(0);
                segment.read_exact(offset, read.buffer)
            }
            reads => {
                let buffers = reads.iter_mut().map(|read| Destination::of(read.buffer)).collect();
                let burst = Arc::new(Burst::new(located, buffers));
                // From here on `reads` stays borrowed and untouched until `waiting` has ended.
                let waiting = Waiting { burst: &burst, queue: &self.queue };
                self.queue.push(&burst, self.workers.len());
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

    fn not_removed(&self) -> Vec<String> {
        self.segments.not_removed()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.segments.room_bytes()
    }

    fn release_handles(&self) {
        self.segments.release_handles();
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        self.segments.locate(offset)
    }
}

/// Bursts that still have reads to claim, oldest first.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    bursts: VecDeque<Arc<Burst>>,
    closing: bool,
}

impl Queue {
    /// Offers a burst to the workers, waking as many as there are reads besides the caller's first.
    fn push(&self, burst: &Arc<Burst>, workers: usize) {
        self.state.lock().bursts.push_back(Arc::clone(burst));
        let helpers = burst.buffers.len() - 1;
        if helpers >= workers {
            self.changed.notify_all();
        } else {
            (0..helpers).for_each(|_| {
                self.changed.notify_one();
            });
        }
    }

    /// Takes away a burst that has nothing left to claim. Whoever comes second finds it gone.
    fn retire(&self, burst: &Arc<Burst>) {
        self.state.lock().bursts.retain(|queued| !Arc::ptr_eq(queued, burst));
    }

    fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_all();
    }

    /// A worker's life: works on the oldest burst, sleeps when there is none, ends when the queue closes.
    fn serve(&self) {
        loop {
            let mut state = self.state.lock();
            let burst = loop {
                if let Some(burst) = state.bursts.front() {
                    break Arc::clone(burst);
                }
                if state.closing {
                    return;
                }
                self.changed.wait(&mut state);
            };
            drop(state);
            burst.work();
            self.retire(&burst);
        }
    }
}

/// A caller's buffer as the workers see it.
#[derive(Debug)]
struct Destination {
    start: *mut u8,
    len: usize,
}

impl Destination {
    fn of(buffer: &mut [u8]) -> Self {
        Self { start: buffer.as_mut_ptr(), len: buffer.len() }
    }
}

// SAFETY: it stands for a `&mut [u8]`, which may go to another thread; who dereferences it and when is
// the business of `Burst::work`.
unsafe impl Send for Destination {}
// SAFETY: a shared borrow gives out the pointer's value, and nothing is reached through it but by the one
// thread that has claimed it.
unsafe impl Sync for Destination {}

/// The reads of one call.
#[derive(Debug)]
struct Burst {
    located: Located,
    buffers: Vec<Destination>,
    /// The next read that nobody has claimed; beyond the last, there is none.
    next: AtomicUsize,
    finished: Mutex<Finished>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Finished {
    /// Reads that are done, failed or will never be claimed.
    count: usize,
    error: Option<Error>,
}

impl Burst {
    fn new(located: Located, buffers: Vec<Destination>) -> Self {
        Self {
            located,
            buffers,
            next: AtomicUsize::new(0),
            finished: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Claims and does reads until none is left.
    fn work(&self) {
        loop {
            // Relaxed: it only hands out numbers, each once. The queue's mutex published what they
            // stand for, and `finished`'s mutex hands the buffers' contents back.
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(destination) = self.buffers.get(i) else { return };
            let mut claim = Claim { burst: self, i, error: None, done: false };
            // SAFETY: the pointer and length come from a `&mut [u8]` that the caller of `read_many` keeps
            // borrowed until `Waiting` has counted this claim, which happens after the last use here;
            // `i` was handed out once, so no other slice to these bytes exists.
            let buffer = unsafe { slice::from_raw_parts_mut(destination.start, destination.len) };
            let (segment, offset) = self.located.place(i);
            claim.error = segment.read_exact(offset, buffer).err();
            claim.done = true;
        }
    }

    /// Makes sure that nobody claims another read; how many have not been claimed and never will.
    fn stop(&self) -> usize {
        // Relaxed: as in `work`; the counter's own order decides who got which number.
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

/// One claimed read, accounted for on drop.
struct Claim<'b> {
    burst: &'b Burst,
    i: usize,
    error: Option<Error>,
    /// False if the read panicked.
    done: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut error = self.error.take();
        if !self.done {
            let (segment, offset) = self.burst.located.place(self.i);
            let source = std::io::Error::other("the reading thread panicked");
            error = Some(segment.read_failed(offset, &source));
        }
        let never_claimed = if error.is_some() { self.burst.stop() } else { 0 };
        self.burst.account(1 + never_claimed, error);
    }
}

/// Keeps a caller from leaving before its buffers are its own again.
struct Waiting<'a> {
    burst: &'a Arc<Burst>,
    queue: &'a Queue,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Nothing is left to claim unless the caller unwinds; then the rest is called off.
        let never_claimed = self.burst.stop();
        self.burst.account(never_claimed, None);
        self.queue.retire(self.burst);
        // Ends: every claimed read is one of a regular file, and its claim is accounted for on drop.
        let mut finished = self.burst.finished.lock();
        while finished.count < self.burst.buffers.len() {
            self.burst.changed.wait(&mut finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AlignedBuffer;

    fn device(dir: &Path, threads: usize) -> ThreadDevice {
        let options =
            DeviceOptions { segment_size_bytes: 1 << 20, threads, ..DeviceOptions::default() };
        ThreadDevice::open(dir, &options).unwrap()
    }

    #[test]
    fn a_device_without_workers_reads_alone() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 0);
        let mut page = AlignedBuffer::zeroed(4096);
        page.fill(3);
        device.write(0, &page).unwrap();
        page.fill(0);
        let mut reads: Vec<_> = page
            .chunks_mut(512)
            .enumerate()
            .map(|(i, buffer)| Read { offset: i as u64 * 512, buffer })
            .collect();
        device.read_many(&mut reads).unwrap();
        assert!(page.iter().all(|&byte| byte == 3));
    }

    #[test]
    fn a_dropped_device_has_joined_its_workers() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 8);
        let queue = Arc::clone(&device.queue);
        drop(device);
        assert_eq!(Arc::strong_count(&queue), 1, "a worker still holds the queue");
    }

    #[test]
    fn a_burst_that_failed_leaves_the_queue_empty_and_counts_every_read() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 4);
        device.write(0, &AlignedBuffer::zeroed(512)).unwrap();
        let mut memory = AlignedBuffer::zeroed(512 * 64);
        for _ in 0..50 {
            let mut reads: Vec<_> = memory
                .chunks_mut(512)
                .enumerate()
                .map(|(i, buffer)| Read { offset: i as u64 * 512, buffer })
                .collect();
            let error = device.read_many(&mut reads).unwrap_err();
            assert!(matches!(error, Error::Truncated { .. }), "{error}");
            assert!(device.queue.state.lock().bursts.is_empty());
        }
    }

    #[test]
    fn an_unwinding_caller_calls_off_what_is_unclaimed_and_waits_for_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(dir.path(), 2);
        device.write(0, &AlignedBuffer::zeroed(512 * 64)).unwrap();
        let mut memory = AlignedBuffer::zeroed(512 * 64);
        let mut reads: Vec<_> = memory
            .chunks_mut(512)
            .enumerate()
            .map(|(i, buffer)| Read { offset: i as u64 * 512, buffer })
            .collect();
        let located = device.segments.locate_all(&reads).unwrap();
        let buffers = reads.iter_mut().map(|read| Destination::of(read.buffer)).collect();
        let burst = Arc::new(Burst::new(located, buffers));
        let waiting = Waiting { burst: &burst, queue: &device.queue };
        device.queue.push(&burst, 2);
        drop(waiting); // As an unwinding caller would, without having worked itself.
        assert_eq!(burst.finished.lock().count, 64);
        assert!(burst.next.load(Ordering::SeqCst) >= 64);
        assert!(device.queue.state.lock().bursts.is_empty());
    }
}
