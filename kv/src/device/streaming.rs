//! Runs a stream of reads through an io_uring.
//!
//! The ring stays full: the thread asks the stream for reads while the ring, the memory and the
//! lane (`priority`) have room. Then the thread waits for an eighth of the reads that may be in
//! flight, and passes these reads to the stream. New reads then get their memory. The drive
//! therefore works while the caller uses the rows, and the caller never waits for the last read of
//! a burst.
//!
//! The processor's caches contain neither the bytes that have just arrived nor the memory that the
//! caller will use for them. Completions are therefore passed on in groups. The caller first
//! prefetches for the whole group (`arrived`), so that the cache misses overlap.
//!
//! The memory is a ring buffer. Reads borrow it from front to back and give it back in that order.
//! This order suits reads of any length, and it wastes little because completions are nearly in
//! order. A read's memory belongs to the kernel from push to completion, and then to the stream
//! during `done`. A new read can get this memory only after all earlier reads have given their
//! memory back.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::slice;

use io_uring::{opcode, types};

use super::completion::{Asked, Completion, Retries};
use super::lent_files::LentFiles;
use super::priority::Lane;
use super::ring::Ring;
use super::segments::Segments;
use super::stream::too_long;
use super::transfer;
use super::{AlignedBuffer, ReadStream};
use crate::error::{Error, Result};

/// Limit of the bytes of one request. A longer read continues with a second request, as after a
/// short read.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Number of completions in a group. The memory that is prefetched for a group fits into the
/// second-level cache.
const GROUP_READS: usize = 32;

/// A read to which memory was lent.
struct Lent {
    /// Position of the read's bytes in the memory.
    at: usize,
    len: usize,
    /// End of the read's bytes, as the value of `tail` after they were lent.
    end: u64,
    /// Place of the read's file in `files`; `offset` is the offset in that file.
    file: usize,
    offset: u64,
    arrived: usize,
    done: bool,
}

pub(super) struct Streaming<'a, 'f> {
    segments: &'f Segments,
    stream: &'a mut dyn ReadStream,
    lane: Lane<'a>,
    memory: *mut u8,
    memory_bytes: usize,
    /// Number of the buffer that is the memory. `None` if the buffer must not be registered.
    buffer: Option<u64>,
    borrow: PhantomData<&'a mut AlignedBuffer>,
    /// `head` is the number of bytes that were given back, and `tail` the number of bytes that were
    /// lent. Both include bytes skipped at the memory's end, and restart at 0 when no read has
    /// memory. The memory between these two positions is lent.
    head: u64,
    tail: u64,
    lent: VecDeque<Lent>,
    /// Number of the first read in `lent`.
    first: u64,
    /// The files of the reads in flight. Belongs to the caller, so the files stay open until the
    /// ring is drained.
    files: &'a mut LentFiles<'f>,
    /// A read that the stream has requested and that has no memory yet.
    asked: Option<(u64, usize)>,
    /// Numbers of reads to push again, for their remaining bytes.
    again: Vec<u64>,
    retries: Retries,
    deepest: u64,
    error: Option<Error>,
}

impl<'a, 'f> Streaming<'a, 'f> {
    pub(super) fn new(
        segments: &'f Segments,
        files: &'a mut LentFiles<'f>,
        memory: &'a mut AlignedBuffer,
        stream: &'a mut dyn ReadStream,
        lane: Lane<'a>,
    ) -> Self {
        Streaming {
            segments,
            stream,
            lane,
            memory: memory.as_mut_ptr(),
            memory_bytes: memory.len(),
            buffer: memory.number(),
            borrow: PhantomData,
            head: 0,
            tail: 0,
            lent: VecDeque::new(),
            first: 0,
            files,
            asked: None,
            again: Vec::new(),
            retries: Retries::default(),
            deepest: 0,
            error: None,
        }
    }

