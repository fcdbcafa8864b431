//! Requests a second of the drive at a given queue depth, without a store.
//!
//! Each thread uses `O_DIRECT` through one `io_uring` with registered buffers and a registered
//! file, and keeps the queue full. The file is written once, and then read and overwritten. Each
//! 512-byte block begins with its own number, and every block that a thread reads is checked. The
//! check detects a drive that returns a wrong block. It also detects a loop that reads one place
//! again and again.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use embank_kv::device::AlignedBuffer;
use hdrhistogram::Histogram;
use io_uring::{IoUring, opcode, types};

use crate::ground::content::KeyStream;

/// Bytes of a block, which begins with its number.
const BLOCK_BYTES: u64 = 512;
/// Bytes of one request while the file is filled.
const FILL_BYTES: u64 = 1 << 20;
const FILL_DEPTH: u32 = 8;

/// The requests of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) random: bool,
    pub(crate) write: bool,
    pub(crate) request_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) threads: u64,
}

impl Load {
    /// The name in the report.
    pub(crate) fn name(&self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let what = if self.write { "writes" } else { "reads" };
        let bytes = match self.request_bytes {
            bytes if bytes < 1 << 10 => format!("{bytes} B"),
            bytes if bytes < 1 << 20 => format!("{} KiB", bytes >> 10),
            bytes => format!("{} MiB", bytes >> 20),
        };
        let threads = if self.threads == 1 { "" } else { " x 2 threads" };
        format!("{order} {what} of {bytes}, depth {}{threads}", self.depth)
    }
}

/// A file to measure with.
#[derive(Debug)]
pub(crate) struct DriveFile {
    file: File,
    bytes: u64,
}

impl DriveFile {
    /// Makes and fills the file.
    ///
    /// # Errors
    /// The file can't be made or written, or its file system has no direct I/O.
    pub(crate) fn filled(path: &Path, bytes: u64) -> Result<Self> {
        let bytes = bytes.next_multiple_of(FILL_BYTES);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .with_context(|| {
                format!(
                    "making {} with O_DIRECT; --directory may name a real drive",
                    path.display()
                )
            })?;
        let file = Self { file, bytes };
        let load = Load {
            random: false,
            write: true,
            request_bytes: FILL_BYTES,
            depth: FILL_DEPTH,
            threads: 1,
        };
        Queue::new(&file, load)?.run(&mut Places::Once(0), |_| true)?;
        file.file.sync_all().context("syncing the file")?;
        Ok(file)
    }

    /// Requests a second over about `duration`, summed over the threads.
    ///
    /// # Errors
    /// Fails if a request fails or the drive returns another block.
    pub(crate) fn measure(&self, load: Load, duration: Duration, seed: u64) -> Result<f64> {
        let run = |thread: u64| -> Result<f64> {
            let mut places = self.places(load, thread, seed);
            let mut queue = Queue::new(self, load)?;
            let started = Instant::now();
            let done = queue.run(&mut places, |_| started.elapsed() < duration)?;
            Ok(done as f64 / started.elapsed().as_secs_f64())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..load.threads).map(|thread| scope.spawn(move || run(thread))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a measuring thread does not panic"))
                .sum()
        })
    }

    /// Returns the nanoseconds of each burst. One thread makes one burst after another for about
    /// `duration`. The number of requests of a burst is the queue depth. The time includes
    /// preparing the requests and checking the blocks.
    ///
    /// # Errors
    /// Fails as [`measure`](Self::measure) does.
    pub(crate) fn bursts(
        &self,
        load: Load,
        duration: Duration,
        seed: u64,
    ) -> Result<Histogram<u64>> {
        let mut places = self.places(load, 0, seed);
        let mut queue = Queue::new(self, load)?;
        let mut bursts = Histogram::new(3).context("a histogram of three digits")?;
        let started = Instant::now();
        while bursts.is_empty() || started.elapsed() < duration {
            let began = Instant::now();
            queue.run(&mut places, |_| false)?;
            let took = began.elapsed().as_nanos() as u64;
            bursts.record(took).context("a burst of years")?;
        }
        Ok(bursts)
    }

    fn places(&self, load: Load, thread: u64, seed: u64) -> Places {
        let places = self.bytes / load.request_bytes;
        if load.random {
            Places::Random(KeyStream::new(seed ^ thread, 0, 1, places))
        } else {
            Places::Around(places * thread / load.threads)
        }
    }
}

/// The places that requests go to, in units of the request's length.
enum Places {
    Random(KeyStream),
    /// All places in order, from this place on. After the last place comes the first.
    Around(u64),
    /// Each place from this place to the end, once.
    Once(u64),
}

impl Places {
    fn next(&mut self, count: u64) -> Option<u64> {
        match self {
            Places::Random(stream) => Some(stream.next_key()),
            Places::Around(next) => {
                let place = *next % count;
                *next += 1;
                Some(place)
            }
            Places::Once(next) => {
                *next += 1;
                (*next <= count).then_some(*next - 1)
            }
        }
    }
}

/// A ring and the memory of its requests. `drop` waits for the requests, so the memory outlives
/// them.
struct Queue<'a> {
    ring: IoUring,
    buffers: Vec<AlignedBuffer>,
    /// The offset of each buffer's request.
    offsets: Vec<u64>,
    in_flight: u32,
    load: Load,
    file: &'a DriveFile,
}

