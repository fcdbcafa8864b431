//! Files that are there whole or not at all: exports, deltas, reports, the outputs of pipelines.
//!
//! **Problem.** Another program reads a file as soon as it has its name, and a writer may be ended at any point. Where
//! the name leads to a device, a FIFO or a link, a file must not take its place.
//!
//! **Approach.** The path is resolved once, through links, to a directory that is held open and a name in it. What has
//! the name must be a regular file, whose mode and owner the new one keeps. The file is written without a name
//! (`O_TMPFILE`), so that nothing stays of it whatever ends its writer, and gets its name when it is complete and on
//! stable storage. A name that is taken can't be given to a file without one: the file is hidden for the moment of a
//! rename. On file systems without `O_TMPFILE` it is hidden all along ([`HiddenFile`]).

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

/// Links in a row, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// A file on its way to a path. Dropped before [`publish`](Self::publish), it leaves nothing.
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
    /// Where it gets its name.
    dir: Arc<OwnedFd>,
    name: OsString,
    path: PathBuf,
    /// The name that it has until it gets its own, if it has one.
    hidden: Option<HiddenFile>,
    /// What was there when it was begun.
    old: Option<Kept>,
}

/// What a new file takes over of the one that it replaces.
#[derive(Debug, Clone, Copy)]
struct Kept {
    mode: u32,
    uid: u32,
    gid: u32,
    /// Which file it is.
    identity: (u64, u64),
}

impl OutputFile {
    /// Begins a file for `path`. A link is written through to its target.
    ///
    /// # Errors
    /// `UnusableOutput` if a directory, a device, a FIFO or a socket has the name; `Io` if its directory is not there or
    /// can't be written, or the name is too long.
    pub fn create(path: &Path) -> Result<Self> {
        Self::create_as(path, may_be_unnamed())
    }

    fn create_as(path: &Path, may_be_unnamed: bool) -> Result<Self> {
        let (target, old) = resolve(path)?;
        let failed = |error: rustix::io::Errno| Error::io("create", path, error.into());
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(no_name(path));
        };
        let name = name.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty()).and_then(beyond_standard);
        let dir = Arc::new(dir.map_err(failed)?);
        // Less the umask, as any file that a program makes; what replaces a private file stays private.
        let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
        let unnamed = if may_be_unnamed { open_unnamed(&dir, mode).map_err(failed)? } else { None };
        let (file, hidden) = match unnamed {
            Some(file) => (file, None),
            None => {
                let hidden = HiddenFile::new(&dir);
                let file = hidden.create(mode).map_err(|error| Error::io("create", path, error))?;
                (file, Some(hidden))
            }
        };
        let file = beyond_standard(file).map_err(failed)?;
        Ok(Self { file: file.into(), dir, name, path: path.to_owned(), hidden, old })
    }

    /// The path that it was begun for.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it takes the place of the file that `input` leads to.
    #[must_use]
    pub fn replaces(&self, input: &Path) -> bool {
        let identity = std::fs::metadata(input).map(|found| (found.dev(), found.ino())).ok();
        identity.is_some() && identity == self.old.map(|old| old.identity)
    }

    /// Writes bytes at a place of the file.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| Error::io("write", &self.path, error))
    }

    /// Brings what was written to stable storage; returns the file's length. Gives it the mode of the file that has the
    /// name, and the owner if the process may.
    ///
    /// # Errors
    /// `Io`, as when the disk is full; `UnusableOutput` if the name was given to something else meanwhile.
    pub fn sync(&self) -> Result<u64> {
        let failed = |error| Error::io("sync", &self.path, error);
        if let Some(Kept { mode, uid, gid, .. }) = self.there_now()?.or(self.old) {
            // A process that may not give the file away keeps it.
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

    /// Gives the file its name, in place of a file that has it. Durable on return, if [`sync`](Self::sync) came before.
    ///
    /// # Errors
    /// `Io`; nothing is left of the file then.
    pub fn publish(mut self) -> Result<()> {
        let named = match self.hidden.take() {
            Some(hidden) => self.rename(&hidden),
            None => self.link(),
        };
        named.map_err(|error| Error::io("rename", &self.path, error))?;
        rustix::fs::fsync(self.dir.as_fd())
            .map_err(|error| Error::io("sync", &self.path, error.into()))
    }

    /// Gives the file its name if nothing has it, which [`publish`](Self::publish) would replace.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), and `Io` if something has the name.
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
            // Whether the name lasts is open: it goes, so that the call can be made again.
            let _ = rustix::fs::unlinkat(dir, self.name.as_os_str(), AtFlags::empty());
        })
    }

    /// What has the name; `None` if nothing has.
    fn there_now(&self) -> Result<Option<Kept>> {
        match rustix::fs::statat(self.dir.as_fd(), &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("look at", &self.path, error.into())),
            Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile => {
                let why = "was made something else than a file while its content was written; give another name";
                Err(unusable(&self.path, why))
            }
            Ok(found) => Ok(Some(Kept::of(&found))),
        }
    }

    fn rename(&self, hidden: &HiddenFile) -> io::Result<()> {
        let dir = self.dir.as_fd();
        Ok(rustix::fs::renameat(dir, hidden.name().as_c_str(), dir, self.name.as_os_str())?)
    }

    /// Gives a file without a name one. Only a name that is free can be given, so a taken one is taken over by a rename.
    fn link(&mut self) -> io::Result<()> {
        match self.link_as(&self.name) {
            Err(rustix::io::Errno::EXIST) => {}
            Ok(()) => return Ok(()),
            // A file system that makes files without a name and gives them none.
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

/// For formats that are written from the beginning to the end.
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

/// Where a file for `path` goes: its directory from the root, and its name, both without links.
///
/// # Errors
/// As [`OutputFile::create`].
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
        // What a link of /proc leads to may have no path.
        if let Ok(target) = std::fs::metadata(&place) {
            refuse_unless_file(&place, &target)?;
        }
        refuse_planted(&place, &parent, &found)?;
        path = parent.join(std::fs::read_link(&place).map_err(failed)?);
    }
    Err(unusable(&path, format!("leads through more than {LINKS_MAX} links in a row")))
}

