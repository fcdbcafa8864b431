//! Removes checkpoints, even on file systems that refuse to rename or remove their directories.
//!
//! **Problem.** A checkpoint is removed by a rename of its directory, which is atomic, and then by
//! the removal of its files. Some directories can't be renamed. Examples are directories of a lower
//! layer on an overlay file system (`EXDEV`), and directories of another user below a directory
//! with the sticky bit. Some files can't be removed. Such a checkpoint must not prevent the removal
//! of later ones, or the opening of the bank.
//!
//! **Approach.** A removal has two steps: take back the checkpoint, so that no process counts it,
//! and clear away its files.
//!
//! | step | first way | where the directory can't be renamed |
//! |---|---|---|
//! | take back | rename `<n>` to `<n>.partial` | make the mark `<n>.removed`, an empty file beside it |
//! | make that durable | sync `checkpoints` | sync `checkpoints` |
//! | clear away | remove the files, then `<n>.partial` | remove `manifest`, the files, and `<n>`; sync; then the mark |
//!
//! Every process treats a marked checkpoint as removed. A half-removed checkpoint therefore never
//! looks complete. The mark is removed after the name of the directory is durably gone. Until then,
//! every open and every pruning continues the removal.
//!
//! **What stays.** `Checkpoints::left` lists the remaining paths with reasons, for the statistics.
//! Each pruning replaces the list, so it shows only paths that still exist.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use crate::checkpoint::hold::Unread;
use crate::checkpoint::{Checkpoints, PARTIAL};
use crate::error::{Error, Result};
use crate::files::directory::Place;

/// File extension of a mark. The mark `<n>.removed` is an empty file. While it exists, checkpoint n
/// counts as removed, even if its directory exists.
const REMOVED: &str = "removed";

/// Number of possible names for the `.partial` directory of one checkpoint. A checkpoint uses a
/// later name if directories that can't be removed have the earlier names.
pub(crate) const PARTIAL_NAMES: u32 = 16;

/// Paths that could not be removed, with the reasons.
#[derive(Debug, Default)]
pub(crate) struct Leftovers(Vec<(PathBuf, String)>);

impl Leftovers {
    fn note(&mut self, error: &Error, path: PathBuf) {
        self.0.push((path, error.to_string()));
    }

    /// Returns one line for each path.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(path, reason)| format!("{}: {reason}", path.display())).collect()
    }
}

/// The meaning of a name in the folder of checkpoints. The bank ignores files with other names.
enum Named {
    Checkpoint(u64),
    Partial(u64),
    Mark(u64),
}

fn named(name: &OsString) -> Option<Named> {
    let name = name.to_str()?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = name.split('.');
    let number = parts.next().filter(|part| is_number(part))?.parse().ok()?;
    match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => Some(Named::Checkpoint(number)),
        (Some(PARTIAL), None, _) => Some(Named::Partial(number)),
        (Some(attempt), Some(PARTIAL), None) if is_number(attempt) => Some(Named::Partial(number)),
        (Some(REMOVED), None, _) => Some(Named::Mark(number)),
        _ => None,
    }
}

/// Returns the numbers of the completed checkpoints among the names, oldest first.
pub(crate) fn numbers_of(names: &[OsString]) -> Vec<u64> {
    let mut there = BTreeSet::new();
    let mut marked = BTreeSet::new();
    for name in names {
        match named(name) {
            Some(Named::Checkpoint(number)) => there.extend([number]),
            Some(Named::Mark(number)) => marked.extend([number]),
            Some(Named::Partial(_)) | None => {}
        }
    }
    there.difference(&marked).copied().collect()
}

impl Checkpoints {
    /// Returns the temporary name under which a checkpoint is written or removed.
    pub(crate) fn partial_of(&self, number: u64, attempt: u32) -> Place {
        match attempt {
            0 => self.place(format!("{number:010}.{PARTIAL}")),
            attempt => self.place(format!("{number:010}.{attempt}.{PARTIAL}")),
        }
    }

    fn mark_of(&self, number: u64) -> Place {
        self.place(format!("{number:010}.{REMOVED}"))
    }

