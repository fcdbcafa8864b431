//! Holds a checkpoint while a reader uses it, so a writer in another process does not remove it.
//!
//! **Problem.** A writer removes all but the newest checkpoints, and frees the log below the oldest
//! checkpoint that is left. A process that reads a removed checkpoint would miss files, or find
//! holes that read as zeros. The reader may be killed at any instant, and may change no byte of the
//! bank.
//!
//! **Approach.** A reader holds a shared lock (`flock`) on the checkpoint's `manifest`. No two
//! checkpoints share a manifest. Before a writer removes a checkpoint, it tries to take the
//! exclusive lock without waiting. If a reader holds the lock, the checkpoint stays with all of its
//! log until the next pruning (`Pins` keeps the log of all present checkpoints). The kernel
//! releases the lock of a process that ends.
//!
//! **Why it is right.** A writer renames or marks the directory only while it holds the exclusive
//! lock. A reader takes the shared lock and *then* checks that the checkpoint's name still leads to
//! the file that it locked. If so, the checkpoint was complete and stays complete. Otherwise the
//! checkpoint was removed between listing and locking, and the reader takes another checkpoint. The
//! log below a checkpoint's end is never written again, so the log needs no lock. A reader ignores
//! directories that are still `.partial`, and directories with the mark of `removal`, which the
//! writer makes under the exclusive lock.

use std::fs::TryLockError;
use std::io::ErrorKind;

use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::files::directory::FileIdentity;
use crate::files::lock::{FileLock, LockableFile};
use crate::files::lock_holders::LockHolders;

/// Limit of a reader's attempts to lock the newest checkpoint. An attempt fails only if the writer
/// has removed that checkpoint since the reader listed it. The writer has then completed a newer
/// checkpoint.
const ATTEMPTS_MAX: u32 = 1000;

/// Keeps a checkpoint and all of its files on disk until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    _manifest: FileLock,
}

/// While this exists, no process reads the checkpoint or can begin to read it.
#[derive(Debug)]
pub(crate) struct Unread {
    _manifest: Option<FileLock>,
}

impl Checkpoints {
    /// Holds a checkpoint. `None` if the checkpoint does not exist, or was removed before it could
    /// be held.
    pub(crate) fn hold(&self, number: u64) -> Result<Option<Hold>> {
        let path = self.manifest_path(number);
        let manifest = match LockableFile::open(|| path.open()) {
            Ok(manifest) => manifest,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return if self.has(number) { Err(self.no_checkpoint(number)) } else { Ok(None) };
            }
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        // Waits only for a writer that is removing the checkpoint.
        let manifest = FileLock::shared(manifest).map_err(|e| Error::io("lock", &path, e))?;
        let failed = |e| Error::io("stat", &path, e);
        let locked = manifest.file().identity();
        let found = path.stat_if_there().map_err(failed)?;
        let is_same = found.is_some_and(|found| FileIdentity::from(&found) == locked);
        // If the writer has marked the checkpoint as removed, its manifest may still be present.
        let still_there = is_same && self.has(number);
        Ok(still_there.then_some(Hold { _manifest: manifest }))
    }

    /// Holds the newest checkpoint; `None` if there is no checkpoint.
    pub(crate) fn hold_newest(&self) -> Result<Option<(u64, Hold)>> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(newest) = self.numbers_if_any()?.last().copied() else { return Ok(None) };
            if let Some(hold) = self.hold(newest)? {
                return Ok(Some((newest, hold)));
            }
        }
        Err(Error::ChangedMeanwhile(format!(
            "{}: a writer lets go of checkpoints faster than one can be held; keep more of them \
             (checkpoints_kept)",
            self.path().display()
        )))
    }

    /// Returns the processes that read a checkpoint. `None` if the system lists no such process.
    pub(crate) fn readers(&self, number: u64) -> Option<LockHolders> {
        let manifest = self.manifest_path(number).open().ok()?;
        let readers = LockHolders::of(&manifest.metadata().ok()?);
        (!readers.0.is_empty()).then_some(readers)
    }

    /// Takes the exclusive lock that a writer needs to remove a checkpoint. `None` if a process
    /// reads the checkpoint.
    pub(crate) fn unread(&self, number: u64) -> Result<Option<Unread>> {
        let path = self.manifest_path(number);
        let manifest = match LockableFile::open(|| path.open()) {
            Ok(manifest) => manifest,
            // A checkpoint without a manifest is damaged, so no process can open it.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Some(Unread { _manifest: None }));
            }
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        match FileLock::try_exclusive(manifest) {
            Ok(manifest) => Ok(Some(Unread { _manifest: Some(manifest) })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(Error::io("lock", &path, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::files::directory::Directory;

    fn bank_with(numbers: &[u64]) -> (tempfile::TempDir, Checkpoints) {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(&Directory::open(dir.path()).unwrap()).unwrap();
        for &number in numbers {
            checkpoints.dir_of(number).create_dir().unwrap();
            fs::write(checkpoints.manifest_path(number).path(), number.to_string()).unwrap();
        }
        (dir, checkpoints)
    }

    #[test]
    fn what_is_read_stays_and_what_is_not_goes() {
        let (_dir, checkpoints) = bank_with(&[1, 2, 3, 4]);
        let first = checkpoints.hold(2).unwrap();
        let again = checkpoints.hold(2).unwrap();
        assert!(first.is_some() && again.is_some(), "readers share");
        checkpoints.prune(1, 4, &mut Vec::new()).unwrap();
        assert_eq!(checkpoints.numbers().unwrap(), [2, 4]);
        drop(first);
        checkpoints.prune(1, 4, &mut Vec::new()).unwrap();
        assert_eq!(checkpoints.numbers().unwrap(), [2, 4], "one of two readers is left");
        drop(again);
        checkpoints.prune(1, 4, &mut Vec::new()).unwrap();
        assert_eq!(checkpoints.numbers().unwrap(), [4]);
        assert!(checkpoints.hold(2).unwrap().is_none());
    }

    #[test]
    fn one_that_goes_between_opening_and_locking_is_not_held() {
        let (_dir, checkpoints) = bank_with(&[1, 2]);
        let unread = checkpoints.unread(1).unwrap().unwrap();
        let dir = checkpoints.dir_of(1);
        std::thread::scope(|scope| {
            // The thread either finds no manifest, or opens the manifest and waits for the lock.
            let holder = scope.spawn(|| checkpoints.hold(1).unwrap());
            dir.rename(&checkpoints.partial_of(1, 0)).unwrap();
            drop(unread);
            assert!(holder.join().unwrap().is_none());
        });
        assert_eq!(checkpoints.hold_newest().unwrap().unwrap().0, 2);
    }

    #[test]
    fn a_checkpoint_without_its_manifest_is_an_error_and_can_go() {
        let (_dir, checkpoints) = bank_with(&[1, 2]);
        checkpoints.manifest_path(1).remove_file().unwrap();
        assert!(checkpoints.hold(1).unwrap_err().to_string().contains("manifest"));
        checkpoints.prune(1, 2, &mut Vec::new()).unwrap();
        assert_eq!(checkpoints.numbers().unwrap(), [2]);
    }
}
