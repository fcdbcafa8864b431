//! The io_uring device: bursts of direct reads, many in flight from one thread.
//!
//! A burst or a stream takes a ring from a small pool, keeps it filled up to its depth, and reaps what has
//! completed in one go: a system call per eighth of the depth, rather than one per read. Whoever calls
//! does the work; there is no thread of its own.
//!
//! A stream into a buffer made for it ([`AlignedBuffer::for_streams`]) reads into *registered* pages, which the
//! kernel need not look up for each read. That saves a tenth of the thread's time: whole streams of 4,096 reads took
//! 1.16 us a read instead of 1.20 to 1.41 with 512 bytes, 1.10 instead of 1.29 with 4 KiB, and with both cores
//! busy otherwise 2.61 instead of 2.75 and 2.64 instead of 2.90 (medians of nine turns). Reads a second stay the
//! same: the drive is the limit. A buffer is registered with one ring at most, and a ring has one at most, so that
//! the pool's buffers are pinned once. A stream gets the ring that knows its buffer where that is idle. Where
//! it isn't, or the kernel refuses to register, reads are plain ones, and nobody is told: the tenth is all that
//! is lost.
//!
//! Not used, and why:
//! - The ring for writes. The log writes pages of megabytes, a system call each; a ring would save
//!   nothing, and a file system runs extending direct writes one at a time anyway.
//! - The ring for a burst of one read, for the same reason; such a read never waits for a ring. A stream always
//!   takes one, also where it turns out to be a single read: that shows only when the read has brought what
//!   the next would be asked for.
//! - Registered files. One would hold the space of a removed segment until it is unregistered in every ring, idle or
//!   lent, and beside registered buffers it saves 1 to 5% (a ring alone, one file, medians of seven turns):
//!
//!   | thread's time a read, random, depth 256 | 512 bytes | 4 KiB | 512 bytes, both cores busy |
//!   |---|---|---|---|
//!   | neither | 0.94 us | 0.92 us | 2.95 us |
//!   | registered file | 0.88 us | 0.90 us | 2.86 us |
//!   | registered buffer | 0.79 us | 0.82 us | 2.74 us |
//!   | both | 0.78 us | 0.81 us | 2.59 us |
//!
//! - `IORING_SETUP_DEFER_TASKRUN`. It ties a ring to the thread that made it, and rings are lent to whoever
//!   reads.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use io_uring::{opcode, types};
use parking_lot::{Condvar, Mutex};

use super::priority::{Lane, Traffic};
use super::ring::Ring;
use super::segments::{Located, Segments};
use super::streaming::Streaming;
use super::transfer::{self, Progress};
use super::{
    AlignedBuffer, Device, DeviceOptions, DeviceReport, Freed, Priority, Read, ReadStream,
};
use crate::error::{Error, Result};

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
        // Before the loan, so dropped after it: the loan's drop drains the ring, and until then the kernel may
        // read from these files, also when the stream unwinds.
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
    retries: usize,
    error: Option<Error>,
}