/// A file must not take the place of what other programs use as something else.
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

/// Refuses a link that another user may have planted in a directory for all, as the kernel does where it follows links
/// (`fs.protected_symlinks`).
fn refuse_planted(path: &Path, parent: &Path, link: &Metadata) -> Result<()> {
    const STICKY_FOR_ALL: u32 = 0o1002;
    let failed = |error| Error::io("look at", parent, error);
    let dir = std::fs::metadata(parent).map_err(failed)?;
    let is_trusted = link.uid() == rustix::process::geteuid().as_raw() || link.uid() == dir.uid();
    if dir.mode() & STICKY_FOR_ALL != STICKY_FOR_ALL || is_trusted {
        return Ok(());
    }
    let why = "is a link of another user in a directory that everybody can write to; give the name of a file";
    Err(unusable(path, why))
}

/// A file without a name; `None` where the file system has none, or /proc, by which it gets its name, is not there.
fn open_unnamed(dir: &OwnedFd, mode: Mode) -> rustix::io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags, mode) {
        Ok(file) if Path::new(&proc_path(file.as_raw_fd())).exists() => Ok(Some(file)),
        Ok(_)
        | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn proc_path(descriptor: i32) -> String {
    format!("/proc/self/fd/{descriptor}")
}

/// The descriptor as one above those of the standard streams: in a process that closed them, a library's message to
/// standard error would go into the file.
fn beyond_standard(file: OwnedFd) -> rustix::io::Result<OwnedFd> {
    if file.as_raw_fd() > 2 { Ok(file) } else { rustix::io::fcntl_dupfd_cloexec(&file, 3) }
}

#[cfg(not(test))]
fn may_be_unnamed() -> bool {
    true
}

#[cfg(test)]
use tests::may_be_unnamed;

#[cfg(test)]
mod tests;
