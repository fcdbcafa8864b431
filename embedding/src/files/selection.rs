//! Chooses which tensors, columns or files of an import are keys and vectors.
//!
//! **An import never guesses.** A row that is put under a wrong key overwrites one row and loses
//! another, without an error. Therefore:
//!
//! - If a tensor or column has the name of a part ([`KEYS`], [`ROWS`], `state`, `scales`), it is
//!   that part, or the import fails.
//! - Row i is the row of key i in three cases only. The caller asks for it (`first_key`). Embank
//!   wrote the file as a dense table. Or no part of the file can be the keys, because no part of
//!   unknown meaning has one value per row.
//! - If several parts could be meant, the caller must name one.

use std::path::Path;

use super::batch::Wanted;
use super::unreadable;
use crate::error::Result;

/// Names of the part with the keys: `keys` in safetensors and npy, `key` in Parquet. Every format
/// accepts both.
pub(crate) const KEYS: [&str; 2] = ["keys", "key"];
/// Names of the part with the vectors: `rows` in safetensors and npy, `vector` in Parquet. Every
/// format accepts both.
pub(crate) const ROWS: [&str; 2] = ["rows", "vector"];
pub(crate) const STATE: &str = "state";
pub(crate) const SCALES: &str = "scales";

/// The types that keys can have, and advice for other types. It is the end of an error message.
pub(crate) const KEY_CURE: &str = "integers of 8 to 64 bits; write them as int64, name other keys with `keys`, or import by \
                                   position with `first_key`";

/// The parts of a file that the caller asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection<'a> {
    /// The name that the caller gives for the keys.
    pub(crate) keys: Option<&'a str>,
    /// The name that the caller gives for the vectors.
    pub(crate) rows: Option<&'a str>,
    /// Import by position: row i is the row of this key plus i.
    pub(crate) first_key: Option<u64>,
    pub(crate) wanted: Wanted,
}

/// Returns the name among `names` that the file has; `None` if it has no such name.
///
/// # Errors
/// The file has two of the names.
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

/// Makes the error for an import by position if another part of the file, `may_be_keys`, may hold
/// the keys.
pub(crate) fn refuse_by_position<T>(path: &Path, may_be_keys: &str) -> Result<T> {
    Err(unreadable(
        path,
        format!(
            "it names no keys, but has {may_be_keys}, which may be them; name the keys with `keys`, or import by \
             position with `first_key`: 0 gives row i to key i"
        ),
    ))
}

/// Makes the error for a file that has state, but whose vectors have the unusual name `vectors`.
/// State belongs only to vectors of the usual names ([`ROWS`]).
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

/// Fails if an import by position would go beyond the last key, 2^64 - 1.
pub(crate) fn check_first_key(path: &Path, first: u64, rows: u64) -> Result<()> {
    if rows == 0 || first.checked_add(rows - 1).is_some() {
        return Ok(());
    }
    let what = format!("{rows} rows from key {first} on would go beyond the last key, 2^64 - 1");
    Err(unreadable(path, what))
}

/// Appends `count` consecutive keys, from `first` on.
pub(crate) fn append_positions(first: u64, count: usize, keys: &mut Vec<u64>) {
    keys.extend((0..count as u64).map(|i| first + i));
}
