//! Which tensors, columns or files of an import are keys and vectors.
//!
//! **An import never guesses.** A row that goes in under a key that is not its own is a silent loss
//! of two rows. So:
//!
//! - What has the name of a part ([`KEYS`], [`ROWS`], `state`, `scales`) is that part, or the file
//!   is refused.
//! - Row i is the row of key i only where the caller asks for it (`first_key`), where Embank wrote
//!   the file as a dense table, or where nothing in the file could be keys: the vectors are its
//!   only column of that length.
//! - Where several things may be meant, the caller names one.

use std::path::Path;

use super::batch::Wanted;
use super::unreadable;
use crate::error::Result;

/// The names of keys, the usual one of each format among them.
pub(crate) const KEYS: [&str; 2] = ["keys", "key"];
/// The names of vectors.
pub(crate) const ROWS: [&str; 2] = ["rows", "vector"];
pub(crate) const STATE: &str = "state";
pub(crate) const SCALES: &str = "scales";

/// What keys are, and what to do about others.
pub(crate) const KEY_CURE: &str = "integers of 8 to 64 bits; write them as int64, name other keys with `keys`, or import by \
                                   position with `first_key`";

/// What the caller asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection<'a> {
    /// The name of the keys.
    pub(crate) keys: Option<&'a str>,
    /// The name of the vectors.
    pub(crate) rows: Option<&'a str>,
    /// By position: row i is the row of this key plus i.
    pub(crate) first_key: Option<u64>,
    pub(crate) wanted: Wanted,
}

/// The one of `names` that a file has.
///
/// # Errors
/// It has two of them.
pub(crate) fn one_of(
    path: &Path,
    option: &str,
    names: &[&'static str],
    has: impl Fn(&str) -> bool,
) -> Result<Option<&'static str>> {
    let mut found = names.iter().copied().filter(|name| has(name));
    match (found.next(), found.next()) {
        (one, None) => Ok(one),
        (Some(one), Some(other)) => Err(unreadable(
            path,
            format!(
                "it has both {one:?} and {other:?}; name the one that is meant with `{option}`"
            ),
        )),
        (None, Some(_)) => unreachable!("an iterator that ended"),
    }
}

/// Refuses rows by position where something else in the file may be their keys.
pub(crate) fn refuse_by_position<T>(path: &Path, may_be_keys: &str) -> Result<T> {
    Err(unreadable(
        path,
        format!(
            "it names no keys, but has {may_be_keys}, which may be them; name the keys with `keys`, or import by \
             position with `first_key`: 0 gives row i to key i"
        ),
    ))
}

/// Refuses state of which the file doesn't tell that it belongs to `vectors`.
pub(crate) fn refuse_state<T>(path: &Path, vectors: &str) -> Result<T> {
    Err(unreadable(
        path,
        format!(
            "it has {STATE:?}, which belongs to vectors of the name {:?} or {:?}, and not to {vectors:?}; import without \
             the state, or rename the vectors",
            ROWS[0], ROWS[1]
        ),
    ))
}

/// Refuses rows by position beyond the last key.
pub(crate) fn check_first_key(path: &Path, first: u64, rows: u64) -> Result<()> {
    if rows == 0 || first.checked_add(rows - 1).is_some() {
        return Ok(());
    }
    let what = format!("{rows} rows from key {first} on would go beyond the last key, 2^64 - 1");
    Err(unreadable(path, what))
}

/// Appends `count` keys from `first` on.
pub(crate) fn append_positions(first: u64, count: usize, keys: &mut Vec<u64>) {
    keys.extend((0..count as u64).map(|i| first + i));
}
