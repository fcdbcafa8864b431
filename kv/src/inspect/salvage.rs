//! Copies the readable rows of a damaged bank into a new bank.
//!
//! **By the index**, if a checkpoint's index is sound. Salvage copies exactly the sound rows that
//! the index leads to. Sound rows on damaged pages are included, because each record has its own
//! checksum.
//!
//! Keys with similar hashes share an index entry, and their records form a chain from the newest to
//! the oldest. If a record of a chain is damaged, salvage can't follow the chain to the older
//! records, which may be sound. Salvage then searches the log for sound records whose hash belongs
//! to such a broken chain. It copies the newest record of each key that is not copied yet. These
//! rows are *uncertain*, because the damaged record may have been a newer record of the same key.
//!
//! **By the log**, if the index is damaged or lost. Salvage reads all records of the checkpoint's
//! log in address order. The last record of each key counts, and a tombstone deletes the row.
//! Without damaged pages the result equals the checkpoint, because a new record always has a higher
//! address than the record that it replaces. This is also true of records that compaction copies,
//! because compaction copies only current records, to the end of the log. If the newest record or
//! tombstone of a row was on a damaged page, the row gets its older value.
//!
//! **Parts of the cold tier.** After the rows of the log, salvage copies the newest sound version
//! of each row that the log has neither as a row nor as a tombstone. The row is uncertain if a
//! newer version may have been in a damaged block of a newer part, or in a broken chain. If the
//! checkpoint's list of parts is lost, the headers of the parts take its place (`lost_list`).
//!
//! **Which checkpoint.** Salvage takes the newest checkpoint with a readable manifest or a sound
//! index. If only the index is sound, the tables come from the manifest of another checkpoint. The
//! log then ends at the last page that the index leads to.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::bank::BankFiles;
use super::damaged_pages::PageFaults;
use super::hot_rows::OpenChains;
use super::log_files::{LogFiles, Looked, PageRead};
use super::lost_list::{FoundParts, find_parts};
use super::parts::{self, NewestRows, PartFiles, RangedPart, list_damage};
use super::salvaged::NewBank;
use super::walk::{Broken, Deleted, Row, Source, Visit, walk};
use super::{Damage, Progress, blob_identity, index};
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::Manifest;
use crate::cold::list::{KIND as LIST_KIND, PartList};
use crate::error::{Error, Result};
use crate::files::checked_stream::CheckedReader;
use crate::files::directory::{Directory, Place};
use crate::index::ADDRESS_LIMIT;
use crate::record::address::TableNumber;

/// Default memory budget of the new bank, without the memory for its index, in bytes.
const MEMORY_BYTES: u64 = 128 << 20;
/// Memory per row for the new bank's index, in bytes. The default memory budget is `MEMORY_BYTES`
/// plus this number for each row.
const MEMORY_BYTES_PER_ROW: u64 = 18;
/// Memory for the old bank's index entries of one window of the log, in bytes.
const WINDOW_BYTES: u64 = 256 << 20;
/// Largest length of a blob in bytes. No blob is longer, because one call writes the whole blob
/// from one slice, and no slice is longer.
const BLOB_BYTES_MAX: usize = isize::MAX as usize;

/// Options of [`salvage`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SalvageOptions {
    /// Memory budget of the new bank while salvage writes it, in bytes. Default: 128 MiB, and 18
    /// bytes for each row.
    pub memory_budget_bytes: Option<u64>,
}

/// How salvage decided which records are current rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowSource {
    /// By a checkpoint's sound index.
    Index,
    /// By the log alone: of a key's records, the one with the highest address is the row.
    Log,
}

/// Tells whether the caller's blob was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blob {
    /// The blob was copied. Its length in bytes.
    Kept(u64),
    /// The blob can't be read, and the new bank has an empty blob. The text is the reason.
    Lost(String),
}