    /// Runs the stream. Returns the largest number of simultaneous reads.
    ///
    /// The call ends, because the caller's stream has finitely many reads. Each round of the loop
    /// takes completions from the ring or waits for a bounded time. A read goes to the ring again
    /// only if a part of it has arrived, or if it has retries left.
    pub(super) fn run(mut self, ring: &mut Ring) -> Result<u64> {
        // The reaped completions, as number and result.
        let mut came = Vec::new();
        loop {
            self.fill(ring);
            if ring.outstanding() == 0 {
                return self.error.map_or(Ok(self.deepest), Err);
            }
            self.deepest = self.deepest.max(u64::from(ring.outstanding()));
            let want = self.lane.patience(ring.depth(), ring.outstanding());
            if let Err(error) = ring.submit_and_wait(want) {
                ring.drain();
                // The failure concerns the ring, so it belongs to no particular read. The error
                // names the file and the offset of the oldest read.
                let failed = self
                    .lent
                    .front()
                    .filter(|first| !first.done)
                    .map(|first| self.files.file(first.file).read_failed(first.offset, &error));
                let failed =
                    failed.unwrap_or_else(|| Error::io("read", self.segments.folder(), error));
                return Err(self.error.unwrap_or(failed));
            }
            ring.reap(|number, result| came.push((number, result)));
            for group in came.chunks(GROUP_READS) {
                self.tell_arrived(group);
                for &(number, result) in group {
                    self.lane.ends(self.rest(number));
                    self.complete(number, result);
                }
            }
            came.clear();
        }
    }

    /// Tells the stream which of these reads are complete (`ReadStream::arrived`). The stream can
    /// then prefetch the memory that its `done` will use.
    fn tell_arrived(&mut self, came: &[(u64, i32)]) {
        if self.error.is_some() {
            return;
        }
        for &(number, result) in came {
            // Skips a short read, whose remaining bytes have not arrived.
            if usize::try_from(result).is_ok_and(|arrived| arrived == self.rest(number)) {
                let lent = &self.lent[(number - self.first) as usize];
                // SAFETY: the read is complete, so the kernel no longer writes to its range. No
                // other read gets the range until it is given back (`complete`).
                let bytes = unsafe { slice::from_raw_parts(self.memory.add(lent.at), lent.len) };
                self.stream.arrived(number, bytes);
            }
        }
    }

    fn fill(&mut self, ring: &mut Ring) {
        while ring.has_room() && self.lane.has_room() && self.error.is_none() {
            let number = match self.again.pop() {
                Some(number) => number,
                None => match self.begin() {
                    Ok(Some(number)) => number,
                    Ok(None) => return,
                    Err(error) => {
                        self.error = Some(error);
                        return;
                    }
                },
            };
            self.push(ring, number);
        }
    }

    /// Requests the stream's next read and gives it memory. `None` if the stream has no read, the
    /// memory is used up, or the read's file can't be opened before another read has ended.
    fn begin(&mut self) -> Result<Option<u64>> {
        let Some((offset, len)) = self.asked.take().or_else(|| self.stream.next()) else {
            return Ok(None);
        };
        let before = if self.lent.is_empty() { 0 } else { self.tail };
        let Some(at) = self.lend(len) else {
            self.asked = Some((offset, len));
            if self.lent.is_empty() {
                return Err(too_long(self.asked, self.memory_bytes));
            }
            return Ok(None);
        };
        // SAFETY: the range is within the memory. It was just lent, so no other read uses it.
        let buffer = unsafe { slice::from_raw_parts(self.memory.add(at), len) };
        transfer::check(offset, buffer, self.segments.segment_size_bytes())?;
        let Some(file) = self.files.begin(self.segments, offset, len)? else {
            self.tail = before;
            self.asked = Some((offset, len));
            return Ok(None);
        };
        let within = self.segments.within(offset);
        let end = self.tail;
        let lent = Lent { at, len, end, file, offset: within, arrived: 0, done: false };
        self.lent.push_back(lent);
        Ok(Some(self.first + self.lent.len() as u64 - 1))
    }

    /// Lends `len` bytes after the lent memory. Returns their position; `None` if there is no room.
    fn lend(&mut self, len: usize) -> Option<usize> {
        if self.lent.is_empty() {
            self.head = 0;
            self.tail = 0;
        }
        let offset = (self.tail % self.memory_bytes.max(1) as u64) as usize;
        let skipped = if self.memory_bytes - offset < len { self.memory_bytes - offset } else { 0 };
        if (self.tail - self.head) as usize + skipped + len > self.memory_bytes {
            return None;
        }
        self.tail += (skipped + len) as u64;
        Some(if skipped > 0 { 0 } else { offset })
    }

    /// Number of bytes of a read that have not arrived.
    fn rest(&self, number: u64) -> usize {
        let lent = &self.lent[(number - self.first) as usize];
        lent.len - lent.arrived
    }

