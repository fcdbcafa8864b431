//! Puts files, directories and links of other programs into the folders of a bank, changes modes,
//! and takes all of that back.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use fastrand::Rng;

use super::link_all;
use crate::settings::SEGMENT_BYTES;

/// Identifies a file. The time of its creation tells it from a later file with the same inode.
#[derive(Debug)]
struct Identity {
    file: (u64, u64, Option<SystemTime>),
    changed: Option<SystemTime>,
}

impl Identity {
    fn of(found: &Metadata) -> Self {
        let file = (found.dev(), found.ino(), found.created().ok());
        Identity { file, changed: found.modified().ok() }
    }

    /// True if `found` is still the stray. If the bank can have taken the file over for a segment,
    /// a change since then is the bank's.
    fn is_still(&self, found: &Metadata, can_be_segment: bool) -> bool {
        let now = Self::of(found);
        let is_taken_over =
            can_be_segment && found.is_file() && found.nlink() == 1 && now.changed != self.changed;
        now.file == self.file && !is_taken_over
    }
}

/// A change by another program.
#[derive(Debug)]
enum Change {
    /// A new name.
    Made(Identity),
    /// Another mode. The value is the mode before.
    Mode(u32),
}

/// The changes of other programs in the folders of a bank.
#[derive(Debug, Default)]
pub(super) struct Litter {
    changes: Vec<(PathBuf, Change)>,
}

/// The directories whose files are linked into the bank.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    pub(super) bank: &'a Path,
    /// Directories of other banks, and of a user.
    pub(super) others: [&'a Path; 3],
}

impl Litter {
    /// Drops one to four names or modes into the bank. Returns what was done, one line each.
    pub(super) fn drop_some(
        &mut self,
        sources: &Sources<'_>,
        random: &mut Rng,
    ) -> Result<Vec<String>> {
        let mut done = Vec::new();
        for _ in 0..random.u64(1..=4) {
            let dropped = match random.u64(..8) {
                0 => self.change_mode(sources.bank, random).context("changing a mode"),
                _ => self.drop_one(sources, random).context("dropping a name"),
            };
            done.extend(dropped?);
        }
        Ok(done)
    }

    /// Drops one name into the bank. `None` if the name exists.
    fn drop_one(&mut self, sources: &Sources<'_>, random: &mut Rng) -> Result<Option<String>> {
        let path = some_name(sources.bank, random)?;
        if path.symlink_metadata().is_ok() || !path.parent().is_some_and(Path::is_dir) {
            return Ok(None);
        }
        let put = put_one(sources, &path, random);
        let Ok(found) = path.symlink_metadata() else {
            // A directory with another mode may refuse a new name.
            return put.map(|_| None).or_else(unless_refused);
        };
        // A copy of a checkpoint may be refused half-way, and is a stray then.
        let what = match put {
            Ok(Some(what)) => what,
            Ok(None) => return Ok(None),
            Err(error) => unless_refused::<()>(error).map(|_| "a part of a copy".to_owned())?,
        };
        let identity = Identity::of(&found);
        let told = format!("{}: {what}", path.display());
        self.changes.push((path, Change::Made(identity)));
        Ok(Some(told))
    }

    fn change_mode(&mut self, bank: &Path, random: &mut Rng) -> Result<Option<String>> {
        let mut paths = vec![bank.to_owned()];
        all_below(bank, &mut paths)?;
        let path = paths.swap_remove(random.usize(..paths.len()));
        let Ok(found) = path.symlink_metadata() else { return Ok(None) };
        if found.is_symlink() || found.nlink() > 1 && !found.is_dir() {
            // The mode of a file with a second name is also another bank's.
            return Ok(None);
        }
        let mode = [0o000, 0o400, 0o444, 0o555, 0o777][random.usize(..5)];
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        let told = format!("{}: mode {mode:o}", path.display());
        self.changes.push((path, Change::Mode(found.mode())));
        Ok(Some(told))
    }

