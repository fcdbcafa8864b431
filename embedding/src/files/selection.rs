//! Chooses the tensors, columns or files of an import that are keys and vectors.
//!
//! **An import never guesses.** A row under a wrong key silently loses two rows. So:
//!
//! - A tensor or column with the name of a part ([`KEYS`], [`ROWS`], `state`, `scales`) is that
//!   part, or the file is refused.
//! - Row i is the row of key i in three cases only: the caller asks for it (`first_key`); Embank
//!   wrote the file as a dense table; or no other part of the file can be keys, because the vectors
//!   are its only column of that length.
//! - If several parts could be meant, the caller must name one.

use std::path::Path;

use super::batch::Wanted;
use super::unreadable;
use crate::error::Result;

/// Names of keys; each format's usual name is among them.
pub(crate) const KEYS: [&str; 2] = ["keys", "key"];
/// The names of vectors.
pub(crate) const ROWS: [&str; 2] = ["rows", "vector"];
pub(crate) const STATE: &str = "state";
pub(crate) const SCALES: &str = "scales";

/// The types of keys, and the advice for other types.
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

/// The name among `names` that the file has.
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

/// Refuses rows by position if another part of the file may be their keys.
pub(crate) fn refuse_by_position<T>(path: &Path, may_be_keys: &str) -> Result<T> {
    Err(unreadable(
        path,
        format!(
            "it names no keys, but has {may_be_keys}, which may be them; name the keys with `keys`, or import by \
             position with `first_key`: 0 gives row i to key i"
        ),
    ))
}

/// Refuses state if the file does not say that it belongs to `vectors`.
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
