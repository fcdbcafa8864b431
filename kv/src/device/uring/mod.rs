//! The io_uring device: bursts of direct reads, many in flight from one thread.
//!
//! A burst or a stream takes a ring from a small pool, keeps it filled up to its depth, and reaps
//! the completions together: one system call for an eighth of the depth, not one for each read. The
//! calling thread does the work; there is no other thread.
//!
//! A stream into a buffer made for it ([`AlignedBuffer::for_streams`]) reads into *registered*
//! pages, which the kernel need not look up for each read. That saves about a tenth of the thread's
//! time a read; the reads a second stay equal, because the drive is the limit. A buffer is
//! registered with one ring at most, and a ring has one registered buffer at most, so the pool's
//! buffers are pinned once. A stream gets the ring that knows its buffer if that ring is idle. If
//! it is not, or if the kernel refuses to register, the reads are plain ones, without a report:
//! only the tenth is lost.
//!
//! Not used, and why:
//! - The ring for writes. The log writes pages of megabytes, a system call each; a ring would save
//!   nothing, and a file system runs extending direct writes one at a time anyway.
//! - The ring for a burst of one read, for the same reason; such a read never waits for a ring. A
//!   stream always takes one, also where it turns out to be a single read: that shows only when the
//!   read has brought what the next would be asked for.
//! - Registered files. One would hold the space of a removed segment until it is unregistered in
//!   every ring, idle or lent, and beside registered buffers it saves 1 to 5% (a ring alone, one
//!   file, medians of seven turns):
//!
//!   | thread's time a read, random, depth 256 | 512 bytes | 4 KiB | 512 bytes, both cores busy |
//!   |---|---|---|---|
//!   | neither | 0.94 us | 0.92 us | 2.95 us |
//!   | registered file | 0.88 us | 0.90 us | 2.86 us |
//!   | registered buffer | 0.79 us | 0.82 us | 2.74 us |
//!   | both | 0.78 us | 0.81 us | 2.59 us |
//!
//! - `IORING_SETUP_DEFER_TASKRUN`. It ties a ring to the thread that made it, and rings are lent to
//!   whoever reads. Tried with a ring for each thread: Lookahead's woke 60 times for 3,500 reads
//!   instead of 66, because the drive reports its completions in groups anyway, and took as long.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::process::locks::{Condvar, Mutex};
use io_uring::{opcode, types};

use super::completion::{Asked, Completion, Retries};
use super::priority::{Lane, Traffic};
use super::ring::Ring;
use super::segments::{Located, Segments};
use super::streaming::Streaming;
use super::{
    AlignedBuffer, Device, DeviceOptions, DeviceReport, Freed, Priority, Read, ReadStream,
};
use crate::error::{Error, Result};
use crate::files::directory::Directory;

/// The most that one request asks for; the rest of a longer read follows as after a short one.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// `io_uring` with `O_DIRECT`.
///
/// ```
/// use embank_kv::device::{Device, DeviceOptions, UringDevice};
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// match UringDevice::open(dir.path(), &DeviceOptions::default()) {
///     Ok(device) => assert_eq!(device.name(), "io_uring"),
///     Err(refused) => println!("{refused}"),
/// }
/// ```
#[derive(Debug)]
pub struct UringDevice {
    segments: Segments,
    rings: RingPool,
    traffic: Traffic,
}

impl UringDevice {
    /// Opens the segment files under `dir/log`, and proves io_uring by a request through a ring.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] with the kernel's reason; else as [`super::open`].
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self> {
        Self::open_in(&super::directory(dir, options)?, options)
    }

    pub(crate) fn open_in(dir: &Arc<Directory>, options: &DeviceOptions) -> Result<Self> {
        options.check()?;
        let first = Ring::new(options.queue_depth)
            .and_then(|mut ring| ring.probe().map(|()| ring))
            .map_err(|error| Error::DeviceUnavailable {
                device: "io_uring",
                reason: format!("the kernel refuses a ring of {}: {error}", options.queue_depth),
            })?;
        let segments = Segments::open(dir, options)?;
        Ok(Self { segments, rings: RingPool::new(first, options), traffic: Traffic::new() })
    }

