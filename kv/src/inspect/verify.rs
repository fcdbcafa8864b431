//! Verifies a bank: reads it completely and lists all damage.
//!
//! Verification checks:
//!
//! - the file `BANK`, and the manifest of each checkpoint;
//! - every chunk of each checkpoint's index and blob (data that the caller stored with it);
//! - every page of the log that belongs to a checkpoint, and every record in these pages;
//! - that each index entry leads to a sound record of a table of the checkpoint;
//! - that each record of the entry's chain matches the entry's tag, if the hash of the record's key
//!   belongs to the entry's bucket;
//! - the list of parts of each checkpoint, and each block, fence, filter and count of each part;
//! - that the index and the parts have the number of rows and bytes that the manifest gives for
//!   each table.
//!
//! Verification skips the log below the oldest `log_begin` and above the newest `log_end`, because
//! no checkpoint uses these parts.

use std::path::Path;
use std::sync::Arc;

use super::bank::BankFiles;
use super::cold_check::{ColdCheck, Found};
use super::damaged_pages::PageFaults;
use super::log_files::{LogFiles, PageRead, refused};
use super::walk::{Broken, Deleted, Row, Source, Visit, walk};
use super::{Damage, Progress, blob_identity, index};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::BLOB_KIND;
use crate::checkpoint::manifest::Manifest;
use crate::error::{Error, Result};
use crate::files::checked_stream::survey;
use crate::files::directory::Directory;
use crate::record::hash::KeyHash;
use crate::record::layout::record_bytes;

/// Largest number of findings about index entries that a report lists. Further findings are only
/// counted. A report of this length already shows that the whole index is wrong.
const ASTRAY_LISTED_MAX: u64 = 10_000;
/// Length of a checked stream's header, in bytes.
const STREAM_HEADER_BYTES: u64 = 32;
/// Length of the head of each chunk of a checked stream, in bytes.
const CHUNK_HEAD_BYTES: u64 = 8;

/// Largest number of attempts to verify a bank. A new attempt begins if another process that writes
/// the bank has removed all checkpoints that the last attempt read.
const ATTEMPTS_MAX: u32 = 16;

/// Options of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyOptions {
    /// The checkpoint to verify. `None`, the default, verifies all checkpoints.
    pub checkpoint: Option<u64>,
    /// Memory for index entries, in bytes. Default: 256 MiB. The log is verified in windows whose
    /// index entries fit into this memory. The index is read once for each window, so with less
    /// memory it is read more often.
    pub memory_bytes: u64,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions { checkpoint: None, memory_bytes: 256 << 20 }
    }
}

/// The result of [`verify`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The bank's id. `None` if it can't be read.
    pub bank: Option<u64>,
    /// The checkpoints that were verified, oldest first.
    pub checkpoints: Vec<CheckpointReport>,
    /// Checkpoints that another process removed during the verification. The report contains no
    /// finding about them.
    pub gone: Vec<u64>,
    /// All damage, in no particular order. Empty if the bank is sound.
    pub damage: Vec<Damage>,
    /// Checkpoints without a readable manifest. Verification does not know which part of the log
    /// they use, and checks only their other files.
    pub unchecked: Vec<u64>,
    /// Number of findings that are not listed, because a report lists at most 10,000 findings about
    /// index entries.
    pub unlisted: u64,
    /// Number of pages of the log that were read.
    pub pages: u64,
    /// Number of sound records in these pages.
    pub records: u64,
    /// Number of parts of the cold tier that were read.
    pub parts: u64,
}

impl VerifyReport {
    /// True if no damage was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty()
    }
}

/// A checkpoint of a [`VerifyReport`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// Number of the checkpoint.
    pub number: u64,
    /// True if the index could be read, so that rows were counted.
    pub indexed: bool,
    /// The checkpoint's tables, without dropped tables.
    pub tables: Vec<CheckedTable>,
    /// Number of index entries whose chain of records contains a record that can't be read, or a
    /// record of another table or bucket. Rows of such a chain may be lost.
    pub entries_lost: u64,
}

/// A table of a [`CheckpointReport`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CheckedTable {
    /// Name of the table.
    pub name: String,
    /// Number of rows according to the manifest.
    pub rows: u64,
    /// Number of sound rows that the index leads to.
    pub sound: u64,
}

