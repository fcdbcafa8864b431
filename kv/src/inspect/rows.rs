//! Reads the rows of a checkpoint, of one table or of all, without opening the bank.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::bank::{BankFiles, table_summary};
use super::hot_rows::HotRows;
use super::index::for_each_bucket;
use super::log_files::{LogFiles, PageRead};
use super::parts::{self, NewestRows, PartFiles, RangedPart};
use super::walk::{Broken, Deleted, Row, Source, Visit, follow_entry, walk};
use super::{Damage, Progress, TableSummary};
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::hold::Hold;
use crate::checkpoint::manifest::{Manifest, TableEntry};
use crate::cold::list::{ListedPart, PartList};
use crate::cold::part::{Found, Part};
use crate::device::{AlignedBuffer, Device, Read};
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::index::Probe;
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;

/// Memory for the index entries of one window of the log, in bytes.
const WINDOW_BYTES: u64 = 64 << 20;

/// Reads the rows that a table had at a checkpoint. Changes nothing. Another process may write the
/// bank meanwhile. That process keeps the checkpoint until the reader is dropped.
///
/// ```
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
/// store.create_table("squares", 8, b"")?;
/// store.checkpoint(b"step 1")?;
///
/// let mut reader = embank_kv::inspect::TableReader::open(dir.path(), None, "squares")?;
/// reader.for_each_row(&mut |_key, _value| true)?;
/// assert_eq!(reader.get(&[7])?, [None]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TableReader {
    dir: Arc<Directory>,
    log: LogFiles,
    source: Source,
    cold: Option<ColdFiles>,
    table: TableSummary,
    _hold: Hold,
}

impl TableReader {
    /// Opens the table `name` of checkpoint `checkpoint`. `None` means the newest checkpoint.
    ///
    /// # Errors
    /// `NotABank`; `NoSuchCheckpoint`; `NoSuchTable`. `Damaged` or `Io` if the metadata can't be
    /// read.
    pub fn open(dir: &Path, checkpoint: Option<u64>, name: &str) -> Result<Self> {
        let dir = open_bank_dir(dir)?;
        let (files, number, hold) = held_files(&dir, checkpoint)?;
        let Some(manifest) = files.manifest(number) else {
            return Err(damaged_of(&files, number));
        };
        let entry = manifest.tables.iter().find(|table| !table.dropped && table.name == name);
        let Some(entry) = entry else {
            return Err(Error::NoSuchTable(format!("{name:?} in checkpoint {number}")));
        };
        let table = table_summary(entry);
        let source = Source::of(manifest, true);
        let log = LogFiles::new(&dir, manifest);
        let cold = ColdFiles::of(&dir, &files, manifest)?;
        Ok(TableReader { dir, log, source, cold, table, _hold: hold })
    }

