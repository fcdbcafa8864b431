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

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use embank_kv::inspect::{CheckpointReader, TableReader, TableSummary};
use embank_kv::{Access, Clock, NewTable, Operation, Store, StoreOptions, TableId};

use crate::error::{Error, Result, StoreError};
use crate::fleet::identity::{FleetId, ShardIdentity, shard_path};
use crate::fleet::plan::{CompleteSet, FleetPlan};
use crate::fleet::record::{self, HeldCheckpoint, SetRecord};
use crate::fleet::routing::{BUCKETS, Routing, check_shards};
use crate::fleet::view::read_views;
use crate::row::admission::Admission;
use crate::row::config::TableConfig;
use crate::row::descriptor::{counts_descriptor, is_counts_descriptor};
use crate::row::times;
use crate::table::count_tables::{COUNT_BYTES, counts_name, split_name};
use crate::table::progress::{TransferProgress, report};
use crate::vocabulary::config::VocabularyConfig;
use crate::vocabulary::descriptor::{HEADER_BYTES, Header, Role, role_of};
use crate::vocabulary::hash::EMPTY_FINGERPRINT;

/// Default memory of a new bank without its index, in bytes.
const MEMORY_BYTES: u64 = 64 << 20;
/// Default memory of a new bank's index, in bytes for each row that the bank may get.
const MEMORY_BYTES_PER_ROW: u64 = 18;
/// Rows that wait to be written are written when they have this many bytes.
const PENDING_BYTES_MAX: usize = 16 << 20;
/// Bytes that a waiting row takes beside its value.
const PENDING_ROW_BYTES: usize = 48;
/// Rows between two reports of the progress.
const REPORT_ROWS: u64 = 10_000;

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
/// eighth more rows by key than its share of the [`BUCKETS`], all rows of the tables that are on
/// its shard, and all vocabularies. Otherwise the new banks share `memory_bytes` equally.
/// `progress` can end the call.
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

/// The place of a table in [`Layout::tables`].
type Place = usize;

/// Where a row of an old table goes.
#[derive(Debug, Clone)]
enum Way {
    /// To the shard of the key.
    ByKey(Routing),
    /// To one shard.
    To(u32),
    /// To all shards. Only the rows of shard 0 count.
    Everywhere,
    /// To all shards: the largest value for each key.
    Largest,
    /// To all shards: the largest value for each table, whose number is the key.
    Times,
}

/// A table of the new banks.
#[derive(Debug, Clone)]
struct Made {
    name: String,
    width: embank_kv::Width,
    value_bytes: u32,
    descriptor: Vec<u8>,
    way: Way,
    /// True for a table of embeddings.
    is_main: bool,
}

/// The tables of the new banks, and how the tables of each old shard map to them.
#[derive(Debug)]
struct Layout {
    tables: Vec<Made>,
    /// For each old shard, the place of each old table by its number. Tables without a place are
    /// left out.
    places: Vec<HashMap<u16, Place>>,
    /// For each old shard, the names of its tables by number.
    names: Vec<HashMap<u16, String>>,
}

impl Layout {
    fn of(
        fleet: &Path,
        set: &CompleteSet,
        sources: &[CheckpointReader],
        shards: u32,
    ) -> Result<Self> {
        let mut layout = Layout {
            tables: Vec::new(),
            places: vec![HashMap::new(); sources.len()],
            names: vec![HashMap::new(); sources.len()],
        };
        for (names, source) in layout.names.iter_mut().zip(sources) {
            names.extend(source.tables().iter().map(|table| (table.number, table.name.clone())));
        }
        for table in sources[0].tables() {
            if let Some(role) = role_of(&table.descriptor) {
                role.map_err(|what| unreadable(&table.name, what))?;
                let place = layout.add(table, Way::Everywhere, false);
                layout.places[0].insert(table.number, place);
            } else if !is_counts_descriptor(&table.descriptor) {
                layout.add_main(fleet, sources, table, shards)?;
            }
        }
        layout.refuse_others(fleet, set, sources)?;
        layout.add_times(sources);
        Ok(layout)
    }