/// What [`salvage`] copied and what it lost.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SalvageReport {
    /// Number of the checkpoint that was copied.
    pub checkpoint: u64,
    /// Number of the damaged bank's newest checkpoint. If it differs from `checkpoint`, rows that
    /// changed between the two checkpoints have their older value.
    pub newest: u64,
    /// How salvage decided which records are current rows.
    pub rows_by: RowSource,
    /// The tables that were copied.
    pub tables: Vec<SalvagedTable>,
    /// Tells whether the caller's blob was copied.
    pub blob: Blob,
    /// Number of index entries whose chain of records contains a record that can't be read. 0 if
    /// the rows were copied by the log alone.
    pub entries_lost: u64,
    /// All damage that was found, damaged pages included.
    pub damage: Vec<Damage>,
    /// Sentences for the user, for example that tables come from another checkpoint's manifest.
    pub notes: Vec<String>,
}

impl SalvageReport {
    /// True if nothing of the newest checkpoint was lost.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let exact = |table: &SalvagedTable| {
            table.uncertain == 0 && table.expected.is_some_and(|expected| expected == table.rows)
        };
        self.checkpoint == self.newest
            && self.entries_lost == 0
            && matches!(self.blob, Blob::Kept(_))
            && self.damage.iter().all(|damage| damage.page.is_none() && damage.part.is_none())
            && self.tables.iter().all(exact)
    }
}

/// A table of a [`SalvageReport`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvagedTable {
    /// Name of the table.
    pub name: String,
    /// Number of rows according to the checkpoint's manifest. `None` if the manifest can't be read,
    /// or if it does not know the number because of blind puts.
    pub expected: Option<u64>,
    /// Number of rows in the new bank.
    pub rows: u64,
    /// Number of rows in the new bank that may have an older value than the checkpoint.
    pub uncertain: u64,
}

impl SalvagedTable {
    /// Number of rows that are lost or uncertain. `None` if the manifest can't be read.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        let certain = self.rows - self.uncertain;
        self.expected.map(|expected| expected.saturating_sub(certain))
    }
}