    /// Takes all changes back. Leaves a name alone if the bank has put a file of its own there.
    pub(super) fn take_back(&mut self) -> Result<()> {
        // Modes first: a name in a directory without permissions can't be removed.
        for (path, change) in self.changes.iter().rev() {
            // The bank may have removed the file, and a link may have its name now.
            if let Change::Mode(mode) = change
                && path.symlink_metadata().is_ok_and(|found| !found.is_symlink())
            {
                let changed = fs::set_permissions(path, Permissions::from_mode(*mode));
                gone_or(changed)?;
            }
        }
        for (path, change) in self.changes.drain(..).rev() {
            let Change::Made(identity) = change else { continue };
            let Ok(found) = path.symlink_metadata() else { continue };
            if identity.is_still(&found, is_segment(&path)) {
                let removed =
                    if found.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                gone_or(removed).with_context(|| format!("removing {}", path.display()))?;
            }
        }
        Ok(())
    }
}

/// Puts something at a path. Returns what it is. `None` if there is no file that it could link to.
fn put_one(sources: &Sources<'_>, path: &Path, random: &mut Rng) -> Result<Option<String>> {
    let what = match random.u64(..12) {
        0 => put_file(path, 0, random)?,
        1 => put_file(path, random.usize(1..100_000), random)?,
        2 | 3 => put_dir(path, false, random)?,
        4 => put_dir(path, true, random)?,
        5 => put_fifo(path)?,
        6 => put_checkpoint(sources.bank, path, random)?,
        7 => link_to(path, Path::new("nowhere"))?,
        8 => link_to(path, path)?,
        9 | 10 => match some_file(sources, random)? {
            Some(file) => {
                fs::hard_link(&file, path)?;
                format!("a hard link to {}", file.display())
            }
            None => return Ok(None),
        },
        _ => match some_file(sources, random)? {
            Some(file) if random.bool() => link_to(path, &file)?,
            Some(file) => link_to(path, file.parent().context("a folder")?)?,
            None => return Ok(None),
        },
    };
    Ok(Some(what))
}

/// Returns `None` for an error that says that a mode forbids a change.
fn unless_refused<T>(error: anyhow::Error) -> Result<Option<T>> {
    let refused = error.downcast_ref::<io::Error>();
    match refused.is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
        true => Ok(None),
        false => Err(error),
    }
}

/// True if the bank may write a segment under this name.
fn is_segment(path: &Path) -> bool {
    let digits = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".seg"));
    let first = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    first.is_some_and(|first| {
        first.is_multiple_of(SEGMENT_BYTES) && path.ends_with(format!("log/{first:016x}.seg"))
    })
}

/// Ignores that a file is gone: the bank may have removed it.
fn gone_or(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(())
        }
        done => done,
    }
}

/// Returns a name in one of the bank's folders: a name like those that the bank writes, or one that
/// a person or another program writes.
fn some_name(bank: &Path, random: &mut Rng) -> Result<PathBuf> {
    let mut numbers = vec![1];
    let mut folders = Vec::new();
    for entry in fs::read_dir(bank.join("checkpoints")).into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Ok(number) = name.parse::<u64>()
            && entry.file_type()?.is_dir()
        {
            numbers.push(number.min(1000));
            folders.push(entry.path());
        }
    }
    let newest = numbers.iter().copied().max().unwrap_or(1);
    let number = (newest + 4).saturating_sub(random.u64(..8)).max(1);
    Ok(match random.u64(..8) {
        0 => bank
            .join(one_of(&["BANK.new", "notes.txt", ".DS_Store", "core.17", "LOCK.bak"], random)),
        1..=3 => bank.join("log").join(name_in_log(random)),
        4 if !folders.is_empty() => {
            let names =
                ["notes", "index.7", "index.0000000099", "manifest.bak", "pinned", "blob.tmp"];
            folders[random.usize(..folders.len())].join(one_of(&names, random))
        }
        _ => bank.join("checkpoints").join(match random.u64(..9) {
            0 => "20261128".to_owned(),
            1 => "2026112817".to_owned(),
            2..=4 => format!("{number:010}"),
            5 => format!("{number}"),
            6 => format!("{number:010}.bak"),
            7 => format!(
                "{:010}.{}",
                newest + 1,
                one_of(&["partial", "1.partial", "removed"], random)
            ),
            _ => one_of(&["manifest", "lost+found", "0000000000", "7.partial"], random),
        }),
    })
}

