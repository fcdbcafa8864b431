//! Tables in files that other programs read: safetensors, npy and Parquet.
//!
//! **Problem.** A table is larger than memory, training continues during the export, and the reader
//! of the file has no Embank. Imported files come from other programs, may be damaged, and may be
//! larger than memory too.
//!
//! **Approach.** *Export*: a scan returns the newest checkpoint's rows, and their number is known
//! before the first row. So the places of all columns in the file are known too, and each batch of
//! rows goes to its place in every column (`tensors`). Parquet has row groups of bounded size in
//! place of that. The file gets its name when it is complete and on stable storage (`output`).
//! *Import*: the header is checked against the file's length before it is used. Then batches of
//! rows are read, converted, checked and put.
//!
//! **Memory.** Both directions take the memory of a batch, some MiB. A scan borrows more from the
//! bank's budget.
//!
//! | format | keys | vectors | state |
//! |---|---|---|---|
//! | safetensors | tensor `keys` | tensor `rows` | tensor `state` |
//! | npy, for `x.npy` | `x.keys.npy` | `x.rows.npy` | `x.state.npy`; see `npy_set` |
//! | Parquet | column `key` | column `vector` | column `state` |
//!
//! A table that tracks uses has two more columns of u32, `last_used` and `uses`, in each format.
//!
//! A dense file has no keys: row i is the row of key i, as in state dicts of PyTorch. As npy it is
//! the one file `x.npy`. Vectors of int8 have a tensor `scales` too in safetensors; see
//! [`batch::parts_of`].

mod as_exported;
pub(crate) mod batch;
pub(crate) mod element;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod inputs;
pub(crate) mod npy;
pub(crate) mod npy_set;
pub(crate) mod output;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
pub(crate) mod safetensors;
pub(crate) mod selection;
pub(crate) mod settings;
pub(crate) mod tensors;

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Result};

/// The formats of exports and imports.
///
/// # Examples
/// ```
/// use embank::FileFormat;
///
/// assert_eq!(FileFormat::of_path("user.safetensors")?, FileFormat::Safetensors);
/// assert!(FileFormat::of_path("user.csv").is_err());
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// Tensors `keys`, `rows` and `state` in one file, with the table's settings in its metadata.
    Safetensors,
    /// NumPy's format. For `user.npy` there are the files `user.keys.npy`, `user.rows.npy` and
    /// `user.state.npy`, with their list and the table's settings in `user.embank.json`. A dense
    /// table without state and uses is `user.npy` alone.
    Npy,
    /// Columns `key`, `vector` and `state`, with the table's settings in its metadata.
    Parquet,
}

impl FileFormat {
    /// The format of a file's suffix: `.safetensors`, `.npy` or `.parquet`, in upper or lower case.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for another one.
    pub fn of_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let suffix = path.extension().and_then(|suffix| suffix.to_str());
        match suffix.map(str::to_ascii_lowercase).as_deref() {
            Some("safetensors") => Ok(Self::Safetensors),
            Some("npy") => Ok(Self::Npy),
            Some("parquet") => Ok(Self::Parquet),
            _ => Err(Error::option(
                "format",
                format!(
                    "of {} does not follow from the file's suffix (.safetensors, .npy or .parquet); name the file so, or \
                     give the format",
                    path.display()
                ),
            )),
        }
    }
}

pub(crate) fn io_error(operation: &'static str, path: &Path, source: std::io::Error) -> Error {
    embank_kv::Error::Io { operation, path: path.to_owned(), source }.into()
}

/// A file whose content is wrong.
pub(crate) fn unreadable(path: &Path, what: impl Into<String>) -> Error {
    Error::UnreadableFile { path: path.to_owned(), what: what.into() }
}

/// A readable file whose rows do not fit the table of the import.
pub(crate) fn file_mismatch(path: &Path, what: impl Into<String>) -> Error {
    Error::FileMismatch { path: path.to_owned(), what: what.into() }
}

/// Opens a file to read, and returns its length.
pub(crate) fn open_to_read(path: &Path) -> Result<(File, u64)> {
    // The look comes first, because the open of a FIFO would wait for its writer.
    let found = std::fs::metadata(path).map_err(|error| io_error("open", path, error))?;
    if !found.is_file() {
        return Err(unreadable(path, "it is no regular file; write what comes of it to one first"));
    }
    let file = File::open(path).map_err(|error| io_error("open", path, error))?;
    let metadata = file.metadata().map_err(|error| io_error("look at", path, error))?;
    Ok((file, metadata.len()))
}

/// Stands for Parquet in a program that is built without it.
#[cfg(not(feature = "parquet"))]
pub(crate) fn no_parquet() -> Error {
    let why =
        "was built without Parquet; build it with the cargo feature `parquet`, or take safetensors";
    Error::WrongKind { of: "this program".to_owned(), why: why.to_owned() }
}
