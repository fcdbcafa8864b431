//! Reads a bank's files without opening the bank: summarizes and verifies a bank, reads rows, and
//! salvages rows from a damaged bank.
//!
//! **Problem.** A damaged bank may not open. A bank that another process writes can't be opened for
//! writing. A user who checks a backup wants a list of all damage, and wants no byte of the backup
//! to change.
//!
//! **Approach.** Every function here reads checkpoints. A checkpoint has a manifest, an index and a
//! part of the log. These do not change while the checkpoint exists. The module `walk` divides the
//! log into windows. For each window, it reads the whole index as a stream, and keeps the index
//! entries that lead into the window. Memory is therefore bounded for a bank of any size, and the
//! log is read once, in order. An index entry leads to the newest record of a chain. The chain's
//! older records are read one by one.
//!
//! **Beside a writer.** Another process may write the bank while these functions read it. Only
//! [`salvage`] writes, and it writes to a new bank. A [`TableReader`] holds its checkpoint, as a
//! read-only store does (`checkpoint::hold`), so the writer keeps that checkpoint.
//!
//! [`verify()`], [`summary()`] and [`salvage()`] hold no checkpoint, because a hold would keep the
//! writer from freeing space. The writer may therefore remove a checkpoint while one of these
//! functions reads it. At its end, [`verify()`] checks which checkpoints still exist. It drops the
//! findings about removed checkpoints and reports their removal.
//!
//! The functions do not use a store's device or its memory budget. They read files through the
//! system's page cache. [`VerifyOptions::memory_bytes`] bounds the memory for index entries.
//!
//! # Where to look
//!
//! - `bank`: the metadata of a bank, and `summary`.
//! - `walk`: compares an index with the log. `index` reads the index, and `log_files` reads the
//!   log.
//! - `verify`, `damaged_pages` and `cold_check`: list damage.
//! - `parts`: reads the parts of the cold tier. `lost_list`: finds the parts if the checkpoint's
//!   list is lost. `hot_rows`: which rows of the log hide rows of parts.
//! - `rows`: the `TableReader` and the `CheckpointReader`.
//! - `salvage` and `salvaged`: copy rows of a damaged bank into a new bank.

mod bank;
mod cold_check;
mod damaged_pages;
mod hot_rows;
mod index;
mod log_files;
mod lost_list;
mod parts;
mod rows;
mod salvage;
mod salvaged;
#[cfg(test)]
mod tests;
mod verify;
mod walk;

pub use crate::files::progress::Progress;
use std::path::PathBuf;
use std::time::SystemTime;

pub use bank::summary;
#[cfg(any(test, fuzzing))]
pub(crate) use log_files::walk_page;
pub use rows::{CheckpointReader, TableReader};
pub use salvage::{Blob, RowSource, SalvageOptions, SalvageReport, SalvagedTable, salvage};

pub use verify::{CheckedTable, CheckpointReport, VerifyOptions, VerifyReport, verify};

use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::Manifest;

use crate::error::{Error, Result};
use crate::files::directory::Place;
use crate::operation::Width;

/// Returns the identity that the blob of a checkpoint must have. A blob is the data that the caller
/// stored with the checkpoint. The identity comes from the manifest, or from the header of the
/// blob's file at `place` if the manifest can't be read.
fn blob_identity(
    manifest: Option<&Manifest>,
    place: &Place,
    of: CheckpointIdentity,
) -> Result<CheckpointIdentity> {
    match manifest {
        Some(manifest) => Ok(manifest.blob_identity()),
        None => CheckpointIdentity::found(place, BLOB_KIND, of.bank, of.checkpoint),
    }
}

/// A damaged place in a bank's files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Path of the damaged file.
    pub path: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Number of the first damaged page, if the file belongs to the log. Otherwise `None`.
    pub page: Option<u64>,
    /// Number of damaged pages from `page` on, if the file belongs to the log. Otherwise 0.
    pub pages: u64,
    /// Number of the damaged part, if the file is a part of the cold tier. Otherwise `None`.
    pub part: Option<u64>,
    /// Names of the tables that have sound records on the damaged pages, or sound rows in the
    /// damaged blocks of a part and beside them. Empty if no such table was found, or if the damage
    /// is in no page and no block.
    pub tables: Vec<String>,
    /// The checkpoint whose file or index is damaged. `None` for damage of a log page, of a part or
    /// of the file `BANK`, which all checkpoints share.
    pub checkpoint: Option<u64>,
    /// Describes the damage, for example the expected and the found checksum.
    pub what: String,
}

impl Damage {
    fn in_file(path: impl Into<PathBuf>, offset: u64, checkpoint: u64, what: String) -> Self {
        Damage {
            path: path.into(),
            offset,
            page: None,
            pages: 0,
            part: None,
            tables: Vec::new(),
            checkpoint: Some(checkpoint),
            what,
        }
    }

