//! Names of segment files.

use crate::files::directory::Directory;
use crate::files::directory::Place;
use std::ffi::OsStr;
use std::sync::Arc;

pub(crate) const FOLDER: &str = "log";

/// Extension of a copy of a segment file that `make_own` has not finished.
pub(crate) const UNFINISHED: &str = "new";

pub(crate) fn segment_name(first: u64) -> String {
    format!("{first:016x}.seg")
}

/// Returns the segment file that begins at log offset `first`, in the bank `dir`.
pub(crate) fn segment_place(dir: &Arc<Directory>, first: u64) -> Place {
    dir.place(FOLDER).join(segment_name(first))
}

/// Returns the log offset of a segment file's first byte, according to its name. `None` if `name`
/// is not the name of a segment file.
pub(crate) fn first_offset(name: &OsStr) -> Option<u64> {
    offset_of(name, "seg")
}

/// True if the file has a segment's name.
pub(crate) fn is_segment(name: &OsStr) -> bool {
    first_offset(name).is_some()
}

/// True for the name of a file that `make_own` has not finished.
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    offset_of(name, UNFINISHED).is_some()
}

pub(crate) fn offset_of(name: &OsStr, extension: &str) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(extension)?.strip_suffix('.')?;
    let are_digits = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if digits.len() == 16 && are_digits { u64::from_str_radix(digits, 16).ok() } else { None }
}
