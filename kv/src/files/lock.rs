//! Locks on files (`flock`) that end with the process that took them.
//!
//! **Problem.** Such a lock belongs to the open file description, and a child made by `fork` shares that with its
//! parent: the kernel keeps the lock until both have closed it. The worker processes of a trainer that was killed live
//! on for seconds, and would keep the trainer's bank locked until they end.
//!
//! **Approach.** Each descriptor that is locked, or is about to be, stands in a list. At a fork the child puts
//! `/dev/null` in the place of every descriptor in the list (`release_in_child`). It does not close them: another file
//! of the child would get the number, and a `File` of the parent's that is dropped in the child would close that one.
//!
//! The process that took a lock also takes it off when it is done, and does not leave it to the close: this covers
//! children that were made without the handler (`fork`).
//!
//! **Why it is right.** A descriptor stands in the list from before it is locked until after it is unlocked. A fork
//! between the opening of a file and its entry would leave the file open in the child, for a later lock to stay on.
//! So `LockableFile::open` opens the file again if a fork has happened meanwhile.
//!
//! **The list** is of atomics, because a handler at a fork must not take a lock. Its entries are used again, never
//! freed.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::process::{descriptors, fork};

/// How often a file is opened again because the process has forked meanwhile. A process that forks without a pause may
/// leave the file open in a child after this many; that child then keeps the lock.
const OPENED_AGAIN_MAX: u32 = 100;

/// A descriptor in the list, or `NONE` for an entry that is free.
#[derive(Debug)]
struct Entry {
    descriptor: AtomicI32,
    /// Set before the entry is in the list.
    next: Option<&'static Entry>,
}

const NONE: RawFd = -1;

/// The first entry of the list.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// A descriptor of `/dev/null`, opened with the first entry and never closed: opening it in the child could fail.
static NULL_DEVICE: AtomicI32 = AtomicI32::new(NONE);

/// The list's entries, first to last.
fn entries() -> impl Iterator<Item = &'static Entry> {
    // Acquire: pairs with the Release of the exchange in `Entry::make`.
    // SAFETY: null, or an entry, which is never freed.
    let first = unsafe { ENTRIES.load(Ordering::Acquire).as_ref() };
    std::iter::successors(first, |entry| entry.next)
}

impl Entry {
    fn of(descriptor: RawFd) -> &'static Entry {
        let free = |entry: &&Entry| {
            // Acquire: pairs with the Release of `clear`, so that what the last owner did comes before.
            let taken = (Ordering::Acquire, Ordering::Relaxed);
            entry.descriptor.compare_exchange(NONE, descriptor, taken.0, taken.1).is_ok()
        };
        entries().find(free).unwrap_or_else(|| Self::make(descriptor))
    }

    #[cold]
    fn make(descriptor: RawFd) -> &'static Entry {
        let mut entry = Box::new(Entry { descriptor: AtomicI32::new(descriptor), next: None });
        // Acquire, here and below: as in `entries`.
        let mut first = ENTRIES.load(Ordering::Acquire);
        // Ends: an exchange fails because another thread has added its entry.
        loop {
            // SAFETY: null, or an entry, which is never freed.
            entry.next = unsafe { first.as_ref() };
            let added = Box::into_raw(entry);
            // Release: pairs with the Acquire in `entries`, which sees the entry's fields.
            match ENTRIES.compare_exchange(first, added, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just allocated, and never freed from here on.
                Ok(_) => return unsafe { &*added },
                Err(other) => {
                    first = other;
                    // SAFETY: allocated above, and still this thread's alone.
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

/// Has `/dev/null` ready for `release_in_child`.
fn open_null_device() -> io::Result<()> {
    // Acquire and Release: a thread that finds the descriptor finds it open.
    if NULL_DEVICE.load(Ordering::Acquire) != NONE {
        return Ok(());
    }
    let descriptor = descriptors::open("/dev/null")?.into_raw_fd();
    let first = NULL_DEVICE.compare_exchange(NONE, descriptor, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // SAFETY: opened above; another thread's descriptor is used in its place.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

/// Called in a forked child, which has no other thread: releases the locks that the parent holds.
fn release_in_child() {
    let null_device = NULL_DEVICE.load(Ordering::Acquire);
    for entry in entries() {
        let descriptor = entry.descriptor.load(Ordering::Acquire);
        if descriptor != NONE {
            // SAFETY: an entry's descriptor is open. `dup2` and `fcntl` may be called in a signal handler, and this
            // call has no pointers.
            unsafe {
                libc::dup2(null_device, descriptor);
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
}

/// An open file that may be locked: no forked child has it.
#[derive(Debug)]
pub(crate) struct LockableFile {
    file: File,
    entry: &'static Entry,
}

impl LockableFile {
    /// Opens a file to lock it. `open` may be called several times.
    ///
    /// # Errors
    /// What `open` returns; `/dev/null` can't be opened.
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
        // Before the file is closed: afterwards its number may be another file's.
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
    /// Takes the lock for this holder alone. Does not wait.
    pub(crate) fn try_exclusive(opened: LockableFile) -> Result<Self, TryLockError> {
        opened.file.try_lock()?;
        Ok(Self { opened, process: process::id() })
    }

    /// Takes a lock that others may share. Waits for a holder that has it alone.
    pub(crate) fn shared(opened: LockableFile) -> io::Result<Self> {
        // Ends: a signal comes now and then, not always.
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
            // If it fails, closing the file does the same unless there is a child.
            let _ = self.opened.file.unlock();
        }
    }
}
