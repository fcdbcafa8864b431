//! Opens the files of a bank: waits for a free descriptor, and keeps away from descriptors 0 to 2.
//!
//! # A process without a free descriptor
//!
//! **Problem.** A process may hold as many descriptors as its limit allows (`ulimit -n`), and other
//! code of the process may take the last one at any time. An opening then fails with `EMFILE`
//! (`ENFILE` if the whole system has no file left), although a descriptor may be free a moment
//! later.
//!
//! **Approach.** An opening that finds no free descriptor first makes the devices of this process
//! close the segment files that no read uses ([`Spare`]). It then tries again, for at most
//! [`patience`]. After that the call fails with
//! [`TooManyOpenFiles`](crate::Error::TooManyOpenFiles), which names the limit. Nothing is lost,
//! and a later call works if a descriptor is free. A thread that holds files which another thread
//! may wait for must not wait here. It uses [`opened_now`].
//!
//! # The standard streams
//!
//! **Problem.** A system call that opens a file returns the lowest free descriptor. If a daemon
//! has closed standard input, output and error, the next three files get the descriptors 0, 1 and
//! 2. Libraries continue to write messages to descriptor 2, which may now be a segment or a
//! checkpoint of the bank. A daemon may later call `dup2` onto descriptor 1, which would close a
//! file of the bank.
//!
//! **Approach.** Every descriptor that this crate opens comes from [`opened`] or [`opened_now`]
//! or, for a ring of io_uring, from [`with_streams`]. While a file is opened, descriptors of
//! `/dev/null` fill the free numbers below 3. The file therefore never has a number below 3, not
//! even for a moment in which another thread could write to it. The descriptors of `/dev/null` are
//! closed afterwards. If the file gets a number below 3 nevertheless, it is moved to a higher
//! number (`F_DUPFD_CLOEXEC`).
//!
//! **Limits.** Two races with other threads of the program remain while a bank's file is opened. If
//! another thread moves its own file to a number below 3 with `dup2`, that file may be closed with
//! the descriptors of `/dev/null`. If another thread closes a stream, the bank's file may have a
//! number below 3 until it is moved.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{fcntl_dupfd_cloexec, fcntl_getfd};

use crate::sync::rest;

/// The lowest descriptor that is not a standard stream.
const LOWEST: i32 = 3;

/// Largest number of attempts to lock `FILLED` or `SPARE`, which take about 0.2 s. If a thread of
/// the parent held the lock during a fork, the child can never take it. The child then opens files
/// without filling the closed streams, or without closing spare files.
const ATTEMPTS_MAX: u32 = 3_000;

/// The descriptors of `/dev/null` that fill the numbers of closed streams while files are opened.
#[derive(Debug)]
struct Filled {
    /// Number of [`Opening`]s that need these descriptors now.
    openings: usize,
    with: Vec<OwnedFd>,
}

static FILLED: Mutex<Filled> = Mutex::new(Filled { openings: 0, with: Vec::new() });

fn lock<T>(mutex: &'static Mutex<T>) -> Option<MutexGuard<'static, T>> {
    let mut round = 0;
    for _ in 0..ATTEMPTS_MAX {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(PoisonError::into_inner(guard)),
            Err(TryLockError::WouldBlock) => rest(&mut round),
        }
    }
    None
}

/// A file's opening that is under way. `relies` is true if the opening needs the descriptors in
/// `FILLED`, and false if the standard streams are open.
struct Opening {
    relies: bool,
}

impl Opening {
    fn begin() -> Self {
        let Some(mut filled) = lock(&FILLED) else { return Opening { relies: false } };
        // The streams are checked only if no other opening has filled them, because a filled stream
        // looks like an open stream.
        let relies = filled.openings > 0 || !streams_are_open();
        if relies {
            filled.openings += 1;
            filled.fill();
        }
        Opening { relies }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.relies {
            return;
        }
        if let Some(mut filled) = lock(&FILLED) {
            filled.openings -= 1;
            if filled.openings == 0 {
                filled.with.clear();
            }
        }
    }
}

impl Filled {
    /// Fills the free descriptors below 3 with `/dev/null`. They stay free if `/dev/null` can't be
    /// opened.
    fn fill(&mut self) {
        // The loop ends: each round fills one of three descriptors.
        while let Ok(null) = File::open("/dev/null") {
            if null.as_raw_fd() >= LOWEST {
                return;
            }
            self.with.push(null.into());
        }
    }
}

fn streams_are_open() -> bool {
    fcntl_getfd(io::stdin()).is_ok()
        && fcntl_getfd(io::stdout()).is_ok()
        && fcntl_getfd(io::stderr()).is_ok()
}

/// Milliseconds for which an opening waits for a free descriptor. Long enough for a program that
/// holds all descriptors for some hundred milliseconds, and short enough for a call that must fail.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(2_000);

/// Longest pause between two attempts of an opening that waits for a free descriptor.
const PAUSE_MAX: Duration = Duration::from_millis(8);

fn patience() -> Duration {
    // Relaxed: the number stands alone.
    Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed))
}

/// Sets how long the openings of this process wait for a free descriptor. The default is 2 seconds.
/// For tests that take all descriptors away for good.
pub fn wait_for_descriptors(at_most: Duration) {
    PATIENCE_MS.store(at_most.as_millis() as u64, Ordering::Relaxed);
}

