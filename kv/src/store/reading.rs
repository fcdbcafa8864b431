//! Stores that are opened to read only, at a checkpoint, beside a writer.
//!
//! **Problem.** Serving and evaluation read a bank that a training process goes on writing. They must see one moment,
//! change no byte, keep nothing of it from being read by others, and get at newer checkpoints without a reopen, during
//! which nobody would be served.
//!
//! **Approach.** A checkpoint's log and index never change, so a read-only store is a `Core` whose log ends, in
//! memory and on disk, where the checkpoint's does: every row is on disk, peeks bring them into the row cache, and
//! there is neither a writer nor a compactor. The log is sealed, so whatever would write ends where it would after
//! a failed write, with an error of its own. The checkpoint is held (`hold`) as long as the core is there.
//!
//! **Moving on** makes a core for the newer checkpoint beside the present one and then puts it in its place. Each
//! call takes the core that is in place when it begins and keeps it to its end, scans to theirs, and with it the
//! hold. So a batch shows one checkpoint, never two, and nobody waits for more than the exchange of a pointer. The
//! price: until the last call on the old core has ended, both indexes are in memory, each within a budget of its
//! own.

use crate::engine::read_at::ReadAt;
use std::path::Path;
use std::sync::Arc;

use super::open::{check_bank_file, check_last_page, no_checkpoint_left};
use super::{Newest, Serving, Store};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_dir::open_bank_dir;
use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::hold::Hold;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::manifest::TableEntry;
use crate::checkpoint::recovered::Recovered;
use crate::device::{self, DeviceChoice, DeviceOptions};
use crate::engine::compaction::options::CompactionOptions;
use crate::engine::compaction::space::Pins;
use crate::engine::core::Core;
use crate::engine::core_parts::CoreParts;
use crate::engine::signal::Signal;
use crate::engine::tables::Named;
use crate::engine::tables::TableState;
use crate::engine::waiters::Waiters;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::index::Index;
use crate::options::StoreOptions;
use crate::process::new_id::new_id;
use crate::record::hash::KeyHash;
use crate::stats::Counters;
use crate::sync::{Mutex, RwLock};

/// What a read-only store works on, and what it needs to move on.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) core: RwLock<Arc<Core>>,
    /// Held while moving on.
    moving: Mutex<()>,
    budget_bytes: u64,
    device: DeviceChoice,
    counters: Arc<Counters>,
    waiters: Arc<Waiters>,
}

impl Store {
    /// Opens the bank in `dir` to read only, at checkpoint `checkpoint` or the newest one, beside a process that
    /// writes it or none. Changes not a byte of it: read-only file systems will do. Rows are there to peek, scan and
    /// list; whatever would write fails with `ReadOnly`.
    ///
    /// Of `options`, memory budget and device count. As long as the store is at a checkpoint, no writer takes it away,
    /// beyond `checkpoints_kept` if need be, nor gives back the log that it names: the writer's `log_held_bytes` shows
    /// that. The hold goes with the process, however that ends.
    ///
    /// ```
    /// use embank_kv::{Store, StoreOptions};
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let writer = Store::open(dir.path(), &StoreOptions::default())?;
    /// writer.create_table("squares", 8, b"")?;
    /// writer.checkpoint(b"step 1")?;
    ///
    /// let reader = Store::open_read_only(dir.path(), &StoreOptions::default(), None)?;
    /// assert_eq!(reader.tables()[0].name, "squares");
    /// writer.checkpoint(b"step 2")?;
    /// assert_eq!(reader.refresh()?, 2);
    /// assert_eq!(reader.reading().expect("it reads").blob, b"step 2");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotABank`; `NoSuchCheckpoint`; `InvalidOption` for the memory device; `BudgetTooSmall`; `Damaged` or `Truncated` if
    /// what the checkpoint names does not verify; `DeviceUnavailable`; `Io`.
    pub fn open_read_only(
        dir: &Path,
        options: &StoreOptions,
        checkpoint: Option<u64>,
    ) -> Result<Store> {
        if options.device == DeviceChoice::Memory {
            return Err(Error::option(
                "device",
                "must have files to read: the memory device holds no bank; give another device",
            ));
        }
        let dir = &open_bank_dir(dir)?;
        let bank_file = BankFile::read_one(dir)?;
        let checkpoints = Checkpoints::look(dir)?;
        let (manifest, hold) = hold_one(dir, &checkpoints, bank_file, checkpoint)?;
        let counters = Arc::new(Counters::default());
        let waiters = Arc::new(Waiters::new(KeyHash::new(manifest.hash_seed)));
        let segment_bytes = manifest.segment_bytes;
        let bank = manifest.bank;
        let hash_seed = manifest.hash_seed;
        let number = manifest.number;
        let core = core_of(
            dir,
            &checkpoints,
            (manifest, hold, Vec::new()),
            options.memory_budget_bytes,
            (options.device, &counters, &waiters),
        )?;
        let reading = Reading {
            core: RwLock::new(Arc::new(core)),
            moving: Mutex::default(),
            budget_bytes: options.memory_budget_bytes,
            device: options.device,
            counters,
            waiters: Arc::clone(&waiters),
        };
        Ok(Store {
            serving: Serving::Reading(Box::new(reading)),
            waiters,
            writer: None,
            compactor: None,
            checkpoints,
            newest: Mutex::new(Newest { number, noted: true, is_retry: false, images: Vec::new() }),
            checkpoints_kept: options.checkpoints_kept,
            segment_bytes,
            hash_seed,
            bank,
            opening: new_id(),
            recovered: None,
            dir: Arc::clone(dir),
            lock: None,
        })
    }

