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
//!
//! **Names of other programs.** Only names that the store writes count: see [`named`]. Pruning
//! removes no checkpoint from the newest completed one on, whatever other names the folder has. It
//! counts only checkpoints with a sound manifest among those to keep. It removes a directory
//! without a manifest only if all names in it are the store's.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rustix::fs::FileType;

use crate::checkpoint::hold::Unread;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::partial::{BLOB, MANIFEST, image_of, is_list};
use crate::checkpoint::{Checkpoints, PARTIAL, PINNED};
use crate::error::{Error, Result};
use crate::files::directory::Place;

/// File extension of a mark. The mark `<n>.removed` is an empty regular file. While it exists,
/// checkpoint n counts as removed, even if its directory exists. Another kind of file with this
/// name is another program's, and no mark.
const REMOVED: &str = "removed";

/// Number of digits in the name of a checkpoint's directory.
const NAME_DIGITS: usize = 10;

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
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Checkpoint(u64),
    Partial(u64),
    Mark(u64),
}

/// Returns the meaning of a name. `None` for a name that the store never writes.
fn named(name: &OsStr) -> Option<Named> {
    let (digits, kind) = name.to_str()?.split_at_checked(NAME_DIGITS)?;
    let number = number_of(digits)?;
    match kind.strip_prefix('.') {
        None => kind.is_empty().then_some(Named::Checkpoint(number)),
        Some(PARTIAL) => Some(Named::Partial(number)),
        Some(REMOVED) => Some(Named::Mark(number)),
        Some(kind) => {
            let attempts = 1..PARTIAL_NAMES;
            let is_attempt = attempts.into_iter().any(|i| kind == format!("{i}.{PARTIAL}"));
            is_attempt.then_some(Named::Partial(number))
        }
    }
}