    /// Number of the checkpoint that the reader reads.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        self.source.identity.checkpoint
    }

    /// Describes the table that the reader reads.
    #[must_use]
    pub fn table(&self) -> &TableSummary {
        &self.table
    }

    /// Calls `row` with the key and value of each row, in no particular order, until `row` returns
    /// false. Skips rows that can't be read, and returns the damage that made them unreadable.
    ///
    /// # Errors
    /// `Damaged` or `Io` if the index can't be read.
    pub fn for_each_row(&mut self, row: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<Vec<Damage>> {
        let files = BankFiles::read(&self.dir)?;
        let table = TableNumber(self.table.number);
        let mut of_table = |found: u16, key: u64, value: &[u8]| found != table.0 || row(key, value);
        all_rows(&files, &mut self.log, &self.source, self.cold.as_ref(), &mut of_table)
    }

    /// Returns the values of `keys`, in the order of `keys`. `None` for a key without a row.
    ///
    /// # Errors
    /// `Damaged` or `Io` if the index or a row can't be read.
    pub fn get(&mut self, keys: &[u64]) -> Result<Vec<Option<Vec<u8>>>> {
        let files = BankFiles::read(&self.dir)?;
        let table = TableNumber(self.table.number);
        let hashes: Vec<u64> =
            keys.iter().map(|&key| self.source.key_hash.of(table, key)).collect();
        let mut found = Vec::new();
        let source = &self.source;
        for_each_bucket(
            &files.checkpoints,
            source.identity,
            files.manifest(source.identity.checkpoint),
            (source.log_begin, source.log_end),
            |bucket, depth, entries| {
                let here = |hash: &&u64| **hash & ((1 << depth) - 1) == bucket;
                for &hash in hashes.iter().filter(here) {
                    let probe = Probe::new(hash, depth);
                    let leads = entries.iter().filter(|entry| entry.matches(probe));
                    found.extend(leads.map(|&entry| (bucket, depth, entry)));
                }
                Ok(())
            },
        )?;
        let mut values = vec![None; keys.len()];
        // The keys that have a tombstone in the log.
        let mut gone = BTreeSet::new();
        for entry in found {
            let mut row = |found: u16, key: u64, value: &[u8]| {
                if found != table.0 {
                    return true;
                }
                for (to, _) in values.iter_mut().zip(keys).filter(|(_, wanted)| **wanted == key) {
                    *to = Some(value.to_vec());
                }
                true
            };
            let mut visit = Rows::new(&self.source, &mut row);
            follow_entry(&mut self.log, &self.source, entry, &mut visit)?;
            gone.extend(visit.gone.iter().filter(|(of, _)| *of == table).map(|(_, key)| *key));
            if let Some(Damage { path, offset, what, .. }) = visit.damage.pop() {
                return Err(Error::Damaged { path, offset, what });
            }
        }
        let Some(cold) = &self.cold else { return Ok(values) };
        let Some(entry) = self.source.table(table, 0) else { return Ok(values) };
        for ((value, &key), hash) in values.iter_mut().zip(keys).zip(hashes) {
            if value.is_none() && !gone.contains(&key) {
                *value = cold.get(entry, key, hash)?;
            }
        }
        Ok(values)
    }
}

/// Takes a hold on checkpoint `checkpoint`, and reads the bank's metadata. A process that writes
/// the bank keeps the checkpoint while the hold exists. `None` means the newest checkpoint.
fn held_files(dir: &Arc<Directory>, checkpoint: Option<u64>) -> Result<(BankFiles, u64, Hold)> {
    let files = BankFiles::read(dir)?;
    let held = match checkpoint {
        Some(number) if files.numbers.contains(&number) && files.manifest(number).is_none() => {
            return Err(damaged_of(&files, number));
        }
        Some(number) => files.checkpoints.hold(number)?.map(|hold| (number, hold)),
        None => files.checkpoints.hold_newest()?,
    };
    match held {
        // The metadata is read again under the hold. Before the hold was taken, this checkpoint may
        // have been removed and another checkpoint may have got its number.
        Some((number, hold)) => Ok((BankFiles::read(dir)?, number, hold)),
        None => Err(Error::no_such_checkpoint(dir.path(), checkpoint, files.numbers)),
    }
}

/// Returns the error that says why a checkpoint's manifest can't be read.
fn damaged_of(files: &BankFiles, number: u64) -> Error {
    let of = files.damage.iter().find(|damage| damage.checkpoint == Some(number));
    let path = files.checkpoints.manifest_path(number).path();
    let what = of.map_or_else(|| "it can't be read".into(), |damage| damage.what.clone());
    Error::Damaged { path, offset: 0, what }
}

/// Reads all rows of a checkpoint, in one pass over its log. Changes nothing. Another process may
/// write the bank meanwhile. That process keeps the checkpoint until the reader is dropped.
///
/// ```
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
/// store.create_table("squares", 8, b"")?;
/// let number = store.checkpoint(b"step 1")?;
///
/// let mut reader = embank_kv::inspect::CheckpointReader::open(dir.path(), number)?;
/// assert_eq!(reader.tables()[0].name, "squares");
/// reader.for_each_row(&mut |_table, _key, _value| true)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CheckpointReader {
    dir: Arc<Directory>,
    log: LogFiles,
    source: Source,
    cold: Option<ColdFiles>,
    tables: Vec<TableSummary>,
    _hold: Hold,
}