    /// True if the checkpoint exists and is not marked as removed.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.dir_of(number).is_dir() && !matches!(self.mark_of(number).stat_if_there(), Ok(Some(_)))
    }

    /// Returns the first number above `newest` that has no mark of a removed checkpoint.
    pub(crate) fn number_after(&self, newest: u64) -> Result<u64> {
        let mut number = newest + 1;
        // The loop ends at the latest at the first number above all marks.
        loop {
            let mark = self.mark_of(number);
            if mark.stat_if_there().map_err(|e| Error::io("stat", &mark, e))?.is_none() {
                return Ok(number);
            }
            number += 1;
        }
    }

    /// Removes checkpoints except the newest `kept`, pinned ones, and those that a reader holds
    /// (see `hold`). Appends to `gone` the numbers of the checkpoints that are durably taken back
    /// (renamed or marked). If a checkpoint can't be removed, adds it to `left` and continues.
    ///
    /// # Errors
    /// `DirectoryMoved` if the bank's path leads elsewhere. `Io` if the folder can't be listed.
    pub(crate) fn prune(&self, kept: usize, gone: &mut Vec<u64>) -> Result<()> {
        self.check_in_place()?;
        let names = self.names()?;
        self.clear(&names);
        let mut numbers = numbers_of(&names);
        numbers.truncate(numbers.len().saturating_sub(kept));
        for number in numbers {
            let removed = self.prune_one(number, gone);
            self.note(removed, || self.dir_of(number).path());
        }
        Ok(())
    }

    fn prune_one(&self, number: u64, gone: &mut Vec<u64>) -> Result<()> {
        if self.is_pinned(number)? {
            return Ok(());
        }
        match self.unread(number)? {
            Some(unread) => self.remove(number, unread, gone),
            None => Ok(()),
        }
    }

    /// Removes a checkpoint that no reader holds. Appends its number to `gone` once it is durably
    /// taken back (renamed or marked), even if a later step fails.
    pub(crate) fn remove(&self, number: u64, _unread: Unread, gone: &mut Vec<u64>) -> Result<()> {
        match self.rename_away(number) {
            Ok(partial) => {
                self.sync()?;
                gone.push(number);
                clear_away(&partial)
            }
            Err(renaming) => {
                self.mark(number)
                    .map_err(|_| Error::io("rename", &self.dir_of(number), renaming))?;
                gone.push(number);
                self.clear_marked(number)
            }
        }
    }

    fn rename_away(&self, number: u64) -> io::Result<Place> {
        let dir = self.dir_of(number);
        let mut renamed = Ok(());
        for attempt in 0..PARTIAL_NAMES {
            let partial = self.partial_of(number, attempt);
            renamed = dir.rename(&partial);
            match &renamed {
                Ok(()) => return Ok(partial),
                // A directory with that name exists and can't be removed.
                Err(e) if is_taken(e) => {}
                Err(_) => break,
            }
        }
        renamed.map(|()| self.partial_of(number, 0))
    }

    /// Marks a checkpoint as removed, durably.
    fn mark(&self, number: u64) -> Result<()> {
        let mark = self.mark_of(number);
        match mark.create_new() {
            // Syncs also if the mark exists, because an earlier sync may have failed.
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(Error::io("create", &mark, e)),
            _ => self.sync(),
        }
    }

    /// Removes the directory of a marked checkpoint, and then the mark.
    fn clear_marked(&self, number: u64) -> Result<()> {
        let dir = self.dir_of(number);
        let manifest = self.manifest_path(number);
        // The manifest is removed first, so that an older build, which ignores marks, does not take
        // the remaining files for a complete checkpoint.
        manifest.remove_file_if_there().map_err(|e| Error::io("remove", &manifest, e))?;
        clear_away(&dir)?;
        // Without this sync, a crash could restore the directory but not its mark.
        self.sync()?;
        let mark = self.mark_of(number);
        mark.remove_file_if_there().map_err(|e| Error::io("remove", &mark, e))
    }

    /// If a mark of this number exists, clears the removed checkpoint away, so that a new
    /// checkpoint can have the number.
    pub(crate) fn unmark(&self, number: u64) -> Result<()> {
        let mark = self.mark_of(number);
        match mark.stat_if_there().map_err(|e| Error::io("stat", &mark, e))? {
            Some(_) => self.clear_marked(number),
            None => Ok(()),
        }
    }

    /// Removes directories that crashes or removals have left. Replaces the list of paths that
    /// could not be removed.
    pub(crate) fn clear(&self, names: &[OsString]) {
        *self.left.lock() = Leftovers::default();
        for name in names {
            let cleared = match named(name) {
                Some(Named::Partial(_)) => clear_away(&self.place(name)),
                Some(Named::Mark(number)) => self.clear_marked(number),
                Some(Named::Checkpoint(_)) | None => Ok(()),
            };
            self.note(cleared, || self.place(name).path());
        }
    }

    fn note(&self, done: Result<()>, path: impl Fn() -> PathBuf) {
        if let Err(error) = done {
            self.left.lock().note(&error, path());
        }
    }

    /// Returns directories that belong to no checkpoint: those of removed checkpoints, and those of
    /// unfinished checkpoints up to number `newest`. An unfinished checkpoint with a later number
    /// is being written.
    pub(crate) fn leftovers(&self, newest: u64) -> Result<Vec<Place>> {
        let names = if self.is_there() { self.names()? } else { Vec::new() };
        let left = names.iter().filter_map(|name| match named(name)? {
            Named::Partial(number) if number <= newest => Some(self.place(name)),
            Named::Mark(number) => Some(self.dir_of(number)),
            Named::Partial(_) | Named::Checkpoint(_) => None,
        });
        Ok(left.collect())
    }
}

/// Removes a checkpoint's directory with its files. Continues after a file that can't be removed.
fn clear_away(dir: &Place) -> Result<()> {
    match dir.remove_dir_all() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| Error::io("remove", dir, e)),
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR))
}