/// Verifies all checkpoints of a bank, or one checkpoint. Checks every byte that an opening or a
/// reader uses. Continues after damage and lists all of it. Changes nothing and takes no lock, so
/// another process may write the bank meanwhile.
///
/// ```
/// use embank_kv::inspect::{VerifyOptions, verify};
///
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
/// store.checkpoint(b"step 1")?;
/// let report = verify(dir.path(), &VerifyOptions::default(), &mut |_| {})?;
/// assert!(report.is_clean());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `NotABank`; `NoSuchCheckpoint`. `NewerFormat` if a newer version of Embank wrote the bank, and
/// nothing is known of damage then. `ChangedMeanwhile` if a writer removes every checkpoint before
/// it has been read. `Io` if a directory can't be listed. Damage is no error.
pub fn verify(
    dir: &Path,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifyReport> {
    let dir = &open_bank_dir(dir)?;
    // Another process that writes the bank may remove the checkpoints during an attempt. The next
    // attempt verifies the checkpoints that exist at its start.
    for _ in 0..ATTEMPTS_MAX {
        if let Some(report) = attempt(dir, options, progress)? {
            return Ok(report);
        }
    }
    Err(Error::ChangedMeanwhile(format!(
        "{}: a writer takes checkpoints faster than one can be verified; keep more of them, or verify a copy",
        dir.path().display()
    )))
}

/// Verifies the present checkpoints. Returns `None` if another process removed all of them
/// meanwhile, or if it removed one of them and a read failed.
fn attempt(
    dir: &Arc<Directory>,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<VerifyReport>> {
    let files = BankFiles::read(dir)?;
    if let Some(number) = options.checkpoint
        && !files.numbers.contains(&number)
    {
        return Err(Error::no_such_checkpoint(dir.path(), Some(number), files.numbers));
    }
    let wanted = |number| options.checkpoint.is_none_or(|only| only == number);
    let mut damage = files.damage.clone();
    let mut unchecked = Vec::new();
    let mut sources = Vec::new();
    damage.retain(|damage| damage.checkpoint.is_none_or(wanted));
    for &number in files.numbers.iter().filter(|number| wanted(**number)) {
        let manifest = files.manifest(number);
        let Some(bank) = manifest.map(|manifest| manifest.bank).or(files.bank) else { continue };
        let id = manifest.map_or(0, |manifest| manifest.id);
        let identity = CheckpointIdentity { bank, checkpoint: number, id };
        if manifest.is_none() && !files.checkpoints.blob_path(number).is_taken() {
            unchecked.push(number);
            continue;
        }
        let has_index = check_streams(&files.checkpoints, identity, manifest, &mut damage)?;
        match manifest {
            Some(manifest) => sources.push(Source::of(manifest, has_index)),
            None => unchecked.push(number),
        }
    }
    if let Some(newest) = files.manifests.last() {
        let refused = refused(dir, newest.segment_bytes).into_iter();
        damage.extend(refused.map(|(path, what)| Damage::in_log(path, what)));
    }
    let cold = ColdCheck::new(dir, &files, &sources, options.memory_bytes, &mut damage)?;
    let mut checker = Checker::new(&sources, damage, cold, progress);
    checker.report.unchecked = unchecked;
    if let Some(manifest) = files.manifests.last() {
        let mut log = LogFiles::new(dir, manifest);
        files.manifests.iter().rev().for_each(|older| log.extend_back(older));
        let walked = walk(&files, &mut log, &sources, options.memory_bytes, &mut checker);
        let counted = walked.and_then(|()| {
            let Checker { cold, found, report, .. } = &mut checker;
            let damage = &mut report.damage;
            cold.count_rows(&files, &mut log, &sources, options.memory_bytes, found, damage)
        });
        if let Err(error) = counted {
            let gone = sources.iter().any(|source| !files.is_kept(source.identity.checkpoint));
            return if gone { Ok(None) } else { Err(error) };
        }
        checker.compare_counts(&files, &sources);
    }
    let report = checker.finish(&files, &sources);
    let all_gone = report.checkpoints.is_empty() && !report.gone.is_empty();
    Ok((!all_gone).then_some(report))
}

impl Source {
    pub(super) fn of(manifest: &Manifest, has_index: bool) -> Self {
        Source {
            identity: CheckpointIdentity {
                bank: manifest.bank,
                checkpoint: manifest.number,
                id: manifest.id,
            },
            log_begin: manifest.log_begin,
            log_end: manifest.log_end,
            has_index,
            key_hash: KeyHash::new(manifest.hash_seed),
            tables: manifest.tables.clone(),
            tables_end: manifest.log_end,
        }
    }
}

/// Lists the damage of a checkpoint's index and blob. Returns true if the index can be read.
///
/// # Errors
/// `NewerFormat`.
fn check_streams(
    checkpoints: &Checkpoints,
    identity: CheckpointIdentity,
    manifest: Option<&Manifest>,
    damage: &mut Vec<Damage>,
) -> Result<bool> {
    let number = identity.checkpoint;
    let index = index::damage(checkpoints, identity, manifest)
        .or_else(|error| Damage::of_error(&checkpoints.dir_of(number), number, error))?;
    let has_index = index.is_empty();
    damage.extend(index);
    let path = checkpoints.blob_path(number);
    let faults =
        blob_identity(manifest, &path, identity).and_then(|of| survey(&path, of.stream(BLOB_KIND)));
    match faults {
        Ok(faults) => damage.extend(
            faults.into_iter().map(|(offset, what)| Damage::in_file(&path, offset, number, what)),
        ),
        Err(error) => damage.extend(Damage::of_error(&path, number, error)?),
    }
    let found = path.len().unwrap_or(0);
    let blob_bytes = manifest.map_or(0, |manifest| manifest.blob_bytes);
    if found < (STREAM_HEADER_BYTES + CHUNK_HEAD_BYTES).saturating_add(blob_bytes) {
        let what = format!("{found} bytes can't hold a blob of {blob_bytes}");
        damage.push(Damage::in_file(&path, 0, number, what));
    }
    Ok(has_index)
}

/// Collects the findings of a walk.
struct Checker<'a> {
    sources: &'a [Source],
    progress: &'a mut dyn FnMut(Progress),
    report: VerifyReport,
    /// For each checkpoint and table, what was found.
    found: Vec<Vec<Found>>,
    cold: ColdCheck,
    faults: PageFaults,
    astray: u64,
}

impl<'a> Checker<'a> {
    fn new(
        sources: &'a [Source],
        damage: Vec<Damage>,
        cold: ColdCheck,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let of = |source: &Source| CheckpointReport {
            number: source.identity.checkpoint,
            indexed: source.has_index,
            ..CheckpointReport::default()
        };
        let report = VerifyReport {
            checkpoints: sources.iter().map(of).collect(),
            damage,
            parts: cold.parts,
            ..VerifyReport::default()
        };
        Checker {
            sources,
            progress,
            report,
            found: sources
                .iter()
                .map(|source| vec![Found::default(); source.tables.len()])
                .collect(),
            cold,
            faults: PageFaults::default(),
            astray: 0,
        }
    }

    fn note_astray(&mut self, damage: Damage) {
        self.astray += 1;
        if self.astray <= ASTRAY_LISTED_MAX {
            self.report.damage.push(damage);
        } else {
            self.report.unlisted += 1;
        }
    }

    /// Compares the number of rows that were found with the number in each manifest. A difference
    /// is listed as damage only if the checkpoint's index can be read and has no lost entries.
    /// Otherwise the damage that explains the difference is already listed.
    fn compare_counts(&mut self, files: &BankFiles, sources: &[Source]) {
        for (number, source) in sources.iter().enumerate() {
            let report = &mut self.report.checkpoints[number];
            let explained =
                report.entries_lost > 0 || !source.has_index || self.cold.is_damaged(number);
            let path = files.checkpoints.manifest_path(source.identity.checkpoint);
            for (table, &found) in source.tables.iter().zip(&self.found[number]) {
                if table.dropped {
                    continue;
                }
                let name = table.name.clone();
                let Found { rows, bytes, counted } = found;
                // The number that the manifest has when all versions are counted.
                let rows_named = table.rows.wrapping_add(rows).wrapping_sub(counted);
                let fits =
                    counted == table.rows && (!table.variable || bytes == table.record_bytes);
                if !fits && !explained {
                    let what = format!(
                        "table {name:?} has {rows_named} rows of {} bytes here, the index and the parts \
                         lead to {rows} of {bytes}",
                        table.live_bytes()
                    );
                    let mut damage = Damage::in_file(&path, 0, source.identity.checkpoint, what);
                    damage.tables = vec![name.clone()];
                    self.report.damage.push(damage);
                }
                report.tables.push(CheckedTable { name, rows: rows_named, sound: rows });
            }
        }
    }

    fn finish(mut self, files: &BankFiles, sources: &[Source]) -> VerifyReport {
        let mut report = self.report;
        report.damage.append(&mut self.faults.damage);
        report.bank = files.bank;
        let gone: Vec<u64> =
            files.numbers.iter().copied().filter(|&number| !files.is_kept(number)).collect();
        if !gone.is_empty() {
            // Drop findings about pages of the log that only removed checkpoints used. The writer
            // may have freed these pages.
            let kept = |number: &u64| !gone.contains(number);
            let named = |damage: &Damage| {
                let Some(page) = damage.page else { return true };
                let kept = sources.iter().filter(|source| kept(&source.identity.checkpoint));
                kept.into_iter().any(|source| {
                    let begin = source.log_begin / files.page_bytes();
                    (begin..source.log_end / files.page_bytes()).contains(&page)
                })
            };
            report.damage.retain(|damage| damage.checkpoint.is_none_or(|of| kept(&of)));
            report.damage.retain(named);
            // The writer may have removed parts that only removed checkpoints had.
            report.damage.retain(|damage| {
                let is_kept = |place: usize| kept(&sources[place].identity.checkpoint);
                damage.part.is_none_or(|part| self.cold.is_named(part, is_kept))
            });
            report.checkpoints.retain(|checkpoint| kept(&checkpoint.number));
            report.gone = gone;
        }
        report
    }
}

impl BankFiles {
    fn page_bytes(&self) -> u64 {
        self.manifests.first().map_or(1, |manifest| 1 << manifest.page_bits)
    }
}

impl Visit for Checker<'_> {
    fn missing(&mut self, log: &LogFiles, start: u64, end: u64) {
        self.faults.note_missing(log, start, end);
    }

    fn page(&mut self, log: &LogFiles, page: &PageRead) -> Result<()> {
        self.report.pages += 1;
        if let Some(fault) = &page.fault {
            self.faults.note(log, page, fault, self.sources);
            return Ok(());
        }
        let mut unsound = None;
        page.records(
            |_| true,
            |at, record| {
                match record {
                    Ok(_) => self.report.records += 1,
                    Err(what) => unsound = Some((at, what)),
                }
                Ok(())
            },
        )?;
        if let Some((at, what)) = unsound {
            let number = page.start / log.page_bytes;
            let what = format!("page {number}, a record at {at} in it: {what}");
            self.faults.note(log, page, &what, self.sources);
        }
        Ok(())
    }

    fn row(&mut self, row: Row<'_>) -> Result<bool> {
        let Row { source, table, key, uncounted, .. } = row;
        let found = &mut self.found[source][usize::from(table.0) - 1];
        found.rows += 1;
        found.bytes += record_bytes(row.value.len()) as u64;
        found.counted += u64::from(!uncounted);
        self.tombstone(Deleted { source, table, key, uncounted });
        Ok(true)
    }

    fn tombstone(&mut self, deleted: Deleted) {
        self.cold.note(self.sources[deleted.source].key_hash, deleted);
    }

    fn broken(&mut self, log: &LogFiles, broken: Broken<'_>) -> Result<()> {
        let page = broken.at / log.page_bytes;
        self.report.checkpoints[broken.source].entries_lost += 1;
        // If the page is already listed as damaged, the entry is only counted.
        if self.faults.has(page) {
            return Ok(());
        }
        let (path, offset) = log.locate(broken.at);
        let number = self.report.checkpoints[broken.source].number;
        let what = format!(
            "page {page}: bucket {} of checkpoint {number}'s index leads here to {}",
            broken.bucket, broken.what
        );
        self.note_astray(Damage {
            path,
            offset,
            page: Some(page),
            pages: 1,
            part: None,
            tables: Vec::new(),
            checkpoint: Some(number),
            what,
        });
        Ok(())
    }

    fn progress(&mut self, progress: Progress) {
        (self.progress)(progress);
    }
}
