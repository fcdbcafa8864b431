//! Directories that stay open, and names in them.
//!
//! **Problem.** A path can lead to another directory later, for three reasons. A program calls
//! `chdir`. A user changes a symbolic link. A user moves a directory. A bank that uses paths would
//! then write or remove files in the wrong directory.
//!
//! **Approach.** A [`Directory`] is opened once, by its canonical path, and its handle stays open.
//! A [`Place`] is a name in that directory. The file or directory of that name need not exist.
//! Every open, link, rename and removal of a place is relative to the handle, so it acts on the
//! opened directory, even after a move. Before a bank makes or removes a file, it calls
//! [`Directory::check_in_place`]. The bank then stops if the user's path no longer leads to its
//! directory.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::retry_on_intr;

use crate::error::{Error, Result};
use crate::files::held_file::HeldFile;
use crate::process::descriptors;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    handle: HeldFile,
    /// The directory's absolute path when it was opened.
    path: PathBuf,
}

/// Identifies a file or directory on this machine. After a file is removed, the system may give the
/// file's identity to a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        Ok(Self::from(&rustix::fs::fstat(file)?))
    }
}

impl From<&Stat> for FileIdentity {
    #[expect(clippy::unnecessary_cast, reason = "the types differ from system to system")]
    fn from(found: &Stat) -> Self {
        FileIdentity { device: found.st_dev as u64, inode: found.st_ino as u64 }
    }
}

const READ_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Flags for a directory in which the caller only opens files. The user needs no permission to list
/// the directory.
#[cfg(target_os = "linux")]
const REACH_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const REACH_DIR: OFlags = READ_DIR;

impl Directory {
    /// Opens the directory that `path` leads to now.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Self>> {
        Self::open_with(path, READ_DIR)
    }

    fn open_with(path: &Path, flags: OFlags) -> io::Result<Arc<Self>> {
        let path = fs::canonicalize(path)?;
        let open = || rustix::fs::openat(CWD, &path, flags, Mode::empty());
        let handle = descriptors::opened(|| Ok(retry_on_intr(open)?))?;
        Self::of(handle.into(), path)
    }

    fn of(handle: File, path: PathBuf) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Directory { handle: HeldFile::new(handle)?, path }))
    }

    /// The directory's absolute path when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a second handle of the directory, which the caller locks. A lock lasts until its
    /// handle is closed, and scans and devices may keep the first handle open after the store is
    /// closed.
    pub(crate) fn reopen(&self) -> io::Result<File> {
        open_in(&self.handle, Path::new("."), READ_DIR)
    }

    pub(crate) fn place(self: &Arc<Self>, name: impl AsRef<Path>) -> Place {
        Place { dir: Arc::clone(self), name: name.as_ref().to_owned() }
    }

    /// Opens a subdirectory of this directory.
    pub(crate) fn subdirectory(&self, name: &str) -> io::Result<Arc<Self>> {
        let handle = open_in(&self.handle, Path::new(name), READ_DIR)?;
        Self::of(handle, self.path.join(name))
    }

    /// Opens a subdirectory of this directory, and makes it first if it does not exist. On return
    /// the subdirectory's name is durable.
    pub(crate) fn make_subdirectory(&self, name: &str) -> io::Result<Arc<Self>> {
        match rustix::fs::mkdirat(&self.handle, name, Mode::from_raw_mode(0o777)) {
            Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
            // Synced even if the directory exists: the process that made it may have been killed
            // before its sync.
            _ => self.sync()?,
        }
        self.subdirectory(name)
    }

    /// Returns a new descriptor of the directory.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        descriptors::opened(|| self.handle.file().try_clone().map(OwnedFd::from))
    }

    /// Makes the names in the directory durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Returns the bytes that this user can still write to the file system. `None` if the file
    /// system does not report its size, which is so for some network file systems.
    pub(crate) fn room_bytes(&self) -> Option<u64> {
        let found = rustix::fs::fstatvfs(&self.handle).ok()?;
        // `f_bavail` is also used for root, which could use more blocks. `f_bfree` would be too
        // high: on ext4 it includes blocks that no process can use.
        (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
    }

    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        names_of(Dir::new(open_in(&self.handle, Path::new("."), READ_DIR)?)?)
    }

    /// Checks that the path of the directory, as it was when the directory was opened, still leads
    /// to this directory, and that the handle is still the directory's.
    ///
    /// # Errors
    /// `DirectoryMoved` if the path leads elsewhere or nowhere. `Io` if the path can't be checked,
    /// or if other code closed the handle.
    pub(crate) fn check_in_place(&self) -> Result<()> {
        self.handle.check().map_err(|e| Error::io("use", &self.path, e))?;
        let found = match rustix::fs::statat(CWD, &self.path, AtFlags::empty()) {
            Ok(found) => Some(FileIdentity::from(&found)),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => None,
            Err(error) => return Err(Error::io("stat", &self.path, error.into())),
        };
        if found == Some(self.handle.identity()) {
            return Ok(());
        }
        Err(Error::DirectoryMoved { path: self.path.clone(), replaced: found.is_some() })
    }
}

