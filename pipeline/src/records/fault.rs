//! What is wrong with a record file.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A damaged place of a record file.
///
/// # Examples
/// ```
/// use embank_pipeline::{Error, RecordFile};
///
/// let directory = tempfile::tempdir().unwrap();
/// let path = directory.path().join("no.records");
/// std::fs::write(&path, "something else").unwrap();
/// let Error::Records(damage) = RecordFile::open(&path).unwrap_err() else { panic!() };
/// assert_eq!((damage.path, damage.group, damage.offset), (path, None, 0));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordDamage {
    /// The file's path.
    pub path: PathBuf,
    /// The damaged group, from 0. `None` if the damage is outside of the groups, so that no group
    /// can be read.
    pub group: Option<u64>,
    /// The damaged part begins at this byte of the file.
    pub offset: u64,
    /// The fault, as a sentence without an end.
    pub what: String,
}

impl fmt::Display for RecordDamage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.path.display())?;
        if let Some(group) = self.group {
            write!(formatter, ": group {group}")?;
        }
        write!(formatter, " at {}: {}", self.offset, self.what)
    }
}

/// A fault of a file, before the path is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes are not those that were written.
    Damage { group: Option<u64>, offset: u64, what: String },
    /// The bytes are those that were written, by a newer program.
    Newer { group: Option<u64>, what: String },
}

impl Fault {
    /// Damage outside of the groups.
    pub(super) fn damage(offset: u64, what: impl Into<String>) -> Self {
        Self::Damage { group: None, offset, what: what.into() }
    }

    /// Something outside of the groups that this program does not know.
    pub(super) fn newer(what: impl Into<String>) -> Self {
        Self::Newer { group: None, what: what.into() }
    }

    /// Makes the error of a file.
    pub(super) fn of(self, path: &Path) -> Error {
        let path = path.to_owned();
        match self {
            Self::Damage { group, offset, what } => {
                Error::Records(RecordDamage { path, group, offset, what })
            }
            Self::Newer { group, what } => Error::NewerRecords { path, group, what },
        }
    }
}

/// Damage if a checksum is not the one that is stored.
pub(super) fn check_sum(offset: u64, stored: u32, computed: u32) -> Result<(), Fault> {
    if stored == computed {
        return Ok(());
    }
    Err(Fault::damage(offset, wrong_sum(stored, computed)))
}

/// Says that a checksum is wrong.
pub(super) fn wrong_sum(stored: u32, computed: u32) -> String {
    format!("its checksum is {computed:#010x}, not {stored:#010x}")
}
