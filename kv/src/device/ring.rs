//! An io_uring that never lets a read's buffer be freed while the kernel may write to it.
//!
//! The kernel may write to a read's buffer at any time between submission and completion. A call
//! must not return in between, because its caller would reuse or free the buffer. A ring therefore
//! counts the requests that were pushed and whose completions were not reaped. [`Ring::drain`]
//! returns only when this count is zero. The drain runs when a ring is given back and when it is
//! dropped, also during unwinding:
//!
//! - The drain abandons the requests that the kernel has not taken from the submission queue. The
//!   kernel takes requests only when a thread enters the ring, and no thread enters an abandoned
//!   ring ([`Ring::is_reusable`] is false).
//! - For requests that the kernel has taken, the drain waits for the completions. It submits
//!   nothing.
//! - If waiting fails [`DRAIN_FAILURES_MAX`] times in a row, the process aborts with a message. To
//!   continue would not be sound, because the kernel could still write to the buffers. No known
//!   kernel lets waits fail in this way.
//!
//! A ring can have one *registered* buffer. The kernel keeps that buffer's pages in memory and does
//! not look them up for each read. A stream registers its buffer before its first read, and a ring
//! never replaces a registered buffer. The kernel holds the pages and not the addresses, so the
//! buffer may be freed before the ring. A later buffer may get the same address and other pages,
//! and a read into the registered pages would not reach it. Reads therefore compare the buffers'
//! numbers, which are unique, and not their addresses. Buffers are registered only from Linux 5.19
//! on. On older kernels, a process that forks may get other pages than the kernel holds.
//!
//! From Linux 5.11 on, a thread that waits for completions enters the kernel again after at most
//! [`WAIT_SLICE`]. A kernel may finish requests without waking the thread. It then posts the
//! completions only when the thread enters the kernel again. Without this limit the thread would
//! sleep for ever.
//!
//! One thread has the ring from the first push to the drain. `IORING_SETUP_COOP_TASKRUN` requires
//! this, because completions arrive when this thread enters the kernel.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use io_uring::types::Timespec;
use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue};

use super::AlignedBuffer;
use crate::process::descriptors::with_streams;

/// Limit of a drain's failed waits in a row, one millisecond apart. Beyond this limit the process
/// aborts.
const DRAIN_FAILURES_MAX: u32 = 10_000;

/// Limit of one wait in the kernel. After it, the thread enters the kernel again. A system call per
/// second costs nothing measurable, and a working drive answers much sooner.
const WAIT_SLICE: Duration = Duration::from_secs(1);

/// Number of wait slices without a completion after which a message on standard error says that the
/// drive does not answer.
const SILENT_SLICES_MAX: u32 = 30;

/// Limit of the attempts to submit while the kernel has no memory and no request is in flight.
/// Without a request in flight no completion can free memory, so the submission fails beyond this
/// limit.
const SUBMIT_FAILURES_MAX: u32 = 1_000;

pub(super) struct Ring {
    io: IoUring,
    depth: u32,
    /// Number of requests that were pushed and whose completions were not reaped.
    outstanding: u32,
    abandoned: bool,
    /// True on Linux 5.19 or newer.
    recent: bool,
    /// Number of the registered buffer. `None` if no buffer is registered.
    registered: Option<u64>,
    wait_slice: Duration,
    /// Number of wait slices since the last completion.
    silent_slices: u32,
    /// Errors that the next system calls return in place of the kernel's results.
    #[cfg(test)]
    pub(super) injected: tests::Injected,
}

