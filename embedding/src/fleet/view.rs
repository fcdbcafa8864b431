//! What one shard has on its disk, for a decision that all processes of a fleet make alike.

use std::path::{Path, PathBuf};

use embank_kv::metadata;
use xxhash_rust::xxh3::xxh3_64;

use crate::bank::Bank;
use crate::error::{Error, Result};
use crate::fleet::identity::{FleetId, ShardIdentity, list_shards, shard_path};
use crate::fleet::record::{self, HeldCheckpoint};

/// Version of the encoding. Processes exchange views, and no file has them.
const VERSION: u32 = 1;

/// What one shard has: its identity, its checkpoints and the records of its sets.
///
/// Each process sends the view of its shard to the others as bytes. Then each of them passes all
/// views to [`FleetPlan::of`](crate::fleet::FleetPlan::of).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardView {
    /// The directory of the shard's bank, for messages.
    pub(super) path: PathBuf,
    pub(super) shard: u32,
    pub(super) shards: u32,
    /// The fleet's id. `None` if the bank has no file `SHARD`.
    pub(super) fleet: Option<FleetId>,
    /// The id that a new fleet may take.
    pub(super) proposed: FleetId,
    /// True if the newest checkpoint has tables.
    pub(super) has_tables: bool,
    /// The checkpoints of the bank, oldest first.
    pub(super) checkpoints: Vec<HeldCheckpoint>,
    /// The records of the shard, oldest first.
    pub(super) records: Vec<RecordView>,
}

/// A record without its blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordView {
    pub(super) number: u64,
    pub(super) id: u64,
    /// Hash of the bytes of the record's file.
    pub(super) digest: u64,
    pub(super) checkpoints: Vec<HeldCheckpoint>,
}

/// The parts of a view as they are encoded.
type Encoded = (
    u32,
    String,
    (u32, u32),
    Option<[u8; 16]>,
    [u8; 16],
    bool,
    Vec<(u64, u64)>,
    Vec<(u64, u64, u64, Vec<(u64, u64)>)>,
);

impl ShardView {
    /// Reads the view of shard `shard` of `shards`, whose bank is in `bank`. Takes no lock and
    /// changes nothing.
    ///
    /// # Errors
    /// [`Error::ShardMismatch`] if the file `SHARD` names another shard or number of shards, or if
    /// a record belongs to another fleet. [`Damaged`](crate::StoreError::Damaged) if a file does
    /// not verify. Also a failed read.
    pub fn read(bank: &Path, shard: u32, shards: u32) -> Result<Self> {
        let identity = ShardIdentity::read(bank)?;
        if let Some(identity) = &identity {
            identity.check(bank, shard, shards)?;
        }
        let kept = Bank::checkpoints(bank)?;
        let held = |of: &crate::CheckpointSummary| HeldCheckpoint::new(of.number, of.id);
        let mut view = ShardView {
            path: bank.to_owned(),
            shard,
            shards,
            fleet: identity.map(|identity| identity.fleet),
            proposed: FleetId::random(),
            has_tables: kept.last().is_some_and(|newest| !newest.tables.is_empty()),
            checkpoints: kept.iter().map(held).collect(),
            records: Vec::new(),
        };
        for number in record::numbers(bank)? {
            view.records.extend(view.record(number)?);
        }
        Ok(view)
    }

    /// Reads a record. `None` if the shard does not have it.
    fn record(&self, number: u64) -> Result<Option<RecordView>> {
        let Some((bytes, record)) = record::read(&self.path, number)? else { return Ok(None) };
        let fits =
            Some(record.fleet) == self.fleet && record.checkpoints.len() == self.shards as usize;
        if !fits {
            let of = |fleet: Option<FleetId>, shards: usize| match fleet {
                Some(fleet) => format!("fleet {fleet} with {shards} shards"),
                None => "no fleet".to_owned(),
            };
            return Err(Error::ShardMismatch {
                path: record::path_of(&self.path, number),
                found: of(Some(record.fleet), record.checkpoints.len()),
                expected: of(self.fleet, self.shards as usize),
                cure: "the files of two fleets are mixed: restore the shard's directory as a whole"
                    .into(),
            });
        }
        Ok(Some(RecordView {
            number,
            id: record.id,
            digest: xxh3_64(&bytes),
            checkpoints: record.checkpoints,
        }))
    }

