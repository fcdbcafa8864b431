//! Opens the directory of a bank. Creates a missing directory durably.

use crate::checkpoint::bank_file::BankFile;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::process::descriptors;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Opens a directory. If it is missing, creates it and makes its name durable.
pub(crate) fn create_dir_durably(dir: &Path) -> Result<Arc<Directory>> {
    if std::fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
        return Err(not_a_directory(dir));
    }
    if dir.is_symlink() && !dir.exists() {
        let why = "it is a symbolic link that leads nowhere; make the directory that it leads to, or give another path";
        return Err(Error::NotABank { path: dir.to_owned(), why: why.to_owned() });
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
    let opened = Directory::open(dir).map_err(|e| Error::io("open", dir, e))?;
    // An existing directory without a bank is synced too. A process may have created it and been
    // killed before it synced the directory's name.
    if BankFile::is_in(opened.path()) {
        return Ok(opened);
    }
    // The name of each new directory lies in its parent. The loop syncs all parents, because that
    // costs little and happens only once.
    for parent in opened.path().ancestors().skip(1) {
        match descriptors::open(parent).and_then(|parent| parent.sync_all()) {
            Err(e) if holds_nothing_new(e.kind()) => break,
            synced => synced.map_err(|e| Error::io("sync", parent, e))?,
        }
    }
    Ok(opened)
}

/// Opens the directory of an existing bank. Fails if there is no directory.
pub(crate) fn open_bank_dir(dir: &Path) -> Result<Arc<Directory>> {
    Directory::open(dir).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            Error::NotABank { path: dir.to_owned(), why: "there is no such directory".to_owned() }
        }
        ErrorKind::NotADirectory => not_a_directory(dir),
        _ => Error::io("open", dir, e),
    })
}

pub(crate) fn not_a_directory(dir: &Path) -> Error {
    // `file` is the path that is not a directory: `dir` itself or an ancestor of `dir`.
    let is_file = |path: &&Path| path.metadata().is_ok_and(|found| !found.is_dir());
    let file = dir.ancestors().find(is_file).unwrap_or(dir);
    let why = format!(
        "{} is a file; a bank is a directory. Give another path, or remove the file",
        if file == dir { "it".into() } else { file.to_string_lossy() }
    );
    Error::NotABank { path: dir.to_owned(), why }
}

/// True if a parent that could not be synced needs no sync. Either the process may not write in the
/// parent and so created nothing there, or the file system can't sync directories.
fn holds_nothing_new(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::InvalidInput
            | ErrorKind::Unsupported
    )
}