/// Opens the file or directory `name` in `dir`. Tries again if a signal interrupts the call.
fn open_in(dir: &HeldFile, name: &Path, flags: OFlags) -> io::Result<File> {
    Ok(descriptors::opened(|| try_open_in(dir, name, flags))?.into())
}

fn try_open_in(dir: &HeldFile, name: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    Ok(retry_on_intr(|| rustix::fs::openat(dir, name, flags, mode))?)
}

fn names_of(entries: Dir) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// A name in an open directory. The file or directory of that name need not exist.
#[derive(Clone)]
pub(crate) struct Place {
    dir: Arc<Directory>,
    /// A path relative to the directory.
    name: PathBuf,
}

impl fmt::Debug for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().fmt(formatter)
    }
}

/// Converts a place into its path, for error messages.
impl From<&Place> for PathBuf {
    fn from(place: &Place) -> Self {
        place.path()
    }
}

impl Place {
    /// Opens the directory of `path` and returns the place of the path's last component.
    pub(crate) fn of_path(path: &Path) -> io::Result<Self> {
        Self::of(path, READ_DIR)
    }

    /// Does the same as `of_path` for a file that the caller only opens. The user needs no
    /// permission to list the directory. The directory can't be synced or listed through this
    /// place.
    pub(crate) fn of_path_to_open(path: &Path) -> io::Result<Self> {
        Self::of(path, REACH_DIR)
    }

    fn of(path: &Path, flags: OFlags) -> io::Result<Self> {
        let Some(name) = path.file_name() else {
            let what = format!("{} is not a name for a file", path.display());
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        };
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        Ok(Directory::open_with(parent, flags)?.place(name))
    }