impl CheckpointReader {
    /// Opens checkpoint `checkpoint`.
    ///
    /// # Errors
    /// `NotABank`; `NoSuchCheckpoint`. `Damaged` or `Io` if the metadata can't be read.
    pub fn open(dir: &Path, checkpoint: u64) -> Result<Self> {
        let dir = open_bank_dir(dir)?;
        let (files, number, hold) = held_files(&dir, Some(checkpoint))?;
        let Some(manifest) = files.manifest(number) else {
            return Err(damaged_of(&files, number));
        };
        let there = manifest.tables.iter().filter(|table| !table.dropped);
        let tables = there.map(table_summary).collect();
        let source = Source::of(manifest, true);
        let log = LogFiles::new(&dir, manifest);
        let cold = ColdFiles::of(&dir, &files, manifest)?;
        Ok(CheckpointReader { dir, log, source, cold, tables, _hold: hold })
    }

    /// The random id of the checkpoint.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.source.identity.id
    }

    /// Length of a page of the bank in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.log.page_bytes
    }

    /// Describes the tables of the checkpoint, by number.
    #[must_use]
    pub fn tables(&self) -> &[TableSummary] {
        &self.tables
    }

    /// Calls `row` with the number of the table, the key and the value of each row, in no
    /// particular order, until `row` returns false. Skips rows that can't be read, and returns the
    /// damage that made them unreadable.
    ///
    /// # Errors
    /// `Damaged` or `Io` if the index can't be read.
    pub fn for_each_row(
        &mut self,
        row: &mut dyn FnMut(u16, u64, &[u8]) -> bool,
    ) -> Result<Vec<Damage>> {
        let files = BankFiles::read(&self.dir)?;
        all_rows(&files, &mut self.log, &self.source, self.cold.as_ref(), row)
    }
}

/// The parts of a checkpoint.
#[derive(Debug)]
struct ColdFiles {
    files: PartFiles,
    list: PartList,
}

impl ColdFiles {
    /// Returns the parts of the checkpoint of `manifest`. `None` if it has none.
    fn of(dir: &Arc<Directory>, files: &BankFiles, manifest: &Manifest) -> Result<Option<Self>> {
        let list = files.checkpoints.parts(manifest)?;
        let files = PartFiles::new(dir, manifest);
        Ok((!list.parts.is_empty()).then_some(ColdFiles { files, list }))
    }

    /// Returns the value of a row that the log does not have.
    fn get(&self, table: &TableEntry, key: u64, hash: u64) -> Result<Option<Vec<u8>>> {
        let site = self.files.site();
        let number = TableNumber(table.number);
        for listed in parts::candidates(&self.list, hash) {
            let ListedPart { head, file_bytes, trailer_crc } = listed;
            let part = Part::load(site, head, *file_bytes, *trailer_crc)?;
            let mut next = part.block_of(hash).filter(|_| part.may_have(hash));
            // The loop ends: each turn moves to a block with a lower address.
            while let Some(place) = next {
                let mut block = AlignedBuffer::zeroed(place.bytes as usize);
                let reads = &mut [Read { offset: place.address, buffer: &mut block }];
                self.files.read_many(reads)?;
                let locate = || self.files.locate(place.address);
                match part.find(place, &block, hash, number, key, locate)? {
                    Found::Row(row) if row.flags.tombstone => return Ok(None),
                    Found::Row(row) => {
                        let (path, offset) = self.files.locate(place.address);
                        let value = parts::value(table, row);
                        let damaged = |what| Error::Damaged { path, offset, what };
                        return value.map(|value| Some(value.to_vec())).map_err(damaged);
                    }
                    Found::Missing => next = None,
                    Found::Before(before) => next = Some(before),
                }
            }
        }
        Ok(None)
    }
}

