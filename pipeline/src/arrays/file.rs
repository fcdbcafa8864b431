//! Reads the files that a field of paths names.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open, openat};

use super::{NoArray, VALUE_BYTES_MAX};
use crate::error::{Error, Result};

/// The folder below which all files of a run lie.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    folder: OwnedFd,
}

impl Root {
    /// # Errors
    /// [`Error::Io`] if the folder can't be opened.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let folder =
            open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let path = path.to_owned();
        match folder {
            Ok(folder) => Ok(Self { path, folder }),
            Err(error) => Err(Error::Io { doing: "open", path, source: error.into() }),
        }
    }

    /// Reads the file of the relative path `name` into `bytes`. The path may not leave the folder:
    /// it has no `..`, and no part of it is a symbolic link.
    pub(crate) fn read(
        &self,
        name: &[u8],
        bytes: &mut Vec<u8>,
    ) -> std::result::Result<(), NoArray> {
        let bad = |why: &str| Err(NoArray::Bad(format!("names a file that {why}")));
        let mut folder: Option<OwnedFd> = None;
        let mut parts = name.split(|&byte| byte == b'/').peekable();
        if name.first() == Some(&b'/') {
            return bad("is not below `root`: paths are relative to it");
        }
        // The loop ends with the last part of the path.
        let file = loop {
            let part = match parts.next() {
                Some(b".." | b"" | b".") | None => {
                    return bad(
                        "is not below `root`: a path has no empty part, no `.` and no `..`",
                    );
                }
                Some(part) => part,
            };
            let is_last = parts.peek().is_none();
            // Without `NONBLOCK`, the call would wait for the writer of a pipe.
            let kind = if is_last { OFlags::NONBLOCK } else { OFlags::DIRECTORY };
            let flags = kind | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
            let at = folder.as_ref().map_or(self.folder.as_fd(), AsFd::as_fd);
            match openat(at, part, flags, Mode::empty()) {
                Ok(file) if is_last => break File::from(file),
                Ok(next) => folder = Some(next),
                Err(error) => return self.failed(name, error.into()),
            }
        };
        let kind = file.metadata().map(|metadata| metadata.file_type());
        match kind {
            Ok(kind) if kind.is_file() => {}
            Ok(_) => return bad("is no regular file"),
            Err(error) => return self.failed(name, error),
        }
        bytes.clear();
        match file.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(bytes) {
            Ok(read) if read > VALUE_BYTES_MAX => {
                bad(&format!("has more than {VALUE_BYTES_MAX} bytes"))
            }
            Ok(_) => Ok(()),
            Err(error) => self.failed(name, error),
        }
    }

    /// A file that does not exist makes its row bad. A drive or a process that fails ends the run.
    #[cold]
    fn failed(&self, name: &[u8], error: io::Error) -> std::result::Result<(), NoArray> {
        use io::ErrorKind::{
            InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        };
        let is = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
        if is(rustix::io::Errno::LOOP) {
            let why = "names a file behind a symbolic link, which is not followed";
            return Err(NoArray::Bad(why.to_owned()));
        }
        if is(rustix::io::Errno::NXIO) || is(rustix::io::Errno::NODEV) {
            return Err(NoArray::Bad("names a file that is no regular file".to_owned()));
        }
        Err(match error.kind() {
            NotFound | PermissionDenied | NotADirectory | IsADirectory | InvalidFilename
            | InvalidInput => NoArray::Bad(format!("names a file that can't be opened: {error}")),
            _ => {
                let path = self.path.join(String::from_utf8_lossy(name).as_ref());
                NoArray::Failed(Error::Io { doing: "read", path, source: error })
            }
        })
    }
}