    /// Returns the absolute path of the place, with the path that the directory had when it was
    /// opened.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        &self.dir
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        Place { dir: Arc::clone(&self.dir), name: self.name.join(name) }
    }

    pub(crate) fn open_with(&self, flags: OFlags) -> io::Result<File> {
        open_in(&self.dir.handle, &self.name, flags)
    }

    /// Opens the file. Does not wait if the process has no free descriptor.
    pub(crate) fn open_now(&self, flags: OFlags) -> io::Result<File> {
        let open = || try_open_in(&self.dir.handle, &self.name, flags);
        Ok(descriptors::opened_now(open)?.into())
    }

    /// Opens the file for reading. Does not wait if another program has put a FIFO there: then a
    /// read fails or finds nothing. The flag has no effect on regular files and directories.
    pub(crate) fn open(&self) -> io::Result<File> {
        self.open_with(OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// Creates a file for reading and writing. Fails if the name exists.
    pub(crate) fn create_new(&self) -> io::Result<File> {
        self.open_with(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open()?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the metadata of the file or directory. Follows symbolic links.
    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.dir.handle, &self.name, AtFlags::empty())?)
    }

    /// Returns the metadata of the file or directory. `None` if the name does not exist.
    pub(crate) fn stat_if_there(&self) -> io::Result<Option<Stat>> {
        match self.stat() {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Length of the file, in bytes.
    pub(crate) fn len(&self) -> io::Result<u64> {
        self.stat().map(|found| found.st_size.cast_unsigned())
    }

    /// True if the name exists, with a file, a directory or a symbolic link of any kind.
    pub(crate) fn is_taken(&self) -> bool {
        self.own_stat().is_ok()
    }

    /// True if the name leads to a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.stat().is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir())
    }

    /// True if the name leads to a regular file.
    pub(crate) fn is_file(&self) -> bool {
        self.stat().is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_file())
    }

    /// True if a change of the file would change a file with another name: the name is a symbolic
    /// link, or the file has more names (hard links).
    pub(crate) fn is_shared(&self) -> io::Result<bool> {
        let found = self.own_stat()?;
        let kind = FileType::from_raw_mode(found.st_mode);
        Ok(kind.is_symlink() || !kind.is_dir() && found.st_nlink > 1)
    }

    /// True if the name is a symbolic link.
    pub(crate) fn is_link(&self) -> bool {
        self.own_type().is_ok_and(|kind| kind.is_symlink())
    }

    /// Returns the metadata of the name itself. Does not follow a symbolic link.
    pub(crate) fn own_stat(&self) -> io::Result<Stat> {
        let how = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::statat(&self.dir.handle, &self.name, how)?)
    }

    /// Returns the file type. For a symbolic link, the type is "link".
    fn own_type(&self) -> io::Result<FileType> {
        self.own_stat().map(|found| FileType::from_raw_mode(found.st_mode))
    }

    /// Lists the directory at this place.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        names_of(Dir::new(open_in(&self.dir.handle, &self.name, READ_DIR)?)?)
    }

    pub(crate) fn create_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.dir.handle, &self.name, Mode::from_raw_mode(0o777))?)
    }

    pub(crate) fn rename(&self, to: &Place) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir.handle, &self.name, &to.dir.handle, &to.name)?)
    }

    /// Gives the file a second name. Fails if that name exists.
    pub(crate) fn hard_link(&self, to: &Place) -> io::Result<()> {
        let from = &self.dir.handle;
        let to_dir = &to.dir.handle;
        Ok(rustix::fs::linkat(from, &self.name, to_dir, &to.name, AtFlags::empty())?)
    }

    pub(crate) fn remove_file(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir.handle, &self.name, AtFlags::empty())?)
    }

    /// Removes the file if it exists.
    pub(crate) fn remove_file_if_there(&self) -> io::Result<()> {
        match self.remove_file() {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a directory with all its content. If a name is a symbolic link, removes the link and
    /// not its target. Continues after an error.
    ///
    /// # Errors
    /// The first error. In this case the directory still exists.
    pub(crate) fn remove_dir_all(&self) -> io::Result<()> {
        let dir = &self.dir.handle;
        let name = &self.name;
        if self.own_type()?.is_symlink() {
            return self.remove_file();
        }
        let mut removed = Ok(());
        // The loop ends: each recursive call goes one directory level deeper.
        for inner in names_of(Dir::new(open_in(dir, name, READ_DIR | OFlags::NOFOLLOW)?)?)? {
            let inner = self.join(inner);
            removed = removed.and(match inner.own_type() {
                Ok(kind) if kind.is_dir() => inner.remove_dir_all(),
                Ok(_) => inner.remove_file(),
                Err(error) => Err(error),
            });
        }
        removed?;
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
    }

    /// Makes the content of a file, or the names in a directory, durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.open()?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_in_the_directory_that_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().join("here");
        let there = dir.path().join("there");
        fs::create_dir(&here).unwrap();
        let held = Directory::open(&here).unwrap();
        held.check_in_place().unwrap();
        held.place("a").create_new().unwrap();
        fs::rename(&here, &there).unwrap();
        let error = held.check_in_place().unwrap_err();
        assert!(matches!(error, Error::DirectoryMoved { replaced: false, .. }), "{error}");
        fs::create_dir(&here).unwrap();
        fs::write(here.join("a"), "another").unwrap();
        let error = held.check_in_place().unwrap_err();
        assert!(matches!(error, Error::DirectoryMoved { replaced: true, .. }), "{error}");
        held.place("a").rename(&held.place("b")).unwrap();
        held.place("b").hard_link(&held.place("c")).unwrap();
        held.place("sub").create_dir().unwrap();
        held.place("sub").join("d").create_new().unwrap();
        held.place("sub/deeper").create_dir().unwrap();
        assert!(held.place("b").is_shared().unwrap());
        let mut names = held.names().unwrap();
        names.sort();
        assert_eq!(names, ["b", "c", "sub"]);
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        std::os::unix::fs::symlink(&outside, there.join("sub/link")).unwrap();
        std::os::unix::fs::symlink(&outside, there.join("link")).unwrap();
        held.place("link").remove_dir_all().unwrap();
        held.place("sub").remove_dir_all().unwrap();
        assert!(outside.join("kept").exists(), "what links lead to stays");
        held.place("c").remove_file().unwrap();
        assert_eq!(fs::read_dir(&there).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(here.join("a")).unwrap(), "another");
        fs::remove_dir_all(&here).unwrap();
        fs::rename(&there, &here).unwrap();
        held.check_in_place().unwrap();
    }
}