/// True if the error says that the process or the system has no free descriptor.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// An owner of descriptors that it can open again when it needs them.
pub(crate) trait Spare: Send + Sync {
    /// Closes files that are not in use. Must not wait for a lock, because the caller may hold it.
    fn close_spare(&self);
}

/// All owners of spare descriptors in this process.
static SPARE: Mutex<Vec<Weak<dyn Spare>>> = Mutex::new(Vec::new());

/// Makes openings that find no free descriptor close the spare files of `owner`.
pub(crate) fn register(owner: Weak<dyn Spare>) {
    let Some(mut spare) = lock(&SPARE) else { return };
    spare.retain(|owner| owner.strong_count() > 0);
    spare.push(owner);
}

fn close_spare() {
    let Some(spare) = lock(&SPARE) else { return };
    let owners: Vec<_> = spare.iter().filter_map(Weak::upgrade).collect();
    drop(spare);
    for owner in owners {
        owner.close_spare();
    }
}

/// Returns the file that `open` opens, with a descriptor of 3 or above. Waits for a free descriptor
/// for a bounded time. `open` must not lock the file (`flock`). To move a descriptor, the function
/// copies it and closes the original, and the lock would belong to both descriptors.
///
/// # Errors
/// The errors of `open`. `EMFILE` or `ENFILE` if no descriptor has become free.
pub(crate) fn opened(open: impl Fn() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let opened = patiently(|| with_streams(&open))?;
    if opened.as_raw_fd() >= LOWEST {
        return Ok(opened);
    }
    patiently(|| Ok(fcntl_dupfd_cloexec(&opened, LOWEST)?))
}

/// Does what [`opened`] does, without waiting for a free descriptor.
pub(crate) fn opened_now(open: impl Fn() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let opened = with_streams(open)?;
    if opened.as_raw_fd() >= LOWEST {
        return Ok(opened);
    }
    Ok(fcntl_dupfd_cloexec(&opened, LOWEST)?)
}

/// Runs `take`, which takes a descriptor. If none is free, closes spare files and tries again until
/// [`patience`] ends.
pub(crate) fn patiently<T>(take: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut deadline = None;
    let mut pause = Duration::from_micros(500);
    // The loop ends at the deadline, which the first failure sets.
    loop {
        match take() {
            Err(error) if is_out_of_descriptors(&error) => {
                let now = Instant::now();
                match deadline {
                    // The second attempt follows at once, because the spare files are closed now.
                    None => deadline = Some(now + patience()),
                    Some(deadline) if now >= deadline => return Err(error),
                    Some(_) => {
                        thread::sleep(pause);
                        pause = PAUSE_MAX.min(pause * 2);
                    }
                }
                close_spare();
            }
            taken => return taken,
        }
    }
}

/// Runs `open` while no descriptor below 3 is free.
pub(crate) fn with_streams<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let _opening = Opening::begin();
    open()
}

/// Opens a file or directory for reading, by its path.
pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    Ok(opened(|| Ok(File::open(path)?.into()))?.into())
}

/// Descriptors of a bank that are neither segment files nor rings: three directories, two locks,
/// three files of a checkpoint that is being written, and a directory that is being listed.
const OTHERS: usize = 9;

/// A bank has at most one ring for this number of files that the process may open.
const FILES_PER_RING: usize = 64;

/// The largest number of rings of a bank, unless its options say more.
pub(crate) const RINGS_MAX: usize = 4;

/// The largest number of open segment files of a bank: 128 GiB of log at the default segment size.
pub(crate) const SEGMENT_FILES_MAX: usize = 512;

/// The soft limit up to which a bank raises the process's limit: a bank of [`SEGMENT_FILES_MAX`]
/// open segment files then uses a quarter of it.
const RAISED_LIMIT: u64 = 4 * (SEGMENT_FILES_MAX + RINGS_MAX + OTHERS) as u64;

/// Returns the number of descriptors that this process may have. Raises the soft limit first, up to
/// the hard limit and [`RAISED_LIMIT`]. `None` if the number is not limited or not known.
pub(crate) fn limit() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Miri does not support the system call for the process's limits.
    if cfg!(miri) {
        return None;
    }
    let found = getrlimit(Resource::Nofile);
    let soft = found.current?;
    let raised = found.maximum.map_or(RAISED_LIMIT, |hard| hard.min(RAISED_LIMIT));
    if soft >= raised {
        return Some(soft as usize);
    }
    // A sandbox may refuse to change limits. The bank then keeps within the present one.
    let new = Rlimit { current: Some(raised), maximum: found.maximum };
    let limit = if setrlimit(Resource::Nofile, new).is_ok() { raised } else { soft };
    Some(limit as usize)
}

/// Limits the rings of a bank by the number of files that this process may open.
pub(crate) fn rings_max(wanted: usize) -> usize {
    limit().map_or(wanted, |limit| wanted.min((limit / FILES_PER_RING).max(1)))
}

/// Limits the open segment files of a bank that may have up to `rings_wanted` rings. With its other
/// files the bank then uses at most a quarter of the files that this process may open.
pub(crate) fn segment_files_max(wanted: usize, rings_wanted: usize) -> usize {
    let others = OTHERS + rings_max(rings_wanted);
    limit().map_or(wanted, |limit| wanted.min((limit / 4).saturating_sub(others)))
}
