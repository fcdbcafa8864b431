//! One io_uring, and the promise that a buffer handed to it is not let go too early.
//!
//! The kernel writes into a read's buffer at any time between the read's submission and its
//! completion. A call that returned in between would give its caller memory that changes, or that
//! is freed. So a ring counts the entries that were pushed and not yet reaped. [`Ring::drain`]
//! returns only when that count is zero. It is called when the ring is given back, and on drop, so
//! on unwinding too:
//!
//! - Entries that the kernel has not taken from the submission queue are abandoned: without a
//!   polling thread the kernel takes entries only when it is entered, and an abandoned ring is
//!   never entered again ([`Ring::is_reusable`] turns false).
//! - For entries that it has taken, their completions are waited for without submitting more.
//! - Where even waiting fails, again and again, the process is aborted with a message. Nothing
//!   gentler is sound, and no kernel is known to do it.
//!
//! A ring can have one *registered* buffer, whose pages the kernel then holds in place instead of
//! looking them up for each read. The buffer is registered once, between streams, and is never
//! replaced: it goes with the ring. The kernel holds the pages, not the addresses, so a buffer that
//! is freed before its ring does no harm. But a read that took another buffer at equal addresses
//! for the registered one would land in pages that no thread reads. So a read compares numbers,
//! which are never given twice, not addresses. Only kernels from 5.19 on register: with older ones
//! a process that forks may get other pages than those that the kernel holds.
//!
//! From Linux 5.11 on, no wait for completions lasts longer than [`WAIT_SLICE`] without a new entry
//! into the kernel. A kernel that has finished requests but has not woken the thread posts their
//! completions at the next entry. Without the slices such a thread would sleep for ever.
//!
//! A ring belongs to one thread from the first push to the drain, which is what
//! `IORING_SETUP_COOP_TASKRUN` wants: completions arrive when that thread enters the kernel.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use io_uring::types::Timespec;
use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue};

use super::AlignedBuffer;
use crate::process::descriptors::with_streams;

/// How often a drain asks again when waiting fails, a millisecond apart, before it gives up and
/// aborts.
const DRAIN_FAILURES_MAX: u32 = 10_000;

/// The longest wait in the kernel. A slice ends one wait, not the waiting: the caller comes again.
/// A second costs nothing that can be measured, and is far above the answer of a drive that works.
const WAIT_SLICE: Duration = Duration::from_secs(1);

/// Slices without a completion after which one line on standard error says that a drive does not
/// answer.
const SILENT_SLICES_MAX: u32 = 30;

/// How often a submission is tried again when the kernel is out of memory for it and nothing is in
/// flight whose completion would free some.
const SUBMIT_FAILURES_MAX: u32 = 1_000;

pub(super) struct Ring {
    io: IoUring,
    depth: u32,
    /// Entries pushed and not reaped.
    outstanding: u32,
    abandoned: bool,
    /// The kernel is Linux 5.19 or newer.
    recent: bool,
    /// The number of the registered buffer.
    registered: Option<u64>,
    wait_slice: Duration,
    /// Slices that have ended since the last completion.
    silent_slices: u32,
    /// Errors that the next enters report in the kernel's stead.
    #[cfg(test)]
    pub(super) injected: tests::Injected,
}

impl Ring {
    /// A ring that takes `depth` requests at once.
    ///
    /// # Errors
    /// What the kernel answers: `ENOSYS` or `EPERM` where io_uring is switched off or filtered,
    /// `ENOMEM` where a limit on locked memory is too low; `Unsupported` where it can't read.
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        // Flags of Linux 5.18 and 5.19; older kernels answer EINVAL and do without.
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