    fn push(&mut self, ring: &mut Ring, number: u64) {
        self.lane.begins(self.rest(number));
        let lent = &self.lent[(number - self.first) as usize];
        let len = (lent.len - lent.arrived).min(REQUEST_BYTES_MAX) as u32;
        let file = types::Fd(self.files.file(lent.file).file().as_raw_fd());
        let start = self.memory.wrapping_add(lent.at + lent.arrived);
        let offset = lent.offset + lent.arrived as u64;
        let entry = if self.buffer.is_some() && self.buffer == ring.registered() {
            opcode::ReadFixed::new(file, start, len, 0).offset(offset).build()
        } else {
            opcode::Read::new(file, start, len).offset(offset).build()
        };
        let entry = entry.user_data(number);
        // SAFETY: the duty is that the range of memory and the file stay valid until the read is
        // done, and that no other code uses the range. `lend` gave the range to this read alone.
        // `run` returns only when no request is in flight. If a method of `stream` unwinds,
        // `read_stream` drops the borrowed ring, which waits for all requests, and drops the files
        // after that. The memory belongs to the caller of `read_stream`.
        unsafe { ring.push(&entry) };
    }

    fn complete(&mut self, number: u64, result: i32) {
        let place = (number - self.first) as usize;
        let lent = &mut self.lent[place];
        let at = lent.at;
        let len = lent.len;
        let file = lent.file;
        let segment = self.files.file(file);
        let asked = Asked { segment, offset: lent.offset, wanted: len, before: lent.arrived };
        match self.retries.after(&asked, result, number as usize + 1) {
            Completion::Complete => {
                lent.done = true;
                self.files.end(file);
                if self.error.is_none() {
                    // SAFETY: the read is complete, so the kernel no longer writes to its range. No
                    // other read gets the range until it is given back below.
                    let bytes = unsafe { slice::from_raw_parts(self.memory.add(at), len) };
                    self.error = self.stream.done(number, bytes).err();
                }
                self.give_back();
            }
            Completion::More(moved) => {
                lent.arrived += moved;
                self.again.push(number);
            }
            Completion::Again => self.again.push(number),
            Completion::Failed(error) => {
                self.error.get_or_insert(error);
            }
        }
    }

    fn give_back(&mut self) {
        while let Some(lent) = self.lent.front().filter(|lent| lent.done) {
            self.head = lent.end;
            self.first += 1;
            self.lent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;
    use crate::device::priority::{self, Traffic};
    use crate::device::{DeviceOptions, Priority};

    /// A stream of two reads of 4 KiB.
    #[derive(Default)]
    struct Two {
        asked: u64,
        arrived: Vec<(u64, usize)>,
        done: Vec<u64>,
    }

    impl ReadStream for Two {
        fn next(&mut self) -> Option<(u64, usize)> {
            self.asked += 1;
            (self.asked <= 2).then_some(((self.asked - 1) * 4096, 4096))
        }
        fn arrived(&mut self, number: u64, bytes: &[u8]) {
            self.arrived.push((number, bytes.len()));
        }
        fn done(&mut self, number: u64, _: &[u8]) -> Result<()> {
            self.done.push(number);
            Ok(())
        }
    }

    fn segments(dir: &Path) -> Segments {
        let segments = Segments::open(
            &crate::files::directory::Directory::open(dir).unwrap(),
            &DeviceOptions::default(),
        )
        .unwrap();
        segments.write(0, &AlignedBuffer::zeroed(8192)).unwrap();
        segments
    }

    #[test]
    fn short_disturbed_and_failed_completions_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let segments = segments(dir.path());
        let traffic = Traffic::new();
        let lane = || traffic.enter(Priority::Foreground);
        let mut memory = AlignedBuffer::zeroed(8192);
        let mut two = Two::default();
        let mut files = LentFiles::default();
        let mut streaming = Streaming::new(&segments, &mut files, &mut memory, &mut two, lane());
        assert_eq!((streaming.begin().unwrap(), streaming.begin().unwrap()), (Some(0), Some(1)));
        // The second read completes first. It is interrupted, then short, then complete. Its memory
        // is given back only after the first read's.
        let mut came = |number, result| {
            streaming.tell_arrived(&[(number, result)]);
            streaming.complete(number, result);
            let lent = streaming.lent.len();
            (streaming.first, streaming.head, streaming.again.len(), lent)
        };
        assert_eq!(came(1, -libc::EAGAIN), (0, 0, 1, 2));
        assert_eq!(came(1, 1024), (0, 0, 2, 2));
        assert_eq!(came(1, 3072), (0, 0, 2, 2));
        assert_eq!(came(0, 4096), (2, 8192, 2, 0));
        assert!(streaming.error.is_none());
        drop(streaming);
        // `arrived` was called once for each complete read.
        assert_eq!((two.arrived, two.done), (vec![(1, 4096), (0, 4096)], vec![1, 0]));
    }

    #[test]
    fn the_first_failure_is_reported_with_its_place_and_nothing_is_handed_over_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let segments = segments(dir.path());
        let traffic = Traffic::new();
        let lane = || traffic.enter(Priority::Foreground);
        let mut memory = AlignedBuffer::zeroed(8192);
        for (result, what) in [(-libc::EIO, "at offset 4096"), (100, "holds 100 of 4096")] {
            let mut two = Two::default();
            let mut files = LentFiles::default();
            let mut streaming =
                Streaming::new(&segments, &mut files, &mut memory, &mut two, lane());
            while streaming.begin().unwrap().is_some() {}
            streaming.complete(1, result);
            streaming.tell_arrived(&[(0, 4096)]);
            streaming.complete(0, 4096);
            let error = streaming.error.take().unwrap();
            drop(streaming);
            match result {
                100 => assert!(matches!(error, Error::Truncated { found: 100, .. }), "{what}"),
                _ => assert!(error.to_string().contains(what), "{error}"),
            }
            assert!(two.arrived.is_empty() && two.done.is_empty());
        }
    }

