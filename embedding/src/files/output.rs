//! Destinations of exports. `embank_kv::OutputFile` ensures that a file is either complete or
//! absent.

use std::fs::File;
use std::io;
#[cfg(feature = "parquet")]
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) use embank_kv::OutputFile;

use super::io_error;
use crate::error::{Error, Result};

/// The destination of an export that is written strictly from beginning to end.
#[cfg(feature = "parquet")]
pub(crate) enum Output {
    File(Box<OutputFile>),
    Stream {
        to: Box<dyn Write + Send>,
        /// Bytes written so far.
        bytes: u64,
    },
}

#[cfg(feature = "parquet")]
impl Output {
    pub(crate) fn stream(to: Box<dyn Write + Send>) -> Self {
        Self::Stream { to, bytes: 0 }
    }

    /// The destination's name in error messages.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(file) => file.path(),
            Self::Stream { .. } => Path::new("the stream"),
        }
    }

    /// Completes the destination, and gives a file its name. Returns the path (`None` for a stream)
    /// and the number of bytes written.
    pub(crate) fn commit(self) -> Result<(Option<PathBuf>, u64)> {
        match self {
            Self::File(file) => {
                let path = file.path().to_owned();
                Ok((Some(path), commit(*file)?))
            }
            Self::Stream { mut to, bytes } => {
                to.flush().map_err(|error| io_error("write", Path::new("the stream"), error))?;
                Ok((None, bytes))
            }
        }
    }
}

#[cfg(feature = "parquet")]
impl Write for Output {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(text),
            Self::Stream { to, bytes } => {
                let written = to.write(text)?;
                *bytes += written as u64;
                Ok(written)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stream { to, .. } => to.flush(),
        }
    }
}

/// Makes a file durable and gives it its name. Returns its length.
pub(crate) fn commit(file: OutputFile) -> Result<u64> {
    let bytes = file.sync()?;
    file.publish()?;
    Ok(bytes)
}

/// Returns the absolute path, with all links of the directory resolved. If the file's name itself
/// is a link, the link stays in the path. An export resolves its path once, at the start. It
/// therefore writes to that place even if the working directory or a link changes meanwhile.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::unusable_output(path, "names no file"));
    };
    let directory = directory(path);
    let found = directory.canonicalize();
    found.map(|found| found.join(name)).map_err(|error| io_error("create", path, error))
}

/// Names in a bank's directory that the bank uses itself.
const BANK_NAMES: [&str; 5] = ["BANK", "BANK.new", "LOCK", "log", "checkpoints"];

/// Fails if `path` is among the files of the exported bank, directly or through links.
pub(crate) fn refuse_within_bank(path: &Path, bank: &Path) -> Result<()> {
    let bank = bank.canonicalize().map_err(|error| io_error("look at", bank, error))?;
    let is_own = |path: &Path| {
        let within = path.strip_prefix(&bank).ok().and_then(|path| path.iter().next());
        within.is_some_and(|name| BANK_NAMES.iter().any(|own| name == *own))
    };
    // If the name can't be a file, the error comes later, when the file is created.
    let target = embank_kv::output_path(path).unwrap_or_default();
    if !is_own(path) && !is_own(&target) {
        return Ok(());
    }
    let why = "is among the files of the bank that is exported; give another path";
    Err(Error::unusable_output(path, why))
}

/// Removes a file durably, if it exists. If `path` is a symbolic link to the file, the link stays.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let target = embank_kv::output_path(path)?;
    match std::fs::remove_file(&target) {
        Ok(()) => sync_directory(&target),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("remove", path, error)),
    }
}

/// Returns the free bytes of the file system that contains `path`.
pub(crate) fn free_bytes(path: &Path) -> Result<u64> {
    let target = embank_kv::output_path(path)?;
    let directory = directory(&target);
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
    fn a_path_is_resolved_through_links_of_directories_and_not_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        let link = dir.path().join("link");
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
