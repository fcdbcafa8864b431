//! Where rows come from, and how they are cut into chunks.
//!
//! A chunk is a range of bytes. Packed rows are all of one length, so ranges begin and end with
//! them. The lines of a text chunk are those that *begin* in the range. So threads claim ranges by
//! adding to a counter, and find out on their own where their first line begins and their last one
//! ends: no thread has to read all of the input first. Inputs that can't be read from any place are
//! read by the thread that claims ([`crate::input::stream`]). An input is opened when its turn
//! comes ([`chunks`]), and closed when its last chunk is done.

mod begin;
mod chunks;
mod open;
mod stream;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

pub(crate) use chunks::{ChunkRows, Chunks, Claim};
pub(crate) use stream::RowEnds;

/// Rows of a pipeline: in memory or in a file.
///
/// # Examples
/// ```
/// use embank_pipeline::Input;
///
/// let input = Input::memory("two rows", b"1\t2\n3\t4\n");
/// assert_eq!(input.name(), "two rows");
/// ```
#[derive(Debug, Clone)]
pub struct Input<'a> {
    name: String,
    from: Origin<'a>,
}

#[derive(Debug, Clone)]
enum Origin<'a> {
    Memory(&'a [u8]),
    File(PathBuf),
}

impl<'a> Input<'a> {
    /// Rows in memory; errors call them by `name`. Text may be compressed by gzip or zstd.
    #[must_use]
    pub fn memory(name: impl Into<String>, text: &'a [u8]) -> Self {
        Self { name: name.into(), from: Origin::Memory(text) }
    }

    /// A file, a folder of files ([`expand`](Self::expand)), or a pipe, which can be read only
    /// once. It may be compressed by gzip or zstd: its name ends with `.gz`, `.gzip`, `.zst` or
    /// `.zstd`, or it is text and its first bytes say so. A relative path is one of the working
    /// directory of now.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let name = path.display().to_string();
        // An empty path has no absolute one: opening it says so.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { name, from: Origin::File(path) }
    }

    /// Whether a second run finds nothing more in it.
    pub(crate) fn is_pipe(&self) -> bool {
        match &self.from {
            Origin::Memory(_) => false,
            // A folder is no input; opening it gives the error.
            Origin::File(path) => {
                path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
            }
        }
    }

    /// These inputs, with the files of each folder in its place, sorted by name. Files whose names
    /// begin with `_` or `.` are left out, as those are that Spark and others put beside their
    /// output. Runs do so themselves.
    ///
    /// # Errors
    /// [`Error::Inputs`] for a folder without a file, and for one with a folder in it, whose files
    /// would be passed over.
    pub fn expand(inputs: &[Self]) -> Result<Vec<Self>> {
        let mut all = Vec::with_capacity(inputs.len());
        for input in inputs {
            match &input.from {
                Origin::File(path) if path.is_dir() => all.extend(files_of(&input.name, path)?),
                _ => all.push(input.clone()),
            }
        }
        Ok(all)
    }

    /// Where it lies; `None` for rows in memory.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.from {
            Origin::Memory(_) => None,
            Origin::File(path) => Some(path),
        }
    }

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is there: a name that is misspelt is told before the inputs in front of it are
    /// read.
    fn check(&self) -> Result<()> {
        let Origin::File(path) = &self.from else { return Ok(()) };
        let io = |source| Error::Io { doing: "open", path: PathBuf::from(&self.name), source };
        if path.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        Ok(())
    }
}

/// The files of a folder, as inputs.
fn files_of<'a>(name: &str, folder: &Path) -> Result<Vec<Input<'a>>> {
    let io = |source| Error::Io { doing: "read", path: PathBuf::from(name), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let file = entry.map_err(io)?.file_name();
        if matches!(file.as_encoded_bytes().first(), Some(b'_' | b'.')) {
            continue;
        }
        let path = Path::new(name).join(&file);
        if folder.join(&file).is_dir() {
            return Err(Error::Inputs(format!(
                "{name} has the folder {} in it, and a folder means the files that lie in it: give each folder of files \
                 by itself",
                path.display()
            )));
        }
        files.push((file, path));
    }
    if files.is_empty() {
        return Err(Error::Inputs(format!(
            "{name} is a folder without a file whose name begins with neither _ nor ."
        )));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| Input::file(path)).collect())
}

/// A name for an error or a report, without its bytes that are no text.
pub(crate) fn shown(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