    fn add(&mut self, like: &TableSummary, way: Way, is_main: bool) -> Place {
        self.tables.push(Made {
            name: like.name.clone(),
            width: like.width,
            value_bytes: like.value_bytes,
            descriptor: like.descriptor.clone(),
            way,
            is_main,
        });
        self.tables.len() - 1
    }

    /// Adds a table of embeddings, which all shards must have, and its admission counts.
    fn add_main(
        &mut self,
        fleet: &Path,
        sources: &[CheckpointReader],
        table: &TableSummary,
        shards: u32,
    ) -> Result<()> {
        let mut config = TableConfig::from_descriptor(&table.name, &table.descriptor)?;
        let mut same = Vec::new();
        for (shard, source) in (0..).zip(sources) {
            let found = source.tables().iter().find(|found| found.name == table.name);
            let Some(found) = found else {
                return Err(other_table(fleet, shard, &table.name, "no such table".into()));
            };
            let there = TableConfig::from_descriptor(&found.name, &found.descriptor)?;
            config
                .check_same_table(&table.name, &there)
                .map_err(|error| other_table(fleet, shard, &table.name, error.to_string()))?;
            same.push(found.number);
        }
        config.shard = config.shard.map(|shard| shard % shards);
        let way = match config.shard {
            Some(shard) => Way::To(shard),
            None => Way::ByKey(Routing::new(&table.name, shards)?),
        };
        let place = self.add(table, way.clone(), true);
        if config.shard.is_some() {
            self.tables[place].descriptor = config.to_descriptor();
        }
        for (places, number) in self.places.iter_mut().zip(same) {
            places.insert(number, place);
        }
        match config.admission {
            Admission::Always => {}
            Admission::AfterGets(_) => self.add_counts(sources, &table.name, way),
            Admission::Probability(_) => self.add_counts(sources, &table.name, Way::Largest),
        }
        Ok(())
    }

    /// Adds the generations of the counts of table `name`. The newer generations of all shards
    /// become one, and the older ones too.
    fn add_counts(&mut self, sources: &[CheckpointReader], name: &str, way: Way) {
        let generations: Vec<Vec<(u64, u16)>> = sources
            .iter()
            .map(|source| {
                let counts = source.tables().iter().filter_map(|table| {
                    let is_counts = is_counts_descriptor(&table.descriptor);
                    let (of, number) = split_name(&table.name).filter(|_| is_counts)?;
                    (of == name).then_some((number, table.number))
                });
                let mut found: Vec<(u64, u16)> = counts.collect();
                found.sort_unstable_by(|a, b| b.cmp(a));
                found
            })
            .collect();
        let newest = generations.iter().flatten().map(|&(number, _)| number).max();
        let Some(newest) = newest else { return };
        // The older generation of a shard has a number of at least 0, so the newest one of it has 1
        // or more.
        for rank in 0..2 {
            let here = generations.iter().map(|found| found.get(rank).map(|&(_, table)| table));
            let here: Vec<Option<u16>> = here.collect();
            if here.iter().all(Option::is_none) {
                continue;
            }
            self.tables.push(Made {
                name: counts_name(name, newest - rank as u64),
                width: embank_kv::Width::Fixed,
                value_bytes: COUNT_BYTES,
                descriptor: counts_descriptor(),
                way: way.clone(),
                is_main: false,
            });
            let place = self.tables.len() - 1;
            for (places, table) in self.places.iter_mut().zip(here) {
                places.extend(table.map(|table| (table, place)));
            }
        }
    }

    fn add_times(&mut self, sources: &[CheckpointReader]) {
        let is_times = |table: &&TableSummary| {
            table.name == times::NAME && is_counts_descriptor(&table.descriptor)
        };
        let mut place = None;
        for (shard, source) in sources.iter().enumerate() {
            if let Some(table) = source.tables().iter().find(is_times) {
                let place = *place.get_or_insert_with(|| self.add(table, Way::Times, false));
                self.places[shard].insert(table.number, place);
            }
        }
    }

