//! Locks on files (`flock`) that end with their holder.
//!
//! Such a lock belongs to the open file description, and a child made by `fork` has that too: the kernel lets go only
//! when both have closed it, so a child that knows nothing of a bank would keep it locked for as long as it lives.
//! Hence the process that took a lock takes it off when it is done, for both. In a child it is not the child's to take
//! off.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::process;

/// A locked file.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
    process: u32,
}

impl FileLock {
    /// For one alone. Does not wait.
    pub(crate) fn try_exclusive(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self { file, process: process::id() })
    }

    /// Beside others who share it. Waits for one who has it alone.
    pub(crate) fn shared(file: File) -> io::Result<Self> {
        // Ends: a signal comes now and then, not always.
        loop {
            match file.lock_shared() {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                done => return done.map(|()| Self { file, process: process::id() }),
            }
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.process == process::id() {
            // If it fails, closing the file does the same unless there is a child.
            let _ = self.file.unlock();
        }
    }
}
