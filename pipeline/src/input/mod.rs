//! Reads the inputs and cuts them into chunks.
//!
//! A chunk is a range of bytes. Packed rows have one length, so a range starts and ends at a row. A
//! chunk of text has the lines that *begin* in its range. Threads claim ranges by advancing an
//! offset. The thread that has claimed a range finds its first and last line itself, so no thread
//! has to read the whole input first. If an input can only be read from the beginning, the claiming
//! thread reads the next chunk while it claims it ([`crate::input::stream`]). An input is opened
//! when its first chunk is claimed ([`chunks`]), and closed after its last chunk.

mod begin;
mod chunks;
mod count;
#[cfg(feature = "parquet")]
mod meanings;
mod open;
mod pass;
mod split;
mod stream;
mod table_format;
mod unchanged;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::Format;

pub(crate) use chunks::{ChunkRows, Chunks, Claim};
pub(crate) use count::RowCounts;
pub(crate) use split::split;
pub(crate) use stream::RowEnds;
pub(crate) use unchanged::FileStates;

/// Largest depth of folders in a folder. A link that leads back to a folder above it has no end.
const FOLDER_DEPTH_MAX: usize = 16;

/// Rows for a pipeline: in memory, in a file, or from standard input.
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
    Part(FilePart),
    StandardInput,
}

/// A part of a file ([`split()`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePart {
    pub(crate) path: PathBuf,
    /// The part's bytes of a text, or its row groups of a Parquet file. A compressed text and an
    /// Arrow file are not divided: the range is that of all bytes.
    pub(crate) range: std::ops::Range<u64>,
    /// The file's length when it was split.
    pub(crate) file_bytes: u64,
    /// The file's time of change when it was split, in nanoseconds since 1970.
    pub(crate) modified_ns: i64,
    /// The format of all files of the split.
    pub(crate) format: Format,
}

impl<'a> Input<'a> {
    /// Makes an input of rows in memory. Errors show `name`. Text may be compressed by gzip or
    /// zstd.
    #[must_use]
    pub fn memory(name: impl Into<String>, text: &'a [u8]) -> Self {
        Self { name: name.into(), from: Origin::Memory(text) }
    }

    /// Makes an input of a file, a folder of files ([`expand`](Self::expand)), or a pipe. A pipe
    /// can be read only once. The extensions `.gz`, `.gzip`, `.zst` and `.zstd` mean compression by
    /// gzip or zstd. In text, the first bytes also show the compression. A relative path is
    /// resolved in the working directory of this call.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let name = path.display().to_string();
        // An empty path has no absolute form. It is kept, and opening it fails.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { name, from: Origin::File(path) }
    }

    /// Makes an input of the process's standard input, which can be read only once, as a pipe can.
    /// The run reads it from its present place to its end, so nothing else may read it meanwhile.
    /// Its name selects no format, and its first bytes show a compression of text.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::Input;
    ///
    /// assert_eq!(Input::standard_input().name(), "standard input");
    /// ```
    #[must_use]
    pub fn standard_input() -> Self {
        Self { name: "standard input".to_owned(), from: Origin::StandardInput }
    }

    /// Makes an input of a part of a file. It must be the only input of its run.
    pub(crate) fn part(part: FilePart) -> Self {
        let mut name = part.path.display().to_string();
        let unit = if part.format == Format::Columns { "row group" } else { "byte" };
        if part.range.start > 0 {
            name += &format!(" from {unit} {}", part.range.start);
        }
        Self { name, from: Origin::Part(part) }
    }

    /// Returns this input with its absolute path as its name. A part names its file so, because
    /// workers have other working directories.
    pub(crate) fn named_by_path(&self) -> Self {
        let name = self.path().map(|path| path.display().to_string());
        Self { name: name.unwrap_or_else(|| self.name.clone()), from: self.from.clone() }
    }

    /// The format of a part of a file. `None` for other inputs.
    pub(crate) fn format_of_part(&self) -> Option<Format> {
        match &self.from {
            Origin::Part(part) => Some(part.format),
            _ => None,
        }
    }

    /// True if the input can be read only once.
    pub(crate) fn is_pipe(&self) -> bool {
        match &self.from {
            Origin::Memory(_) | Origin::Part(_) => false,
            // A file that is the standard input is read as a pipe is, from its present place on.
            Origin::StandardInput => true,
            // A folder is not a pipe. Opening a folder fails with its own error.
            Origin::File(path) => {
                path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
            }
        }
    }

    /// Replaces each folder by its files and the files of folders in it, in the order of their
    /// names. Files and folders whose names begin with `_` or `.` are left out, because Spark and
    /// other programs write such files beside their output. Each run expands its inputs, so a
    /// caller does not need to.
    ///
    /// # Errors
    /// [`Error::Inputs`] for a folder without files, and for folders that lie more than 16 deep.
    /// Also for a folder of a table format, such as Delta Lake: the format's log says which files
    /// count.
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

    /// The input's path. `None` for rows in memory and for standard input.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.from {
            Origin::Memory(_) | Origin::StandardInput => None,
            Origin::File(path) | Origin::Part(FilePart { path, .. }) => Some(path),
        }
    }

    /// The input's length. 0 for a pipe, whose length the system does not know.
    pub(crate) fn bytes(&self) -> Result<u64> {
        let path = match &self.from {
            Origin::Memory(text) => return Ok(text.len() as u64),
            Origin::StandardInput => return Ok(0),
            Origin::Part(part) => return Ok(part.range.end - part.range.start),
            Origin::File(path) => path,
        };
        let metadata = path.metadata();
        let io = |source| Error::Io { doing: "open", path: PathBuf::from(&self.name), source };
        let metadata = metadata.map_err(io)?;
        Ok(if metadata.is_file() { metadata.len() } else { 0 })
    }

    /// The input's name in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Fails if standard input is given more than once: the second time there are no rows left.
    fn check_once(inputs: &[Self]) -> Result<()> {
        let is_standard = |input: &&Self| matches!(input.from, Origin::StandardInput);
        match inputs.iter().filter(is_standard).count() {
            0 | 1 => Ok(()),
            given => Err(Error::Inputs(format!(
                "standard input is given {given} times, and can be read only once: give it once"
            ))),
        }
    }

    /// Fails if a file does not exist. A run first checks all inputs. Otherwise a misspelt name
    /// could end the run after hours.
    fn check(&self) -> Result<()> {
        let Origin::File(path) = &self.from else { return Ok(()) };
        let io = |source| Error::Io { doing: "open", path: PathBuf::from(&self.name), source };
        if path.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        Ok(())
    }
}

