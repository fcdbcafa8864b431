//! File locks (`flock`) that end with the process that took them, even if its child processes
//! continue.
//!
//! **Problem.** A `flock` belongs to the open file, which a forked child shares with its parent.
//! The kernel keeps the lock until parent and child have closed the file. After a trainer is
//! killed, its worker processes live for some seconds. The trainer's bank would stay locked until
//! they end.
//!
//! **Approach.** A list contains the descriptor of each file that is locked or may be locked. At a
//! fork, the child replaces each of these descriptors by a pipe (`release_in_child`). The child
//! must not close the descriptors, because another file could then get the number of a closed one.
//! A `File` that the child inherited would close that other file when it is dropped.
//!
//! The process that took a lock also unlocks the file before it closes the file. This ends the lock
//! even if a child still has the file open. A child has the file open if a call that runs no fork
//! handler, such as `vfork`, made the child.
//!
//! **Why it is right.** A descriptor enters the list before it is locked, and leaves it after it is
//! unlocked. One gap remains: a fork after a file is opened and before its descriptor is listed.
//! The child would keep the file open, and a lock that the parent takes later would last until the
//! child ends. `LockableFile::open` therefore opens the file again if the process forked in
//! between.
//!
//! **The list** consists of atomics, because a fork handler must not take a lock. An entry is
//! reused for another descriptor, and is never freed.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::files::held_file::HeldFile;
use crate::process::{descriptors, fork};

/// Largest number of times that `LockableFile::open` opens a file again because the process forked
/// meanwhile. Only a process that forks without pause reaches the limit. A child may then keep the
/// file open, and so keep the file locked.
const OPENED_AGAIN_MAX: u32 = 100;

/// An entry of the list: a descriptor, or `NONE`.
#[derive(Debug)]
struct Entry {
    descriptor: AtomicI32,
    /// Set before the entry is added to the list, and constant afterwards.
    next: Option<&'static Entry>,
}

const NONE: RawFd = -1;

/// The first entry of the list. Null if the list is empty.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// The read end of a pipe without a write end. It is opened before the first lock and never closed,
/// because a forked child needs it and might fail to open it. Unlike `/dev/null`, a pipe needs no
/// file, which a `chroot` may lack.
static EMPTY_PIPE: AtomicI32 = AtomicI32::new(NONE);

/// Iterates over all entries of the list.
fn entries() -> impl Iterator<Item = &'static Entry> {
    // Acquire: pairs with the Release of the exchange in `Entry::make`. This thread then sees the
    // fields of the entry.
    // SAFETY: the pointer is null or leads to an entry, and entries are never freed.
    let first = unsafe { ENTRIES.load(Ordering::Acquire).as_ref() };
    std::iter::successors(first, |entry| entry.next)
}

impl Entry {
    fn of(descriptor: RawFd) -> &'static Entry {
        let free = |entry: &&Entry| {
            // Acquire: pairs with the Release in `clear`. The actions of the entry's last owner
            // come before those of this owner.
            let taken = (Ordering::Acquire, Ordering::Relaxed);
            entry.descriptor.compare_exchange(NONE, descriptor, taken.0, taken.1).is_ok()
        };
        entries().find(free).unwrap_or_else(|| Self::make(descriptor))
    }

    #[cold]
    fn make(descriptor: RawFd) -> &'static Entry {
        let mut entry = Box::new(Entry { descriptor: AtomicI32::new(descriptor), next: None });
        // Acquire, here and in the exchange below: pairs with the Release of another thread's
        // exchange. This thread then sees the fields of the entry that the other thread added.
        let mut first = ENTRIES.load(Ordering::Acquire);
        // The loop ends: an exchange fails only if another thread has added an entry, and each
        // thread adds one entry for each file that it opens.
        loop {
            // SAFETY: the pointer is null or leads to an entry, and entries are never freed.
            entry.next = unsafe { first.as_ref() };
            let added = Box::into_raw(entry);
            // Release: pairs with the Acquire in `entries`. A thread that finds the entry sees its
            // fields.
            match ENTRIES.compare_exchange(first, added, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: `added` was allocated above, and is never freed once it is in the list.
                Ok(_) => return unsafe { &*added },
                Err(other) => {
                    first = other;
                    // SAFETY: `added` was allocated above, and no other thread has seen it.
                    entry = unsafe { Box::from_raw(added) };
                }
            }
        }
    }

    fn clear(&self) {
        // Release: pairs with the Acquire in `Entry::of`.
        self.descriptor.store(NONE, Ordering::Release);
    }
}

