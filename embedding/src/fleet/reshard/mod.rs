//! Makes a fleet of another number of shards from a fleet's newest complete set.
//!
//! Reads the log of each old shard once, in order, and writes the bytes of each row into the new
//! shard of its key. So optimizer state, numbers of steps, rounding and tracking stay exactly as
//! they are. The memory is that of the new banks: mostly their indexes.
//!
//! | table | goes to |
//! |---|---|
//! | rows by key, and counts before admission | the shard of the key, by the new number of shards |
//! | a table that is on one shard | that shard; its number is taken modulo the new number of shards |
//! | the number of Gets before admission by chance | every shard, the largest of the old shards |
//! | the times of tables | every shard, the largest of the old shards |
//! | a vocabulary, which every shard has | every shard, from shard 0 |
//!
//! Each bank has tables with numbers of its own, so times are matched by the names of their tables.
//! Each bank begins new generations of admission counts by itself, so the newer and the older
//! generation of a table are matched by rank.
//!
//! **Crashes.** Every new bank takes a checkpoint with its tables before the first row is copied,
//! and gets its file `SHARD` last, when all banks have their rows and the record of the set.
//! `Shard::open` refuses a bank with a checkpoint and no file `SHARD`. So what an interrupted call
//! leaves does not open as a fleet. Only a kill before the first of these checkpoints leaves an
//! empty bank, which opens as any new directory does.
//!
//! - `layout`: the tables of the new banks, and where each row goes.
//! - `writer`: writes the rows, and makes the banks a fleet.

mod layout;
mod writer;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use embank_kv::StoreOptions;
use embank_kv::inspect::CheckpointReader;

use crate::error::{Error, Result, StoreError};
use crate::fleet::identity::{FleetId, shard_path};
use crate::fleet::plan::{CompleteSet, FleetPlan};
use crate::fleet::record::{self, HeldCheckpoint, SetRecord};
use crate::fleet::reshard::layout::Layout;
use crate::fleet::reshard::writer::{Target, Writer};
use crate::fleet::routing::check_shards;
use crate::fleet::view::read_views;
use crate::table::progress::TransferProgress;

/// The result of [`reshard`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resharded {
    /// The id of the new fleet.
    pub fleet: FleetId,
    /// The number of the set, which both fleets have.
    pub set: u64,
    /// The number of shards of the old fleet.
    pub from_shards: u32,
    /// Why newer sets of the old fleet are not complete, the newest first.
    pub passed_over: Vec<String>,
    /// The number of rows that each new shard has of tables of embeddings, by shard.
    pub rows: Vec<u64>,
}

/// Copies the newest complete set of the fleet in `fleet` to a new fleet of `shards` shards in
/// `new`. `new` must be missing or empty. All shards of the old fleet must be on this machine.
/// Changes nothing of the old fleet, which other processes may train meanwhile.
///
/// The new fleet has the set with its number, id and blob. Its fleet id is another one. `None` for
/// `memory_bytes` lets each new bank take 64 MiB, and 18 bytes for each row that it may get: an
/// eighth more rows by key than its share of the [`BUCKETS`](crate::fleet::BUCKETS), all rows of
/// the tables that are on its shard, and all vocabularies. Otherwise the new banks share
/// `memory_bytes` equally. `progress` can end the call.
///
/// # Errors
/// [`Error::ShardMismatch`] if the old fleet is not whole, if its shards have different tables or
/// vocabularies, or if it has no complete set.
/// [`UnusableOutput`](crate::StoreError::UnusableOutput) if `new` is not empty.
/// [`Damaged`](crate::StoreError::Damaged) if a row can't be read.
/// [`InvalidOption`](crate::StoreError::InvalidOption) if `shards` is out of range, or if
/// `memory_bytes` is too small. A failed read or write. After an error, `new` is no fleet: remove
/// it.
pub fn reshard(
    fleet: &Path,
    new: &Path,
    shards: u32,
    memory_bytes: Option<u64>,
    progress: &mut dyn FnMut(TransferProgress) -> ControlFlow<()>,
) -> Result<Resharded> {
    check_shards(shards)?;
    let made = copy_newest_set(fleet, new, shards, memory_bytes, progress);
    made.map_err(|error| match error {
        Error::Store(StoreError::BudgetTooSmall { needed_bytes, .. }) if memory_bytes.is_some() => {
            let needed = needed_bytes.saturating_mul(u64::from(shards));
            let problem = format!(
                "must be {needed} bytes or more: {needed_bytes} for each of {shards} new banks, whose pages are as long \
                 as those of the old ones"
            );
            Error::option("memory", problem)
        }
        error => error,
    })
}

