//! The lock of the process that writes a bank.

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

/// What keeps other processes from writing a bank: a lock on the file `LOCK`, and one on the
/// directory itself, as people remove files called `LOCK`.
#[derive(Debug)]
pub(crate) struct BankLock {
    file: FileLock,
    /// `None` where the file system locks no directories.
    _dir: Option<FileLock>,
}

impl BankLock {
    /// Locks the bank in `dir`. Does not wait.
    pub(crate) fn take(dir: &Arc<Directory>) -> Result<Self> {
        // The directory is locked first: a process that is refused here must not hold a `LOCK` that
        // the owner has to make again.
        let handle = LockableFile::open(|| dir.reopen());
        let handle = handle.map_err(|e| Error::io("open", dir.path(), e))?;
        let _dir = match FileLock::try_exclusive(handle) {
            Ok(lock) => Some(lock),
            Err(TryLockError::WouldBlock) => return Err(locked(dir, dir.path())),
            // Network file systems lock only what is open to write. The file's lock is there.
            Err(TryLockError::Error(_)) => None,
        };
        Ok(BankLock { file: lock_file(dir)?, _dir })
    }

    /// Locks the file `LOCK` of `dir` again if it is another one by now, or gone. Where the file
    /// system locks directories, that lock has kept other processes of this build away
    /// meanwhile.
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

/// The error for a bank whose file or directory at `path` another holder has locked.
fn locked(dir: &Directory, path: &Path) -> Error {
    // Named for the message alone: the holder may have ended meanwhile.
    let holders = path.metadata().map(|file| LockHolders::of(&file)).unwrap_or_default();
    Error::Locked { path: dir.path().to_owned(), holders }
}

fn lock_file(dir: &Arc<Directory>) -> Result<FileLock> {
    let place = dir.place(LOCK_NAME);
    let file = LockableFile::open(|| match place.open_with(OFlags::RDWR | OFlags::CREATE) {
        // Another user's, as after a run as root: a process that can read it can lock it.
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
