//! The lock that keeps other processes from writing a bank.

use crate::checkpoint::bank_file::LOCK_NAME;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::files::directory::FileIdentity;
use crate::files::lock::FileLock;
use crate::files::lock::LockableFile;
use crate::files::lock_holders::LockHolders;
use rustix::fs::OFlags;
use std::fs::TryLockError;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Locks on the file `LOCK` and on the bank's directory. The lock on the directory still holds if a
/// person removes the file `LOCK`.
///
/// A lock on a file holds for each of the file's names. A copy of the bank that consists of hard
/// links (`cp -al`) has the same file `LOCK`, so each of the two banks would lock the other one.
/// A bank whose file `LOCK` is not its own alone therefore makes a new one.
#[derive(Debug)]
pub(crate) struct BankLock {
    file: FileLock,
    /// `None` if the file system can't lock directories.
    dir: Option<FileLock>,
}

impl BankLock {
    /// Locks the bank in `dir` without waiting. Fails if another process has the lock.
    pub(crate) fn take(dir: &Arc<Directory>) -> Result<Self> {
        // The directory is locked first. A process that does not get this lock must not create and
        // lock a new file `LOCK`, because the lock's owner may have to create and lock that file
        // (`renew`).
        let dir_lock = lock_dir(dir)?;
        if dir_lock.is_some() {
            make_own(dir);
        }
        Ok(BankLock { file: lock_file(dir)?, dir: dir_lock })
    }

    /// Locks the file `LOCK` of `dir` again if it was removed or replaced. Until this call, only
    /// the lock on the directory keeps other processes out. Processes of older builds ignore that
    /// lock, and some file systems can't lock directories.
    ///
    /// Takes a lock again that has ended because other code closed its descriptor.
    pub(crate) fn renew(&mut self, dir: &Arc<Directory>) -> Result<()> {
        if self.dir.as_ref().is_some_and(|lock| lock.file().check().is_err()) {
            self.dir = lock_dir(dir)?;
        }
        let place = dir.place(LOCK_NAME);
        let found = place.stat_if_there().map_err(|e| Error::io("stat", &place, e))?;
        let is_held = self.file.file().check().is_ok()
            && found.is_some_and(|found| FileIdentity::from(&found) == self.file.file().identity());
        if !is_held {
            self.file = lock_file(dir)?;
        }
        Ok(())
    }
}

/// Locks the directory. `None` if the file system can't lock directories: network file systems lock
/// only files that are open for writing. The lock on `LOCK` is then the only one.
fn lock_dir(dir: &Directory) -> Result<Option<FileLock>> {
    let handle = LockableFile::open(|| dir.reopen());
    match FileLock::try_exclusive(handle.map_err(|e| Error::io("open", dir.path(), e))?) {
        Ok(lock) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Err(locked(dir, dir.path())),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Removes the file `LOCK` if another bank has it too: by a second name, or behind a symbolic link.
/// The next lock then makes a new file. The caller holds the lock on the directory, so no process
/// that has this bank open needs the removed file.
fn make_own(dir: &Arc<Directory>) {
    let place = dir.place(LOCK_NAME);
    if place.is_shared().unwrap_or(false) {
        // An error is ignored: if the name can't be removed, both banks go on with one lock.
        let _ = place.remove_file();
    }
}

/// Returns the error for a bank whose file or directory at `path` is locked by another process.
fn locked(dir: &Directory, path: &Path) -> Error {
    // The holders appear only in the message, and may have ended since.
    let holders = path.metadata().map(|file| LockHolders::of(&file)).unwrap_or_default();
    Error::Locked { path: dir.path().to_owned(), holders }
}

fn lock_file(dir: &Arc<Directory>) -> Result<FileLock> {
    let place = dir.place(LOCK_NAME);
    // The bank never follows a symbolic link here: the link may lead to the lock of another bank.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
    let file = LockableFile::open(|| match place.open_with(flags) {
        // The file may belong to another user, for example after a run as root. A process that can
        // read the file can lock it.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            place.open_with(OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK).map_err(|_| e)
        }
        opened => opened,
    });
    let file = file.map_err(|e| Error::io("open", &place, e))?;
    match FileLock::try_exclusive(file) {
        Ok(lock) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(locked(dir, &place.path())),
        Err(TryLockError::Error(e)) => Err(Error::io("lock", &place, e)),
    }
}