/// Opens the pipe for `release_in_child` if it is not open.
fn open_empty_pipe() -> io::Result<()> {
    // Acquire: pairs with the Release of the exchange below. A descriptor that this thread reads is
    // open.
    if EMPTY_PIPE.load(Ordering::Acquire) != NONE {
        return Ok(());
    }
    let opened = descriptors::opened(|| Ok(io::pipe()?.0.into()))?;
    let descriptor = opened.into_raw_fd();
    let first = EMPTY_PIPE.compare_exchange(NONE, descriptor, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // SAFETY: this thread has just opened the descriptor. No other code uses it, because
        // `EMPTY_PIPE` holds another thread's descriptor.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

/// Replaces each listed descriptor by a pipe, so that the child keeps no lock of its parent.
/// Runs in a forked child, which has one thread.
fn release_in_child() {
    let empty_pipe = EMPTY_PIPE.load(Ordering::Acquire);
    for entry in entries() {
        let descriptor = entry.descriptor.load(Ordering::Acquire);
        if descriptor != NONE {
            // SAFETY: the descriptor of an entry is open. `dup2` and `fcntl` are async-signal-safe
            // and take no pointers here.
            unsafe {
                libc::dup2(empty_pipe, descriptor);
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
}

/// An open file that may be locked. Its descriptor is in the list of this module, so a forked child
/// does not keep the file open.
#[derive(Debug)]
pub(crate) struct LockableFile {
    file: HeldFile,
    entry: &'static Entry,
}

impl LockableFile {
    /// Opens a file with `open`, so that the caller can lock it. Calls `open` again if the process
    /// forks meanwhile.
    ///
    /// # Errors
    /// The errors of `open`. An error if no pipe can be opened.
    pub(crate) fn open(mut open: impl FnMut() -> io::Result<File>) -> io::Result<Self> {
        fork::watch(fork::Owner::FileLocks, release_in_child)?;
        open_empty_pipe()?;
        for _ in 0..OPENED_AGAIN_MAX {
            let forks = fork::await_end();
            let opened = Self::of(open()?)?;
            if fork::begun() == forks {
                return Ok(opened);
            }
        }
        Self::of(open()?)
    }

    fn of(file: File) -> io::Result<Self> {
        let file = HeldFile::new(file)?;
        let entry = Entry::of(file.file().as_raw_fd());
        Ok(LockableFile { file, entry })
    }
}

impl Drop for LockableFile {
    fn drop(&mut self) {
        // The entry is cleared before the file is closed. After the close, the descriptor's number
        // may belong to another file.
        self.entry.clear();
    }
}

/// A locked file.
#[derive(Debug)]
pub(crate) struct FileLock {
    opened: LockableFile,
    process: u32,
}

impl FileLock {
    /// Takes an exclusive lock. Fails without waiting if the file is locked.
    pub(crate) fn try_exclusive(opened: LockableFile) -> Result<Self, TryLockError> {
        opened.file.file().try_lock()?;
        Ok(Self { opened, process: process::id() })
    }

    /// Takes a shared lock. Waits while another holder has an exclusive lock.
    pub(crate) fn shared(opened: LockableFile) -> io::Result<Self> {
        // The loop ends: it repeats only if a signal interrupts the wait, and signals do not arrive
        // without pause.
        loop {
            match opened.file.file().lock_shared() {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                done => return done.map(|()| Self { opened, process: process::id() }),
            }
        }
    }

    pub(crate) fn file(&self) -> &HeldFile {
        &self.opened.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If other code closed the descriptor, the lock has ended, and the descriptor's number may
        // belong to a file that another part of the program has locked.
        if self.process == process::id() && self.opened.file.check().is_ok() {
            // An error is ignored: closing the file also releases the lock, unless a child has the
            // file open.
            let _ = self.opened.file.file().unlock();
        }
    }
}
