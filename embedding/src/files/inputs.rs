//! Lists the files of an import: one file, several files, or the files of a directory.

use std::path::{Path, PathBuf};

use super::{FileFormat, io_error, unreadable};
use crate::error::{Result, StoreError};

/// A file and its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) format: FileFormat,
}

/// Returns the files that `paths` stand for, in order. A directory, such as Spark and Dask write,
/// stands for the files in it, sorted by name. Leaves out files whose names begin with `_` or `.`,
/// such as `_SUCCESS`.
///
/// # Errors
/// No file was found, a directory contains several formats, or a directory contains npy files. A
/// table in npy is several files, so a directory does not show which files belong together.
pub(crate) fn expand<P: AsRef<Path>>(
    paths: &[P],
    format: Option<FileFormat>,
) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if path.is_dir() {
            sources.extend(in_directory(path, format)?);
        } else {
            let format = format.map_or_else(|| FileFormat::of_path(path), Ok)?;
            sources.push(Source { path: path.to_owned(), format });
        }
    }
    if sources.is_empty() {
        let what = "an import needs a file, and the list of files is empty".to_owned();
        return Err(StoreError::InvalidArgument(what).into());
    }
    Ok(sources)
}

fn in_directory(directory: &Path, format: Option<FileFormat>) -> Result<Vec<Source>> {
    let look = |error| io_error("read", directory, error);
    let mut sources: Vec<Source> = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(look)? {
        let entry = entry.map_err(look)?;
        if matches!(entry.file_name().as_encoded_bytes().first(), Some(b'_' | b'.')) {
            continue;
        }
        let path = entry.path();
        if path.is_dir() {
            let what = format!(
                "{} in it is a directory; import the directories one by one",
                path.display()
            );
            return Err(unreadable(directory, what));
        }
        let format = format.map_or_else(|| FileFormat::of_path(&path), Ok)?;
        sources.push(Source { path, format });
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let Some(first) = sources.first() else {
        return Err(unreadable(directory, "it is a directory without a file to import"));
    };
    if first.format == FileFormat::Npy {
        let what = "a table in npy is several files, so a directory of them does not tell its tables; name the files";
        return Err(unreadable(directory, what));
    }
    if let Some(other) = sources.iter().find(|source| source.format != first.format) {
        let what = format!(
            "{} and {} in it are of different formats; name the files that are meant",
            first.path.display(),
            other.path.display()
        );
        return Err(unreadable(directory, what));
    }
    Ok(sources)
}
