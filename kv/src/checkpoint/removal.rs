//! Taking checkpoints away, where the file system lets go of them and where it does not.
//!
//! **Problem.** A checkpoint goes by a rename of its directory, which one system call makes whole,
//! and then its files are removed. There are directories that can't be renamed: on an overlay file
//! system those of a lower layer (`EXDEV`), in a directory with the sticky bit those of another
//! user. There are files that can't be removed. One such checkpoint must not keep later ones from
//! going, and what can't be cleared away must not keep a bank from opening.
//!
//! **Approach.** A removal has two steps: the checkpoint is taken back, and its files are cleared
//! away.
//!
//! | step | first way | where the directory can't be renamed |
//! |---|---|---|
//! | take back | rename `<n>` to `<n>.partial` | make the mark `<n>.removed`, an empty file beside it |
//! | make that durable | sync `checkpoints` | sync `checkpoints` |
//! | clear away | remove the files, then `<n>.partial` | remove `manifest`, the files, and `<n>`; sync; then the mark |
//!
//! A marked checkpoint counts as gone, for every process, from the mark on. So a half-removed
//! checkpoint never looks like a whole one: its mark goes when the name of its directory is durably
//! gone, and until then every open and every pruning go on with the removal.
//!
//! **What stays** is noted with the reason (`Checkpoints::left`), for the statistics. Each pruning
//! replaces the note, so it shows only what is still there.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use crate::checkpoint::hold::Unread;
use crate::checkpoint::{Checkpoints, PARTIAL};
use crate::error::{Error, Result};
use crate::files::directory::Place;

/// The extension of a mark: the checkpoint of that number is gone, though its directory may be
/// there.
const REMOVED: &str = "removed";

/// Names for the `.partial` directory of one checkpoint. All but the first are for where
/// directories of these names are there and can't be removed.
pub(crate) const PARTIAL_NAMES: u32 = 16;

/// What could not be cleared away: paths, with the reasons.
#[derive(Debug, Default)]
pub(crate) struct Leftovers(Vec<(PathBuf, String)>);

impl Leftovers {
    fn note(&mut self, error: &Error, path: PathBuf) {
        self.0.push((path, error.to_string()));
    }

    /// One line for each path.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(path, reason)| format!("{}: {reason}", path.display())).collect()
    }
}

/// What a name in the folder of checkpoints stands for. Files of other names are not the bank's.
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

/// The numbers of the completed checkpoints among names, oldest first.
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
    /// The directory in which a checkpoint is written, or out of which it is removed.
    pub(crate) fn partial_of(&self, number: u64, attempt: u32) -> Place {
        match attempt {
            0 => self.place(format!("{number:010}.{PARTIAL}")),
            attempt => self.place(format!("{number:010}.{attempt}.{PARTIAL}")),
        }
    }

    fn mark_of(&self, number: u64) -> Place {
        self.place(format!("{number:010}.{REMOVED}"))
    }

    /// True if a checkpoint is there and was not taken back.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.dir_of(number).is_dir() && !matches!(self.mark_of(number).stat_if_there(), Ok(Some(_)))
    }

    /// The first number above `newest` that no checkpoint had whose mark is still there.
    pub(crate) fn number_after(&self, newest: u64) -> Result<u64> {
        let mut number = newest + 1;
        // Ends: at most at the first number above those that are there.
        loop {
            let mark = self.mark_of(number);
            if mark.stat_if_there().map_err(|e| Error::io("stat", &mark, e))?.is_none() {
                return Ok(number);
            }
            number += 1;
        }
    }

    /// Removes all but the newest `kept` checkpoints, those that are pinned, and those that a
    /// reader holds: see `hold`. Adds the numbers of those that are gone for good to `gone`.
    /// Goes on where one can't be removed, and notes it.
    ///
    /// # Errors
    /// `DirectoryMoved`; `Io` if the folder can't be listed.
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

    /// Removes a checkpoint that no reader holds. Adds its number to `gone` when it is taken back
    /// for good, whatever fails afterwards.
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
                // A directory of that name is there and can't be removed.
                Err(e) if is_taken(e) => {}
                Err(_) => break,
            }
        }
        renamed.map(|()| self.partial_of(number, 0))
    }

    /// Takes a checkpoint back by a mark, durably.
    fn mark(&self, number: u64) -> Result<()> {
        let mark = self.mark_of(number);
        match mark.create_new() {
            // One that is there may not have been synced.
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(Error::io("create", &mark, e)),
            _ => self.sync(),
        }
    }

    /// Clears a marked checkpoint away, and then its mark.
    fn clear_marked(&self, number: u64) -> Result<()> {
        let dir = self.dir_of(number);
        let manifest = self.manifest_path(number);
        // First, so that the rest does not look whole to an older build either.
        manifest.remove_file_if_there().map_err(|e| Error::io("remove", &manifest, e))?;
        clear_away(&dir)?;
        // Without this the directory could come back after a crash, and its mark not.
        self.sync()?;
        let mark = self.mark_of(number);
        mark.remove_file_if_there().map_err(|e| Error::io("remove", &mark, e))
    }

    /// Makes room for a new checkpoint of this number where one was taken back by a mark.
    pub(crate) fn unmark(&self, number: u64) -> Result<()> {
        let mark = self.mark_of(number);
        match mark.stat_if_there().map_err(|e| Error::io("stat", &mark, e))? {
            Some(_) => self.clear_marked(number),
            None => Ok(()),
        }
    }

    /// Clears away what a crash left half written, and what removals have left. Notes what stays,
    /// in the place of what was noted before.
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

    /// Directories of checkpoints that count for nothing: removed ones that could not be cleared
    /// away, and those of unfinished checkpoints up to number `newest`. One with a later number
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

/// Removes a directory of a checkpoint with its files. Goes on where one can't be removed.
fn clear_away(dir: &Place) -> Result<()> {
    match dir.remove_dir_all() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|e| Error::io("remove", dir, e)),
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR))
}
