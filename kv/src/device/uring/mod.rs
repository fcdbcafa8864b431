//! The io_uring device. One thread has many direct reads in flight.
//!
//! A burst or a stream takes a ring from a small pool, keeps the ring full, and reaps several
//! completions at a time. One system call serves about an eighth of the ring's depth, instead of
//! one read. The calling thread does all the work.
//!
//! A stream into a buffer from [`AlignedBuffer::for_streams`] reads into *registered* pages, which
//! the kernel does not look up for each read. This saves a tenth of the thread's time per read. A
//! buffer is registered with at most one ring, and a ring has at most one registered buffer. A
//! stream gets the ring that has its buffer registered, if that ring is idle. If the ring is lent,
//! or if the kernel refuses the registration, the stream makes plain reads. The device does not
//! report this.
//!
//! The device does not use these features:
//! - Writes through the ring. The log writes pages of megabytes with one system call each, so a
//!   ring would save nothing. A file system also executes direct writes that extend a file one
//!   after another.
//! - A ring for a burst of one read. It would save nothing, and the read would have to wait if all
//!   rings are lent. A stream always takes a ring, because it can't know at the start that it will
//!   have one read.
//! - Registered files. A removed segment would keep its space until every ring has unregistered it.
//!   In addition to registered buffers, registered files save less than 5%.
//! - `IORING_SETUP_DEFER_TASKRUN`. It binds a ring to the thread that made it, but any thread can
//!   get a ring. A ring per thread was no faster, because the drive reports its completions in
//!   groups.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::process::locks::{Condvar, Mutex};
use io_uring::{opcode, types};

use super::completion::{Asked, Completion, Retries};
use super::lent_files::LentFiles;
use super::priority::{Lane, Traffic};
use super::ring::Ring;
use super::segments::Segments;
use super::segments::segment::read_failed;
use super::streaming::Streaming;
use super::{
    AlignedBuffer, Device, DeviceOptions, DeviceReport, Freed, PartFile, Priority, Read, ReadStream,
};
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::process::descriptors;

/// Limit of the bytes of one request. A longer read continues with a second request, as after a
/// short read.
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
    /// Opens the segment files in `dir/log`, and tests io_uring with one request.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] with the kernel's reason, and the errors of [`super::open`].
    pub fn open(dir: &Path, options: &DeviceOptions) -> Result<Self> {
        Self::open_in(&super::directory(dir, options)?, options)
    }

    pub(crate) fn open_in(dir: &Arc<Directory>, options: &DeviceOptions) -> Result<Self> {
        options.check()?;
        let first = descriptors::patiently(|| Ring::new(options.queue_depth))
            .and_then(|mut ring| ring.probe().map(|()| ring));
        let first = first.map_err(|error| match descriptors::is_out_of_descriptors(&error) {
            true => Error::io("make a ring for", dir.path(), error),
            false => Error::DeviceUnavailable {
                device: "io_uring",
                reason: format!("the kernel refuses a ring of {}: {error}", options.queue_depth),
            },
        })?;
        let segments = Segments::open(dir, options)?;
        let rings_max = descriptors::rings_max(options.rings_max);
        let rings = RingPool::new(first, options.queue_depth, rings_max);
        Ok(Self { segments, rings, traffic: Traffic::new() })
    }

    fn read(&self, reads: &mut [Read<'_>], priority: Priority) -> Result<()> {
        self.segments.check_all(reads)?;
        match reads {
            [] => Ok(()),
            [read] => {
                let _lane = self.traffic.enter(priority);
                self.segments.read(read)
            }
            reads => {
                let lane = self.traffic.enter(priority);
                // `files` is declared before the ring's loan, so it is dropped after the loan.
                let mut files = LentFiles::default();
                let mut lent = self.lend_ring(None)?;
                Burst::new(reads, &self.segments, &mut files, lane).run(lent.ring())
            }
        }
    }
}

impl UringDevice {
    fn lend_ring(&self, buffer: Option<u64>) -> Result<Lent<'_>> {
        let lent = self.rings.lend(buffer);
        lent.map_err(|e| Error::io("make a ring for", self.segments.folder(), e))
    }
}

impl Device for UringDevice {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn block_bytes(&self) -> usize {
        self.segments.block_bytes()
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
        // `files` is declared before the ring's loan, so it is dropped after the loan. Dropping the
        // loan drains the ring. Until then the kernel may read these files, also if the stream
        // unwinds.
        let mut files = LentFiles::default();
        let mut lent = self.lend_ring(memory.number())?;
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

/// The reads of a running burst.
struct Burst<'a, 'b, 'f> {
    reads: &'a mut [Read<'b>],
    segments: &'f Segments,
    /// The files of the reads in flight. Belongs to the caller, so the files stay open until the
    /// ring is drained.
    files: &'a mut LentFiles<'f>,
    lane: Lane<'a>,
    states: Vec<ReadState>,
    /// Number of the first read that was not yet pushed.
    next: usize,
    /// Numbers of reads to push again, for their remaining bytes.
    again: Vec<usize>,
    retries: Retries,
    error: Option<Error>,
}

#[derive(Clone, Copy, Default)]
struct ReadState {
    /// Number of bytes that have arrived.
    arrived: usize,
    /// Place of the read's file in `Burst::files` while the read is in flight.
    file: usize,
}

