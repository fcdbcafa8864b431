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
#[derive(Debug)]
pub(crate) struct BankLock {
    file: FileLock,
    /// `None` if the file system can't lock directories.
    _dir: Option<FileLock>,
}

impl BankLock {
    /// Locks the bank in `dir` without waiting. Fails if another process has the lock.
    pub(crate) fn take(dir: &Arc<Directory>) -> Result<Self> {
        // The directory is locked first. A process that does not get this lock must not create and
        // lock a new file `LOCK`, because the lock's owner may have to create and lock that file
        // (`renew`).
        let handle = LockableFile::open(|| dir.reopen());
        let handle = handle.map_err(|e| Error::io("open", dir.path(), e))?;
        let _dir = match FileLock::try_exclusive(handle) {
            Ok(lock) => Some(lock),
            Err(TryLockError::WouldBlock) => return Err(locked(dir, dir.path())),
            // Network file systems lock only files that are open for writing. The lock on `LOCK` is
            // then the only one.
            Err(TryLockError::Error(_)) => None,
        };
        Ok(BankLock { file: lock_file(dir)?, _dir })
    }

    /// Locks the file `LOCK` of `dir` again if it was removed or replaced. Until this call, only
    /// the lock on the directory keeps other processes out. Processes of older builds ignore that
    /// lock, and some file systems can't lock directories.
    pub(crate) fn renew(&mut self, dir: &Arc<Directory>) -> Result<()> {
        let place = dir.place(LOCK_NAME);
        let failed = |e| Error::io("stat", &place, e);
        let own = FileIdentity::of(self.file.file()).map_err(failed)?;
        let found = place.stat_if_there().map_err(failed)?;
        if found.is_none_or(|found| FileIdentity::from(&found) != own) {
            self.file = lock_file(dir)?;
        }
        Ok(())
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
    let file = LockableFile::open(|| match place.open_with(OFlags::RDWR | OFlags::CREATE) {
        // The file may belong to another user, for example after a run as root. A process that can
        // read the file can lock it.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => place.open().map_err(|_| e),
        opened => opened,
    });
    let file = file.map_err(|e| Error::io("open", &place, e))?;
    match FileLock::try_exclusive(file) {
        Ok(lock) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(locked(dir, &place.path())),
        Err(TryLockError::Error(e)) => Err(Error::io("lock", &place, e)),
    }
}
