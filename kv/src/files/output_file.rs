//! Files that get their name only when they are complete: exports, deltas, reports, outputs of
//! pipelines.
//!
//! **Problem.** Another program may read a file as soon as the file has its name. The writer may be
//! killed at any time. If the path leads to a device or a pipe, the file must not replace it. If
//! the path is a symbolic link, the file must replace the link's target and not the link.
//!
//! **Approach.** The path is resolved once, through symbolic links, to an open directory and a
//! name. If the name exists, it must belong to a regular file. The new file gets the old file's
//! mode. It also gets the old file's owner if the process may change the owner. The content is
//! written to a file without a name (`O_TMPFILE`), which disappears if the writer is killed. The
//! complete file is synced and then gets its name. The kernel can't give a nameless file a name
//! that exists. If the name exists, the file first gets a hidden name, and is then renamed to the
//! final name. On file systems without `O_TMPFILE`, the file has a hidden name from the beginning
//! ([`HiddenFile`]).

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid};

use crate::error::{Error, Result};
use crate::files::hidden_file::HiddenFile;
use crate::process::descriptors;

/// Largest number of symbolic links that are followed in a row, so that a circle of links ends with
/// an error. The kernel has the same limit.
const LINKS_MAX: usize = 40;

/// A file that gets its name when it is complete. If it is dropped before
/// [`publish`](Self::publish), nothing stays on disk.
///
/// ```
/// use std::io::Write;
///
/// use embank_kv::OutputFile;
///
/// let dir = tempfile::tempdir().unwrap();
/// let path = dir.path().join("report.json");
/// let mut file = OutputFile::create(&path)?;
/// file.write_all(b"{}").unwrap();
/// assert!(!path.exists());
/// file.sync()?;
/// file.publish()?;
/// assert!(path.exists());
/// # Ok::<(), embank_kv::Error>(())
/// ```
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    /// The open directory in which the file gets its name.
    dir: Arc<OwnedFd>,
    name: OsString,
    path: PathBuf,
    /// The hidden name that the file has until it is published. `None` if the file has no name
    /// until then.
    hidden: Option<HiddenFile>,
    /// Properties of the file that had the name when this file was created. `None` if the name did
    /// not exist.
    old: Option<Kept>,
}

/// The properties of an old file that its replacement takes over.
#[derive(Debug, Clone, Copy)]
struct Kept {
    mode: u32,
    uid: u32,
    gid: u32,
    /// Device and inode of the old file.
    identity: (u64, u64),
}

impl OutputFile {
    /// Creates a file for `path`. If `path` is a symbolic link, the file will replace the link's
    /// target.
    ///
    /// # Errors
    /// `UnusableOutput` if the name belongs to a directory, a device, a pipe or a socket. Also if
    /// `path` does not end with a name, or leads through a symbolic link of another user in a
    /// directory like `/tmp`. `Io` if the directory does not exist or can't be written, or if the
    /// name is too long.
    pub fn create(path: &Path) -> Result<Self> {
        Self::create_as(path, may_be_unnamed())
    }