/// Copies every sound row of a checkpoint of the bank in `dir` into a new bank in `new`, and takes
/// a checkpoint of the new bank. The checkpoint is the newest one with a readable manifest or a
/// sound index. Reports the losses. Does not change the bank in `dir`. If the newest checkpoint is
/// sound, all its rows and its blob are copied.
///
/// ```
/// use embank_kv::inspect::{SalvageOptions, salvage};
///
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let (old, new) = (dir.path().join("old"), dir.path().join("new"));
/// let store = embank_kv::Store::open(&old, &embank_kv::StoreOptions::default())?;
/// store.create_table("squares", 8, b"")?;
/// store.checkpoint(b"step 1")?;
/// let report = salvage(&old, &new, &SalvageOptions::default(), &mut |_| {})?;
/// assert!(report.is_complete());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `NotABank`. `NewerFormat` if a newer version of Embank wrote the bank; nothing is made in `new`
/// then. `UnusableOutput` if `new` is not empty. `InvalidArgument` if no manifest can be
/// read, because salvage then does not know the tables. Any error of a store, if the new bank can't
/// be written; the new bank then has no checkpoint.
pub fn salvage(
    dir: &Path,
    new: &Path,
    options: &SalvageOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<SalvageReport> {
    let dir = &open_bank_dir(dir)?;
    let files = BankFiles::read(dir)?;
    let mut choice = choose(&files)?;
    let blob = read_blob(&files, choice.identity);
    if let Err(error @ Error::NewerFormat { .. }) = blob {
        return Err(error);
    }
    let manifest = choice.manifest;
    let number = choice.number;
    let memory = MEMORY_BYTES + manifest.rows() * MEMORY_BYTES_PER_ROW;
    let memory = options.memory_budget_bytes.unwrap_or(memory);
    let parts = ColdParts::of(dir, &files, &mut choice)?;
    let bank = NewBank::create(new, &manifest.tables, 1 << manifest.page_bits, memory)?;
    let mut log = LogFiles::new(dir, manifest);
    log.trust_headers(manifest.log_end, choice.log_end);
    let source = choice.source();
    let sources = std::slice::from_ref(&source);
    let mut salvager = Salvager {
        sources,
        bank,
        progress,
        faults: PageFaults::default(),
        open: OpenChains::default(),
        gone: HashSet::new(),
        has_parts: parts.is_some(),
        entries_lost: 0,
        strangers: 0,
        uncertain: vec![0; manifest.tables.len()],
    };
    match choice.rows_by {
        RowSource::Index => {
            walk(&files, &mut log, sources, WINDOW_BYTES, &mut salvager)?;
            salvager.behind_broken_chains(&mut log)?;
        }
        RowSource::Log => salvager.all_records(&mut log)?,
    }
    if let Some(parts) = &parts {
        choice.damage.extend(salvager.cold_rows(parts)?);
    }
    let kept = blob.as_deref().unwrap_or_default();
    let Salvager { bank, faults, entries_lost, strangers, uncertain, .. } = salvager;
    bank.finish(kept)?;
    choice.damage.extend(faults.damage);
    if strangers > 0 {
        choice.notes.push(format!(
            "{strangers} rows belong to tables that were made after checkpoint {}, whose names and settings were \
             in the damaged manifest: they are lost",
            manifest.number
        ));
    }
    let tables = tables(new, manifest, number, &uncertain)?;
    Ok(SalvageReport {
        checkpoint: number,
        newest: files.numbers.last().copied().unwrap_or(number),
        rows_by: choice.rows_by,
        tables,
        blob: blob.map_or_else(|e| Blob::Lost(e.to_string()), |blob| Blob::Kept(blob.len() as u64)),
        entries_lost,
        damage: choice.damage,
        notes: choice.notes,
    })
}

/// The checkpoint to copy, and the way to copy it.
struct Choice<'a> {
    number: u64,
    identity: CheckpointIdentity,
    /// The manifest that describes the tables. If the manifest of checkpoint `number` can't be
    /// read, this is the manifest of another checkpoint.
    manifest: &'a Manifest,
    rows_by: RowSource,
    log_end: u64,
    damage: Vec<Damage>,
    notes: Vec<String>,
}

impl Choice<'_> {
    fn source(&self) -> Source {
        Source {
            identity: self.identity,
            log_end: self.log_end,
            ..Source::of(self.manifest, self.rows_by == RowSource::Index)
        }
    }
}

/// Chooses the newest checkpoint with a readable manifest or a sound index.
fn choose(files: &BankFiles) -> Result<Choice<'_>> {
    let mut damage = files.damage.clone();
    let mut notes = Vec::new();
    for &number in files.numbers.iter().rev() {
        let own = files.manifest(number);
        // Without the checkpoint's own manifest, the tables of another checkpoint are used. Both
        // checkpoints nearly always have equal tables, because tables are rarely made or dropped.
        let older = files.manifests.iter().rev().find(|manifest| manifest.number < number);
        let Some(manifest) = own.or(older).or(files.manifests.first()) else { break };
        let id = own.map_or(0, |own| own.id);
        let identity = CheckpointIdentity { bank: manifest.bank, checkpoint: number, id };
        let in_index = index::damage(&files.checkpoints, identity, own)
            .or_else(|error| Damage::of_error(&files.checkpoints.dir_of(number), number, error))?;
        let whole = in_index.is_empty();
        damage.extend(in_index);
        let (rows_by, log_end) = match (own, whole) {
            (Some(own), true) => (RowSource::Index, own.log_end),
            (Some(own), false) => {
                notes.push(format!(
                    "the index of checkpoint {number} is damaged, so the last record of each key in the log counts; rows \
                     whose last record or deletion lay on a damaged page may have their older value"
                ));
                (RowSource::Log, own.log_end)
            }
            (None, true) => {
                notes.push(format!(
                    "the manifest of checkpoint {number} is damaged: the tables are those of checkpoint {}; rows that \
                     were deleted, or tables that were dropped, since then may be back",
                    manifest.number
                ));
                (RowSource::Index, log_end_by_index(files, identity, manifest)?)
            }
            (None, false) => {
                notes.push(format!("checkpoint {number} has lost both its manifest and its index"));
                continue;
            }
        };
        return Ok(Choice { number, identity, manifest, rows_by, log_end, damage, notes });
    }
    Err(Error::InvalidArgument(format!(
        "{}: no manifest of this bank can be read, and nothing else tells its tables; restore one from a copy",
        files.checkpoints.path().display()
    )))
}