    /// Encodes the view, for another process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let pairs = |held: &[HeldCheckpoint]| -> Vec<(u64, u64)> {
            held.iter().map(|held| (held.number, held.id)).collect()
        };
        let records = self
            .records
            .iter()
            .map(|record| (record.number, record.id, record.digest, pairs(&record.checkpoints)));
        let encoded: Encoded = (
            VERSION,
            self.path.to_string_lossy().into_owned(),
            (self.shard, self.shards),
            self.fleet.map(|fleet| fleet.0),
            self.proposed.0,
            self.has_tables,
            pairs(&self.checkpoints),
            records.collect(),
        );
        metadata::encode(&encoded)
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::StoreError::InvalidArgument) if the bytes are no view, or the
    /// view of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let decoded: Encoded = metadata::decode(bytes).map_err(|what| no_message("view", &what))?;
        let (version, path, (shard, shards), fleet, proposed, has_tables, checkpoints, records) =
            decoded;
        if version != VERSION {
            return Err(no_message("view", &format!("it has version {version}, not {VERSION}")));
        }
        let held = |pairs: Vec<(u64, u64)>| -> Vec<HeldCheckpoint> {
            pairs.into_iter().map(|(number, id)| HeldCheckpoint::new(number, id)).collect()
        };
        let records = records.into_iter().map(|(number, id, digest, checkpoints)| RecordView {
            number,
            id,
            digest,
            checkpoints: held(checkpoints),
        });
        Ok(ShardView {
            path: path.into(),
            shard,
            shards,
            fleet: fleet.map(FleetId),
            proposed: FleetId(proposed),
            has_tables,
            checkpoints: held(checkpoints),
            records: records.collect(),
        })
    }

    /// The shard's number.
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The number of shards of the fleet.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The fleet's id. `None` if the bank has no file `SHARD`.
    #[must_use]
    pub fn fleet(&self) -> Option<FleetId> {
        self.fleet
    }

    /// True if the shard has the checkpoint.
    pub(super) fn holds(&self, checkpoint: HeldCheckpoint) -> bool {
        self.checkpoints.contains(&checkpoint)
    }
}

/// Reads the views of all shards of the fleet in the directory `fleet`, by shard. Takes no lock and
/// changes nothing. An element is an error if the shard can't be read, or is not on this machine.
///
/// # Errors
/// [`Error::ShardMismatch`] if the directory has no shard of a fleet. Also a failed read.
pub fn read_views(fleet: &Path) -> Result<Vec<Result<ShardView>>> {
    let there = list_shards(fleet)?;
    let Some(shards) = there.iter().find_map(|(_, identity)| Some((*identity)?.shards)) else {
        return Err(Error::ShardMismatch {
            path: fleet.to_owned(),
            found: "no directory of a shard with a file SHARD".into(),
            expected: "a fleet".into(),
            cure: "give the directory that has the directory shard-00000".into(),
        });
    };
    let read = |shard| {
        let path = shard_path(fleet, shard);
        if there.iter().any(|&(found, _)| found == shard) {
            return ShardView::read(&path, shard, shards);
        }
        Err(Error::ShardMismatch {
            path,
            found: "no directory".into(),
            expected: format!("shard {shard} of {shards}"),
            cure: "bring the directory to this machine".into(),
        })
    };
    Ok((0..shards).map(read).collect())
}

/// Returns the error for bytes of a peer that do not decode.
pub(super) fn no_message(kind: &str, what: &str) -> Error {
    let what = format!(
        "the bytes are no {kind} of a shard: {what}; run one version of Embank on all processes"
    );
    crate::StoreError::InvalidArgument(what).into()
}
