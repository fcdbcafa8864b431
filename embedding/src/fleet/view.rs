//! What one shard has on its disk, for a decision that all processes of a fleet make alike.

use std::path::{Path, PathBuf};

use embank_kv::inspect::{CheckpointSummary, summary};
use embank_kv::metadata::{self, DecodeError};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result, StoreError};
use crate::fleet::identity::{FleetId, ShardIdentity, shard_numbers, shard_path};
use crate::fleet::plan::list_sets;
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
    /// not verify, or if a checkpoint can't be read.
    /// [`NewerFormat`](crate::StoreError::NewerFormat) if a newer version of Embank wrote a file.
    /// Also a failed read.
    pub fn read(bank: &Path, shard: u32, shards: u32) -> Result<Self> {
        let mut view = Self::read_records(bank, shard, shards)?;
        view.read_checkpoints()?;
        Ok(view)
    }

    /// Reads a view without its checkpoints.
    fn read_records(bank: &Path, shard: u32, shards: u32) -> Result<Self> {
        let identity = ShardIdentity::read(bank)?;
        if let Some(identity) = &identity {
            identity.check(bank, shard, shards)?;
        }
        let mut view = ShardView {
            path: bank.to_owned(),
            shard,
            shards,
            fleet: identity.map(|identity| identity.fleet),
            proposed: FleetId::random(),
            has_tables: false,
            checkpoints: Vec::new(),
            records: Vec::new(),
        };
        for number in record::numbers(bank)? {
            view.records.extend(view.record(number)?);
        }
        Ok(view)
    }

    /// Reads the checkpoints, after the records of all shards (see [`read_views`]).
    fn read_checkpoints(&mut self) -> Result<()> {
        let kept = readable_checkpoints(&self.path)?;
        self.has_tables = kept.last().is_some_and(|newest| !newest.tables.is_empty());
        self.checkpoints = kept.iter().map(|of| HeldCheckpoint::new(of.number, of.id)).collect();
        Ok(())
    }

    /// Reads a record. `None` if the shard does not have it.
    fn record(&self, number: u64) -> Result<Option<RecordView>> {
        let Some((bytes, record)) = record::read(&self.path, number)? else { return Ok(None) };
        record.check_fleet(&self.path, self.fleet, self.shards)?;
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
        let decoded: Encoded =
            metadata::decode(bytes).map_err(|error| no_message("view", &error))?;
        let (version, path, (shard, shards), fleet, proposed, has_tables, checkpoints, records) =
            decoded;
        if version != VERSION {
            let what = format!("it has version {version}, not {VERSION}");
            return Err(no_message("view", &what.into()));
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

    /// Returns the view without the records of sets after set `set`.
    pub(super) fn up_to(&self, set: u64) -> Self {
        let mut view = self.clone();
        view.records.retain(|record| record.number <= set);
        view
    }

    /// True if the shard has the checkpoint.
    pub(super) fn holds(&self, checkpoint: HeldCheckpoint) -> bool {
        self.checkpoints.contains(&checkpoint)
    }
}

/// Lists the checkpoints of a shard's bank, oldest first.
///
/// A checkpoint that can't be read must not count as absent. Its set would then be passed over, and
/// the opening would remove that set's checkpoints on the other shards.
///
/// # Errors
/// [`Damaged`](crate::StoreError::Damaged) if any checkpoint of the bank can't be read, also after
/// a failed read.
pub(super) fn readable_checkpoints(bank: &Path) -> Result<Vec<CheckpointSummary>> {
    let summary = summary(bank)?;
    let Some(damage) = summary.damage.into_iter().next() else { return Ok(summary.checkpoints) };
    let cure = match damage.checkpoint {
        Some(number) => format!(
            "; nothing was removed. Make the file readable, or restore it from a copy. To give up checkpoint {number} \
             and its set for good, move the directory checkpoints/{number:010} away"
        ),
        None => String::new(),
    };
    let what = damage.what + &cure;
    Err(StoreError::Damaged { path: damage.path, offset: damage.offset, what }.into())
}

/// Reads the views of all shards of the fleet in the directory `fleet`, by shard. Takes no lock and
/// changes nothing. An element is an error if the shard can't be read, or is not on this machine.
/// If no file `SHARD` can be read, the elements are the errors of the directories on this machine.
///
/// Other processes may take sets meanwhile. The records of all shards are therefore read before any
/// checkpoint. All shards have made the checkpoints of a set durable before any shard writes its
/// record, so a set whose record was read lacks a checkpoint only if a shard has let go of it. A
/// shard does that after the records of newer sets. So all shards are read once more if a
/// checkpoint is missing.
///
/// # Errors
/// [`Error::ShardMismatch`] if the directory has no shard of a fleet. Also a failed read.
pub fn read_views(fleet: &Path) -> Result<Vec<Result<ShardView>>> {
    read_views_with(fleet, &mut || ())
}

/// Calls `between` after the records were read, and before the checkpoints are read.
fn read_views_with(fleet: &Path, between: &mut dyn FnMut()) -> Result<Vec<Result<ShardView>>> {
    let views = read_once(fleet, between)?;
    let readable: Vec<ShardView> = views.iter().flatten().cloned().collect();
    let lacks =
        list_sets(&readable).is_ok_and(|sets| sets.iter().any(|set| set.incomplete.is_some()));
    if lacks { read_once(fleet, between) } else { Ok(views) }
}

fn read_once(fleet: &Path, between: &mut dyn FnMut()) -> Result<Vec<Result<ShardView>>> {
    let there = shard_numbers(fleet)?;
    let mut known = None;
    let mut unreadable = Vec::new();
    for &shard in &there {
        match ShardIdentity::read(&shard_path(fleet, shard)) {
            Ok(identity) => known = known.or(identity),
            Err(error) => unreadable.push(Err(error)),
        }
    }
    let Some(ShardIdentity { shards, .. }) = known else {
        if !unreadable.is_empty() {
            return Ok(unreadable);
        }
        return Err(Error::ShardMismatch {
            path: fleet.to_owned(),
            found: "no directory of a shard with a file SHARD".into(),
            expected: "a fleet".into(),
            cure: "give the directory that has the directory shard-00000".into(),
        });
    };
    let read = |shard| {
        let path = shard_path(fleet, shard);
        if there.contains(&shard) {
            return ShardView::read_records(&path, shard, shards);
        }
        Err(Error::ShardMismatch {
            path,
            found: "no directory".into(),
            expected: format!("shard {shard} of {shards}"),
            cure: "bring the directory to this machine".into(),
        })
    };
    let views: Vec<Result<ShardView>> = (0..shards).map(read).collect();
    between();
    let complete = |view: Result<ShardView>| {
        let mut view = view?;
        view.read_checkpoints()?;
        Ok(view)
    };
    Ok(views.into_iter().map(complete).collect())
}

/// Returns the error for bytes of a peer that do not decode.
pub(super) fn no_message(kind: &str, error: &DecodeError) -> Error {
    let what = format!(
        "the bytes are no {kind} of a shard: {error}; run one version of Embank on all processes"
    );
    crate::StoreError::InvalidArgument(what).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{FleetPlan, Shard};
    use crate::{Bank, BankOptions};

    /// A process takes sets between the two parts of the reading.
    #[test]
    fn sets_that_are_taken_meanwhile_are_no_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = shard_path(dir.path(), 0);
        let options =
            BankOptions { memory_budget_bytes: 2 << 20, checkpoints_kept: 1, ..Default::default() };
        let bank = Bank::open(&path, options).unwrap();
        let mut shard = Shard::open(&bank, 0, 1, 2).unwrap();
        let plan = FleetPlan::of(&[shard.view().unwrap()]).unwrap();
        assert_eq!(shard.settle(&bank, &plan, None).unwrap(), None);
        let mut take_sets = |count| {
            for _ in 0..count {
                let taken = shard.take(&bank).unwrap();
                shard.commit(&bank, &[taken], b"").unwrap();
            }
        };
        take_sets(2);
        // With one set, the first reading has all that it found. With four sets, both checkpoints
        // of the records that were read first are gone.
        for (count, readings) in [(1, 1), (4, 2)] {
            let mut read = 0;
            let views = read_views_with(dir.path(), &mut || {
                take_sets(if read == 0 { count } else { 0 });
                read += 1;
            });
            let views = views.unwrap().into_iter().collect::<Result<Vec<_>>>().unwrap();
            assert!(FleetPlan::of(&views).unwrap().passed_over.is_empty());
            let listed = list_sets(&views).unwrap();
            assert!(listed.iter().all(|set| set.incomplete.is_none()), "{listed:?}");
            assert_eq!(read, readings, "{count} sets");
        }
    }
}