    /// Returns the damage of a file of checkpoint `checkpoint` that can't be read.
    ///
    /// # Errors
    /// `NewerFormat` is returned, because it is no damage.
    fn of_error(path: &Place, checkpoint: u64, error: Error) -> Result<Vec<Self>> {
        match error {
            Error::NewerFormat { .. } => Err(error),
            error => Ok(vec![Self::in_file(path, 0, checkpoint, error.to_string())]),
        }
    }

    /// Returns the damage of a part's file.
    fn in_part(path: impl Into<PathBuf>, offset: u64, part: u64, what: String) -> Self {
        Damage { checkpoint: None, part: Some(part), ..Self::in_file(path, offset, 0, what) }
    }

    /// Returns the damage of a name in the folder `log` that is no segment of the log.
    fn in_log(path: impl Into<PathBuf>, what: String) -> Self {
        Damage { checkpoint: None, ..Self::in_file(path, 0, 0, what) }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} at {}: {}", self.path.display(), self.offset, self.what)?;
        if !self.tables.is_empty() {
            write!(formatter, " (table {})", self.tables.join(", "))?;
        }
        Ok(())
    }
}

/// The content of a bank according to its metadata: see [`summary`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BankSummary {
    /// The bank's id; `None` if neither `BANK` nor a manifest can be read.
    pub bank: Option<u64>,
    /// The checkpoints with a readable manifest, oldest first.
    pub checkpoints: Vec<CheckpointSummary>,
    /// Bytes of all files in the checkpoints' directories. A file that several checkpoints share
    /// counts once.
    pub checkpoint_bytes: u64,
    /// Sum of the lengths of the log's segment files, in bytes.
    pub log_file_bytes: u64,
    /// Bytes of disk that the segment files occupy. Less than `log_file_bytes` if the writer freed
    /// space inside a file.
    pub log_disk_bytes: u64,
    /// Number of segment files.
    pub segments: u64,
    /// Number of parts of the cold tier. 0 if the bank has one tier.
    pub parts: u64,
    /// Bytes of disk that the parts occupy.
    pub part_disk_bytes: u64,
    /// How many of the 65,535 table numbers are free for new tables. A checkpoint on disk occupies
    /// the numbers of its tables. It also occupies the number of a dropped table while the
    /// checkpoint's log has a record of that table. If a manifest can't be read, all numbers in the
    /// other manifests count as occupied.
    pub table_numbers_left: u32,
    /// Directories of removed or unfinished checkpoints that still exist.
    pub not_removed: Vec<NotRemoved>,
    /// Metadata that can't be read.
    pub damage: Vec<Damage>,
}

/// A directory of a removed or unfinished checkpoint that still exists. The bank does not use the
/// directory. The store tries to remove it at each checkpoint and at each opening for writing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotRemoved {
    /// Path of the directory.
    pub path: PathBuf,
    /// Sum of the lengths of the directory's files, in bytes.
    pub file_bytes: u64,
}

/// A checkpoint of a [`BankSummary`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointSummary {
    /// Number of the checkpoint.
    pub number: u64,
    /// A random number that identifies the checkpoint. Two checkpoints can have the same number,
    /// for example in two copies of a bank, or before and after a roll back. Their ids differ.
    pub id: u64,
    /// The time at which the checkpoint was taken, to the second.
    pub taken: SystemTime,
    /// Length of a page in bytes.
    pub page_bytes: u64,
    /// Length of a full segment file in bytes.
    pub segment_bytes: u64,
    /// Address where the checkpoint's log begins.
    pub log_begin: u64,
    /// Address where the checkpoint's log ends.
    pub log_end: u64,
    /// Length of the blob that the caller stored with the checkpoint, in bytes.
    pub blob_bytes: u64,
    /// Bytes of all files in the checkpoint's directory, including files that the checkpoint shares
    /// with other checkpoints.
    pub file_bytes: u64,
    /// True if the checkpoint is pinned: it is kept until it is unpinned. See
    /// [`Store::pin`](crate::Store::pin).
    pub pinned: bool,
    /// The checkpoint's tables, without dropped tables.
    pub tables: Vec<TableSummary>,
}

impl CheckpointSummary {
    /// Number of rows of all tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// Bytes of the records of all tables.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.record_bytes).sum()
    }
}

/// A table of a [`CheckpointSummary`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSummary {
    /// Number of the table.
    pub number: u16,
    /// Name of the table.
    pub name: String,
    /// Whether all values have the same length, or each value has its own length.
    pub width: Width,
    /// Length of each value in bytes. In a table of variable width, the largest permitted length.
    pub value_bytes: u32,
    /// Bytes that the caller stored with the table when the caller created it.
    pub descriptor: Vec<u8>,
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the rows' records in the log.
    pub record_bytes: u64,
}
