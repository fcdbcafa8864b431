//! Writes rows into the new banks, and makes them a fleet.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use embank_kv::inspect::CheckpointReader;
use embank_kv::{Access, Clock, NewTable, Operation, Store, StoreOptions, TableId, Width};

use crate::error::{Result, StoreError};
use crate::fleet::identity::{FleetId, ShardIdentity, shard_path};
use crate::fleet::record::{HeldCheckpoint, SetRecord};
use crate::fleet::reshard::layout::{Layout, Place, Way};
use crate::table::progress::{TransferProgress, report};

/// Rows that wait to be written are written when they have this many bytes.
const PENDING_BYTES_MAX: usize = 16 << 20;
/// Bytes that a waiting row takes beside its value.
const PENDING_ROW_BYTES: usize = 48;
/// Rows between two reports of the progress.
const REPORT_ROWS: u64 = 10_000;

/// The bank of a new shard.
pub(super) struct Target {
    path: PathBuf,
    store: Store,
    ids: Vec<TableId>,
    /// The rows of each table that wait to be written.
    pending: Vec<(Vec<u64>, Vec<Vec<u8>>)>,
    /// The largest value of each key, for tables with [`Way::Largest`] and [`Way::Times`].
    largest: BTreeMap<(Place, u64), u64>,
    /// Number of rows of tables of embeddings.
    pub(super) rows: u64,
}

impl Target {
    pub(super) fn create(path: &Path, options: &StoreOptions, layout: &Layout) -> Result<Self> {
        let store = Store::open(path, options)?;
        let tables: Vec<NewTable<'_>> = layout
            .tables
            .iter()
            .map(|made| NewTable {
                name: &made.name,
                width: made.width,
                value_bytes: made.value_bytes,
                descriptor: &made.descriptor,
            })
            .collect();
        let ids = store.create_tables(&tables)?;
        // From here on, the bank does not open as a shard before it has its file SHARD.
        store.checkpoint(b"an unfinished `embank reshard`")?;
        let pending = vec![Default::default(); ids.len()];
        let path = path.to_owned();
        Ok(Target { path, store, ids, pending, largest: BTreeMap::new(), rows: 0 })
    }

    fn write(&mut self, layout: &Layout) -> Result<()> {
        for ((made, &id), pending) in layout.tables.iter().zip(&self.ids).zip(&mut self.pending) {
            let (keys, values) = std::mem::take(pending);
            let clock = Clock::Keep;
            match made.width {
                Width::Fixed => {
                    self.store.execute(id, &keys, clock, &mut PutBytes::<false>(&values))?
                }
                Width::Variable => {
                    self.store.execute(id, &keys, clock, &mut PutBytes::<true>(&values))?
                }
            };
        }
        Ok(())
    }

    /// Writes what waits, and takes the bank's checkpoint.
    fn finish(&mut self, layout: &Layout, blob: &str) -> Result<HeldCheckpoint> {
        for ((place, key), value) in std::mem::take(&mut self.largest) {
            let (keys, values) = &mut self.pending[place];
            keys.push(key);
            values.push(value.to_le_bytes().to_vec());
        }
        self.write(layout)?;
        let number = self.store.checkpoint(blob.as_bytes())?;
        self.store.pin(number)?;
        let id = CheckpointReader::open(&self.path, number)?.id();
        Ok(HeldCheckpoint::new(number, id))
    }
}

/// Puts values as they are. `VARIABLE` is true for a table of variable width.
struct PutBytes<'a, const VARIABLE: bool>(&'a [Vec<u8>]);

impl<const VARIABLE: bool> Operation for PutBytes<'_, VARIABLE> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };

    fn value_bytes(&mut self, i: usize, _old: Option<&[u8]>) -> usize {
        self.0[i].len()
    }

    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.0[i]);
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Writes the rows of the old shards into the new banks.
pub(super) struct Writer<'a> {
    pub(super) layout: &'a Layout,
    pub(super) targets: Vec<Target>,
    pub(super) pending_bytes: usize,
    pub(super) rows_done: u64,
    pub(super) rows_total: u64,
    pub(super) progress: &'a mut dyn FnMut(TransferProgress) -> ControlFlow<()>,
}