impl<'a, 'b> Burst<'a, 'b> {
    fn new(reads: &'a mut [Read<'b>], located: &'a Located, lane: Lane<'a>) -> Self {
        let arrived = vec![0; reads.len()];
        Self { reads, located, lane, arrived, next: 0, again: Vec::new(), retries: 0, error: None }
    }

    /// Ends: each turn reaps a completion or is bounded within the ring; a read comes again only after at
    /// least a block has arrived, or within the bound on retries.
    fn run(mut self, ring: &mut Ring) -> Result<()> {
        loop {
            self.fill(ring);
            if ring.outstanding() == 0 {
                return self.error.map_or(Ok(()), Err);
            }
            // While there is more to push, wait for a part of the depth, so that the disk never runs dry
            // and a system call still brings several; then wait for all that is left.
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
            // SAFETY: `self` borrows the buffers exclusively and `located` holds the file open, both for
            // longer than `run` and the ring's loan, neither of which ends before the ring is drained:
            // `run` returns with nothing outstanding, and an unwinding drops the loan, which drains. No
            // buffer is in flight twice: `i` comes from `again` or `next`, once for each completion.
            unsafe { ring.push(&entry) };
        }
    }

    fn complete(&mut self, i: usize, result: i32) {
        let (segment, offset) = self.located.place(i);
        let (wanted, before) = (self.reads[i].buffer.len(), self.arrived[i]);
        if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            self.retries += 1;
            if transfer::is_transient(&error)
                && self.retries <= transfer::retries_max(self.reads.len())
            {
                self.again.push(i);
            } else {
                let failed = segment.read_failed(offset + before as u64, &error);
                self.error.get_or_insert(failed);
            }
            return;
        }
        let moved = result as usize;
        match Progress::after(wanted, before, moved) {
            Progress::Complete => self.arrived[i] = wanted,
            Progress::More => {
                self.arrived[i] += moved;
                self.again.push(i);
            }
            Progress::EndOfFile => {
                let cut = segment.truncated(offset, wanted, before + moved);
                self.error.get_or_insert(cut);
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

    /// A ring for one burst, into this buffer if it has a number: an idle one, a new one, or the next to come back.
    ///
    /// Waits only while others have rings, and each of them gives its ring back when its burst ends.
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
mod tests {
    use super::*;

    fn device(dir: &Path) -> Option<UringDevice> {
        let options = DeviceOptions { queue_depth: 4, rings_max: 2, ..DeviceOptions::default() };
        match UringDevice::open(dir, &options) {
            Ok(device) => Some(device),
            Err(refused) => {
                eprintln!("left out: {refused}");
                None
            }
        }
    }

    fn read_blocks(device: &UringDevice, memory: &mut AlignedBuffer) -> Result<()> {
        let blocks = memory.chunks_mut(512).enumerate();
        let mut reads: Vec<_> =
            blocks.map(|(i, buffer)| Read { offset: i as u64 * 512, buffer }).collect();
        device.read_many(&mut reads)
    }

    #[test]
    fn a_ring_that_fails_is_replaced_and_the_device_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = device(dir.path()) else { return };
        let mut memory = AlignedBuffer::zeroed(512 * 16);
        memory.fill(5);
        device.write(0, &memory).unwrap();
        // At the first, second and third system call of a burst: with nothing, and with reads in flight.
        for calls_before in 0..3 {
            {
                let mut lent = device.rings.lend(None).unwrap();
                // EINTR stands for calls that are merely disturbed.
                lent.ring().injected.lock().extend(vec![libc::EINTR; calls_before]);
                lent.ring().injected.lock().push_back(libc::ENXIO);
            }
            let error = read_blocks(&device, &mut memory).unwrap_err();
            assert!(error.to_string().contains("read"), "{error}");
            memory.fill(0);
            read_blocks(&device, &mut memory).unwrap();
            assert!(memory.iter().all(|&byte| byte == 5));
        }
        let state = device.rings.state.lock();
        assert_eq!((state.idle.len(), state.rings), (1, 1));
    }

    #[test]
    fn short_and_disturbed_completions_are_asked_for_again_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = device(dir.path()) else { return };
        device.write(0, &AlignedBuffer::zeroed(8192)).unwrap();
        let mut memory = AlignedBuffer::zeroed(4096);
        let mut reads = [Read { offset: 4096, buffer: &mut memory }];
        let located = device.segments.locate_all(&reads).unwrap();
        let lane = || device.traffic.enter(Priority::Foreground);
        let mut burst = Burst::new(&mut reads, &located, lane());
        burst.complete(0, 1024);
        burst.complete(0, -libc::EAGAIN);
        assert_eq!((burst.arrived[0], burst.again.len()), (1024, 2));
        assert!(burst.error.is_none());
        for _ in 0..transfer::retries_max(1) {
            burst.complete(0, -libc::EINTR);
        }
        let error = burst.error.take().unwrap();
        drop(burst);
        assert!(error.to_string().contains("at offset 5120"), "{error}");

        let mut burst = Burst::new(&mut reads, &located, lane());
        burst.complete(0, 512);
        burst.complete(0, 0);
        let error = burst.error.take().unwrap();
        drop(burst);
        let Error::Truncated { offset, expected, found, .. } = error else { panic!("{error}") };
        assert_eq!((offset, expected, found), (4096, 4096, 512));

        let mut burst = Burst::new(&mut reads, &located, lane());
        burst.complete(0, -libc::EIO);
        burst.complete(0, 0);
        assert!(matches!(burst.error, Some(Error::Io { .. })), "the first failure is reported");
        assert!(!burst.has_more());
    }

    /// Blocks of a file in which each block is filled with its number.
    struct Numbered(u64);

    impl ReadStream for Numbered {
        fn next(&mut self) -> Option<(u64, usize)> {
            self.0 += 1;
            (self.0 <= 64).then(|| ((self.0 - 1) * 512, 512))
        }
        fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
            assert!(bytes.iter().all(|&byte| u64::from(byte) == number), "block {number}");
            Ok(())
        }
    }

    /// The same blocks, counting those of which nothing came.
    struct Watched {
        blocks: Numbered,
        zeros: u32,
    }

    impl ReadStream for Watched {
        fn next(&mut self) -> Option<(u64, usize)> {
            self.blocks.next()
        }
        fn done(&mut self, _: u64, bytes: &[u8]) -> Result<()> {
            self.zeros += u32::from(bytes.iter().all(|&byte| byte == 0));
            Ok(())
        }
    }

    fn numbered(dir: &Path) -> Option<UringDevice> {
        let device = device(dir)?;
        let mut blocks = AlignedBuffer::zeroed(64 * 512);
        for (i, block) in blocks.chunks_mut(512).enumerate() {
            block.fill(i as u8);
        }
        device.write(0, &blocks).unwrap();
        Some(device)
    }

    #[test]
    fn each_buffer_is_registered_once_and_finds_its_ring_again() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = numbered(dir.path()) else { return };
        let mut buffers = [AlignedBuffer::for_streams(8192), AlignedBuffer::for_streams(8192)];
        let [first, second] = buffers.each_ref().map(|buffer| buffer.number().unwrap());
        device.read_stream(&mut buffers[0], &mut Numbered(0)).unwrap();
        if device.rings.state.lock().refused {
            return eprintln!("left out: the kernel registers no buffer");
        }
        // While the first one's ring is lent, the second gets one of its own.
        let lent = device.rings.lend(Some(first)).unwrap();
        device.read_stream(&mut buffers[1], &mut Numbered(0)).unwrap();
        // And while its own is not to be had, it does without.
        drop(lent);
        let lent = device.rings.lend(Some(second)).unwrap();
        assert_eq!(lent.ring.as_ref().unwrap().registered(), Some(second));
        device.read_stream(&mut buffers[1], &mut Numbered(0)).unwrap();
        drop(lent);
        for _ in 0..3 {
            for (buffer, number) in buffers.iter_mut().zip([first, second]) {
                let lent = device.rings.lend(Some(number)).unwrap();
                assert_eq!(lent.ring.as_ref().unwrap().registered(), Some(number));
                drop(lent);
                buffer.fill(0xEE);
                device.read_stream(buffer, &mut Numbered(0)).unwrap();
            }
        }
        device.read_stream(&mut AlignedBuffer::zeroed(8192), &mut Numbered(0)).unwrap();
        assert_eq!(device.rings.state.lock().registered, [first, second]);
    }

    /// Not left to the allocator, which may put the new buffer elsewhere: the pages of one buffer go back to the
    /// system, as if it had been freed, and the ones that come in their place get a number of their own.
    #[test]
    fn a_new_buffer_where_a_registered_one_was_gets_its_own_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = numbered(dir.path()) else { return };
        let mut buffer = AlignedBuffer::for_streams(64 * 512);
        device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
        if device.rings.state.lock().refused {
            return eprintln!("left out: the kernel registers no buffer");
        }
        buffer.replace_pages();
        // What the new number is for: by the old one, the kernel reads into pages that are no longer there.
        let mut stale = Watched { blocks: Numbered(0), zeros: 0 };
        device.read_stream(&mut buffer, &mut stale).unwrap();
        assert_eq!(stale.zeros, 64, "the registered pages are not those that were replaced");
        buffer.renumber();
        device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
    }

    #[test]
    fn where_registering_is_refused_reads_are_plain() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = numbered(dir.path()) else { return };
        {
            let mut lent = device.rings.lend(None).unwrap();
            lent.ring().injected.lock().push_back(libc::ENOMEM);
        }
        let mut buffer = AlignedBuffer::for_streams(8192);
        for _ in 0..2 {
            device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
            let state = device.rings.state.lock();
            assert!(state.refused && state.registered.is_empty());
        }
    }

    #[test]
    fn a_ring_that_fails_lets_its_buffer_be_registered_again() {
        let dir = tempfile::tempdir().unwrap();
        let Some(device) = numbered(dir.path()) else { return };
        let mut buffer = AlignedBuffer::for_streams(8192);
        for _ in 0..3 {
            device.read_stream(&mut buffer, &mut Numbered(0)).unwrap();
            if device.rings.state.lock().refused {
                return eprintln!("left out: the kernel registers no buffer");
            }
            assert_eq!(device.rings.state.lock().registered.len(), 1);
            let mut lent = device.rings.lend(buffer.number()).unwrap();
            lent.ring().injected.lock().push_back(libc::ENXIO);
            drop(lent);
            device.read_stream(&mut buffer, &mut Numbered(0)).unwrap_err();
            assert!(device.rings.state.lock().registered.is_empty());
        }
    }
}