/// Calls `row` with the table, the key and the value of each row, until `row` returns false. First
/// come the rows of the log, then those of the parts. Returns the damage of rows that were skipped.
fn all_rows(
    files: &BankFiles,
    log: &mut LogFiles,
    source: &Source,
    cold: Option<&ColdFiles>,
    row: &mut dyn FnMut(u16, u64, &[u8]) -> bool,
) -> Result<Vec<Damage>> {
    let mut visit = Rows::new(source, row);
    visit.hot = cold.map(|_| HotRows::new(WINDOW_BYTES));
    let sources = std::slice::from_ref(source);
    walk(files, log, sources, WINDOW_BYTES, &mut visit)?;
    let Some(ColdFiles { files: part_files, list }) = cold else { return Ok(visit.damage) };
    let parts: Vec<RangedPart> = list.parts.iter().cloned().map(RangedPart::from).collect();
    // The loop ends: each slice has higher hashes.
    while !visit.has_ended {
        visit.is_noting = true;
        let Some(hot) = &mut visit.hot else { break };
        hot.slice.end_noting();
        let mut rows = NewestRows::new(part_files, &parts, hot.slice.first());
        while rows.advance()? {
            let (found, is_doubtful) = rows.row();
            if found.hash > hot.slice.last() {
                break;
            }
            let table = source.table(found.table, 0).filter(|table| !table.dropped);
            let of_row = (found.table, found.key);
            let Some(table) = table.filter(|_| !found.flags.tombstone && !is_doubtful) else {
                continue;
            };
            if hot.hides(found.hash, found.table) || hot.open.lead_to(found.hash, of_row, 0) {
                continue;
            }
            match parts::value(table, found) {
                Ok(value) => visit.has_ended = !(visit.row)(found.table.0, found.key, value),
                Err(what) => visit.damage.push(rows.damage_here(part_files, what)),
            }
            if visit.has_ended {
                break;
            }
        }
        for damage in rows.damage(part_files, &source.tables) {
            if !visit.damage.contains(&damage) {
                visit.damage.push(damage);
            }
        }
        if visit.has_ended || !hot.slice.next() {
            break;
        }
        walk(files, log, sources, WINDOW_BYTES, &mut visit)?;
    }
    Ok(visit.damage)
}

struct Rows<'a> {
    key_hash: KeyHash,
    row: &'a mut dyn FnMut(u16, u64, &[u8]) -> bool,
    damage: Vec<Damage>,
    /// Rows that hide rows of parts. `None` if there are no parts.
    hot: Option<HotRows>,
    /// The rows with a tombstone, if there are no parts to hide.
    gone: Vec<(TableNumber, u64)>,
    /// True from the second walk on: it only notes rows.
    is_noting: bool,
    /// True if `row` has returned false.
    has_ended: bool,
}

impl<'a> Rows<'a> {
    fn new(source: &Source, row: &'a mut dyn FnMut(u16, u64, &[u8]) -> bool) -> Self {
        Rows {
            key_hash: source.key_hash,
            row,
            damage: Vec::new(),
            hot: None,
            gone: Vec::new(),
            is_noting: false,
            has_ended: false,
        }
    }
}

impl Visit for Rows<'_> {
    fn page(&mut self, _log: &LogFiles, _page: &PageRead) -> Result<()> {
        Ok(())
    }

    fn missing(&mut self, _log: &LogFiles, _start: u64, _end: u64) {}

    fn row(&mut self, row: Row<'_>) -> Result<bool> {
        if let Some(hot) = &mut self.hot {
            hot.note(self.key_hash.of(row.table, row.key), row.table);
        }
        self.has_ended = !self.is_noting && !(self.row)(row.table.0, row.key, row.value);
        Ok(!self.has_ended)
    }

    fn tombstone(&mut self, Deleted { table, key, .. }: Deleted) {
        match &mut self.hot {
            Some(hot) => hot.note(self.key_hash.of(table, key), table),
            None => self.gone.push((table, key)),
        }
    }

    fn broken(&mut self, log: &LogFiles, broken: Broken<'_>) -> Result<()> {
        if self.is_noting {
            return Ok(());
        }
        if let Some(hot) = &mut self.hot {
            hot.open.note(&broken);
        }
        let (path, offset) = log.locate(broken.at);
        let page = broken.at / log.page_bytes;
        let what = format!("page {page}: {}", broken.what);
        let mut damage = Damage::in_file(&path, offset, 0, what);
        damage.page = Some(page);
        damage.pages = 1;
        damage.checkpoint = None;
        self.damage.push(damage);
        Ok(())
    }

    fn progress(&mut self, _progress: Progress) {}
}