    /// Sends one request through the whole ring: a filter may let a ring be made and not be
    /// entered.
    pub(super) fn probe(&mut self) -> io::Result<()> {
        let mut probe = Probe::new();
        self.io.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring has no plain read (it came with Linux 5.6)",
            ));
        }
        // SAFETY: a no-op refers to no memory.
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

    /// Entries pushed and not reaped.
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// The number of the registered buffer.
    pub(super) fn registered(&self) -> Option<u64> {
        self.registered
    }

    /// Registers `buffer` as the ring's only one, of index 0; false where the kernel refuses it
    /// (for a limit on locked memory, mostly) or is too old. Nothing is in flight.
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
        // SAFETY: the kernel takes references to the pages, so it touches no memory of this process
        // that is freed later; and it writes to them only by requests that name index 0,
        // whose memory `push` has valid.
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

    /// Queues a request; it starts with the next [`Self::submit_and_wait`].
    ///
    /// # Safety
    /// The memory and the file that `entry` names must stay valid, and the memory untouched by
    /// others, until its completion has been reaped or [`Self::drain`] has returned.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) {
        assert!(self.has_room(), "a ring is never filled beyond its depth");
        // SAFETY: passed on to the caller.
        let pushed = unsafe { self.io.submission().push(entry) };
        pushed.expect("the kernel's queue is at least as long as the depth asked for");
        self.outstanding += 1;
    }

    /// Starts what is queued and waits until `want` completions can be reaped, a signal comes, or a
    /// slice of waiting ends.
    ///
    /// # Errors
    /// What the kernel answers, if trying again won't help. Requests may be in flight all the same.
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
                // Out of memory for requests, or completions wait to be reaped.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {}
                _ => return Err(error),
            }
            failures += 1;
            if self.taken() > 0 {
                // What is in flight frees what it holds when it completes; the caller then comes
                // again.
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

    /// Hands each completion's user data and result to `done`, without waiting.
    pub(super) fn reap(&mut self, mut done: impl FnMut(u64, i32)) {
        for completion in self.io.completion() {
            self.outstanding -= 1;
            self.silent_slices = 0;
            done(completion.user_data(), completion.result());
        }
    }

    /// Returns when the kernel holds no memory that was handed to it.
    ///
    /// Ends: what the kernel has taken it completes, and failures to wait for it are bounded by an
    /// abort.
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
                    // Not to wait for the completions, but to leave the kernel time between
                    // failures.
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Entries that the kernel has taken and whose completions have not been reaped.
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
            // SAFETY: the call gets no argument besides numbers. The entries are those of `push`,
            // whose callers keep memory and files valid.
            return unsafe { self.enter_with::<libc::sigset_t>(to_submit, want, waits, None) };
        }
        let slice = Timespec::from(self.wait_slice);
        let argument = WaitArgument { timeout: &raw const slice as u64, ..WaitArgument::default() };
        let flags = waits | EnterFlags::EXT_ARG;
        // SAFETY: the argument is what the flag announces. It lives, with the time that it names,
        // until the call has returned. The entries come from `push`, whose callers keep memory and
        // files valid.
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
    /// As [`Submitter::enter`](io_uring::Submitter::enter).
    unsafe fn enter_with<T>(
        &self,
        to_submit: u32,
        want: u32,
        flags: EnterFlags,
        argument: Option<&T>,
    ) -> io::Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.io.submitter().enter(to_submit, want, flags.bits(), argument) }.map(|_| ())
    }

    /// Counts a slice of waiting that ended without a completion.
    #[cold]
    fn note_silence(&mut self) {
        self.silent_slices += 1;
        if self.silent_slices == SILENT_SLICES_MAX {
            // Written in place of printed: a closed standard error must not panic here.
            let _ = writeln!(
                io::stderr(),
                "embank: none of {} disk requests has completed for {SILENT_SLICES_MAX} s; still waiting for the drive",
                self.outstanding
            );
        }
    }
}

/// `struct io_uring_getevents_arg` of the kernel.
#[repr(C)]
#[derive(Default)]
struct WaitArgument {
    signal_mask: u64,
    signal_mask_bytes: u32,
    min_wait_us: u32,
    /// The address of a [`Timespec`].
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

    /// Shared, so that another thread can see how far a drain has come.
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

    /// Starts a read that completes only when the test writes to the pipe.
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
        // Waiting is refused a few times first; the drain must not take that for an answer.
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
        // A drain goes on through slices until the request has completed.
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
        // SAFETY: the ring is drained below, before the buffers go.
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
        // SAFETY: the ring is drained below, before the buffer goes.
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
        // SAFETY: a no-op refers to no memory.
        unsafe { ring.push(&opcode::Nop::new().build()) };
        ring.injected.lock().extend([libc::EAGAIN; SUBMIT_FAILURES_MAX as usize + 1]);
        assert_eq!(ring.submit_and_wait(1).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    }
}
