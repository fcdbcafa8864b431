//! Reads a bank's files without opening the bank: lists what is in them, verifies them, reads rows,
//! and salvages rows from a damaged bank.
//!
//! **Problem.** A damaged bank may not open, and a bank that another process writes must not be
//! opened for writing. A user who asks whether a backup is good wants a list of all damage, and
//! wants no byte changed.
//!
//! **Approach.** Every function here reads a checkpoint: its manifest, its index and its part of
//! the log. These do not change while the checkpoint is kept. The index is read as a stream and
//! compared with the log, one window at a time (`walk`). Memory is therefore bounded for a bank of
//! any size, and the log is read once, in order. Only records further down a chain are read one by
//! one.
//!
//! **Beside a writer.** These functions write nothing; only [`salvage`] writes, into a new bank. A
//! [`TableReader`] holds its checkpoint, as a read-only store does (`hold`), so the writer keeps
//! it. The functions that read all checkpoints hold no checkpoint, because a long reading would
//! keep the writer from freeing space. The writer may then remove a checkpoint while it is read.
//! Each function therefore checks at its end whether the checkpoint still exists. If it is gone,
//! the findings about it are dropped, and the function reports that instead.
//!
//! The device and the store's memory budget are not used. Files are read through the page cache,
//! and [`VerifyOptions::memory_bytes`] bounds the memory for the index.
//!
//! # Where to look
//!
//! - `bank`: the metadata of a bank, and `summary`.
//! - `walk`: compares an index with the log; `index` and `log_files` read the two.
//! - `verify` and `damaged_pages`: lists damage.
//! - `rows`: the `TableReader`.
//! - `salvage` and `salvaged`: copies rows of a damaged bank into a new bank.

mod bank;
mod damaged_pages;
mod index;
mod log_files;
mod rows;
mod salvage;
mod salvaged;

mod verify;
mod walk;

pub use crate::files::progress::Progress;
use std::path::PathBuf;
use std::time::SystemTime;

pub use bank::summary;
#[cfg(any(test, fuzzing))]
pub(crate) use log_files::walk_page;
pub use rows::TableReader;
pub use salvage::{Blob, RowSource, SalvageOptions, SalvageReport, SalvagedTable, salvage};

pub use verify::{CheckedTable, CheckpointReport, VerifyOptions, VerifyReport, verify};

use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::Manifest;

use crate::error::Result;
use crate::files::directory::Place;
use crate::operation::Width;

/// The identity that the blob at `place` must have: from the manifest, or from the blob itself if
/// the manifest can't be read.
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

/// A place in a bank's files that is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Path of the damaged file.
    pub path: PathBuf,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Number of the first damaged page, if the file belongs to the log.
    pub page: Option<u64>,
    /// Number of damaged pages from `page` on, if the file belongs to the log. Otherwise 0.
    pub pages: u64,
    /// Names of the tables whose rows are on these pages, if they can be determined.
    pub tables: Vec<String>,
    /// The checkpoint that the file belongs to. `None` for the log, which checkpoints share.
    pub checkpoint: Option<u64>,
    /// What was expected and what was found.
    pub what: String,
}

impl Damage {
    fn in_file(path: impl Into<PathBuf>, offset: u64, checkpoint: u64, what: String) -> Self {
        Damage {
            path: path.into(),
            offset,
            page: None,
            pages: 0,
            tables: Vec::new(),
            checkpoint: Some(checkpoint),
            what,
        }
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

/// What a bank holds, according to its metadata: see [`summary`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BankSummary {
    /// The bank's id; `None` if neither `BANK` nor a manifest can be read.
    pub bank: Option<u64>,
    /// The kept checkpoints whose manifest can be read, oldest first.
    pub checkpoints: Vec<CheckpointSummary>,
    /// Bytes of the checkpoints' own files. A file that several checkpoints share counts once.
    pub checkpoint_bytes: u64,
    /// Sum of the lengths of the log's segment files, in bytes.
    pub log_file_bytes: u64,
    /// Bytes of disk that the segment files take. Less than their lengths, if space within a file
    /// was freed.
    pub log_disk_bytes: u64,
    /// Number of segment files.
    pub segments: u64,
    /// Table numbers that are left for new tables, of 65,535. A number is taken if a kept
    /// checkpoint has it for a table, or for a dropped table of which a record is left. If a
    /// manifest can't be read, every number in the other manifests counts as taken.
    pub table_numbers_left: u32,
    /// Directories of removed checkpoints whose files could not be removed.
    pub not_removed: Vec<NotRemoved>,
    /// Metadata that can't be read.
    pub damage: Vec<Damage>,
}

/// A directory of a removed or unfinished checkpoint that still exists. Each opening for writing
/// and each checkpoint tries to remove it. The bank does not use it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotRemoved {
    /// Path of the directory.
    pub path: PathBuf,
    /// Bytes of its files.
    pub file_bytes: u64,
}

/// A checkpoint of a [`BankSummary`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointSummary {
    /// Number of the checkpoint.
    pub number: u64,
    /// A random number that distinguishes this checkpoint from others of the same number: in
    /// copies of the bank and after a roll back.
    pub id: u64,
    /// The time when it was taken, to the second.
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
    /// Bytes of all files in its directory, including files that it shares with other checkpoints.
    pub file_bytes: u64,
    /// True if the checkpoint is kept until it is unpinned: see [`Store::pin`](crate::Store::pin).
    pub pinned: bool,
    /// Its tables, without dropped ones.
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
    /// Whether all values have one length, or each value has its own.
    pub width: Width,
    /// Length of every value in bytes; for a table of variable width, the largest length of a
    /// value.
    pub value_bytes: u32,
    /// Bytes that the caller stored with the table when it was made.
    pub descriptor: Vec<u8>,
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the rows' records in the log.
    pub record_bytes: u64,
}
