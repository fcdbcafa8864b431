//! Lists the segment files of a log and the files of parts, and says which names an opening
//! refuses.

use std::ffi::OsString;
use std::io;

use rustix::fs::{FileType, Stat};

use crate::device::placement::{file_bytes_max, is_of_part};
use crate::device::segments::names::first_offset;
use crate::files::directory::Place;

/// A name in the folder `log` that has the form of a segment's or a part's.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) place: Place,
    /// Log offset of the file's first byte.
    pub(crate) first: u64,
    /// Length of the file in bytes. 0 if the name is a symbolic link that leads nowhere.
    pub(crate) len: u64,
    /// Why the name can't be a segment of this log, and the cure. `None` if it can.
    pub(crate) refused: Option<String>,
}

/// Returns the entries of a folder whose names have the form of a segment's, in ascending order. A
/// name that another process has removed after the listing is left out.
pub(crate) fn list(
    names: Vec<OsString>,
    place: impl Fn(OsString) -> Place,
    segment_bytes: u64,
) -> std::result::Result<Vec<Listed>, (Place, io::Error)> {
    let mut found = Vec::new();
    for name in names {
        let Some(first) = first_offset(&name) else { continue };
        let place = place(name);
        match look(&place, first, segment_bytes) {
            Ok(Some((len, refused))) => found.push(Listed { place, first, len, refused }),
            Ok(None) => {}
            Err(error) => return Err((place, error)),
        }
    }
    found.sort_unstable_by_key(|listed| listed.first);
    Ok(found)
}

/// Returns the length of a file, and why it can't be a segment. `None` if the name is gone.
fn look(
    place: &Place,
    first: u64,
    segment_bytes: u64,
) -> io::Result<Option<(u64, Option<String>)>> {
    let own = match place.own_stat() {
        Ok(own) => own,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let kind = FileType::from_raw_mode(own.st_mode);
    let found = match kind {
        FileType::Symlink => place.stat().ok(),
        _ => Some(own),
    };
    let len = found.as_ref().map_or(0, |found| found.st_size.cast_unsigned());
    let is_file = |found: &Stat| FileType::from_raw_mode(found.st_mode).is_file();
    let (of, most) = match is_of_part(first) {
        true => ("part", file_bytes_max(first, segment_bytes)),
        false => ("segment", segment_bytes),
    };
    let refused = if !first.is_multiple_of(most) {
        Some(format!("has a name that is no multiple of the {of} size, {most} bytes"))
    } else if found.as_ref().is_some_and(|found| !is_file(found)) {
        Some("is no regular file".to_owned())
    } else if len > most {
        Some(format!("has {len} bytes, and a {of} has at most {most}"))
    } else {
        None
    };
    let cure = "it is no part of this log. If another program made it, move it out of this folder";
    Ok(Some((len, refused.map(|what| format!("{what}: {cure}")))))
}
