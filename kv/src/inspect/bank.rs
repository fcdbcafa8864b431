//! Reads a bank's metadata: the file `BANK` and the manifests of its checkpoints.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::log_files::log_size;
use super::{BankSummary, CheckpointSummary, Damage, NotRemoved, TableSummary};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::manifest::TableEntry;
use crate::engine::tables::NUMBERS_MAX;
use crate::error::{Error, Result};
use crate::files::directory::{Directory, FileIdentity, Place};

/// The end of the year 9999, in seconds of Unix time. A later time of a checkpoint is reported as
/// this time, because some programs can't compute with later times.
const TAKEN_S_MAX: u64 = 253_402_300_799;

/// The readable metadata of a bank.
pub(super) struct BankFiles {
    /// The bank's id; `None` if neither `BANK` nor a manifest can be read.
    pub(super) bank: Option<u64>,
    pub(super) checkpoints: Checkpoints,
    /// The numbers of the checkpoints on disk, oldest first.
    pub(super) numbers: Vec<u64>,
    /// The readable manifests that belong to the bank, oldest first.
    pub(super) manifests: Vec<Manifest>,
    /// Damage of the file `BANK` and of the manifests.
    pub(super) damage: Vec<Damage>,
}

impl BankFiles {
    /// # Errors
    /// `NotABank`; `Io`; `NewerFormat` if a newer version of Embank wrote `BANK` or a manifest. The
    /// functions of this module then do not know what belongs to the bank, and must not call it
    /// damage.
    pub(super) fn read(dir: &Arc<Directory>) -> Result<Self> {
        let bank_path = dir.path().join("BANK");
        let checkpoints = Checkpoints::look(dir)?;
        let checkpoints_dir = checkpoints.path();
        let mut damage = Vec::new();
        let mut note = |path: PathBuf, what: String, checkpoint| {
            damage.push(Damage { checkpoint, ..Damage::in_file(path, 0, 0, what) });
        };
        let bank_file = match dir.place("BANK").stat_if_there() {
            Ok(Some(_)) => match BankFile::read(dir) {
                Ok(bank_file) => bank_file,
                Err(Error::Damaged { what, .. }) => {
                    note(bank_path, what, None);
                    None
                }
                Err(error) => return Err(error),
            },
            Ok(None) if checkpoints.is_there() => {
                note(bank_path, "the file is not there".into(), None);
                None
            }
            Ok(None) => {
                let why = "it has no file BANK".to_owned();
                return Err(Error::NotABank { path: dir.path().to_owned(), why });
            }
            Err(e) => return Err(Error::io("open", bank_path, e)),
        };
        let numbers = checkpoints.numbers_if_any()?;
        if numbers.is_empty() && bank_file.is_some_and(|bank_file| bank_file.has_checkpoint) {
            note(checkpoints_dir, "the bank had checkpoints and none is left".into(), None);
        }
        if let Some(bank_file) = bank_file
            && checkpoints.is_there()
        {
            match checkpoints.check_names(numbers.last().copied(), bank_file.bank) {
                Err(Error::Damaged { path, what, .. }) => note(path, what, None),
                Err(error @ Error::NewerFormat { .. }) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        let mut manifests: Vec<Manifest> = Vec::new();
        for &number in &numbers {
            let path = checkpoints.manifest_path(number).path();
            match checkpoints.manifest(number) {
                Ok(manifest) => manifests.push(manifest),
                // Another process that writes the bank has removed the checkpoint since its number
                // was listed.
                Err(_) if !checkpoints.has(number) => {}
                Err(Error::Damaged { path, what, .. }) => note(path, what, Some(number)),
                Err(error @ Error::NewerFormat { .. }) => return Err(error),
                Err(error) => note(path, error.to_string(), Some(number)),
            }
        }
        let bank = bank_file.map(|bank_file| bank_file.bank);
        let bank = bank.or_else(|| manifests.last().map(|manifest| manifest.bank));
        let newest = manifests.last().cloned();
        manifests.retain(|manifest| {
            let path = checkpoints.manifest_path(manifest.number).path();
            let misfit = newest.as_ref().and_then(|newest| misfit(manifest, bank, newest));
            let fits = misfit.is_none();
            if let Some(what) = misfit {
                note(path, what, Some(manifest.number));
            }
            fits
        });
        Ok(BankFiles { bank, checkpoints, numbers, manifests, damage })
    }

    pub(super) fn manifest(&self, number: u64) -> Option<&Manifest> {
        self.manifests.iter().find(|manifest| manifest.number == number)
    }

    /// True if the checkpoint still exists. Another process that writes the bank may have removed
    /// it.
    pub(super) fn is_kept(&self, number: u64) -> bool {
        self.checkpoints.has(number)
    }
}

/// Returns why the checkpoint of `manifest` can't belong to the bank with id `bank` and newest
/// checkpoint `newest`. `None` if the checkpoint can belong to it.
fn misfit(manifest: &Manifest, bank: Option<u64>, newest: &Manifest) -> Option<String> {
    let log = |manifest: &Manifest| (manifest.page_bits, manifest.segment_bytes);
    if bank != Some(manifest.bank) || log(manifest) != log(newest) {
        return Some(format!("it belongs to another bank, {:016x}", manifest.bank));
    }
    let (pages, newest_pages) = (manifest.pages(), newest.pages());
    let shared = newest_pages.start.max(pages.start)..pages.end.min(newest_pages.end);
    if !manifest.lineage().agrees(&newest.lineage(), shared) {
        return Some(format!(
            "its log was not written by the openings that checkpoint {} names: one of the two comes from a copy of the \
             bank that has gone on by itself",
            newest.number
        ));
    }
    None
}

/// Lists the checkpoints and tables of the bank in `dir` and its disk space, without opening the
/// bank. Changes nothing and takes no lock, so another process may write the bank meanwhile.
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
/// `NotABank`; `NewerFormat`; `Io`. Damaged metadata is no error: the summary lists it.
pub fn summary(dir: &Path) -> Result<BankSummary> {
    let dir = &open_bank_dir(dir)?;
    let files = BankFiles::read(dir)?;
    let size = log_size(dir)?;
    let mut seen = BTreeSet::new();
    let mut checkpoint_bytes = 0;
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
            pinned: files.checkpoints.is_pinned(manifest.number).unwrap_or_default(),
            tables: tables.map(table_summary).collect(),
        }
    });
    let checkpoints = checkpoints.collect();
    let newest = files.numbers.last().copied().unwrap_or(0);
    let not_removed = files.checkpoints.leftovers(newest)?.into_iter().map(|folder| NotRemoved {
        file_bytes: folder_bytes(&folder, &mut BTreeSet::new()).0,
        path: folder.path(),
    });
    Ok(BankSummary {
        bank: files.bank,
        checkpoints,
        checkpoint_bytes,
        log_file_bytes: size.file_bytes,
        log_disk_bytes: size.disk_bytes,
        segments: size.segments,
        parts: size.parts,
        part_disk_bytes: size.part_disk_bytes,
        table_numbers_left: table_numbers_left(&files),
        not_removed: not_removed.collect(),
        damage: files.damage,
    })
}

fn table_numbers_left(files: &BankFiles) -> u32 {
    let tables = files.manifests.iter().flat_map(|manifest| &manifest.tables);
    let is_whole = files.manifests.len() == files.numbers.len();
    let taken = tables.filter(|table| !is_whole || !table.is_gone()).map(|table| table.number);
    u32::from(NUMBERS_MAX) - taken.collect::<BTreeSet<u16>>().len() as u32
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

/// Returns the bytes of all files in a folder, and the bytes of the files that are not yet in
/// `seen`. Ignores a file that is removed during the call.
fn folder_bytes(folder: &Place, seen: &mut BTreeSet<FileIdentity>) -> (u64, u64) {
    let names = folder.names().unwrap_or_default();
    let mut all = 0;
    let mut new = 0;
    for found in names.into_iter().filter_map(|name| folder.join(name).stat().ok()) {
        let bytes = found.st_size.cast_unsigned();
        all += bytes;
        if seen.insert(FileIdentity::from(&found)) {
            new += bytes;
        }
    }
    (all, new)
}
