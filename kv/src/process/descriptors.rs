//! Keeps the files of a bank away from descriptors 0 to 2.
//!
//! **Problem.** A system call that opens a file returns the lowest free descriptor. If a daemon has
//! closed standard input, output and error, the next three files get the descriptors 0, 1 and 2.
//! Libraries continue to write messages to descriptor 2, which may now be a segment or a checkpoint
//! of the bank. A daemon may later call `dup2` onto descriptor 1, which would close a file of the
//! bank.
//!
//! **Approach.** Every descriptor that this crate opens comes from [`opened`] or, for a ring of
//! io_uring, from [`with_streams`]. While a file is opened, descriptors of `/dev/null` fill the
//! free numbers below 3. The file therefore never has a number below 3, not even for a moment in
//! which another thread could write to it. The descriptors of `/dev/null` are closed afterwards. If
//! the file gets a number below 3 nevertheless, it is moved to a higher number (`F_DUPFD_CLOEXEC`).
//!
//! **Limits.** Two races with other threads of the program remain while a bank's file is opened. If
//! another thread moves its own file to a number below 3 with `dup2`, that file may be closed with
//! the descriptors of `/dev/null`. If another thread closes a stream, the bank's file may have a
//! number below 3 until it is moved.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::io::{fcntl_dupfd_cloexec, fcntl_getfd};

use crate::sync::rest;

/// The lowest descriptor that is not a standard stream.
const LOWEST: i32 = 3;

/// Largest number of attempts to lock `FILLED`, which take 0.2 s at most. If a thread of the parent
/// held the lock during a fork, the child can never take it. The child then opens files without
/// filling the closed streams.
const ATTEMPTS_MAX: u32 = 3_000;

/// The descriptors of `/dev/null` that fill the numbers of closed streams while files are opened.
#[derive(Debug)]
struct Filled {
    /// Number of [`Opening`]s that need these descriptors now.
    openings: usize,
    with: Vec<OwnedFd>,
}

static FILLED: Mutex<Filled> = Mutex::new(Filled { openings: 0, with: Vec::new() });

fn lock() -> Option<MutexGuard<'static, Filled>> {
    let mut round = 0;
    for _ in 0..ATTEMPTS_MAX {
        match FILLED.try_lock() {
            Ok(filled) => return Some(filled),
            Err(TryLockError::Poisoned(filled)) => return Some(PoisonError::into_inner(filled)),
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
        let Some(mut filled) = lock() else { return Opening { relies: false } };
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
        if let Some(mut filled) = lock() {
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

/// Returns the file that `open` opens, with a descriptor of 3 or above. `open` must not lock the
/// file (`flock`). To move a descriptor, the function copies it and closes the original, and the
/// lock would belong to both descriptors.
///
/// # Errors
/// The errors of `open`. `EMFILE` if the process has no descriptor left.
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

/// Opens a file or directory for reading, by its path.
pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<File> {
    Ok(opened(|| Ok(File::open(path)?.into()))?.into())
}
