//! Exports and imports of tables in formats that other programs read: safetensors, npy and Parquet.
//!
//! **Problem.** A table is larger than memory, training continues during the export, and the reader
//! of the file has no Embank. An imported file comes from another program, may be damaged, and may
//! be larger than memory too.
//!
//! **Approach.** *Export*: a scan returns the rows of the newest checkpoint. The number of rows is
//! known before the first row, so the place of every column in the file is known too. The export
//! writes each batch of rows to its place in every column (`tensors`). Parquet uses row groups of
//! bounded size instead. The file gets its name once it is complete and on stable storage
//! (`output`). *Import*: an import first checks the file's header against the file's length. Then
//! it reads, converts, checks and puts the rows, batch by batch.
//!
//! **Memory.** An export or import holds one batch in memory, some MiB. The scan of an export also
//! borrows pages from the bank's memory budget.
//!
//! | format | keys | vectors | state |
//! |---|---|---|---|
//! | safetensors | tensor `keys` | tensor `rows` | tensor `state` |
//! | npy, for `x.npy` | `x.keys.npy` | `x.rows.npy` | `x.state.npy`; see `npy_set` |
//! | Parquet | column `key` | column `vector` | column `state` |
//!
//! If the table tracks uses and the export writes state, each format has two more columns of u32:
//! `last_used` and `uses`.
//!
//! A dense file has no keys: row i is the row of key i, as in state dicts of PyTorch. In npy, a
//! dense table is the single file `x.npy`. In safetensors, int8 vectors also have a tensor
//! `scales`; see [`batch::parts_of`].

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

use crate::error::{Error, Result, StoreError};

/// File formats of exports and imports.
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
    /// NumPy's format, one array per file. `user.npy` stands for the files `user.keys.npy`,
    /// `user.rows.npy` and `user.state.npy`. A further file, `user.embank.json`, lists them and
    /// holds the table's settings. A dense table without state and uses is the single file
    /// `user.npy`.
    Npy,
    /// Columns `key`, `vector` and `state`, with the table's settings in its metadata.
    Parquet,
}

impl FileFormat {
    /// Returns the format that a file's suffix names: `.safetensors`, `.npy` or `.parquet`, in
    /// upper or lower case.
    ///
    /// # Errors
    /// [`InvalidOption`](crate::StoreError::InvalidOption) for any other suffix.
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
    StoreError::io(operation, path, source).into()
}

/// Makes the error for a file that is damaged or has unsuitable content.
pub(crate) fn unreadable(path: &Path, what: impl Into<String>) -> Error {
    Error::UnreadableFile { path: path.to_owned(), what: what.into() }
}

/// Makes the error for a readable file whose rows do not fit the importing table.
pub(crate) fn file_mismatch(path: &Path, what: impl Into<String>) -> Error {
    Error::FileMismatch { path: path.to_owned(), what: what.into() }
}

/// Opens a file for reading, and returns the file and its length.
pub(crate) fn open_to_read(path: &Path) -> Result<(File, u64)> {
    // Checks that the path is a regular file before opening it. Opening a FIFO would block until
    // another program opens the FIFO to write.
    let found = std::fs::metadata(path).map_err(|error| io_error("open", path, error))?;
    if !found.is_file() {
        return Err(unreadable(path, "it is no regular file; write what comes of it to one first"));
    }
    let file = File::open(path).map_err(|error| io_error("open", path, error))?;
    let metadata = file.metadata().map_err(|error| io_error("look at", path, error))?;
    Ok((file, metadata.len()))
}

/// Makes the error for Parquet in a program that is built without it.
#[cfg(not(feature = "parquet"))]
pub(crate) fn no_parquet() -> Error {
    let why =
        "was built without Parquet; build it with the cargo feature `parquet`, or take safetensors";
    StoreError::WrongKind { of: "this program".to_owned(), why: why.to_owned() }.into()
}