    #[test]
    fn endless_disturbance_is_an_error_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let segments = segments(dir.path());
        let traffic = Traffic::new();
        let lane = || traffic.enter(Priority::Foreground);
        let mut memory = AlignedBuffer::zeroed(8192);
        let mut two = Two::default();
        let mut files = LentFiles::default();
        let mut streaming = Streaming::new(&segments, &mut files, &mut memory, &mut two, lane());
        streaming.begin().unwrap();
        for _ in 0..=transfer::retries_max(1) {
            streaming.complete(0, -libc::EINTR);
        }
        assert!(streaming.error.is_some());
    }

    /// A stream of many background reads. When the hundredth completes, a foreground call begins.
    struct Behind<'t> {
        traffic: &'t Traffic,
        foreground: Option<Lane<'t>>,
        begun: u32,
        arrived: HashSet<u64>,
        arrived_at_once: usize,
        done: u32,
        /// The largest number of reads in flight, before and during the foreground call.
        deepest: [u32; 2],
    }

    impl ReadStream for Behind<'_> {
        fn priority(&self) -> Priority {
            Priority::Background
        }
        fn next(&mut self) -> Option<(u64, usize)> {
            if self.begun == 2000 {
                return None;
            }
            self.begun += 1;
            let deepest = &mut self.deepest[usize::from(self.foreground.is_some())];
            *deepest = (*deepest).max(self.begun - self.done);
            Some((u64::from(self.begun % 16) * 512, 512))
        }
        fn arrived(&mut self, number: u64, bytes: &[u8]) {
            assert_eq!(bytes.len(), 512);
            self.arrived.insert(number);
            self.arrived_at_once = self.arrived_at_once.max(self.arrived.len());
        }
        fn done(&mut self, number: u64, _: &[u8]) -> Result<()> {
            assert!(self.arrived.remove(&number), "handed over unannounced");
            self.done += 1;
            if self.done == 100 {
                self.foreground = Some(self.traffic.enter(Priority::Foreground));
            }
            Ok(())
        }
    }

    #[test]
    fn a_background_stream_leaves_the_queue_to_a_foreground_call() {
        let dir = tempfile::tempdir().unwrap();
        let segments = segments(dir.path());
        let mut ring = match Ring::new(256) {
            Ok(ring) => ring,
            Err(refused) => return eprintln!("left out: {refused}"),
        };
        let traffic = Traffic::new();
        let mut memory = AlignedBuffer::zeroed(512 << 10);
        let mut stream = Behind {
            traffic: &traffic,
            foreground: None,
            begun: 0,
            arrived: HashSet::new(),
            arrived_at_once: 0,
            done: 0,
            deepest: [0, 0],
        };
        let mut files = LentFiles::default();
        let lane = traffic.enter(Priority::Background);
        let streaming = Streaming::new(&segments, &mut files, &mut memory, &mut stream, lane);
        streaming.run(&mut ring).unwrap();
        assert_eq!((stream.begun, stream.done), (2000, 2000));
        assert!((2..=GROUP_READS).contains(&stream.arrived_at_once), "{}", stream.arrived_at_once);
        assert_eq!(stream.deepest, [priority::ALONE, priority::YIELDING]);
    }
}