fn name_in_log(random: &mut Rng) -> String {
    let first = random.u64(..40) * SEGMENT_BYTES;
    match random.u64(..8) {
        0..=2 => format!("{first:016x}.seg"),
        3 => format!("{first:016x}.new"),
        4 => format!("{:016x}.seg", first + random.u64(1..SEGMENT_BYTES)),
        5 => format!("{first:x}.seg"),
        6 => format!("{first:016X}.SEG"),
        _ => one_of(
            &["lost+found", "notes", "probe-0000000000000000.tmp", "+000000000010000.seg"],
            random,
        ),
    }
}

fn one_of(names: &[&str], random: &mut Rng) -> String {
    names[random.usize(..names.len())].to_owned()
}

fn put_file(path: &Path, bytes: usize, random: &mut Rng) -> Result<String> {
    let mut content = vec![0; bytes];
    random.fill(&mut content);
    fs::write(path, content)?;
    Ok(format!("a file of {bytes} bytes"))
}

fn put_dir(path: &Path, with_file: bool, random: &mut Rng) -> Result<String> {
    fs::create_dir(path)?;
    if with_file {
        let name = one_of(&["notes", "manifest", "blob", "index.0000000001"], random);
        put_file(&path.join(&name), 100, random)?;
        return Ok(format!("a directory with {name}"));
    }
    Ok("an empty directory".to_owned())
}

fn put_fifo(path: &Path) -> Result<String> {
    use std::os::unix::ffi::OsStrExt as _;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name is a valid C string that lives for the call.
    let made = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
    if made != 0 {
        return Err(io::Error::last_os_error()).context("making a FIFO");
    }
    Ok("a FIFO".to_owned())
}

/// Puts a copy of a checkpoint's directory there, made of hard links.
fn put_checkpoint(bank: &Path, path: &Path, random: &mut Rng) -> Result<String> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(bank.join("checkpoints")).into_iter().flatten() {
        let folder = entry?.path();
        if folder.join("manifest").is_file() {
            folders.push(folder);
        }
    }
    folders.sort();
    if folders.is_empty() || path.ancestors().any(|above| folders.iter().any(|f| f == above)) {
        return put_dir(path, false, random);
    }
    let from = folders.swap_remove(random.usize(..folders.len()));
    link_all(&from, path)?;
    Ok(format!("a copy of {}", from.display()))
}

fn link_to(path: &Path, to: &Path) -> Result<String> {
    symlink(to, path)?;
    Ok(format!("a link to {}", to.display()))
}

/// Returns some regular file of the bank, of another bank or of a user.
fn some_file(sources: &Sources<'_>, random: &mut Rng) -> Result<Option<PathBuf>> {
    let places = [sources.bank, sources.others[0], sources.others[1], sources.others[2]];
    let mut paths = Vec::new();
    all_below(places[random.usize(..places.len())], &mut paths)?;
    paths.retain(|path| path.symlink_metadata().is_ok_and(|found| found.is_file()));
    paths.sort();
    let count = paths.len();
    Ok((count > 0).then(|| paths.swap_remove(random.usize(..count))))
}

/// Adds every path below a directory. Follows no symbolic links.
fn all_below(dir: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    // A directory without permissions counts as empty.
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let entry = entry?;
        into.push(entry.path());
        if entry.file_type()?.is_dir() {
            all_below(&entry.path(), into)?;
        }
    }
    into.sort();
    Ok(())
}