impl Ring {
    /// Makes a ring for `depth` simultaneous requests.
    ///
    /// # Errors
    /// The kernel's error: `ENOSYS` or `EPERM` if io_uring is switched off or filtered, `ENOMEM` if
    /// the limit of locked memory is too low, `Unsupported` if the kernel's io_uring has no plain
    /// read.
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        // These flags exist from Linux 5.18 and 5.19 on. An older kernel returns EINVAL, and the
        // ring is made without them.
        let mut builder = IoUring::builder();
        builder.setup_coop_taskrun().setup_submit_all();
        let (io, recent) = match with_streams(|| builder.build(depth)) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (with_streams(|| IoUring::new(depth))?, false)
            }
            built => (built?, true),
        };
        Ok(Self {
            io,
            depth,
            outstanding: 0,
            abandoned: false,
            recent,
            registered: None,
            wait_slice: WAIT_SLICE,
            silent_slices: 0,
            #[cfg(test)]
            injected: tests::Injected::default(),
        })
    }

    /// Tests the ring with one request. A system-call filter may allow a process to make a ring,
    /// but not to use it.
    pub(super) fn probe(&mut self) -> io::Result<()> {
        let mut probe = Probe::new();
        self.io.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring has no plain read (it came with Linux 5.6)",
            ));
        }
        // SAFETY: a no-op uses no memory.
        unsafe { self.push(&opcode::Nop::new().build()) };
        let mut answer = 0;
        while self.outstanding > 0 {
            self.submit_and_wait(1)?;
            self.reap(|_, result| answer = result);
        }
        if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Number of requests that were pushed and whose completions were not reaped.
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Number of the registered buffer. `None` if no buffer is registered.
    pub(super) fn registered(&self) -> Option<u64> {
        self.registered
    }

    /// Registers `buffer` as the ring's only buffer, with index 0. Must be called while no request
    /// is in flight. False if the kernel is too old or refuses, usually because of the limit of
    /// locked memory.
    pub(super) fn register(&mut self, buffer: &mut AlignedBuffer) -> bool {
        debug_assert!(self.outstanding == 0 && self.registered.is_none());
        #[cfg(test)]
        if self.injected.lock().pop_front().is_some() {
            return false;
        }
        if !self.recent || buffer.number().is_none() {
            return false;
        }
        let all = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: the kernel takes references to the pages, so it uses no memory that this process
        // frees later. It writes to them only for requests with index 0, whose memory is valid by
        // the contract of `push`.
        if unsafe { self.io.submitter().register_buffers(&[all]) }.is_err() {
            return false;
        }
        self.registered = buffer.number();
        true
    }

    pub(super) fn has_room(&self) -> bool {
        self.outstanding < self.depth
    }

    pub(super) fn is_reusable(&self) -> bool {
        !self.abandoned && self.outstanding == 0
    }

    /// Queues a request. The next [`Self::submit_and_wait`] starts it.
    ///
    /// # Safety
    /// The memory and the file of `entry` must stay valid, and no other code may use the memory.
    /// This holds until the completion has been reaped or [`Self::drain`] has returned.
    ///
    /// # Panics
    /// If the ring has no room.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) {
        assert!(self.has_room(), "a ring is never filled beyond its depth");
        // SAFETY: this function has the same safety contract as the call, and its caller keeps that
        // contract.
        let pushed = unsafe { self.io.submission().push(entry) };
        pushed.expect("the kernel's queue is at least as long as the depth asked for");
        self.outstanding += 1;
    }

    /// Starts the queued requests. Waits until `want` completions can be reaped, a signal arrives,
    /// or a wait slice ends.
    ///
    /// # Errors
    /// The kernel's error, if another attempt can't help. Requests may still be in flight.
    pub(super) fn submit_and_wait(&mut self, want: u32) -> io::Result<()> {
        debug_assert!(want <= self.outstanding);
        let mut failures = 0;
        loop {
            let error = match self.enter(true, want) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => return Ok(()),
                // The kernel has no memory for requests, or completions must be reaped first.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {}
                _ => return Err(error),
            }
            failures += 1;
            if self.taken() > 0 {
                // Completions of requests in flight free memory. The caller then tries again.
                return match self.enter(false, 1) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                    waited => waited,
                };
            }
            if failures > SUBMIT_FAILURES_MAX {
                return Err(error);
            }
            thread::yield_now();
        }
    }

    /// Passes the user data and the result of each completion to `done`. Does not wait.
    pub(super) fn reap(&mut self, mut done: impl FnMut(u64, i32)) {
        for completion in self.io.completion() {
            self.outstanding -= 1;
            self.silent_slices = 0;
            done(completion.user_data(), completion.result());
        }
    }

    /// Returns when the kernel no longer uses any memory of the requests.
    ///
    /// The drain ends, because the kernel completes each request that it has taken. If waits fail
    /// too often, the process aborts.
    pub(super) fn drain(&mut self) {
        let mut failures = 0;
        while self.outstanding > 0 {
            self.reap(|_, _| {});
            let taken = self.taken();
            if taken == 0 {
                self.abandoned |= self.outstanding > 0;
                self.outstanding = 0;
                return;
            }
            match self.enter(false, taken) {
                Ok(()) => failures = 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failures += 1;
                    if failures > DRAIN_FAILURES_MAX {
                        abort_with_reads_in_flight(taken, &error);
                    }
                    // Gives the kernel time between failures. Completions do not depend on the
                    // sleep.
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Number of requests that the kernel has taken and whose completions were not reaped.
    fn taken(&mut self) -> u32 {
        self.outstanding - self.io.submission().len() as u32
    }

    fn enter(&mut self, submit: bool, want: u32) -> io::Result<()> {
        #[cfg(test)]
        if let Some(code) = self.injected.lock().pop_front() {
            return Err(io::Error::from_raw_os_error(code));
        }
        let to_submit = if submit { self.io.submission().len() as u32 } else { 0 };
        let waits = if want > 0 { EnterFlags::GETEVENTS } else { EnterFlags::empty() };
        if want == 0 || !self.io.params().is_feature_ext_arg() {
            // SAFETY: the call passes only numbers. The requests come from `push`, whose callers
            // keep memory and files valid.
            return unsafe { self.enter_with::<libc::sigset_t>(to_submit, want, waits, None) };
        }
        let slice = Timespec::from(self.wait_slice);
        let argument = WaitArgument { timeout: &raw const slice as u64, ..WaitArgument::default() };
        let flags = waits | EnterFlags::EXT_ARG;
        // SAFETY: the argument has the type that the flag announces. It and its `slice` live until
        // the call returns. The requests come from `push`, whose callers keep memory and files
        // valid.
        let entered = unsafe { self.enter_with(to_submit, want, flags, Some(&argument)) };
        match entered {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                self.note_silence();
                Ok(())
            }
            entered => entered,
        }
    }

    /// # Safety
    /// The caller must keep the duties of [`Submitter::enter`](io_uring::Submitter::enter).
    unsafe fn enter_with<T>(
        &self,
        to_submit: u32,
        want: u32,
        flags: EnterFlags,
        argument: Option<&T>,
    ) -> io::Result<()> {
        // SAFETY: this function has the same safety contract as the call, and its caller keeps that
        // contract.
        unsafe { self.io.submitter().enter(to_submit, want, flags.bits(), argument) }.map(|_| ())
    }

    /// Counts a wait slice without a completion.
    #[cold]
    fn note_silence(&mut self) {
        self.silent_slices += 1;
        if self.silent_slices == SILENT_SLICES_MAX {
            // `eprintln` would panic if standard error is closed.
            let _ = writeln!(
                io::stderr(),
                "embank: none of {} disk requests has completed for {SILENT_SLICES_MAX} s; still waiting for the drive",
                self.outstanding
            );
        }
    }
}

/// The kernel's `struct io_uring_getevents_arg`.
#[repr(C)]
#[derive(Default)]
struct WaitArgument {
    signal_mask: u64,
    signal_mask_bytes: u32,
    min_wait_us: u32,
    /// Address of a [`Timespec`].
    timeout: u64,
}

const _: () = assert!(size_of::<WaitArgument>() == 24);

impl Drop for Ring {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cold]
fn abort_with_reads_in_flight(taken: u32, error: &io::Error) -> ! {
    eprintln!(
        "embank: the kernel holds the buffers of {taken} reads and no longer lets this process wait for \
         them ({error}); aborting, because it would write into freed memory"
    );
    std::process::abort()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::VecDeque;
    use std::io::PipeReader;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    use crate::process::locks::Mutex;
    use io_uring::types;

    use super::*;

    /// Error numbers to inject: each of the ring's next system calls takes one and fails. A test's
    /// other thread waits until this queue is empty, and so knows that the ring has got past these
    /// failures.
    pub(in crate::device) type Injected = Arc<Mutex<VecDeque<i32>>>;

    fn ring() -> Option<Ring> {
        match Ring::new(8).and_then(|mut ring| ring.probe().map(|()| ring)) {
            Ok(ring) => Some(ring),
            Err(refused) => {
                eprintln!("left out: {refused}");
                None
            }
        }
    }

    fn read_of(file: i32, buffer: &mut [u8]) -> squeue::Entry {
        opcode::Read::new(types::Fd(file), buffer.as_mut_ptr(), buffer.len() as u32).build()
    }

    /// Starts a read that completes when the test writes to the pipe.
    fn pending(ring: &mut Ring, pipe: &PipeReader, buffer: &mut [u8]) {
        // SAFETY: each test drains or drops the ring before the buffer and the pipe.
        unsafe { ring.push(&read_of(pipe.as_raw_fd(), buffer).user_data(1)) };
        ring.submit_and_wait(0).unwrap();
        assert_eq!(ring.taken(), 1);
    }

    #[test]
    fn a_drain_waits_for_what_is_in_flight() {
        let Some(mut ring) = ring() else { return };
        let (reader, mut writer) = io::pipe().unwrap();
        let mut buffer = [0; 4];
        pending(&mut ring, &reader, &mut buffer);
        // The first waits fail, and the drain must continue.
        ring.injected.lock().extend([libc::EINTR, libc::EAGAIN, libc::EBADF, libc::EINTR]);
        let injected = Arc::clone(&ring.injected);
        thread::scope(|scope| {
            scope.spawn(move || {
                while !injected.lock().is_empty() {
                    thread::yield_now();
                }
                writer.write_all(b"late").unwrap();
            });
            ring.drain();
            assert_eq!(&buffer, b"late");
        });
        assert_eq!(ring.outstanding(), 0);
        assert!(ring.is_reusable());
        ring.probe().unwrap();
    }

    #[test]
    fn a_wait_for_what_does_not_complete_returns_after_its_slice() {
        let Some(mut ring) = ring() else { return };
        if !ring.io.params().is_feature_ext_arg() {
            eprintln!(
                "left out: the kernel's io_uring has no bounded wait (it came with Linux 5.11)"
            );
            return;
        }
        ring.wait_slice = Duration::from_millis(1);
        let (reader, mut writer) = io::pipe().unwrap();
        let mut buffer = [0; 4];
        pending(&mut ring, &reader, &mut buffer);
        for slices in 1..=3 {
            ring.submit_and_wait(1).unwrap();
            ring.reap(|_, _| panic!("nothing was written"));
            assert_eq!((ring.silent_slices, ring.outstanding()), (slices, 1));
        }
        // The drain must wait over several slices until the request completes.
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(b"late").unwrap());
            ring.drain();
            assert_eq!(&buffer, b"late");
        });
        assert_eq!((ring.silent_slices, ring.outstanding()), (0, 0));
    }

    #[test]
    fn a_dropped_ring_has_waited_too() {
        let Some(mut ring) = ring() else { return };
        let (reader, mut writer) = io::pipe().unwrap();
        let mut buffer = [0; 4];
        pending(&mut ring, &reader, &mut buffer);
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(b"late").unwrap());
            drop(ring);
            assert_eq!(&buffer, b"late");
        });
    }

    #[test]
    fn a_failed_request_leaves_the_others_counted_until_they_are_drained() {
        let Some(mut ring) = ring() else { return };
        let (reader, mut writer) = io::pipe().unwrap();
        let mut slow = [0; 4];
        let mut failing = [0; 4];
        pending(&mut ring, &reader, &mut slow);
        // SAFETY: the ring is drained below, before the buffers are dropped.
        unsafe { ring.push(&read_of(-1, &mut failing).user_data(2)) };
        ring.submit_and_wait(1).unwrap();
        let mut reaped = Vec::new();
        ring.reap(|user_data, result| reaped.push((user_data, result)));
        assert_eq!(reaped, [(2, -libc::EBADF)]);
        assert_eq!(ring.outstanding(), 1);
        writer.write_all(b"late").unwrap();
        ring.drain();
        assert_eq!(&slow, b"late");
    }

    #[test]
    fn requests_that_never_reached_the_kernel_are_abandoned_with_their_ring() {
        let Some(mut ring) = ring() else { return };
        let (reader, mut writer) = io::pipe().unwrap();
        let mut buffer = [0; 4];
        // SAFETY: the ring is drained below, before the buffer is dropped.
        unsafe { ring.push(&read_of(reader.as_raw_fd(), &mut buffer)) };
        ring.injected.lock().push_back(libc::EBADF);
        let refused = ring.submit_and_wait(1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
        ring.drain();
        assert!(!ring.is_reusable());
        drop(ring);
        writer.write_all(b"late").unwrap();
        assert_eq!(buffer, [0; 4]);
    }

    #[test]
    fn a_lack_of_memory_is_waited_out_or_reported_in_the_end() {
        let Some(mut ring) = ring() else { return };
        ring.injected.lock().extend([libc::EAGAIN; 5]);
        ring.probe().unwrap();
        // SAFETY: a no-op uses no memory.
        unsafe { ring.push(&opcode::Nop::new().build()) };
        ring.injected.lock().extend([libc::EAGAIN; SUBMIT_FAILURES_MAX as usize + 1]);
        assert_eq!(ring.submit_and_wait(1).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    }
}