impl<'a, 'b, 'f> Burst<'a, 'b, 'f> {
    fn new(
        reads: &'a mut [Read<'b>],
        segments: &'f Segments,
        files: &'a mut LentFiles<'f>,
        lane: Lane<'a>,
    ) -> Self {
        let states = vec![ReadState::default(); reads.len()];
        Self {
            reads,
            segments,
            files,
            lane,
            states,
            next: 0,
            again: Vec::new(),
            retries: Retries::default(),
            error: None,
        }
    }

    /// Runs the burst. The loop ends, because each round reaps a completion or waits for a bounded
    /// time, and a working drive answers. A read is pushed again only after at least a block has
    /// arrived, or within the limit of retries.
    fn run(mut self, ring: &mut Ring) -> Result<()> {
        loop {
            self.fill(ring);
            if ring.outstanding() == 0 {
                return self.error.map_or(Ok(()), Err);
            }
            // While reads are left to push, waits for a part of the reads in flight. The drive then
            // always has work, and a system call returns several completions. Afterwards waits for
            // all remaining reads.
            let outstanding = ring.outstanding();
            let more = self.has_more();
            let want =
                if more { self.lane.patience(ring.depth(), outstanding) } else { outstanding };
            if let Err(error) = ring.submit_and_wait(want) {
                ring.drain();
                // The failure concerns the ring, so it belongs to no particular read. The error
                // names the file and the offset of the first read.
                let (path, offset) = self.segments.locate(self.reads[0].offset);
                return Err(self.error.unwrap_or_else(|| read_failed(path, offset, &error)));
            }
            ring.reap(|i, result| {
                let i = i as usize;
                self.lane.ends(self.reads[i].buffer.len() - self.states[i].arrived);
                self.complete(i, result);
            });
        }
    }

    fn has_more(&self) -> bool {
        self.error.is_none() && (self.next < self.reads.len() || !self.again.is_empty())
    }

    fn fill(&mut self, ring: &mut Ring) {
        while ring.has_room() && self.lane.has_room() && self.has_more() {
            let Some(i) = self.again.pop().or_else(|| self.begin()) else { return };
            let ReadState { arrived, file } = self.states[i];
            let offset = self.segments.within(self.reads[i].offset);
            let rest = &mut self.reads[i].buffer[arrived..];
            self.lane.begins(rest.len());
            let len = rest.len().min(REQUEST_BYTES_MAX) as u32;
            let file = types::Fd(self.files.file(file).file().as_raw_fd());
            let entry = opcode::Read::new(file, rest.as_mut_ptr(), len)
                .offset(offset + arrived as u64)
                .build()
                .user_data(i as u64);
            // SAFETY: `self` borrows the buffers exclusively, and `files` keeps the file open.
            // Both outlive `run` and the ring's loan. `run` returns with no request in flight. If
            // it unwinds, the loan is dropped, which drains the ring. No buffer is in flight twice:
            // `next` gives out each `i` once, and `again` gets `i` only after the earlier request
            // for read `i` has completed.
            unsafe { ring.push(&entry) };
        }
    }

    /// Returns the number of the next read, and holds its file. `None` after an error, and if the
    /// file can't be opened before another read has ended.
    fn begin(&mut self) -> Option<usize> {
        let read = &self.reads[self.next];
        match self.files.begin(self.segments, read.offset, read.buffer.len()) {
            Ok(Some(file)) => {
                self.states[self.next].file = file;
                self.next += 1;
                Some(self.next - 1)
            }
            Ok(None) => None,
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    fn complete(&mut self, i: usize, result: i32) {
        let ReadState { arrived, file } = self.states[i];
        let offset = self.segments.within(self.reads[i].offset);
        let wanted = self.reads[i].buffer.len();
        let asked = Asked { segment: self.files.file(file), offset, wanted, before: arrived };
        match self.retries.after(&asked, result, self.reads.len()) {
            Completion::Complete => {
                self.states[i].arrived = wanted;
                self.files.end(file);
            }
            Completion::More(moved) => {
                self.states[i].arrived += moved;
                self.again.push(i);
            }
            Completion::Again => self.again.push(i),
            Completion::Failed(error) => {
                self.error.get_or_insert(error);
            }
        }
    }
}

/// The pool of idle rings.
#[derive(Debug)]
struct RingPool {
    state: Mutex<PoolState>,
    returned: Condvar,
    depth: u32,
    rings_max: usize,
}

struct PoolState {
    idle: Vec<Ring>,
    /// Number of rings, idle or lent.
    rings: usize,
    /// Numbers of the buffers that are registered or are being registered.
    registered: Vec<u64>,
    /// True if the kernel has refused to register a buffer. The device then registers no more.
    refused: bool,
}

impl PoolState {
    /// Takes an idle ring. Prefers a ring that has `buffer` registered, then a ring without a
    /// registered buffer, then any ring.
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
    fn new(first: Ring, depth: u32, rings_max: usize) -> Self {
        Self {
            state: Mutex::new(PoolState {
                idle: vec![first],
                rings: 1,
                registered: Vec::new(),
                refused: false,
            }),
            returned: Condvar::new(),
            depth,
            rings_max,
        }
    }

    /// Lends a ring for one burst or stream. `buffer` is the number of the stream's buffer. The
    /// ring is an idle one, a new one, or the next one that is given back.
    ///
    /// The wait ends: all rings are then lent to bursts and streams, and each of them gives its
    /// ring back when it ends.
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
                    // The device also works with fewer rings, more slowly.
                    Err(_) => {}
                }
            }
            self.returned.wait(&mut state);
        }
    }
}

/// A lent ring. Dropping it drains the ring and gives it back, or drops the ring if it can't be
/// reused.
struct Lent<'p> {
    /// `None` only during drop.
    ring: Option<Ring>,
    pool: &'p RingPool,
}

impl Lent<'_> {
    fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("a loan has its ring until it is dropped")
    }

    /// Registers a buffer that has a number, unless it is already registered with a ring.
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
