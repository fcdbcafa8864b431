//! What a bank's metadata tells.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::log_files::log_size;
use super::{BankSummary, CheckpointSummary, Damage, TableSummary};
use crate::bank_file::BankFile;
use crate::checkpoint::{Checkpoints, Manifest, TableEntry};
use crate::error::{Error, Result};

/// The end of the year 9999: what lies beyond is no time, and not every program can add it up.
const TAKEN_S_MAX: u64 = 253_402_300_799;

/// The metadata of a bank, as far as it can be read.
pub(super) struct BankFiles {
    /// The bank's id; none if nothing tells it.
    pub(super) bank: Option<u64>,
    pub(super) checkpoints: Checkpoints,
    /// The numbers of the checkpoints that are there, oldest first.
    pub(super) numbers: Vec<u64>,
    /// The manifests that can be read, oldest first.
    pub(super) manifests: Vec<Manifest>,
    /// Of `BANK` and manifests.
    pub(super) damage: Vec<Damage>,
}

impl BankFiles {
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let bank_path = dir.join("BANK");
        let checkpoints_dir = dir.join("checkpoints");
        let mut damage = Vec::new();
        let mut note = |path: &Path, what: String, checkpoint| {
            damage.push(Damage { checkpoint, ..Damage::in_file(path, 0, 0, what) });
        };
        let bank_file = match bank_path.try_exists() {
            Ok(true) => match BankFile::read(dir) {
                Ok(bank_file) => bank_file,
                Err(Error::Damaged { what, .. }) => {
                    note(&bank_path, what, None);
                    None
                }
                Err(error) => return Err(error),
            },
            Ok(false) if checkpoints_dir.is_dir() => {
                note(&bank_path, "the file is not there".into(), None);
                None
            }
            Ok(false) => {
                let what = format!("{} is not a bank: it has no file BANK", dir.display());
                return Err(Error::InvalidArgument(what));
            }
            Err(e) => return Err(Error::io("open", bank_path, e)),
        };
        let checkpoints = Checkpoints::look(dir);
        let numbers = if checkpoints_dir.is_dir() { checkpoints.numbers()? } else { Vec::new() };
        if numbers.is_empty() && bank_file.is_some_and(|bank_file| bank_file.has_checkpoint) {
            note(&checkpoints_dir, "the bank had checkpoints and none is left".into(), None);
        }
        let mut manifests: Vec<Manifest> = Vec::new();
        for &number in &numbers {
            let path = checkpoints.dir_of(number).join("manifest");
            match checkpoints.manifest(number) {
                Ok(manifest) => manifests.push(manifest),
                // Gone while this looked: a writer has let go of it.
                Err(_) if !checkpoints.dir_of(number).exists() => {}
                Err(Error::Damaged { what, .. }) => note(&path, what, Some(number)),
                Err(error) => note(&path, error.to_string(), Some(number)),
            }
        }
        let bank = bank_file.map(|bank_file| bank_file.bank);
        let bank = bank.or_else(|| manifests.last().map(|manifest| manifest.bank));
        let newest = manifests.last().cloned();
        manifests.retain(|manifest| {
            let path = checkpoints.dir_of(manifest.number).join("manifest");
            let misfit = newest.as_ref().and_then(|newest| misfit(manifest, bank, newest));
            let fits = misfit.is_none();
            if let Some(what) = misfit {
                note(&path, what, Some(manifest.number));
            }
            fits
        });
        Ok(BankFiles { bank, checkpoints, numbers, manifests, damage })
    }

    pub(super) fn manifest(&self, number: u64) -> Option<&Manifest> {
        self.manifests.iter().find(|manifest| manifest.number == number)
    }

    /// Whether a checkpoint is still there: a writer may have let go of it.
    pub(super) fn is_kept(&self, number: u64) -> bool {
        self.checkpoints.dir_of(number).is_dir()
    }
}

/// Why a checkpoint can't stand beside `newest` in bank `bank`; `None` if it can.
fn misfit(manifest: &Manifest, bank: Option<u64>, newest: &Manifest) -> Option<String> {
    let log = |manifest: &Manifest| (manifest.page_bits, manifest.segment_bytes);
    if bank != Some(manifest.bank) || log(manifest) != log(newest) {
        return Some(format!("it belongs to another bank, {:016x}", manifest.bank));
    }
    let (pages, newest_pages) = (manifest.pages(), newest.pages());
    let shared = newest_pages.start.max(pages.start)..pages.end.min(newest_pages.end);
    if !manifest.lineage().agrees(&newest.lineage(), shared) {
        return Some(format!(
            "its log was not written by the openings that checkpoint {} names: one of the two is of a copy of the \
             bank that has gone on by itself",
            newest.number
        ));
    }
    None
}

/// What the bank in `dir` holds, without opening it: its checkpoints and tables as the manifests tell, and what
/// the log takes on disk. Changes nothing and takes no lock, so it works beside a writer.
///
/// ```
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
/// store.create_table("squares", 8, b"")?;
/// store.checkpoint(b"step 1")?;
///
/// let summary = embank_kv::inspect::summary(dir.path())?;
/// assert_eq!(summary.checkpoints[0].tables[0].name, "squares");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` for a directory that is no bank; `Io`. Damaged metadata is no error: it is listed.
pub fn summary(dir: &Path) -> Result<BankSummary> {
    let files = BankFiles::read(dir)?;
    let size = log_size(dir)?;
    let (mut seen, mut checkpoint_bytes) = (BTreeSet::new(), 0);
    let checkpoints = files.manifests.iter().map(|manifest| {
        let folder = files.checkpoints.dir_of(manifest.number);
        let (file_bytes, new_bytes) = folder_bytes(&folder, &mut seen);
        checkpoint_bytes += new_bytes;
        let tables = manifest.tables.iter().filter(|table| !table.dropped);
        CheckpointSummary {
            number: manifest.number,
            id: manifest.id,
            taken: UNIX_EPOCH + Duration::from_secs(manifest.unix_s.min(TAKEN_S_MAX)),
            page_bytes: 1 << manifest.page_bits,
            segment_bytes: manifest.segment_bytes,
            log_begin: manifest.log_begin,
            log_end: manifest.log_end,
            blob_bytes: manifest.blob_bytes,
            file_bytes,
            tables: tables.map(table_summary).collect(),
        }
    });
    let checkpoints = checkpoints.collect();
    Ok(BankSummary {
        bank: files.bank,
        checkpoints,
        checkpoint_bytes,
        log_file_bytes: size.file_bytes,
        log_disk_bytes: size.disk_bytes,
        segments: size.segments,
        damage: files.damage,
    })
}

pub(super) fn table_summary(table: &TableEntry) -> TableSummary {
    TableSummary {
        number: table.number,
        name: table.name.clone(),
        width: table.width(),
        value_bytes: table.value_bytes,
        descriptor: table.descriptor.clone(),
        rows: table.rows,
        record_bytes: table.live_bytes(),
    }
}

/// Bytes of a folder's files, and of those that are not among `seen`; of those that are still there.
fn folder_bytes(folder: &Path, seen: &mut BTreeSet<(u64, u64)>) -> (u64, u64) {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let (mut all, mut new) = (0, 0);
    for found in files.filter_map(|file| file.metadata().ok()) {
        all += found.len();
        if seen.insert((found.dev(), found.ino())) {
            new += found.len();
        }
    }
    (all, new)
}