    /// Moves a read-only store on to the newest checkpoint, if that is newer; returns the number of the one that it
    /// is at then. Calls of other threads go on: those that have begun, scans among them, show the old checkpoint to
    /// their end, those that begin afterwards the new one. Reads the whole index, as opening does, and until the last
    /// call on the old checkpoint has ended there are two of it in memory. After an error the store is where it was.
    ///
    /// # Errors
    /// `WrongKind` if the store is open for writing; `ChangedMeanwhile` if another bank lies in its directory now; else as
    /// [`open_read_only`](Self::open_read_only).
    pub fn refresh(&self) -> Result<u64> {
        let Serving::Reading(reading) = &self.serving else {
            let why = "is open for writing and is its own newest state; refresh is for those that were opened read-only";
            let of = format!("bank {:?}", self.path());
            return Err(Error::WrongKind { of, why: why.to_owned() });
        };
        let _moving = reading.moving.lock();
        self.checkpoints.check_in_place()?;
        let now = self.core().reading.as_ref().map_or((0, 0), ReadAt::number_and_id);
        // The checkpoint that is held stays where it is, and what is kept with it is one history. If it is not there,
        // the directory was replaced, as by a new copy, and numbers say nothing.
        if !self.checkpoints.manifest(now.0).is_ok_and(|manifest| manifest.id == now.1) {
            return Err(another_bank(self.dir.path()));
        }
        let Some((number, hold)) = self.checkpoints.hold_newest()? else { return Ok(now.0) };
        if number <= now.0 {
            return Ok(now.0);
        }
        let manifest = self.checkpoints.manifest(number)?;
        if manifest.bank != self.bank {
            return Err(another_bank(self.dir.path()));
        }
        let incarnations = incarnations(&self.core().tables.read(), &manifest.tables)?;
        let core = core_of(
            &self.dir,
            &self.checkpoints,
            (manifest, hold, incarnations),
            reading.budget_bytes,
            (reading.device, &reading.counters, &reading.waiters),
        )?;
        let old = std::mem::replace(&mut *reading.core.write(), Arc::new(core));
        // Its memory goes back here or with its last call, not under the lock.
        drop(old);
        Ok(number)
    }

    /// The checkpoint that a read-only store is at, with its blob; none if the store is open for writing.
    #[must_use]
    pub fn reading(&self) -> Option<Arc<Recovered>> {
        self.core().reading.as_ref().map(|at| Arc::clone(&at.recovered))
    }
}

/// Holds the checkpoint that is asked for, or the newest one.
pub(crate) fn hold_one(
    dir: &Directory,
    checkpoints: &Checkpoints,
    bank_file: BankFile,
    wanted: Option<u64>,
) -> Result<(Manifest, Hold)> {
    let held = match wanted {
        Some(number) => checkpoints.hold(number)?.map(|hold| (number, hold)),
        None => checkpoints.hold_newest()?,
    };
    if let Some((number, hold)) = held {
        let manifest = checkpoints.manifest(number)?;
        check_bank_file(dir, bank_file, &manifest)?;
        return Ok((manifest, hold));
    }
    let there = checkpoints.numbers_if_any()?;
    if there.is_empty() && bank_file.has_checkpoint {
        return Err(no_checkpoint_left(dir));
    }
    Err(Error::no_such_checkpoint(dir.path(), wanted, there))
}

fn another_bank(dir: &Path) -> Error {
    Error::ChangedMeanwhile(format!("{}: another bank lies here now; open it anew", dir.display()))
}

/// The incarnations of the tables of a newer checkpoint, for a store that is at the tables
/// `before`: see `numbers`.
fn incarnations(before: &[TableState], tables: &[TableEntry]) -> Result<Vec<u32>> {
    let known = tables.iter().zip(before).map(|(entry, before)| {
        let what = || format!("table number {} was used too many times", entry.number);
        let id = before.id_of_later(entry).ok_or_else(|| Error::Inconsistent { what: what() })?;
        Ok(id.incarnation())
    });
    known.collect()
}

/// A core that shows the checkpoint of `manifest` and nothing else.
fn core_of(
    dir: &Arc<Directory>,
    checkpoints: &Checkpoints,
    (manifest, hold, incarnations): (Manifest, Hold, Vec<u32>),
    budget_bytes: u64,
    (device, counters, waiters): (DeviceChoice, &Arc<Counters>, &Arc<Waiters>),
) -> Result<Core> {
    let device_options = DeviceOptions {
        segment_size_bytes: manifest.segment_bytes,
        read_only: true,
        ..DeviceOptions::default()
    };
    // One of its own: handles that another core has opened may be of files that have given way to others of the same
    // name since, as after a roll back.
    let device = device::open_in(dir, device, &device_options)?;
    let images = checkpoints.images(&manifest)?;
    let budget = Arc::new(images.budget(budget_bytes, 1 << manifest.page_bits)?);
    let index = Index::load(&checkpoints.images(&manifest)?, &budget)?;
    let blob = checkpoints.blob(&manifest)?;
    check_last_page(device.as_ref(), &manifest)?;
    let recovered = Arc::new(Recovered { checkpoint: manifest.number, blob });
    let parts = CoreParts {
        index,
        budget,
        device: Arc::clone(&device),
        counters: Arc::clone(counters),
        waiters: Arc::clone(waiters),
        signal: Arc::new(Signal::default()),
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        disk_quota_bytes: None,
        pins: Pins::default(),
        named: Named::default(),
        incarnations,
        checkpoints: None,
    };
    let mut core = Core::new(parts, &manifest, manifest.lineage())?;
    // Nothing of it is this store's to give back.
    core.space.leave_below(manifest.log_begin);
    core.log.seal(dir.path());
    core.reading = Some(ReadAt { manifest, recovered, _hold: hold });
    Ok(core)
}