impl<'a> Queue<'a> {
    fn new(file: &'a DriveFile, load: Load) -> Result<Self> {
        let ring = IoUring::new(load.depth).context("io_uring is refused here")?;
        let buffers: Vec<AlignedBuffer> =
            (0..load.depth).map(|_| AlignedBuffer::zeroed(load.request_bytes as usize)).collect();
        let io_vectors: Vec<libc::iovec> = buffers
            .iter()
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_ptr().cast_mut().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        // SAFETY: the registered buffers must outlive the ring's requests. They are in the same
        // struct as the ring, and `drop` waits for its requests.
        unsafe { ring.submitter().register_buffers(&io_vectors) }
            .context("registering buffers; `ulimit -l` limits how many")?;
        ring.submitter().register_files(&[file.file.as_raw_fd()]).context("registering a file")?;
        let offsets = vec![0; buffers.len()];
        Ok(Self { ring, buffers, offsets, in_flight: 0, load, file })
    }

    /// Keeps the queue full. Ends when `go_on`, which is called before each request, returns false,
    /// or when the places run out. Returns the number of completed requests.
    fn run(&mut self, places: &mut Places, go_on: impl Fn(u64) -> bool) -> Result<u64> {
        let count = self.file.bytes / self.load.request_bytes;
        let mut done = 0;
        for slot in 0..self.buffers.len() {
            if let Some(place) = places.next(count) {
                self.push(slot, place);
            }
        }
        let mut completed = Vec::with_capacity(self.buffers.len());
        while self.in_flight > 0 {
            self.ring.submit_and_wait(1).context("waiting for the drive")?;
            completed.extend(self.ring.completion().map(|c| (c.user_data() as usize, c.result())));
            self.in_flight -= completed.len() as u32;
            for (slot, result) in completed.drain(..) {
                self.check(slot, result)?;
                done += 1;
                if go_on(done)
                    && let Some(place) = places.next(count)
                {
                    self.push(slot, place);
                }
            }
        }
        Ok(done)
    }

    fn push(&mut self, slot: usize, place: u64) {
        let offset = place * self.load.request_bytes;
        self.offsets[slot] = offset;
        let buffer = &mut self.buffers[slot];
        let numbers = offset / BLOCK_BYTES..;
        for (block, number) in buffer.chunks_exact_mut(BLOCK_BYTES as usize).zip(numbers) {
            // Before a read, replaces the number in the buffer by one that no block has. The check
            // then fails if the read does not fill the buffer.
            let number: u64 = if self.load.write { number } else { !0 };
            block[..8].copy_from_slice(&number.to_le_bytes());
        }
        let (start, bytes) = (buffer.as_mut_ptr(), buffer.len() as u32);
        let file = types::Fixed(0);
        let entry = if self.load.write {
            opcode::WriteFixed::new(file, start, bytes, slot as u16).offset(offset).build()
        } else {
            opcode::ReadFixed::new(file, start, bytes, slot as u16).offset(offset).build()
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: the buffer must stay untouched until the kernel completes the request. This loop
        // reuses a buffer after its completion, and `drop` waits for all requests before the memory
        // is freed.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are as many entries as buffers");
        self.in_flight += 1;
    }

    fn check(&self, slot: usize, result: i32) -> Result<()> {
        let offset = self.offsets[slot];
        if result < 0 {
            return Err(std::io::Error::from_raw_os_error(-result))
                .with_context(|| format!("a request of {} at offset {offset}", self.load.name()));
        }
        ensure!(
            result as u64 == self.load.request_bytes,
            "a request at offset {offset} moved {result} of {} bytes",
            self.load.request_bytes
        );
        let numbers = offset / BLOCK_BYTES..;
        for (block, number) in self.buffers[slot].chunks_exact(BLOCK_BYTES as usize).zip(numbers) {
            if block[..8] != number.to_le_bytes() {
                bail!("wrong answer: block {number} of the file is not what was written there");
            }
        }
        Ok(())
    }
}

impl Drop for Queue<'_> {
    /// Waits until the kernel has completed every request, so that no buffer is in use.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.kind() != std::io::ErrorKind::Interrupted
            {
                eprintln!("embank-bench: the kernel keeps buffers in flight: {error}; aborting");
                std::process::abort();
            }
            self.in_flight -= self.ring.completion().count() as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_reads_back_what_was_written() {
        // The file is not in /tmp, which may be in memory and without direct I/O.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = match DriveFile::filled(&directory.path().join("file"), 2 << 20) {
            Ok(file) => file,
            Err(refused) => {
                eprintln!("left out: {refused:#}");
                return;
            }
        };
        for random in [true, false] {
            for write in [true, false] {
                for (depth, threads) in [(1, 1), (8, 2)] {
                    let load = Load { random, write, request_bytes: 4096, depth, threads };
                    let rate = file.measure(load, Duration::from_millis(5), 1).unwrap();
                    assert!(rate > 0.0, "{}", load.name());
                    let bursts = file.bursts(load, Duration::ZERO, 1).unwrap();
                    assert_eq!(bursts.len(), 1, "{}", load.name());
                }
            }
        }
    }
}
