//! Makes a new bank, and removes its files if the opening then fails.

use crate::checkpoint::bank_lock::BankLock;
use std::fs::{self, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::open::{check_quota, new_bank};
use crate::checkpoint::bank_dir::not_a_directory;
use crate::checkpoint::bank_file::{BankFile, LOCK_NAME};
use crate::checkpoint::manifest::Manifest;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::limits::Limits;
use crate::memory::budget::Budget;
use crate::options::StoreOptions;
use crate::process::descriptors;

/// The files and directories of a new bank. If this value is dropped before [`done`](Self::done) is
/// called, the drop removes them.
#[derive(Debug)]
pub(crate) struct Making {
    /// The directories that did not exist before the opening. The innermost directory comes first.
    dirs: Vec<PathBuf>,
    /// The bank's directory. `None` until the opening holds the bank's lock and has found no bank
    /// in the directory.
    bank: Option<Arc<Directory>>,
    had_lock: bool,
}

impl Making {
    /// Notes which directories are missing. Must be called before a file or directory is made in
    /// `dir`.
    pub(crate) fn begin(dir: &Path) -> Self {
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let dirs = dir.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        Making { dirs, bank: None, had_lock: dir.join(LOCK_NAME).exists() }
    }

    /// Notes that this call makes the bank in `dir`. Must be called while the bank's lock is held
    /// and the directory has no bank. The result must be dropped before the lock is released,
    /// because another process may make a bank there afterwards.
    #[must_use]
    pub(crate) fn locked(mut self, dir: &Arc<Directory>) -> Self {
        self.bank = Some(Arc::clone(dir));
        self
    }

    /// Keeps the bank: the drop then removes nothing.
    pub(crate) fn done(mut self) {
        self.bank = None;
        self.dirs.clear();
    }
}

impl Making {
    /// Removes the directories that this call made before it failed, with the file `LOCK`. If
    /// another process has the directory locked, that process is making a bank there.
    fn remove_unused(&self) {
        let Some(dir) = self.dirs.first() else { return };
        // Without a free descriptor, the removal is tried without a lock. It removes only empty
        // directories.
        let opened = descriptors::open(dir).ok();
        match opened.as_ref().map(fs::File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => return,
            Some(Ok(())) if !self.had_lock && !BankFile::is_in(dir) => {
                let _ = fs::remove_file(dir.join(LOCK_NAME));
            }
            _ => {}
        }
        self.remove_dirs();
    }

    fn remove_dirs(&self) {
        for dir in &self.dirs {
            // Fails if another process has put a file into the directory. The directory then stays.
            let _ = fs::remove_dir(dir);
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let Some(bank) = self.bank.take() else { return self.remove_unused() };
        debug_assert!(
            std::thread::panicking() || BankLock::take(&bank).is_err(),
            "the lock must be held: another process may have made a bank here"
        );
        // The directory had no other files, so this call has made both folders. BANK is removed
        // last, because a directory with a folder but without BANK is refused as no bank. If a
        // removal fails here, a valid new bank stays.
        for folder in ["log", "checkpoints"] {
            match bank.place(folder).remove_dir_all() {
                Err(e) if e.kind() != ErrorKind::NotFound => return,
                _ => {}
            }
        }
        if BankFile::remove(&bank).is_err() {
            return;
        }
        if !self.had_lock {
            let _ = bank.place(LOCK_NAME).remove_file();
        }
        self.remove_dirs();
    }
}

/// Checks the options and the directory before anything is made. Returns the manifest for a new
/// bank, which is used if `dir` has no bank.
///
/// # Errors
/// - `InvalidOption` if an option is invalid.
/// - `NotABank` if there is no bank and the options forbid making one, or if the directory has
///   other files.
/// - `BudgetTooSmall` if the memory budget is too small for a new bank.
/// - `Io` if the directory cannot be opened.
pub(super) fn check(dir: &Path, options: &StoreOptions, limits: Limits) -> Result<Manifest> {
    if options.checkpoints_kept == 0 {
        return Err(Error::option("checkpoints_kept", "must be at least 1"));
    }
    options.compaction.check()?;
    let fresh = new_bank(options, limits)?;
    let found = match Directory::open(dir) {
        Ok(found) => Some(found),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) if e.kind() == ErrorKind::NotADirectory => return Err(not_a_directory(dir)),
        Err(e) => return Err(Error::io("open", dir, e)),
    };
    let is_bank = match &found {
        Some(found) => BankFile::read(found)?.is_some(),
        None => false,
    };
    if !is_bank {
        if !options.create {
            return Err(no_bank(dir, found.is_some()));
        }
        let page_bytes = 1 << fresh.page_bits;
        check_quota(options, page_bytes)?;
        Budget::new(options.memory_budget_bytes, page_bytes, limits)?;
    }
    Ok(fresh)
}

fn no_bank(dir: &Path, is_there: bool) -> Error {
    let why = match is_there {
        true => "the directory is empty",
        false => "there is no such directory",
    };
    let why = format!(
        "{why}, and the options forbid making a bank. Check the path, and that its file system is mounted; to make a \
         new bank, open it with create"
    );
    Error::NotABank { path: dir.to_owned(), why }
}
