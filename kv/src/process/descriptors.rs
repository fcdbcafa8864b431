//! Descriptors 0 to 2, which no file of a bank may have.
//!
//! **Problem.** A system call that opens a file returns the lowest free number. A daemon that has closed standard input,
//! output and error gives these numbers to the next three files. Libraries go on writing messages to descriptor 2: they
//! would write into a segment or a checkpoint. A `dup2` onto descriptor 1, as daemons do later, would close a file of the
//! bank.
//!
//! **Approach.** Every descriptor that this crate opens comes from [`opened`] or, for a ring, from [`with_streams`].
//! While a file is being opened, `/dev/null` fills the numbers below 3 that are free, so that the file never has one of
//! them, not even for a moment in which another thread could write to it. What was filled is closed afterwards. A
//! descriptor that is low all the same is moved (`F_DUPFD_CLOEXEC`).
//!
//! **Limits.** A thread that puts its own file in the place of a closed stream while another thread opens a file of a
//! bank may find its file closed. A program that closes a stream in that moment leaves the file at the low number until
//! it is moved.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

use rustix::io::{fcntl_dupfd_cloexec, fcntl_getfd};

/// The lowest descriptor that is not one of the standard streams.
const LOWEST: i32 = 3;

/// Attempts to lock `FILLED`. A child that was forked while a thread of its parent had the lock never gets it; it then
/// opens files without filling the streams.
const ATTEMPTS_MAX: u32 = 10_000;

/// What fills the closed streams while files are being opened.
#[derive(Debug)]
struct Filled {
    /// Openings under way that rely on it.
    openings: usize,
    with: Vec<OwnedFd>,
}

static FILLED: Mutex<Filled> = Mutex::new(Filled { openings: 0, with: Vec::new() });

fn lock() -> Option<MutexGuard<'static, Filled>> {
    for _ in 0..ATTEMPTS_MAX {
        match FILLED.try_lock() {
            Ok(filled) => return Some(filled),
            Err(TryLockError::Poisoned(filled)) => return Some(PoisonError::into_inner(filled)),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

/// One opening that relies on the streams being filled; `relies` is false if they are open.
struct Opening {
    relies: bool,
}

impl Opening {
    fn begin() -> Self {
        let Some(mut filled) = lock() else { return Opening { relies: false } };
        // Looked at only while nothing is filled: what fills a stream looks like an open one.
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
        if let Some(mut filled) = lock() {
            filled.openings -= 1;
            if filled.openings == 0 {
                filled.with.clear();
            }
        }
    }
}

impl Filled {
    /// Without `/dev/null`, or without a descriptor to spare, streams stay free.
    fn fill(&mut self) {
        // Ends: each round fills one of three.
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

/// What `open` opens, at 3 or above. A lock (`flock`) on it would stay, because a copy shares the open file.
///
/// # Errors
/// What `open` returns; `EMFILE` if the process has no descriptor left.
pub(crate) fn opened(open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let opened = with_streams(open)?;
    if opened.as_raw_fd() >= LOWEST {
        return Ok(opened);
    }
    Ok(fcntl_dupfd_cloexec(&opened, LOWEST)?)
}

/// Runs `open` while no descriptor below 3 is free.
pub(crate) fn with_streams<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let _opening = Opening::begin();
    open()
}

/// Opens a file or directory by its path, to read it.
pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<File> {
    Ok(opened(|| Ok(File::open(path)?.into()))?.into())
}
