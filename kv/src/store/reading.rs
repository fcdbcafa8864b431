//! Read-only stores: each shows one checkpoint, while another process may write to the bank.
//!
//! **Problem.** Serving and evaluation read a bank while a training process writes to it. A reader
//! must see the rows of one moment, must not change a byte of the bank, and must not delay the
//! writer. It must be able to move to a newer checkpoint without closing the store, because its own
//! callers would have to wait for the reopening.
//!
//! **Approach.** A checkpoint's log and index never change. A read-only store is therefore a `Core`
//! whose log ends where the checkpoint's log ends, in memory and on disk. Every row is on disk, and
//! peeks bring rows into the read cache. A read-only store has no writer thread and no compaction
//! thread. Its log is sealed: a call that would write fails with the error `ReadOnly`. Until the
//! core is dropped, the store holds the checkpoint: a lock on it (`hold`) keeps the writer from
//! removing it.
//!
//! **A refresh** makes a second core for the newer checkpoint and then replaces the present core by
//! it. Each call uses the core that is current when the call begins, until the call ends. A scan
//! uses its core until the scan is dropped. Each core holds its checkpoint until it is dropped. So
//! a batch reads from one checkpoint, and a call waits only while a pointer is exchanged. The price
//! is memory: both indexes are in memory until the last call on the old core has ended. Each core
//! has its own memory budget.

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
use crate::checkpoint::recovered::Recovered;
use crate::device::{self, DeviceChoice, DeviceOptions};
use crate::engine::cold::Cold;
use crate::engine::core::{Core, CoreParts};
use crate::engine::space::Space;
use crate::engine::tables::Named;
use crate::engine::waiters::Waiters;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::index::Index;
use crate::options::StoreOptions;
use crate::process::new_id::new_id;
use crate::record::hash::KeyHash;
use crate::stats::Counters;
use crate::sync::{Mutex, RwLock};

/// The core of a read-only store, and the values that a refresh needs to make the next core.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) core: RwLock<Arc<Core>>,
    /// Held during a refresh, so that only one thread makes a new core.
    moving: Mutex<()>,
    budget_bytes: u64,
    device: DeviceChoice,
    counters: Arc<Counters>,
    waiters: Arc<Waiters>,
}

impl Store {
    /// Opens the bank in `dir` read-only at the checkpoint with the number `checkpoint`; at the
    /// newest checkpoint if `checkpoint` is `None`. Another process may have the bank open for
    /// writing. The call changes no byte of the bank, so the file system may be mounted read-only.
    /// Rows can be peeked, scanned and listed. A call that would write fails with `ReadOnly`.
    ///
    /// Only the memory budget and the device of `options` are used. While the store is at a
    /// checkpoint, a writer keeps that checkpoint and its log, even beyond `checkpoints_kept`. The
    /// writer's statistic `log_held_bytes` shows the size of that log. The hold ends with the
    /// process, also if the process is killed.
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
    /// - `NotABank` or `NoSuchCheckpoint` if there is no such bank or checkpoint.
    /// - `InvalidOption` for the memory device.
    /// - `BudgetTooSmall` if the memory budget is too small for the index.
    /// - `Damaged` or `Truncated` if a file of the checkpoint fails its check.
    /// - `DeviceUnavailable` or `Io` if the device or a file cannot be opened.
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

    /// Moves a read-only store to the newest checkpoint, if that is newer than the store's
    /// checkpoint. Returns the number of the store's checkpoint after the call.
    ///
    /// Other threads can use the store during the call. Earlier calls and scans read the old
    /// checkpoint until they end. Later calls read the new checkpoint. The refresh reads the whole
    /// index. Two indexes are in memory until the last call on the old checkpoint has ended. After
    /// an error the store is still at the old checkpoint.
    ///
    /// # Errors
    /// `WrongKind` if the store is open for writing. `ChangedMeanwhile` if the directory holds
    /// another bank now. The errors of [`open_read_only`](Self::open_read_only).
    pub fn refresh(&self) -> Result<u64> {
        let Serving::Reading(reading) = &self.serving else {
            let why = "is open for writing and always shows its newest rows; only a store that was opened read-only can refresh";
            let of = format!("bank {:?}", self.path());
            return Err(Error::WrongKind { of, why: why.to_owned() });
        };
        let _moving = reading.moving.lock();
        self.checkpoints.check_in_place()?;
        let now = self.core().reading.as_ref().map_or((0, 0), ReadAt::number_and_id);
        // No process removes the checkpoint that this store holds. So if that checkpoint is gone,
        // the directory was replaced, for example by a new copy of a bank. The checkpoint numbers
        // in the directory then belong to another history and cannot be compared with the store's
        // number.
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
        let incarnations = self.core().tables.incarnations(&manifest.tables)?;
        let core = core_of(
            &self.dir,
            &self.checkpoints,
            (manifest, hold, incarnations),
            reading.budget_bytes,
            (reading.device, &reading.counters, &reading.waiters),
        )?;
        let old = std::mem::replace(&mut *reading.core.write(), Arc::new(core));
        // Dropped after the lock is released, because the drop may free the memory of the old
        // index.
        drop(old);
        Ok(number)
    }

    /// Returns the checkpoint of a read-only store, with its blob. `None` if the store is open for
    /// writing.
    #[must_use]
    pub fn reading(&self) -> Option<Arc<Recovered>> {
        self.core().reading.as_ref().map(|at| Arc::clone(&at.recovered))
    }
}

/// Takes a hold on checkpoint `wanted`, or on the newest checkpoint if `wanted` is `None`. Returns
/// the checkpoint's manifest and the hold.
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
    Error::ChangedMeanwhile(format!(
        "{}: another bank lies here now; open the store again",
        dir.display()
    ))
}

/// Makes a core that shows the checkpoint of `manifest`.
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
    // Each core opens the log's files itself. After a rollback a file name may belong to a new
    // file, and a handle of the old core would lead to the old file.
    let device = device::open_in(dir, device, &device_options)?;
    let images = checkpoints.images(&manifest);
    let budget = Arc::new(images.budget(budget_bytes, 1 << manifest.page_bits)?);
    let index = Index::load(&images, &budget)?;
    let blob = checkpoints.blob(&manifest)?;
    check_last_page(device.as_ref(), &manifest)?;
    let recovered = Arc::new(Recovered { checkpoint: manifest.number, blob });
    let space = Space::of_reader(manifest.log_begin, &budget, counters);
    let list = checkpoints.parts(&manifest)?;
    let cold = Cold::load(&list, manifest.part_site(&*device), &budget)?;
    let parts = CoreParts {
        index,
        budget,
        device: Arc::clone(&device),
        counters: Arc::clone(counters),
        waiters: Arc::clone(waiters),
        space,
        cold,
        named: Named::default(),
        incarnations,
    };
    let mut core = Core::new(parts, &manifest, manifest.lineage())?;
    core.log.seal(dir.path());
    core.reading = Some(ReadAt { manifest, recovered, _hold: hold });
    Ok(core)
}