    fn create_as(path: &Path, may_be_unnamed: bool) -> Result<Self> {
        let (target, old) = resolve(path)?;
        let failed = |error| Error::io("create", path, error);
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(no_name(path));
        };
        let name = name.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || Ok(rustix::fs::open(parent, flags, Mode::empty())?);
        let dir = Arc::new(descriptors::opened(open).map_err(failed)?);
        // A file with a new name gets mode 0666 less the umask. A file that replaces another one is
        // private until `sync` gives it the old file's mode.
        let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
        let unnamed = if may_be_unnamed { open_unnamed(&dir, mode) } else { Ok(None) };
        let (file, hidden) = match unnamed.map_err(failed)? {
            Some(file) => (file, None),
            None => {
                let hidden = HiddenFile::new(&dir);
                let file = descriptors::opened(|| hidden.create(mode)).map_err(failed)?;
                (file, Some(hidden))
            }
        };
        Ok(Self { file: file.into(), dir, name, path: path.to_owned(), hidden, old })
    }

    /// The path that `create` was called with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if this file will replace the file at `input`.
    #[must_use]
    pub fn replaces(&self, input: &Path) -> bool {
        let identity = std::fs::metadata(input).map(|found| (found.dev(), found.ino())).ok();
        identity.is_some() && identity == self.old.map(|old| old.identity)
    }

    /// Writes bytes at an offset of the file.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| Error::io("write", &self.path, error))
    }

    /// Makes the content durable. Returns the file's length in bytes. If this file will replace an
    /// old file, it gets the old file's mode. It also gets the old file's owner if the process may
    /// change the owner.
    ///
    /// # Errors
    /// `Io`, for example if the disk is full. `UnusableOutput` if the name now belongs to something
    /// that is not a regular file.
    pub fn sync(&self) -> Result<u64> {
        let failed = |error| Error::io("sync", &self.path, error);
        if let Some(Kept { mode, uid, gid, .. }) = self.there_now()?.or(self.old) {
            // An error is ignored. Most users may not change the owner, and the file then belongs
            // to the user of this process.
            let _ =
                rustix::fs::fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            let mode = rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode));
            mode.map_err(|error| failed(error.into()))?;
        }
        self.file
            .sync_all()
            .and_then(|()| self.file.metadata())
            .map(|found| found.len())
            .map_err(failed)
    }

    /// Gives the file its name, and replaces an old file of that name. On return the name is
    /// durable. The content is durable if the caller called [`sync`](Self::sync) first.
    ///
    /// # Errors
    /// `Io`. After an error, the file has its name only if the directory could not be synced.
    pub fn publish(mut self) -> Result<()> {
        let named = match self.hidden.take() {
            Some(hidden) => self.rename(&hidden),
            None => self.link(),
        };
        named.map_err(|error| Error::io("rename", &self.path, error))?;
        rustix::fs::fsync(self.dir.as_fd())
            .map_err(|error| Error::io("sync", &self.path, error.into()))
    }

    /// Gives the file its name, as [`publish`](Self::publish) does, but does not replace an old
    /// file: fails if the name exists.
    ///
    /// # Errors
    /// The errors of [`publish`](Self::publish), and `Io` if the name exists.
    pub fn publish_new(self) -> Result<()> {
        let failed = |error: rustix::io::Errno| Error::io("make", &self.path, error.into());
        let dir = self.dir.as_fd();
        match &self.hidden {
            Some(hidden) => {
                let name = hidden.name();
                rustix::fs::linkat(
                    dir,
                    name.as_c_str(),
                    dir,
                    self.name.as_os_str(),
                    AtFlags::empty(),
                )
            }
            None => self.link_as(&self.name),
        }
        .map_err(failed)?;
        rustix::fs::fsync(dir).map_err(failed).inspect_err(|_| {
            // After a failed sync, the new name may or may not be durable. The name is removed, so
            // that a second call does not find it.
            let _ = rustix::fs::unlinkat(dir, self.name.as_os_str(), AtFlags::empty());
        })
    }

    /// Returns the properties of the file that has the name now. `None` if the name does not exist.
    fn there_now(&self) -> Result<Option<Kept>> {
        match rustix::fs::statat(self.dir.as_fd(), &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("look at", &self.path, error.into())),
            Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile => {
                let why = "is no file any more: something else got the name while the content was written; give another name";
                Err(unusable(&self.path, why))
            }
            Ok(found) => Ok(Some(Kept::of(&found))),
        }
    }

    fn rename(&self, hidden: &HiddenFile) -> io::Result<()> {
        let dir = self.dir.as_fd();
        Ok(rustix::fs::renameat(dir, hidden.name().as_c_str(), dir, self.name.as_os_str())?)
    }

    /// Gives a nameless file its name. If the name exists, the file first gets a hidden name and is
    /// then renamed to the name.
    fn link(&mut self) -> io::Result<()> {
        match self.link_as(&self.name) {
            Err(rustix::io::Errno::EXIST) => {}
            Ok(()) => return Ok(()),
            // Some file systems can create a nameless file but can't give it a name.
            Err(_) => return self.copy_to_hidden(),
        }
        let hidden = HiddenFile::new(&self.dir);
        match self.link_as(OsStr::from_bytes(hidden.name().as_c_str().to_bytes())) {
            Ok(()) => self.rename(&hidden),
            Err(_) => self.copy_to_hidden(),
        }
    }

    fn link_as(&self, name: &OsStr) -> rustix::io::Result<()> {
        let own = proc_path(self.file.as_raw_fd());
        rustix::fs::linkat(CWD, own, self.dir.as_fd(), name, AtFlags::SYMLINK_FOLLOW)
    }

    fn copy_to_hidden(&mut self) -> io::Result<()> {
        let hidden = HiddenFile::new(&self.dir);
        let metadata = self.file.metadata()?;
        let mut copy = File::from(hidden.create(Mode::from_raw_mode(0o600))?);
        self.file.rewind()?;
        io::copy(&mut self.file, &mut copy)?;
        rustix::fs::fchmod(&copy, Mode::from_raw_mode(metadata.mode() & 0o7777))?;
        copy.sync_all()?;
        self.rename(&hidden)
    }
}

