//! Open files whose descriptor other code of the process may close by mistake.
//!
//! **Problem.** A bank shares its process with other libraries. A library that closes a descriptor
//! twice may close a descriptor of the bank, and the next file that the process opens gets its
//! number. The bank would then write into that file. A sync of that file succeeds, so a checkpoint
//! would count as complete without its files.
//!
//! **Approach.** A [`HeldFile`] notes the identity (device and inode) of the file that it opened.
//! The bank compares it with the descriptor's before each write and each sync that a checkpoint
//! relies on. A descriptor that belongs to another file is never closed here.
//!
//! **Limits.** If other code closes the descriptor between the comparison and the write, that write
//! may still go to another file. The comparison before the sync then finds it. Reads are not
//! compared: the checksums of what they read find another file.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::files::directory::FileIdentity;

/// An open file with its identity.
#[derive(Debug)]
pub(crate) struct HeldFile {
    file: ManuallyDrop<File>,
    identity: FileIdentity,
}

impl HeldFile {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let identity = FileIdentity::of(&file)?;
        Ok(HeldFile { file: ManuallyDrop::new(file), identity })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Fails if the descriptor is closed or belongs to another file.
    pub(crate) fn check(&self) -> io::Result<()> {
        let closed = match FileIdentity::of(&self.file) {
            Ok(found) if found == self.identity => return Ok(()),
            Ok(_) => "and now belongs to another file",
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => "and is not open now",
            Err(error) => return Err(error),
        };
        Err(io::Error::other(format!(
            "other code in this process closed the bank's file descriptor {}, {closed}: find the code that closes a \
             descriptor which it does not own (a second close of the same one, for example)",
            self.file.as_raw_fd()
        )))
    }

    /// Makes the content and the metadata durable.
    pub(crate) fn sync_all(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_all()
    }

    /// Makes the content durable.
    pub(crate) fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_data()
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        let is_another = match FileIdentity::of(&self.file) {
            Ok(found) => found != self.identity,
            Err(error) => error.raw_os_error() == Some(libc::EBADF),
        };
        if !is_another {
            // SAFETY: `drop` runs once, and no code uses the file afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// Regression test: a sync of a descriptor whose number belonged to another file succeeded.
    #[test]
    fn a_descriptor_that_other_code_closed_is_neither_synced_nor_closed() {
        let dir = tempfile::tempdir().unwrap();
        let held = HeldFile::new(File::create(dir.path().join("held")).unwrap()).unwrap();
        held.sync_all().unwrap();
        let other = File::create(dir.path().join("other")).unwrap();
        // SAFETY: `dup2` takes no pointers. It closes the descriptor of `held`, as faulty code of
        // another library would, and gives its number to another file.
        unsafe { libc::dup2(other.as_raw_fd(), held.file.as_raw_fd()) };
        let error = held.sync_data().unwrap_err().to_string();
        assert!(error.contains("now belongs to another file"), "{error}");
        held.sync_all().unwrap_err();
        let number = held.file.as_raw_fd();
        drop(held);
        // SAFETY: the descriptor is open, because `drop` did not close it.
        let mut reused = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(number) };
        reused.write_all(b"still open").unwrap();
    }
}