/// Returns the end of the last page that an index entry leads to. The log's end would otherwise
/// come from the manifest, which can't be read.
fn log_end_by_index(files: &BankFiles, of: CheckpointIdentity, like: &Manifest) -> Result<u64> {
    let mut last = like.log_begin;
    let range = (0, ADDRESS_LIMIT);
    index::for_each_bucket(&files.checkpoints, of, None, range, |_, _, entries| {
        last = entries.iter().map(|entry| entry.address().raw()).fold(last, u64::max);
        Ok(())
    })?;
    Ok((last + 1).next_multiple_of(1 << like.page_bits))
}

fn read_blob(files: &BankFiles, of: CheckpointIdentity) -> Result<Vec<u8>> {
    let path = files.checkpoints.blob_path(of.checkpoint);
    let of = blob_identity(files.manifest(of.checkpoint), &path, of)?;
    let mut reader = CheckedReader::open(&path, of.stream(BLOB_KIND))?;
    let blob = reader.read_to_end(BLOB_BYTES_MAX)?;
    reader.finish()?;
    Ok(blob)
}

/// Returns a report for each table: its rows in the new bank, and its rows in the old bank's
/// manifest.
fn tables(
    new: &Path,
    manifest: &Manifest,
    number: u64,
    uncertain: &[u64],
) -> Result<Vec<SalvagedTable>> {
    let summary = super::summary(new)?;
    let made = summary.checkpoints.last().map_or(&[][..], |checkpoint| &checkpoint.tables);
    let uncounted = manifest.cold.as_ref().map_or(&[][..], |cold| &cold.uncounted);
    let old = manifest.tables.iter().zip(uncertain).enumerate();
    let old = old.filter(|(_, (table, _))| !table.dropped);
    let salvaged = old.zip(made).map(|((place, (old, &uncertain)), made)| SalvagedTable {
        name: made.name.clone(),
        expected: (manifest.number == number && uncounted.get(place).is_none_or(|&of| of == 0))
            .then_some(old.rows),
        rows: made.rows,
        uncertain,
    });
    Ok(salvaged.collect())
}

struct Salvager<'a> {
    sources: &'a [Source],
    bank: NewBank,
    progress: &'a mut dyn FnMut(Progress),
    faults: PageFaults,
    open: OpenChains,
    /// The rows that a tombstone in the log deletes. Empty if there are no parts.
    gone: HashSet<(TableNumber, u64)>,
    has_parts: bool,
    entries_lost: u64,
    /// Number of rows whose table is not in the manifest.
    strangers: u64,
    /// For each table, the number of rows that may have an older value than the checkpoint.
    uncertain: Vec<u64>,
}

