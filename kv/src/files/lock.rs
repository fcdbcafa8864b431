//! Locks on files (`flock`) that end with the process that took them.
//!
//! **Problem.** Such a lock belongs to the open file description, which a child made by `fork`
//! shares with its parent. The kernel keeps the lock until both have closed the file. After a
//! trainer is killed, its worker processes live for some seconds more. The trainer's bank would
//! stay locked until they end.
//!
//! **Approach.** A list has each descriptor that is locked or is about to be locked. At a fork the
//! child replaces every descriptor of the list by `/dev/null` (`release_in_child`). The child does
//! not close the descriptors: another file of the child would get the number, and a `File` of the
//! parent that is dropped in the child would close that file.
//!
//! The process that took a lock also releases it explicitly, before it closes the file. This covers
//! children that were made without the fork handler (`fork`).
//!
//! **Why it is right.** A descriptor is in the list from before it is locked until after it is
//! unlocked. One case remains: a fork after a file is opened and before its descriptor is in the
//! list. The child would then keep the file open, and with it a later lock. `LockableFile::open`
//! therefore opens the file again if the process has forked in between.
//!
//! **The list** consists of atomics, because a fork handler must not take a lock. Its entries are
//! reused and never freed.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::process::{descriptors, fork};

/// Limit of the number of times that a file is opened again because the process has forked. A
/// process that forks without pause may exceed it. A child of that process may then keep the file
/// open, and with it the lock.
const OPENED_AGAIN_MAX: u32 = 100;

/// A descriptor in the list, or `NONE` for a free entry.
#[derive(Debug)]
struct Entry {
    descriptor: AtomicI32,
    /// Set before the entry is in the list.
    next: Option<&'static Entry>,
}

const NONE: RawFd = -1;

/// The first entry of the list.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// A descriptor of `/dev/null`, opened with the first entry and never closed. Opening it in the
/// child could fail.
static NULL_DEVICE: AtomicI32 = AtomicI32::new(NONE);

/// All entries of the list.
fn entries() -> impl Iterator<Item = &'static Entry> {
    // Acquire: pairs with the Release of the exchange in `Entry::make`.
    // SAFETY: the pointer is null or leads to an entry, and entries are never freed.
    let first = unsafe { ENTRIES.load(Ordering::Acquire).as_ref() };
    std::iter::successors(first, |entry| entry.next)
}

impl Entry {
    fn of(descriptor: RawFd) -> &'static Entry {
        let free = |entry: &&Entry| {
            // Acquire: pairs with the Release of `clear`, so that the accesses of the last owner
            // come before this one.
            let taken = (Ordering::Acquire, Ordering::Relaxed);
            entry.descriptor.compare_exchange(NONE, descriptor, taken.0, taken.1).is_ok()
        };
        entries().find(free).unwrap_or_else(|| Self::make(descriptor))
    }

    #[cold]
    fn make(descriptor: RawFd) -> &'static Entry {
        let mut entry = Box::new(Entry { descriptor: AtomicI32::new(descriptor), next: None });
        // Acquire, here and in the exchange below: pairs with the Release of another thread's
        // exchange, so that this thread sees the fields of the entry that the other thread added.
        let mut first = ENTRIES.load(Ordering::Acquire);
        // Ends: an exchange fails because another thread has added its entry.
        loop {
            // SAFETY: the pointer is null or leads to an entry, and entries are never freed.
            entry.next = unsafe { first.as_ref() };
            let added = Box::into_raw(entry);
            // Release: pairs with the Acquire in `entries`, which sees the entry's fields.
            match ENTRIES.compare_exchange(first, added, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: allocated above, and never freed from here on.
                Ok(_) => return unsafe { &*added },
                Err(other) => {
                    first = other;
                    // SAFETY: allocated above, and no other thread has seen it.
                    entry = unsafe { Box::from_raw(added) };
                }
            }
        }
    }

    fn clear(&self) {
        // Release: pairs with the Acquire in `of`.
        self.descriptor.store(NONE, Ordering::Release);
    }
}

/// Opens `/dev/null` for `release_in_child`, unless it is open.
fn open_null_device() -> io::Result<()> {
    // Acquire: pairs with the Release of the exchange below, so that a thread that reads the
    // descriptor finds it open.
    if NULL_DEVICE.load(Ordering::Acquire) != NONE {
        return Ok(());
    }
    let descriptor = descriptors::open("/dev/null")?.into_raw_fd();
    let first = NULL_DEVICE.compare_exchange(NONE, descriptor, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // SAFETY: this thread has just opened the descriptor and no other code uses it, because
        // `NULL_DEVICE` holds another thread's descriptor.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

/// Releases the locks that the parent holds. Runs in a forked child, which has no other thread.
fn release_in_child() {
    let null_device = NULL_DEVICE.load(Ordering::Acquire);
    for entry in entries() {
        let descriptor = entry.descriptor.load(Ordering::Acquire);
        if descriptor != NONE {
            // SAFETY: the descriptor of an entry is open. `dup2` and `fcntl` may be called in a
            // signal handler, and these calls take no pointers.
            unsafe {
                libc::dup2(null_device, descriptor);
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
}

/// An open file that may be locked. No forked child has it open.
#[derive(Debug)]
pub(crate) struct LockableFile {
    file: File,
    entry: &'static Entry,
}

impl LockableFile {
    /// Opens a file so that it can be locked. Calls `open` again if the process forks in between.
    ///
    /// # Errors
    /// The errors of `open`, and an error if `/dev/null` can't be opened.
    pub(crate) fn open(mut open: impl FnMut() -> io::Result<File>) -> io::Result<Self> {
        fork::watch(fork::Owner::FileLocks, release_in_child)?;
        open_null_device()?;
        for _ in 0..OPENED_AGAIN_MAX {
            let forks = fork::await_end();
            let opened = Self::of(open()?);
            if fork::begun() == forks {
                return Ok(opened);
            }
        }
        open().map(Self::of)
    }

    fn of(file: File) -> Self {
        let entry = Entry::of(file.as_raw_fd());
        LockableFile { file, entry }
    }
}

impl Drop for LockableFile {
    fn drop(&mut self) {
        // Cleared before the file is closed: afterwards its descriptor may belong to another file.
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
    /// Takes an exclusive lock. Does not wait: fails if another holder has a lock.
    pub(crate) fn try_exclusive(opened: LockableFile) -> Result<Self, TryLockError> {
        opened.file.try_lock()?;
        Ok(Self { opened, process: process::id() })
    }

    /// Takes a shared lock. Waits until no holder has an exclusive lock.
    pub(crate) fn shared(opened: LockableFile) -> io::Result<Self> {
        // Ends: signals interrupt only some of the attempts.
        loop {
            match opened.file.lock_shared() {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                done => return done.map(|()| Self { opened, process: process::id() }),
            }
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.opened.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.process == process::id() {
            // If this fails, closing the file releases the lock too, unless a child has the file
            // open.
            let _ = self.opened.file.unlock();
        }
    }
}