    fn read(&self, reads: &mut [Read<'_>], priority: Priority) -> Result<()> {
        let located = self.segments.locate_all(reads)?;
        match reads {
            [] => Ok(()),
            [read] => {
                let _lane = self.traffic.enter(priority);
                let (segment, offset) = located.place(0);
                segment.read_exact(offset, read.buffer)
            }
            reads => {
                let lane = self.traffic.enter(priority);
                let lent = self.rings.lend(None);
                let mut lent = lent.map_err(|e| Error::io("make a ring for", located.path(), e))?;
                Burst::new(reads, &located, lane).run(lent.ring())
            }
        }
    }
}

impl Device for UringDevice {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            io_uring_refused: None,
            direct_io_refused: self.segments.direct_refused().map(str::to_owned),
        }
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.read(reads, Priority::Foreground)
    }

    fn read_many_behind(&self, reads: &mut [Read<'_>]) -> Result<()> {
        self.read(reads, Priority::Background)
    }

    fn read_stream(&self, memory: &mut AlignedBuffer, stream: &mut dyn ReadStream) -> Result<u64> {
        let lane = self.traffic.enter(stream.priority());
        // Before the loan, so dropped after it: the loan's drop drains the ring, and until then the
        // kernel may read from these files, also when the stream unwinds.
        let mut files = Vec::new();
        let lent = self.rings.lend(memory.number());
        let mut lent = lent.map_err(|e| Error::io("make a ring for", self.segments.folder(), e))?;
        lent.register(memory);
        Streaming::new(&self.segments, &mut files, memory, stream, lane).run(lent.ring())
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

/// Reads on their way through a ring.
struct Burst<'a, 'b> {
    reads: &'a mut [Read<'b>],
    located: &'a Located,
    lane: Lane<'a>,
    /// Bytes that have arrived, for each read.
    arrived: Vec<usize>,
    /// The first read that has not been pushed yet.
    next: usize,
    /// Reads to push again, for the rest of their bytes.
    again: Vec<usize>,
    retries: Retries,
    error: Option<Error>,
}

impl<'a, 'b> Burst<'a, 'b> {
    fn new(reads: &'a mut [Read<'b>], located: &'a Located, lane: Lane<'a>) -> Self {
        let arrived = vec![0; reads.len()];
        Self {
            reads,
            located,
            lane,
            arrived,
            next: 0,
            again: Vec::new(),
            retries: Retries::default(),
            error: None,
        }
    }

    /// Ends: each turn reaps a completion, or waits for one for a bounded time, which a working
    /// drive ends; a read comes again only after at least a block has arrived, or within the
    /// bound on retries.
    fn run(mut self, ring: &mut Ring) -> Result<()> {
        loop {
            self.fill(ring);
            if ring.outstanding() == 0 {
                return self.error.map_or(Ok(()), Err);
            }
            // While there is more to push, wait for a part of the depth, so that the disk never
            // runs dry and a system call still brings several; then wait for all that
            // is left.
            let outstanding = ring.outstanding();
            let more = self.has_more();
            let want =
                if more { self.lane.patience(ring.depth(), outstanding) } else { outstanding };
            if let Err(error) = ring.submit_and_wait(want) {
                ring.drain();
                // Of several reads in the ring none failed by itself: the first names the place.
                let (segment, offset) = self.located.place(0);
                return Err(self.error.unwrap_or_else(|| segment.read_failed(offset, &error)));
            }
            ring.reap(|i, result| {
                let i = i as usize;
                self.lane.ends(self.reads[i].buffer.len() - self.arrived[i]);
                self.complete(i, result);
            });
        }
    }

    fn has_more(&self) -> bool {
        self.error.is_none() && (self.next < self.reads.len() || !self.again.is_empty())
    }

    fn fill(&mut self, ring: &mut Ring) {
        while ring.has_room() && self.lane.has_room() && self.has_more() {
            let i = self.again.pop().unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            });
            let (segment, offset) = self.located.place(i);
            let rest = &mut self.reads[i].buffer[self.arrived[i]..];
            self.lane.begins(rest.len());
            let len = rest.len().min(REQUEST_BYTES_MAX) as u32;
            let file = types::Fd(segment.file().as_raw_fd());
            let entry = opcode::Read::new(file, rest.as_mut_ptr(), len)
                .offset(offset + self.arrived[i] as u64)
                .build()
                .user_data(i as u64);
            // SAFETY: `self` borrows the buffers exclusively and `located` holds the file open,
            // both for longer than `run` and the ring's loan, neither of which ends
            // before the ring is drained: `run` returns with nothing outstanding, and
            // an unwinding drops the loan, which drains. No buffer is in flight twice:
            // `i` comes from `again` or `next`, once for each completion.
            unsafe { ring.push(&entry) };
        }
    }

    fn complete(&mut self, i: usize, result: i32) {
        let (segment, offset) = self.located.place(i);
        let wanted = self.reads[i].buffer.len();
        let asked = Asked { segment, offset, wanted, before: self.arrived[i] };
        match self.retries.after(&asked, result, self.reads.len()) {
            Completion::Complete => self.arrived[i] = wanted,
            Completion::More(moved) => {
                self.arrived[i] += moved;
                self.again.push(i);
            }
            Completion::Again => self.again.push(i),
            Completion::Failed(error) => {
                self.error.get_or_insert(error);
            }
        }
    }
}