impl Salvager<'_> {
    /// Calls `visit` for each sound record of a row, in ascending address order. `visit` gets the
    /// address, the table and key, and the value. The value is `None` if the record is a tombstone.
    fn records(
        &mut self,
        log: &mut LogFiles,
        mut visit: impl FnMut(&mut Self, u64, (TableNumber, u64), Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let sources = self.sources;
        let source = &sources[0];
        let mut page = PageRead::new();
        let mut next = source.log_begin;
        // The loop ends: each turn advances by at least one page.
        while next < source.log_end {
            let there = log.next_there(next).min(source.log_end);
            if there > next {
                self.faults.note_missing(log, next, there);
                next = there;
                continue;
            }
            let start = next;
            next += log.page_bytes;
            log.page(start, &mut page);
            if page.fault.is_some() && !self.faults.has(start / log.page_bytes) {
                self.page(log, &page)?;
            }
            page.records(
                |shape| source.knows(shape),
                |at, record: Looked<'_>| {
                    let Ok(record) = record else { return Ok(()) };
                    let table = record.shape().table();
                    let key = record.key();
                    let known =
                        source.table(table, start + at as u64).filter(|table| !table.dropped);
                    let Some(known) = known.filter(|_| !record.link().is_invalid()) else {
                        return Ok(());
                    };
                    let value = match record.link().is_tombstone() {
                        true => None,
                        // A record whose value has a length that the table does not permit was
                        // never a row.
                        false => match Source::value(known, record) {
                            Ok(value) => Some(value),
                            Err(_) => return Ok(()),
                        },
                    };
                    visit(self, start + at as u64, (table, key), value)
                },
            )?;
            let done = start + log.page_bytes;
            let total = source.log_end;
            let done_bytes = done - source.log_begin;
            let total_bytes = total - source.log_begin;
            (self.progress)(Progress { done_bytes, total_bytes });
        }
        Ok(())
    }

    /// Copies the last record of each key.
    fn all_records(&mut self, log: &mut LogFiles) -> Result<()> {
        self.records(log, |salvager, _, (table, key), value| {
            if salvager.has_parts {
                match value {
                    Some(_) => salvager.gone.remove(&(table, key)),
                    None => salvager.gone.insert((table, key)),
                };
            }
            salvager.bank.set(table, key, value)
        })
    }

    /// For each broken chain, copies rows from the records that are older than the damaged record.
    fn behind_broken_chains(&mut self, log: &mut LogFiles) -> Result<()> {
        let open = std::mem::take(&mut self.open);
        if open.is_empty() {
            return Ok(());
        }
        let key_hash = self.sources[0].key_hash;
        let mut found: HashMap<(TableNumber, u64), Option<Vec<u8>>> = HashMap::new();
        self.records(log, |_, address, row, value| {
            if open.lead_to(key_hash.of(row.0, row.1), row, address) {
                found.insert(row, value.map(<[u8]>::to_vec));
            }
            Ok(())
        })?;
        self.open = open;
        for ((table, key), value) in found {
            if value.is_none() && self.has_parts {
                self.gone.insert((table, key));
            } else if value.is_some() && !self.bank.has(table, key)? {
                self.bank.set(table, key, value.as_deref())?;
                self.uncertain[usize::from(table.0) - 1] += 1;
            }
        }
        Ok(())
    }

    /// Copies the rows of the parts that the log does not have. Returns the damage of the parts.
    fn cold_rows(&mut self, parts: &ColdParts) -> Result<Vec<Damage>> {
        let source = &self.sources[0];
        let mut rows = NewestRows::new(&parts.files, &parts.parts, 0);
        let mut damage = Vec::new();
        // The loop ends with the last row.
        while rows.advance()? {
            let (row, is_doubtful) = rows.row();
            let of_row = (row.table, row.key);
            let table = source.table(row.table, 0).filter(|table| !table.dropped);
            let Some(table) = table.filter(|_| !row.flags.tombstone) else { continue };
            if self.gone.contains(&of_row) || self.bank.has(row.table, row.key)? {
                continue;
            }
            match parts::value(table, row) {
                Ok(value) => self.bank.set(row.table, row.key, Some(value))?,
                Err(what) => {
                    damage.push(rows.damage_here(&parts.files, what));
                    continue;
                }
            }
            if is_doubtful || !parts.is_exact || self.open.lead_to(row.hash, of_row, 0) {
                self.uncertain[usize::from(row.table.0) - 1] += 1;
            }
        }
        damage.extend(rows.damage(&parts.files, &source.tables));
        Ok(damage)
    }
}