impl Writer<'_> {
    /// Copies all rows of old shard `shard`.
    pub(super) fn copy(
        &mut self,
        fleet: &Path,
        shard: usize,
        source: &mut CheckpointReader,
    ) -> Result<()> {
        let mut failure = None;
        let damage = source.for_each_row(&mut |table, key, value| {
            let taken = self.take(shard, table, key, value);
            failure = taken.err();
            failure.is_none()
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        if let Some(first) = damage.into_iter().next() {
            let what = format!(
                "{}; `embank verify {}` lists all damage",
                first.what,
                shard_path(fleet, shard as u32).display()
            );
            return Err(StoreError::Damaged { path: first.path, offset: first.offset, what }.into());
        }
        Ok(())
    }

    fn take(&mut self, shard: usize, table: u16, key: u64, value: &[u8]) -> Result<()> {
        let layout = self.layout;
        let Some(&place) = layout.places[shard].get(&table) else { return Ok(()) };
        if self.rows_done.is_multiple_of(REPORT_ROWS) {
            report(self.progress, self.rows_done, self.rows_total)?;
        }
        self.rows_done += 1;
        let made = &layout.tables[place];
        match &made.way {
            Way::ByKey(routing) => self.put(routing.shard_of(key), place, key, value),
            Way::To(shard) => self.put(*shard, place, key, value),
            Way::Everywhere => {
                (0..self.targets.len() as u32).for_each(|to| self.put(to, place, key, value));
            }
            Way::Largest => self.raise(place, value, |_| Some(key)),
            Way::Times => {
                let named = u16::try_from(key).ok().and_then(|of| layout.names[shard].get(&of));
                let of = layout.tables.iter().position(|made| Some(&made.name) == named);
                self.raise(place, value, |target| of.map(|of| u64::from(target.ids[of].number())));
            }
        }
        if self.pending_bytes >= PENDING_BYTES_MAX {
            self.write()?;
        }
        Ok(())
    }

    fn put(&mut self, to: u32, place: Place, key: u64, value: &[u8]) {
        let target = &mut self.targets[to as usize];
        target.rows += u64::from(self.layout.tables[place].is_main);
        let (keys, values) = &mut target.pending[place];
        keys.push(key);
        values.push(value.to_vec());
        self.pending_bytes += value.len() + PENDING_ROW_BYTES;
    }

    /// Raises a number of every new bank to that of `value`. `key_in` gives the row's key.
    fn raise(&mut self, place: Place, value: &[u8], key_in: impl Fn(&Target) -> Option<u64>) {
        let Some(number) = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return;
        };
        for target in &mut self.targets {
            if let Some(key) = key_in(target) {
                let largest = target.largest.entry((place, key)).or_default();
                *largest = number.max(*largest);
            }
        }
    }

    fn write(&mut self) -> Result<()> {
        self.pending_bytes = 0;
        self.targets.iter_mut().try_for_each(|target| target.write(self.layout))
    }

    /// Takes the new checkpoints, and makes the banks a fleet with the set of `old`.
    pub(super) fn complete(mut self, fleet: FleetId, old: SetRecord) -> Result<()> {
        let blob = format!("set {} of fleet {fleet}", old.number);
        let finish = |target: &mut Target| target.finish(self.layout, &blob);
        let checkpoints = self.targets.iter_mut().map(finish).collect::<Result<Vec<_>>>()?;
        report(self.progress, self.rows_done, self.rows_total)?;
        let shards = self.targets.len() as u32;
        let record = SetRecord { fleet, checkpoints, ..old };
        self.targets.iter().try_for_each(|target| record.write(&target.path))?;
        // A bank without its file SHARD is refused. So the directory is a fleet when the last bank
        // has it, and all of them have their rows and the record by then.
        (0..).zip(&self.targets).try_for_each(|(shard, target)| {
            ShardIdentity::new(fleet, shard, shards)?.create(&target.path)
        })
    }
}