    /// Fails if a shard has a table of embeddings or a vocabulary that shard 0 does not have, or
    /// other settings or values of a vocabulary. The identities of a vocabulary may differ, because
    /// each bank draws its own.
    fn refuse_others(
        &self,
        fleet: &Path,
        set: &CompleteSet,
        sources: &[CheckpointReader],
    ) -> Result<()> {
        for (shard, source) in (0..).zip(sources).skip(1) {
            for table in source.tables() {
                let is_known = self.tables.iter().any(|made| made.name == table.name);
                let is_counts = is_counts_descriptor(&table.descriptor);
                let is_part = matches!(role_of(&table.descriptor), Some(Ok(Role::Part { .. })));
                if !is_known && !is_counts && !is_part {
                    let what = "a table that shard 0 does not have".into();
                    return Err(other_table(fleet, shard, &table.name, what));
                }
            }
        }
        for table in sources[0].tables() {
            let Some(config) = vocabulary_config(table) else { continue };
            let expected = header(fleet, set, 0, &table.name)?;
            for (shard, source) in (0..).zip(sources).skip(1) {
                let there = source.tables().iter().find(|found| found.name == table.name);
                let there = there.and_then(vocabulary_config);
                if there.as_ref() != Some(&config) {
                    let what = match there {
                        Some(there) => format!("{there:?}, not {config:?}"),
                        None => "no such vocabulary".into(),
                    };
                    return Err(other_table(fleet, shard, &table.name, what));
                }
                let found = header(fleet, set, shard, &table.name)?;
                if (found.len, found.fingerprint) != (expected.len, expected.fingerprint) {
                    let what =
                        format!("{} other values than the {} of shard 0", found.len, expected.len);
                    return Err(other_table(fleet, shard, &table.name, what));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of rows that are read.
    fn rows(&self, sources: &[CheckpointReader]) -> u64 {
        let of = |(source, places): (&CheckpointReader, &HashMap<u16, Place>)| -> u64 {
            let read = source.tables().iter().filter(|table| places.contains_key(&table.number));
            read.map(|table| table.rows).sum()
        };
        sources.iter().zip(&self.places).map(of).sum()
    }

    /// Returns enough memory for the bank of shard `shard` of `shards`.
    ///
    /// The rows by key are estimated, because their keys are not read yet: the hash divides them
    /// unevenly. A bank may have all rows of a table that every shard has.
    fn default_memory_bytes(&self, sources: &[CheckpointReader], shard: u32, shards: u32) -> u64 {
        let buckets = u64::from(BUCKETS.div_ceil(shards));
        let mut rows = 0;
        for (source, places) in sources.iter().zip(&self.places) {
            for table in source.tables() {
                let Some(&place) = places.get(&table.number) else { continue };
                rows += match self.tables[place].way {
                    // No shard has more buckets. The eighth is for buckets with more rows than
                    // others.
                    Way::ByKey(_) => (table.rows * buckets).div_ceil(u64::from(BUCKETS)) * 9 / 8,
                    Way::To(placed) if placed != shard => 0,
                    Way::To(_) | Way::Everywhere | Way::Largest | Way::Times => table.rows,
                };
            }
        }
        MEMORY_BYTES + rows * MEMORY_BYTES_PER_ROW
    }
}

/// Returns the settings of the vocabulary whose own table is `table`. `None` for other tables.
fn vocabulary_config(table: &TableSummary) -> Option<VocabularyConfig> {
    match role_of(&table.descriptor) {
        Some(Ok(Role::Header(founding))) => Some(founding.config),
        _ => None,
    }
}

/// Reads the header of a vocabulary on a shard.
fn header(fleet: &Path, set: &CompleteSet, shard: u32, table: &str) -> Result<Header> {
    let number = set.checkpoints[shard as usize].number;
    let path = shard_path(fleet, shard);
    let mut reader = match TableReader::open(&path, Some(number), table) {
        Err(StoreError::NoSuchTable(_)) => {
            return Err(other_table(fleet, shard, table, "no such vocabulary".into()));
        }
        opened => opened?,
    };
    let Some(value) = reader.get(&[0])?.pop().flatten() else {
        return Ok(Header { len: 0, fingerprint: EMPTY_FINGERPRINT, numbering: 0, frozen: false });
    };
    let header =
        value.first_chunk::<HEADER_BYTES>().ok_or_else(|| "its header is short".to_owned());
    header.and_then(Header::from_bytes).map_err(|what| unreadable(table, what))
}

fn unreadable(table: &str, reason: String) -> Error {
    Error::UnreadableTable { table: table.to_owned(), reason }
}

fn other_table(fleet: &Path, shard: u32, table: &str, found: String) -> Error {
    Error::ShardMismatch {
        path: shard_path(fleet, shard),
        found: format!("table {table:?}: {found}"),
        expected: "the tables of shard 0".into(),
        cure: "make the table with equal settings on all shards, and take a set".into(),
    }
}

/// The bank of a new shard.
struct Target {
    path: PathBuf,
    store: Store,
    ids: Vec<TableId>,
    /// The rows of each table that wait to be written.
    pending: Vec<(Vec<u64>, Vec<Vec<u8>>)>,
    /// The largest value of each key, for tables with [`Way::Largest`] and [`Way::Times`].
    largest: BTreeMap<(Place, u64), u64>,
    /// Number of rows of tables of embeddings.
    rows: u64,
}

impl Target {
    fn create(path: &Path, options: &StoreOptions, layout: &Layout) -> Result<Self> {
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
                embank_kv::Width::Fixed => {
                    self.store.execute(id, &keys, clock, &mut PutBytes::<false>(&values))?
                }
                embank_kv::Width::Variable => {
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
    const WIDTH: embank_kv::Width =
        if VARIABLE { embank_kv::Width::Variable } else { embank_kv::Width::Fixed };

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

struct Writer<'a> {
    layout: &'a Layout,
    targets: Vec<Target>,
    pending_bytes: usize,
    rows_done: u64,
    rows_total: u64,
    progress: &'a mut dyn FnMut(TransferProgress) -> ControlFlow<()>,
}

impl Writer<'_> {
    /// Copies all rows of old shard `shard`.
    fn copy(&mut self, fleet: &Path, shard: usize, source: &mut CheckpointReader) -> Result<()> {
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
    fn complete(mut self, fleet: FleetId, old: SetRecord) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bank, BankOptions, TableConfig};

    #[test]
    fn a_bank_gets_memory_for_the_rows_that_it_may_get() {
        let dir = tempfile::tempdir().unwrap();
        let options = BankOptions { memory_budget_bytes: 2 << 20, ..Default::default() };
        let path = shard_path(dir.path(), 0);
        let bank = Bank::open(&path, options).unwrap();
        let keys: Vec<u64> = (0..4096).collect();
        let table = bank.table("by key", TableConfig::new(1)).unwrap();
        table.put(&keys, &[0.0; 4096]).unwrap();
        let table = bank.table("placed", TableConfig::new(1).shard(Some(0))).unwrap();
        table.put(&keys[..1000], &[0.0; 1000]).unwrap();
        let number = bank.checkpoint(b"").unwrap();
        let sources = [CheckpointReader::open(&path, number).unwrap()];
        let set = CompleteSet {
            number: 0,
            id: 0,
            checkpoints: vec![HeldCheckpoint::new(number, sources[0].id())],
            holder: 0,
            lacking: Vec::new(),
        };
        let rows = |shard, shards| {
            let layout = Layout::of(dir.path(), &set, &sources, shards).unwrap();
            let bytes = layout.default_memory_bytes(&sources, shard, shards);
            (bytes - MEMORY_BYTES) / MEMORY_BYTES_PER_ROW
        };
        // With 3 shards, no shard has more than 1,366 of the 4,096 buckets. With 3,000 shards, no
        // shard has more than 2.
        assert_eq!((rows(0, 3), rows(1, 3)), (1536 + 1000, 1536));
        assert_eq!((rows(0, 3000), rows(2999, 3000)), (2 + 1000, 2));
    }
}
