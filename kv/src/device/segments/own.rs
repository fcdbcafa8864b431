//! Changes segment files only if they belong to this bank alone.
//!
//! A file with a second name (hard link) or behind a symbolic link also belongs to a copy of the
//! bank, or to another program. The store may remove its own name of such a file, but changes no
//! byte of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::OFlags;

use crate::device::segments::names::UNFINISHED;
use crate::error::{Error, Result};
use crate::files::directory::Place;
use crate::process::new_id::new_id;

/// True if a file has a second name or is behind a symbolic link.
pub(super) fn is_shared(place: &Place) -> Result<bool> {
    place.is_shared().map_err(|e| Error::io("stat", place, e))
}

/// True if an open file is a regular file with one name.
pub(super) fn is_own(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    Ok(found.is_file() && found.nlink() <= 1)
}

/// True if this process has no permission to write to the file, because another user owns it.
pub(super) fn is_another_users(place: &Place) -> bool {
    let opened = place.open_with(OFlags::RDWR | OFlags::NOFOLLOW);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Removes a file after the log's end. If it can't be removed, cuts it to length 0, because the log
/// will write it again. Fails if it can't be removed and does not belong to this bank alone.
pub(super) fn remove_or_empty(place: &Place) -> io::Result<()> {
    place.remove_file().or_else(|refused| {
        let opened = place.open_with(OFlags::RDWR | OFlags::NOFOLLOW);
        match opened {
            Ok(file) if is_own(&file)? => {
                file.set_len(0)?;
                file.sync_all()
            }
            _ => Err(refused),
        }
    })
}

/// Replaces a file by a copy of its first `bytes` bytes. On return the content is durable; the new
/// name is not.
pub(super) fn make_own(place: &Place, bytes: u64) -> io::Result<()> {
    use std::io::Read as _;
    // The name is random, so no file or directory of another program has it.
    let unfinished = place.directory().place(format!("{:016x}.{UNFINISHED}", new_id()));
    let copy = || -> io::Result<()> {
        let mut copy = unfinished.create_new()?;
        if bytes > 0 {
            io::copy(&mut place.open()?.take(bytes), &mut copy)?;
        }
        copy.sync_all()?;
        unfinished.rename(place)
    };
    copy().inspect_err(|_| {
        // If the removal fails, the next opening of the bank removes the file.
        let _ = unfinished.remove_file();
    })
}