/// Rings that wait for work, and how many there are in all.
#[derive(Debug)]
struct RingPool {
    state: Mutex<PoolState>,
    returned: Condvar,
    depth: u32,
    rings_max: usize,
}

struct PoolState {
    idle: Vec<Ring>,
    /// Idle or lent.
    rings: usize,
    /// Numbers of the buffers that are registered, or just being.
    registered: Vec<u64>,
    /// The kernel has refused to register one; it is not asked again.
    refused: bool,
}

impl PoolState {
    /// An idle ring: one that has this buffer registered, or else none, or else another.
    fn take(&mut self, buffer: Option<u64>) -> Option<Ring> {
        let place = |wanted| self.idle.iter().position(|ring: &Ring| ring.registered() == wanted);
        let at = place(buffer).or_else(|| place(None));
        at.map(|at| self.idle.swap_remove(at)).or_else(|| self.idle.pop())
    }
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} rings idle", self.idle.len(), self.rings)
    }
}

impl RingPool {
    fn new(first: Ring, options: &DeviceOptions) -> Self {
        Self {
            state: Mutex::new(PoolState {
                idle: vec![first],
                rings: 1,
                registered: Vec::new(),
                refused: false,
            }),
            returned: Condvar::new(),
            depth: options.queue_depth,
            rings_max: options.rings_max,
        }
    }

    /// A ring for one burst, into this buffer if it has a number: an idle one, a new one, or the
    /// next to come back.
    ///
    /// Waits only while others have rings, and each of them gives its ring back when its burst
    /// ends.
    fn lend(&self, buffer: Option<u64>) -> io::Result<Lent<'_>> {
        let mut state = self.state.lock();
        loop {
            if let Some(ring) = state.take(buffer) {
                return Ok(Lent { ring: Some(ring), pool: self });
            }
            if state.rings < self.rings_max {
                match Ring::new(self.depth) {
                    Ok(ring) => {
                        state.rings += 1;
                        return Ok(Lent { ring: Some(ring), pool: self });
                    }
                    Err(error) if state.rings == 0 => return Err(error),
                    // One ring less is slower and no failure.
                    Err(_) => {}
                }
            }
            self.returned.wait(&mut state);
        }
    }
}

/// A ring on loan; it comes back drained, or is dropped if it can't be used again.
struct Lent<'p> {
    /// Taken only by drop.
    ring: Option<Ring>,
    pool: &'p RingPool,
}

impl Lent<'_> {
    fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("a loan has its ring until it is dropped")
    }

    /// Registers a buffer that is meant for it and is not registered with any ring.
    fn register(&mut self, buffer: &mut AlignedBuffer) {
        let Some(number) = buffer.number() else { return };
        if self.ring().registered().is_some() {
            return;
        }
        let mut state = self.pool.state.lock();
        if state.refused || state.registered.contains(&number) {
            return;
        }
        state.registered.push(number);
        drop(state);
        if !self.ring().register(buffer) {
            let mut state = self.pool.state.lock();
            state.registered.retain(|&other| other != number);
            state.refused = true;
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(mut ring) = self.ring.take() else { return };
        ring.drain();
        let mut state = self.pool.state.lock();
        if ring.is_reusable() {
            state.idle.push(ring);
        } else {
            state.rings -= 1;
            state.registered.retain(|&number| Some(number) != ring.registered());
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests;