/// The parts of the checkpoint that is copied.
struct ColdParts {
    files: PartFiles,
    parts: Vec<RangedPart>,
    /// False if the parts may be others than the checkpoint's.
    is_exact: bool,
}

impl ColdParts {
    /// Returns the parts of the checkpoint of `choice`, and notes the damage of its list. `None` if
    /// the bank has no parts.
    ///
    /// # Errors
    /// `NewerFormat` if a newer version of Embank wrote the list.
    fn of(
        dir: &Arc<Directory>,
        files: &BankFiles,
        choice: &mut Choice<'_>,
    ) -> Result<Option<Self>> {
        let manifest = choice.manifest;
        let part_files = PartFiles::new(dir, manifest);
        let is_own = manifest.number == choice.number;
        let place = files.checkpoints.list_path(choice.number);
        let list = match is_own {
            true => files.checkpoints.parts(manifest),
            false if place.is_taken() => list_by_itself(&place, choice),
            // A bank that has had parts has a list in each later checkpoint.
            false if manifest.cold.is_some() => {
                let what = "the list of parts is not there".into();
                Err(Error::Damaged { path: place.path(), offset: 0, what })
            }
            false => Ok(PartList::default()),
        };
        let error = match list {
            Ok(list) if list.parts.is_empty() => return Ok(None),
            Ok(list) => {
                let parts = list.parts.into_iter().map(RangedPart::from).collect();
                return Ok(Some(ColdParts { files: part_files, parts, is_exact: true }));
            }
            Err(error @ Error::NewerFormat { .. }) => return Err(error),
            Err(error) => error,
        };
        choice.damage.push(list_damage(&error, &place, choice.number));
        let FoundParts { parts, is_exact, damage } = find_parts(&part_files, manifest);
        choice.damage.extend(damage);
        let number = choice.number;
        choice.notes.push(match is_exact {
            true => format!(
                "the list of the parts of checkpoint {number} is damaged: the parts were found by their headers"
            ),
            false => format!(
                "the list of the parts of checkpoint {number} is damaged, and the folder has parts of other \
                 checkpoints too: rows of the parts may have their value of an earlier or later checkpoint"
            ),
        });
        Ok(Some(ColdParts { files: part_files, parts, is_exact }))
    }
}

/// Reads the list of parts of a checkpoint whose manifest can't be read.
fn list_by_itself(place: &Place, choice: &Choice<'_>) -> Result<PartList> {
    let manifest = choice.manifest;
    let of = CheckpointIdentity::found(place, LIST_KIND, manifest.bank, choice.number)?;
    let file_bytes = place.len().map_err(|e| Error::io("stat", place, e))?;
    PartList::read(place, of, file_bytes, manifest.segment_bytes)
}

impl Visit for Salvager<'_> {
    fn page(&mut self, log: &LogFiles, page: &PageRead) -> Result<()> {
        if let Some(fault) = &page.fault {
            self.faults.note(log, page, fault, self.sources);
        }
        Ok(())
    }

    fn missing(&mut self, log: &LogFiles, start: u64, end: u64) {
        self.faults.note_missing(log, start, end);
    }

    fn row(&mut self, row: Row<'_>) -> Result<bool> {
        self.bank.set(row.table, row.key, Some(row.value))?;
        Ok(true)
    }

    fn tombstone(&mut self, Deleted { table, key, .. }: Deleted) {
        if self.has_parts {
            self.gone.insert((table, key));
        }
    }

    fn broken(&mut self, _log: &LogFiles, broken: Broken<'_>) -> Result<()> {
        if broken.what == super::walk::STRANGER {
            self.strangers += 1;
        } else {
            self.entries_lost += 1;
        }
        if broken.entry.is_chained() || self.has_parts {
            self.open.note(&broken);
        }
        Ok(())
    }

    fn progress(&mut self, progress: Progress) {
        (self.progress)(progress);
    }
}