fn copy_newest_set(
    fleet: &Path,
    new: &Path,
    shards: u32,
    memory_bytes: Option<u64>,
    progress: &mut dyn FnMut(TransferProgress) -> ControlFlow<()>,
) -> Result<Resharded> {
    let (newest, passed_over) = newest_set(fleet)?;
    let record = record_of(fleet, &newest)?;
    let mut sources = open_sources(fleet, &newest)?;
    let layout = Layout::of(fleet, &newest, &sources, shards)?;
    refuse_content(new)?;
    let page_bytes = sources.iter().map(CheckpointReader::page_bytes).max().unwrap_or_default();
    let target = |shard| {
        let options = StoreOptions {
            memory_budget_bytes: memory_bytes.map_or_else(
                || layout.default_memory_bytes(&sources, shard, shards),
                |all| all / u64::from(shards),
            ),
            checkpoints_kept: 1,
            page_size_bytes: u32::try_from(page_bytes).ok(),
            ..StoreOptions::default()
        };
        Target::create(&shard_path(new, shard), &options, &layout)
    };
    let targets = (0..shards).map(target).collect::<Result<_>>()?;
    let mut writer = Writer {
        layout: &layout,
        targets,
        pending_bytes: 0,
        rows_done: 0,
        rows_total: layout.rows(&sources),
        progress,
    };
    for (shard, source) in sources.iter_mut().enumerate() {
        writer.copy(fleet, shard, source)?;
    }
    let rows = writer.targets.iter().map(|target| target.rows).collect();
    let id = FleetId::random();
    writer.complete(id, record)?;
    let from_shards = sources.len() as u32;
    Ok(Resharded { fleet: id, set: newest.number, from_shards, passed_over, rows })
}

/// Finds the newest complete set of the fleet in a directory. Also returns why newer sets are not
/// complete.
fn newest_set(fleet: &Path) -> Result<(CompleteSet, Vec<String>)> {
    let views = read_views(fleet)?.into_iter().collect::<Result<Vec<_>>>()?;
    let plan = FleetPlan::of(&views)?;
    let newest = plan.newest.ok_or_else(|| Error::ShardMismatch {
        path: fleet.to_owned(),
        found: "a fleet without a set, and so without rows".into(),
        expected: "a complete set".into(),
        cure: "open the fleet with the new number of shards in a new directory".into(),
    })?;
    Ok((newest, plan.passed_over))
}

fn record_of(fleet: &Path, set: &CompleteSet) -> Result<SetRecord> {
    let path = shard_path(fleet, set.holder);
    match record::read(&path, set.number)? {
        Some((_, record)) => Ok(record),
        None => Err(meanwhile(&path)),
    }
}

/// Returns the error for a set that a process has replaced by newer ones since it was found.
fn meanwhile(path: &Path) -> Error {
    StoreError::ChangedMeanwhile(format!(
        "{}: the newest complete set was removed meanwhile, because another process takes sets; try again",
        path.display()
    ))
    .into()
}

/// Opens the checkpoint of each old shard. Each reader keeps its checkpoint on disk.
fn open_sources(fleet: &Path, set: &CompleteSet) -> Result<Vec<CheckpointReader>> {
    let open = |(shard, held): (u32, &HeldCheckpoint)| {
        let path = shard_path(fleet, shard);
        match CheckpointReader::open(&path, held.number) {
            Ok(reader) if reader.id() == held.id => Ok(reader),
            Ok(_) | Err(StoreError::NoSuchCheckpoint { .. }) => Err(meanwhile(&path)),
            Err(error) => Err(error.into()),
        }
    };
    (0..).zip(&set.checkpoints).map(open).collect()
}

fn refuse_content(new: &Path) -> Result<()> {
    let first = fs::read_dir(new).ok().and_then(|mut entries| entries.next()?.ok());
    match first {
        None => Ok(()),
        Some(entry) => {
            let why = format!(
                "holds {:?}: give a directory that is empty or not there yet; remove what an interrupted `embank \
                 reshard` has left",
                entry.file_name()
            );
            Err(Error::unusable_output(new, why))
        }
    }
}
