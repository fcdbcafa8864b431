//! Looking at a bank's files without opening the bank: what is there, whether it is whole, its rows, and what
//! can be saved of it.
//!
//! **Problem.** A bank that is damaged may not open, and one that another process writes must not be opened.
//! Whoever asks whether a backup is good wants all of the damage at once, not the first of it, and no byte changed.
//!
//! **Approach.** Everything here goes by a checkpoint: its manifest, its index, and its part of the log, none of
//! which changes as long as the checkpoint is kept. The index is read as a stream and held against the log window
//! by window (`walk`), so memory is bounded whatever the bank's size and the log is read once, in order; only
//! records further down a chain are read one by one.
//!
//! **Beside a writer.** Nothing is written (only [`salvage`] writes, into a new bank). A [`TableReader`] holds its
//! checkpoint, as a read-only store does (`hold`), so the writer leaves it alone. What goes through all checkpoints
//! holds none, lest a long look keep a writer from giving space back: the writer may take a further checkpoint and
//! let go of one that is being looked at. Whether the checkpoint is still there is therefore asked again at the
//! end: if it is gone, what was found of it says nothing, and the call reports that instead. The device and the
//! store's memory budget play no part: files are read through the page cache, and [`VerifyOptions::memory_bytes`]
//! bounds what is kept of the index.

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

/// Which checkpoint the blob at `place` must belong to: as the manifest says, or as the blob itself does.
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

/// A place where a bank's files are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// In the log: the page, or the first of several.
    pub page: Option<u64>,
    /// In the log: how many pages, from that one on. 0 elsewhere.
    pub pages: u64,
    /// Tables whose rows it touches, as far as that can be told.
    pub tables: Vec<String>,
    /// The checkpoint that the file or the finding belongs to; none for the log, which checkpoints share.
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

/// What a bank holds, as its metadata tells: see [`summary`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BankSummary {
    /// The bank's id; none if neither `BANK` nor a manifest tells it.
    pub bank: Option<u64>,
    /// Its kept checkpoints, oldest first; those whose manifest can be read.
    pub checkpoints: Vec<CheckpointSummary>,
    /// Bytes of the checkpoints' own files, those that they share counted once.
    pub checkpoint_bytes: u64,
    /// Lengths of the log's segment files together, in bytes.
    pub log_file_bytes: u64,
    /// What the file system holds of them: less, where space was given back within a file.
    pub log_disk_bytes: u64,
    /// Segment files.
    pub segments: u64,
    /// Numbers that are left for new tables: of 65,535, those that no kept checkpoint has for a
    /// table or for a record of a dropped one. A manifest that can't be read counts as one that has
    /// all that were ever given.
    pub table_numbers_left: u32,
    /// Directories of checkpoints that are gone and whose files could not be removed.
    pub not_removed: Vec<NotRemoved>,
    /// Metadata that can't be read.
    pub damage: Vec<Damage>,
}

/// A directory of a removed or unfinished checkpoint that is still there. Each open for writing and each checkpoint tries
/// to remove it; it counts for nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotRemoved {
    /// The directory.
    pub path: PathBuf,
    /// Bytes of its files.
    pub file_bytes: u64,
}

/// A checkpoint of a [`BankSummary`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointSummary {
    /// Its number.
    pub number: u64,
    /// A random number that tells it from others of that number, in copies of the bank and after a roll back.
    pub id: u64,
    /// When it was taken, to the second.
    pub taken: SystemTime,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a full segment file.
    pub segment_bytes: u64,
    /// Where its log begins.
    pub log_begin: u64,
    /// Where its log ends.
    pub log_end: u64,
    /// Bytes of the caller's blob.
    pub blob_bytes: u64,
    /// Bytes of all files in its directory, of those too that it shares with other checkpoints.
    pub file_bytes: u64,
    /// Whether it stays until it is unpinned: see [`Store::pin`](crate::Store::pin).
    pub pinned: bool,
    /// Its tables, dropped ones left out.
    pub tables: Vec<TableSummary>,
}

impl CheckpointSummary {
    /// Rows of all tables.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// Bytes of their records.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.record_bytes).sum()
    }
}

/// A table of a [`CheckpointSummary`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSummary {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// How long its values are.
    pub width: Width,
    /// Bytes of each value; of the longest that it takes, where the width is variable.
    pub value_bytes: u32,
    /// What the caller keeps with it.
    pub descriptor: Vec<u8>,
    /// Its rows.
    pub rows: u64,
    /// Bytes of their records in the log.
    pub record_bytes: u64,
}