/// Returns the checkpoint number that ten digits give. `None` for other text, and for 0, because
/// checkpoints count from 1.
pub(crate) fn number_of(digits: &str) -> Option<u64> {
    let are_digits = digits.len() == NAME_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|&number| are_digits && number > 0)
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

    /// True if checkpoint `number` is marked as removed.
    fn is_marked(&self, number: u64) -> Result<bool> {
        let mark = self.mark_of(number);
        match mark.own_stat() {
            Ok(found) => Ok(FileType::from_raw_mode(found.st_mode).is_file() && found.st_size == 0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("stat", &mark, error)),
        }
    }

    /// Returns the numbers of the completed checkpoints among the names, oldest first.
    pub(crate) fn numbers_in(&self, names: &[OsString]) -> Result<Vec<u64>> {
        let mut numbers = BTreeSet::new();
        let mut marked = Vec::new();
        for name in names {
            match named(name) {
                Some(Named::Checkpoint(number)) => _ = numbers.insert(number),
                Some(Named::Mark(number)) => marked.push(number),
                Some(Named::Partial(_)) | None => {}
            }
        }
        for number in marked {
            if numbers.contains(&number) && self.is_marked(number)? {
                numbers.remove(&number);
            }
        }
        Ok(numbers.into_iter().collect())
    }

    /// True if the checkpoint's name exists and is not marked as removed. The name may belong to a
    /// file or to a directory without a manifest.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.dir_of(number).is_taken() && !self.is_marked(number).unwrap_or(false)
    }

    /// False if the name of a checkpoint certainly leads to no manifest. After an error that does
    /// not say so, such as `EACCES` or `EIO`, the checkpoint counts: its log and its table numbers
    /// stay.
    pub(crate) fn has_manifest(&self, number: u64) -> bool {
        let is_missing = |error: io::Error| {
            matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
        };
        !self.manifest_path(number).stat().is_err_and(is_missing)
    }

    /// Returns the first number above `newest` that is free: no file or directory has the
    /// checkpoint's name, or the name of its mark.
    pub(crate) fn number_after(&self, newest: u64) -> u64 {
        let mut number = newest + 1;
        // The loop ends at the latest at the first number above all names.
        while self.mark_of(number).is_taken() || self.dir_of(number).is_taken() {
            number += 1;
        }
        number
    }

    /// Removes checkpoints older than `newest`, the newest completed one. Keeps `kept` checkpoints
    /// with `newest` among them, pinned ones, and those that a reader holds (see `hold`). Appends
    /// to `gone` the numbers of the checkpoints that are durably taken back (renamed or marked). If
    /// a checkpoint can't be removed, adds it to `left` and continues.
    ///
    /// # Errors
    /// `DirectoryMoved` if the bank's path leads elsewhere. `Io` if the folder can't be listed.
    pub(crate) fn prune(&self, kept: usize, newest: u64, gone: &mut Vec<u64>) -> Result<()> {
        self.check_in_place()?;
        self.clear(&self.names()?);
        // Lists the names again: those that `clear` has removed must not count.
        let numbers = self.numbers()?;
        for &number in numbers.iter().filter(|&&number| number > newest) {
            self.note(Err(self.no_checkpoint(number)), || self.dir_of(number).path());
        }
        let older = numbers.into_iter().filter(|&number| number < newest);
        let (mut whole, mut others): (Vec<u64>, Vec<u64>) =
            older.partition(|&number| self.manifest(number).is_ok());
        let kept_too = whole.split_off((whole.len() + 1).saturating_sub(kept));
        let oldest_kept = kept_too.first().copied().unwrap_or(newest);
        // A manifest that can't be read now may be read later, or come back from a copy. Its
        // checkpoint goes only if `kept` newer ones are sound.
        let are_enough = kept_too.len() + 1 >= kept;
        others.retain(|&number| number < oldest_kept && (are_enough || !self.has_manifest(number)));
        for number in whole.into_iter().chain(others) {
            let removed = self.check_own(number).and_then(|()| self.prune_one(number, gone));
            self.note(removed, || self.dir_of(number).path());
        }
        Ok(())
    }

    /// Returns the error for a name of a checkpoint's form that leads to no checkpoint.
    pub(crate) fn no_checkpoint(&self, number: u64) -> Error {
        let dir = self.dir_of(number);
        let what = format!(
            "checkpoint {number} has no manifest of this bank. If another program made {number:010}, move it out of \
             the folder `checkpoints`. If it was a checkpoint, restore its manifest from a copy; to open the bank at \
             an older checkpoint, move it out of the folder"
        );
        let path = if dir.is_dir() { dir.join(MANIFEST) } else { dir };
        Error::Damaged { path: path.path(), offset: 0, what }
    }

    /// Fails if a name has the form of a checkpoint's, has no manifest, and holds files of another
    /// program.
    ///
    /// # Errors
    /// `Damaged`, which names the directory.
    pub(crate) fn check_own(&self, number: u64) -> Result<()> {
        match self.has_manifest(number) || self.has_only_own_files(number) {
            true => Ok(()),
            false => Err(self.no_checkpoint(number)),
        }
    }

    /// True if all names in a checkpoint's directory are names that the store writes.
    fn has_only_own_files(&self, number: u64) -> bool {
        let names = self.dir_of(number).names();
        names.is_ok_and(|names| names.iter().all(|name| is_file_of_checkpoint(name)))
    }

    /// Fails if a directory holds a checkpoint of the bank `bank` that is newer than `newest`, and
    /// has another name than this checkpoint. A person has renamed such a directory. An opening at
    /// `newest` would cut the log that the renamed checkpoint needs.
    ///
    /// # Errors
    /// `Damaged` for a renamed checkpoint. `NewerFormat` if a newer version of Embank wrote a
    /// manifest in the folder. `Io` if the folder can't be listed, or if the disk or a want of
    /// handles hides a manifest.
    pub(crate) fn check_names(&self, newest: Option<u64>, bank: u64) -> Result<()> {
        for name in self.names()? {
            let named = named(&name);
            if matches!(named, Some(Named::Partial(_) | Named::Mark(_))) {
                continue;
            }
            let dir = self.place(&name);
            let manifest = dir.join(MANIFEST);
            let bytes = match manifest.read() {
                Ok(bytes) => bytes,
                Err(e) if hides_a_manifest(&e) => return Err(Error::io("read", &manifest, e)),
                Err(_) => continue,
            };
            let number = Manifest::number_in(&bytes, bank);
            let number = number.map_err(|error| error.of_file(manifest.path()))?;
            let Some(number) = number else { continue };
            let is_renamed = named != Some(Named::Checkpoint(number));
            if is_renamed && newest.is_none_or(|newest| number > newest) {
                let what = format!(
                    "it holds checkpoint {number} under another name: rename it to {number:010}. To open the bank at \
                     an older checkpoint for good, move it out of this folder"
                );
                return Err(Error::Damaged { path: dir.path(), offset: 0, what });
            }
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
            Ok(_) => {}
            // The code below syncs also in this case, because an earlier sync may have failed.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && self.is_marked(number)? => {}
            Err(e) => return Err(Error::io("create", &mark, e)),
        }
        self.sync()
    }

    /// Removes the directory of a marked checkpoint, and then the mark.
    fn clear_marked(&self, number: u64) -> Result<()> {
        let dir = self.dir_of(number);
        // A file behind a symbolic link is another bank's. Of a link, only the link is removed.
        if !dir.is_link() {
            let manifest = self.manifest_path(number);
            // The manifest is removed first, so that an older build, which ignores marks, does not
            // take the remaining files for a complete checkpoint.
            manifest.remove_file_if_there().map_err(|e| Error::io("remove", &manifest, e))?;
        }
        clear_away(&dir)?;
        // Without this sync, a crash could restore the directory but not its mark.
        self.sync()?;
        let mark = self.mark_of(number);
        mark.remove_file_if_there().map_err(|e| Error::io("remove", &mark, e))
    }

    /// If a mark of this number exists, clears the removed checkpoint away, so that a new
    /// checkpoint can have the number.
    pub(crate) fn unmark(&self, number: u64) -> Result<()> {
        if self.is_marked(number)? { self.clear_marked(number) } else { Ok(()) }
    }

    /// Removes directories that crashes or removals have left. Replaces the list of paths that
    /// could not be removed.
    pub(crate) fn clear(&self, names: &[OsString]) {
        *self.left.lock() = Leftovers::default();
        for name in names {
            let cleared = match named(name) {
                Some(Named::Partial(_)) => clear_away(&self.place(name)),
                Some(Named::Mark(number)) => self.unmark(number),
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
            Named::Mark(number) if self.is_marked(number).unwrap_or(false) => {
                Some(self.dir_of(number))
            }
            Named::Mark(_) | Named::Partial(_) | Named::Checkpoint(_) => None,
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

/// True for a name that the store writes in a checkpoint's directory.
fn is_file_of_checkpoint(name: &OsStr) -> bool {
    let own = [MANIFEST, BLOB, PINNED];
    own.iter().any(|own| name == *own) || image_of(name).is_some() || is_list(name)
}

/// True for an error after which a file may still be there.
fn hides_a_manifest(error: &io::Error) -> bool {
    let hiding = [libc::EIO, libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ESTALE];
    error.raw_os_error().is_some_and(|code| hiding.contains(&code))
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_the_store_writes_count() {
        let named = |name: &str| named(OsStr::new(name));
        assert_eq!(named("0000000007"), Some(Named::Checkpoint(7)));
        assert_eq!(named("0000000007.partial"), Some(Named::Partial(7)));
        assert_eq!(named("0000000007.15.partial"), Some(Named::Partial(7)));
        assert_eq!(named("0000000007.removed"), Some(Named::Mark(7)));
        let others = [
            "",
            "7",
            "20261128",
            "00000000007",
            "20261128120000",
            "0000000000",
            "+000000007",
            "00000000\u{662}",
            "0000000007.",
            "0000000007.bak",
            "0000000007.0.partial",
            "0000000007.01.partial",
            "0000000007.16.partial",
            "0000000007.1.removed",
            "0000000007.partial.",
            "0000000007partial",
            "7.partial",
            "7.removed",
        ];
        for other in others {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