/// Writes at the file's position, for formats that are written from start to end.
impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for OutputFile {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Kept {
    fn of(found: &Stat) -> Self {
        let identity = (found.st_dev, found.st_ino);
        Self { mode: found.st_mode & 0o7777, uid: found.st_uid, gid: found.st_gid, identity }
    }

    fn of_metadata(found: &Metadata) -> Self {
        let identity = (found.dev(), found.ino());
        Self { mode: found.mode() & 0o7777, uid: found.uid(), gid: found.gid(), identity }
    }
}

/// Returns the absolute path that [`OutputFile::create`] would use for `path`. Symbolic links in
/// `path` are resolved.
///
/// # Errors
/// The errors of [`OutputFile::create`].
pub fn output_path(path: &Path) -> Result<PathBuf> {
    resolve(path).map(|(path, _)| path)
}

fn unusable(path: &Path, why: impl Into<String>) -> Error {
    Error::UnusableOutput { path: path.to_owned(), why: why.into() }
}

fn no_name(path: &Path) -> Error {
    unusable(path, "names no file; give a path that ends with a name")
}

fn resolve(path: &Path) -> Result<(PathBuf, Option<Kept>)> {
    let mut path = path.to_owned();
    for _ in 0..=LINKS_MAX {
        let failed = |error| Error::io("create", &path, error);
        let Some(name) = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"))
        else {
            return Err(no_name(&path));
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = parent.canonicalize().map_err(failed)?;
        let place = parent.join(name);
        let found = match std::fs::symlink_metadata(&place) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((place, None)),
            Err(error) => return Err(failed(error)),
        };
        if !found.is_symlink() {
            refuse_unless_file(&place, &found)?;
            return Ok((place, Some(Kept::of_metadata(&found))));
        }
        // The check is skipped on an error: the link's target may not exist, or the link is in
        // /proc and its target has no path.
        if let Ok(target) = std::fs::metadata(&place) {
            refuse_unless_file(&place, &target)?;
        }
        refuse_planted(&place, &parent, &found)?;
        path = parent.join(std::fs::read_link(&place).map_err(failed)?);
    }
    Err(unusable(&path, format!("leads through more than {LINKS_MAX} links in a row")))
}

/// Refuses a path that leads to something other than a regular file. Other programs use that
/// device, pipe, socket or directory, and a file must not replace it.
fn refuse_unless_file(path: &Path, found: &Metadata) -> Result<()> {
    let kind = found.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "no regular file",
    };
    let why = format!("is {what}, and a file would take its place; give the name of a file");
    Err(unusable(path, why))
}

/// Refuses a symbolic link that another user made in a sticky directory that all users can write
/// to, such as `/tmp`. That user may want this process to overwrite the link's target. The kernel
/// has the same rule (`fs.protected_symlinks`).
fn refuse_planted(path: &Path, parent: &Path, link: &Metadata) -> Result<()> {
    const STICKY_FOR_ALL: u32 = 0o1002;
    let failed = |error| Error::io("look at", parent, error);
    let dir = std::fs::metadata(parent).map_err(failed)?;
    let is_trusted = link.uid() == rustix::process::geteuid().as_raw() || link.uid() == dir.uid();
    if dir.mode() & STICKY_FOR_ALL != STICKY_FOR_ALL || is_trusted {
        return Ok(());
    }
    let why = "is a link of another user in a directory that every user can write to; give the name of a file";
    Err(unusable(path, why))
}

/// Creates a file without a name. Returns `None` if the file system can't create a nameless file.
/// Also returns `None` if `/proc` is not mounted, because the file later gets its name through its
/// path in `/proc`.
fn open_unnamed(dir: &OwnedFd, mode: Mode) -> io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match descriptors::opened(|| Ok(rustix::fs::openat(dir, ".", flags, mode)?)) {
        Ok(file) if Path::new(&proc_path(file.as_raw_fd())).exists() => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

fn proc_path(descriptor: i32) -> String {
    format!("/proc/self/fd/{descriptor}")
}

#[cfg(not(test))]
fn may_be_unnamed() -> bool {
    true
}

#[cfg(test)]
use tests::may_be_unnamed;

#[cfg(test)]
mod tests;
