//! Files that are there whole or not at all.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{invalid, io_error};
use crate::error::Result;

/// A file under a temporary name, beside the place where it belongs. Dropped before [`commit`](Self::commit), it goes.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl OutputFile {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(invalid(format!("{} names no file", path.display())));
        };
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let made = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".partial")
            // Less the umask, as any file that a program makes.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory(path));
        let file = made.map_err(|error| io_error("create", path, error))?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.file.as_file().write_all_at(bytes, offset);
        written.map_err(|error| io_error("write", &self.path, error))
    }

    /// Brings what was written to stable storage; returns the file's length.
    pub(crate) fn sync(&self) -> Result<u64> {
        let file = self.file.as_file();
        let synced = file.sync_all().and_then(|()| file.metadata());
        Ok(synced.map_err(|error| io_error("sync", &self.path, error))?.len())
    }

    /// Gives the file its name, in place of one that has it.
    pub(crate) fn publish(self) -> Result<()> {
        let Self { file, path } = self;
        file.persist(&path).map_err(|error| io_error("rename", &path, error.error))?;
        sync_directory(&path)
    }

    /// Gives the file its name, once it is on stable storage; returns its length.
    pub(crate) fn commit(self) -> Result<u64> {
        let bytes = self.sync()?;
        self.publish()?;
        Ok(bytes)
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

/// The path from the root, resolved once: a long export goes where the caller meant it to, whatever becomes of the
/// working directory and of links meanwhile.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(invalid(format!("{} names no file", path.display())));
    };
    let directory = directory(path);
    let found = directory.canonicalize();
    found.map(|found| found.join(name)).map_err(|error| io_error("create", path, error))
}

/// Removes a file, if it is there, durably.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_directory(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("remove", path, error)),
    }
}

/// The bytes that are free where a file would lie.
pub(crate) fn free_bytes(path: &Path) -> Result<u64> {
    let directory = directory(path);
    let found = rustix::fs::statvfs(directory);
    let found = found.map_err(|error| io_error("look at", directory, error.into()))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory = directory(path);
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|error| io_error("sync", directory, error))
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_complete_and_leaves_nothing_when_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let file = OutputFile::create(&path).unwrap();
        file.write_at(b"later", 3).unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

        let file = OutputFile::create(&path).unwrap();
        file.write_at(b"now", 0).unwrap();
        assert_eq!(file.commit().unwrap(), 3);
        assert_eq!(std::fs::read(&path).unwrap(), b"now");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_is_resolved_through_links_of_directories_and_not_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let expected = real.canonicalize().unwrap().join("out");
        assert_eq!(resolved(&link.join("out")).unwrap(), expected);
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(resolved(Path::new("out")).unwrap(), here.join("out"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_with_its_path() {
        let error = OutputFile::create(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
