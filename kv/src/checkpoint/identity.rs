//! The identity of a checkpoint (bank, number and random id), which each of the checkpoint's files
//! stores in its header.

use crate::error::{Error, Result};
use crate::files::checked_stream::{CheckedReader, StreamIdentity, StreamKind};
use crate::files::directory::Place;

/// Identifies the checkpoint that a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointIdentity {
    pub(crate) bank: u64,
    pub(crate) checkpoint: u64,
    /// The checkpoint's random id. The value is 0 for a file of format 5, whose header holds only
    /// the bank's id.
    pub(crate) id: u64,
}

impl CheckpointIdentity {
    /// Returns the header fields of a file of this checkpoint.
    pub(crate) fn stream(self, kind: StreamKind) -> StreamIdentity {
        let CheckpointIdentity { bank, checkpoint, id } = self;
        match id {
            0 => StreamIdentity { kind, version: kind.newest - 1, owner: bank, checkpoint },
            owner => StreamIdentity { kind, version: kind.newest, owner, checkpoint },
        }
    }

    /// Reads the identity from the header of the file at `place`, for a checkpoint whose manifest
    /// can't be read.
    pub(crate) fn found(
        place: &Place,
        kind: StreamKind,
        bank: u64,
        checkpoint: u64,
    ) -> Result<Self> {
        let file = place.open().map_err(|e| Error::io("open", place, e))?;
        let (_, found) = CheckedReader::from_file_of_any(file, place, kind)?;
        let id = if found.version == kind.newest { found.owner } else { 0 };
        Ok(CheckpointIdentity { bank, checkpoint, id })
    }
}