/// Returns the files of a folder and of the folders in it as inputs.
fn files_of<'a>(name: &str, folder: &Path) -> Result<Vec<Input<'a>>> {
    let mut files = Vec::new();
    add_files(Path::new(name), folder, FOLDER_DEPTH_MAX, &mut files)?;
    if files.is_empty() {
        return Err(Error::Inputs(format!(
            "{name} is a folder without a file whose name begins with neither _ nor ."
        )));
    }
    Ok(files)
}

/// Adds the files of a folder, and of folders in it to the depth `depth`, in the order of their
/// names.
fn add_files(name: &Path, folder: &Path, depth: usize, files: &mut Vec<Input<'_>>) -> Result<()> {
    let io = |source| Error::Io { doing: "read", path: name.to_owned(), source };
    if let Some(format) = table_format::table_format(folder) {
        return Err(Error::Inputs(format!(
            "{} is a folder of {format}, whose log says which of the files count: others hold rows that were removed or \
             never committed; give the files that the format's own reader lists, or write the table to a folder of plain \
             files",
            name.display()
        )));
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let (kind, name) = (entry.file_type().map_err(io)?, entry.file_name());
        let is_skipped = match name.as_encoded_bytes() {
            [b'.', ..] => true,
            // A folder of a partition counts, also if the column's name begins with `_`.
            [b'_', rest @ ..] => !(kind.is_dir() && rest.contains(&b'=')),
            _ => false,
        };
        if !is_skipped {
            entries.push((name, kind.is_symlink()));
        }
    }
    entries.sort();
    for (entry, is_link) in entries {
        let (name, path) = (name.join(&entry), folder.join(&entry));
        if !path.is_dir() {
            files.push(Input { name: name.display().to_string(), from: Origin::File(path) });
        } else if is_link {
            return Err(Error::Inputs(format!(
                "{} is a link to a folder, whose rows would come twice if the folder is an input too; remove the link, or \
                 give the folders of files by themselves",
                name.display()
            )));
        } else if depth == 0 {
            return Err(Error::Inputs(format!(
                "{} lies more than {FOLDER_DEPTH_MAX} folders deep; give the folders of files by themselves",
                name.display()
            )));
        } else {
            add_files(&name, &path, depth - 1, files)?;
        }
    }
    Ok(())
}

/// Converts bytes to text for a message; bytes that are no UTF-8 are replaced.
pub(crate) fn shown(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
