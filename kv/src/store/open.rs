//! Opens a store for writing at its newest checkpoint. The opening checks that the index, the log
//! and the bank file fit together.

use crate::checkpoint::bank_dir::create_dir_durably;
use crate::checkpoint::bank_lock::BankLock;
use crate::engine::core::CoreParts;
use crate::process::new_id::new_id;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::creating::{self, Making};

use super::{Newest, Serving, Store};
use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::recovered::Recovered;
use crate::cold::list::PartList;
use crate::device::{self, Device, DeviceOptions};
use crate::engine::cold::Cold;
use crate::engine::core::Core;
use crate::engine::space::compactor::move_whole_log;
use crate::engine::space::options::ColdTier;
use crate::engine::space::tier_memory::reserve_before_loading;
use crate::engine::space::tiers::{leaves_memory_to_parts, may_get_cold_tier};
use crate::engine::space::{Space, quota_reserve_bytes, thread};
use crate::engine::tables::named;
use crate::engine::waiters::Waiters;
use crate::error::{Error, Result};
use crate::files::directory::Directory;
use crate::index::Index;
use crate::index::image::Images;
use crate::limits::Limits;
use crate::log::page::check_image;
use crate::memory::budget::{Budget, PAGE_BYTES_MAX};
use crate::options::StoreOptions;
use crate::process::thread_start;
use crate::record::hash::KeyHash;
use crate::stats::Counters;
use crate::sync::Mutex;
use crate::sync::thread::JoinHandle;

/// Smallest disk quota in pages, in addition to the reserve of `quota_reserve_bytes`. With fewer
/// pages, compaction would have no room to copy rows.
const QUOTA_PAGES_MIN: u64 = 8;

impl Store {
    /// Opens the store in `dir` for writing, at its newest checkpoint. Makes a bank there if there
    /// is none.
    ///
    /// # Errors
    /// - `Locked` if another process has the bank open for writing.
    /// - `BudgetTooSmall` if the memory budget is too small for the fewest pages, for the parts of
    ///   the cold tier, or for the index. A bank that has or may get a cold tier needs no index:
    ///   see [`ColdTier::Auto`]. The opening then writes the log's rows to parts, and repeats that
    ///   until a checkpoint has the parts.
    /// - `Damaged` or `Truncated` if a file of the newest checkpoint fails its check.
    /// - `ThreadRefused` if the system refuses to start a thread.
    /// - `DeviceUnavailable` or `Io` if the device or a file cannot be opened.
    /// - `DiskFull`, `TooManyOpenFiles` or `Poisoned` if rows cannot be written to parts. The bank
    ///   stays as it was.
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<Store> {
        Self::open_with(dir, options, Limits::PRODUCT, |dir, segment_size_bytes| {
            let device_options = DeviceOptions {
                segment_size_bytes,
                allocates_ahead: options.disk_quota_bytes.is_none(),
                ..DeviceOptions::default()
            };
            device::open_in(dir, options.device, &device_options)
        })
    }

    /// Opens the store as [`open`](Self::open) does, on a device that `device` makes. `device` gets
    /// the segment size in bytes.
    ///
    /// # Errors
    /// The errors of `open`, and the errors of `device`.
    pub fn open_on(
        dir: &Path,
        options: &StoreOptions,
        device: impl FnOnce(u64) -> Result<Arc<dyn Device>>,
    ) -> Result<Store> {
        Self::open_with(dir, options, Limits::PRODUCT, |_, segment_size_bytes| {
            device(segment_size_bytes)
        })
    }

    /// Opens the store as [`open_on`](Self::open_on) does, with the limits in `limits`. `device`
    /// gets the bank's directory and the segment size in bytes.
    pub(crate) fn open_with(
        dir: &Path,
        options: &StoreOptions,
        limits: Limits,
        device: impl FnOnce(&Arc<Directory>, u64) -> Result<Arc<dyn Device>>,
    ) -> Result<Store> {
        let fresh = creating::check(dir, options, limits)?;
        let making = Making::begin(dir);
        let dir = &create_dir_durably(dir)?;
        let lock = BankLock::take(dir)?;
        // Reads the bank file again under the lock. Before the lock was taken, another process may
        // have put a bank or other files into the directory.
        let found = BankFile::read(dir)?;
        let made = found.is_none().then(|| making.locked(dir));
        let bank_file = match found {
            Some(bank_file) => bank_file,
            None => {
                let bank_file = BankFile { bank: fresh.bank, has_checkpoint: false };
                bank_file.write(dir)?;
                bank_file
            }
        };
        let checkpoints = Checkpoints::open(dir)?.within(limits);
        let newest = checkpoints.numbers()?.last().copied();
        checkpoints.check_names(newest, bank_file.bank)?;
        let manifest = match newest {
            Some(number) => checkpoints.manifest(number)?,
            None => Manifest { bank: bank_file.bank, ..fresh },
        };
        if newest.is_none() && bank_file.has_checkpoint {
            return Err(no_checkpoint_left(dir));
        }
        check_bank_file(dir, bank_file, &manifest)?;
        if newest.is_some() && !bank_file.has_checkpoint {
            // The process that took the first checkpoint crashed before it recorded the checkpoint
            // in the bank file.
            BankFile { has_checkpoint: true, ..bank_file }.write(dir)?;
        }
        Self::start(Found { dir, lock, made, checkpoints, newest, manifest }, options, device)
    }

    /// Starts the store of a bank with its threads: at the newest checkpoint, or as a new store if
    /// `found` has no checkpoint.
    fn start(
        found: Found<'_>,
        options: &StoreOptions,
        device: impl FnOnce(&Arc<Directory>, u64) -> Result<Arc<dyn Device>>,
    ) -> Result<Store> {
        // If this function fails, `made` must be dropped before `lock`. Variables are dropped in
        // reverse order of declaration.
        let Found { dir, lock, made, checkpoints, newest, manifest } = found;
        let page_bytes = 1 << manifest.page_bits;
        check_quota(options, page_bytes)?;
        let budget_bytes = options.memory_budget_bytes;
        let budget = || match newest {
            Some(_) => checkpoints.images(&manifest).budget(budget_bytes, page_bytes),
            None => Budget::new(budget_bytes, page_bytes, checkpoints.limits),
        };
        if newest.is_none() {
            // Without a checkpoint the bank needs no old segment file. Such files may also have
            // another size, and the device would then refuse them.
            discard_log(dir)?;
        }
        let device = device(dir, manifest.segment_bytes)?;
        let list = checkpoints.parts(&manifest)?;
        let has_parts = !list.parts.is_empty();
        let load = |loads_index: bool| {
            let images = newest.map(|_| checkpoints.images(&manifest));
            let indexed = match loads_index {
                true => index_of(images, budget, has_parts, options.cold_tier)?,
                false => Indexed::empty(budget()?, false)?,
            };
            if has_parts {
                reserve_before_loading(&indexed.budget, &manifest);
            }
            let cold = Cold::load(&list, manifest.part_site(&*device), &indexed.budget)?;
            Ok((indexed, cold))
        };
        let (indexed, cold) = match load(true) {
            // The parts may fit without the index.
            Err(Error::BudgetTooSmall { .. }) if has_parts => load(false)?,
            loaded => loaded?,
        };
        let Indexed { index, budget, has_rows_of_log } = indexed;
        let recovered = match newest {
            None => None,
            Some(_) => Some(recover(&checkpoints, &manifest, &*device)?),
        };
        // A process that crashed may have written log beyond `manifest.log_end`, and parts. No
        // checkpoint needs these bytes.
        device.truncate(manifest.log_end)?;
        cold.keep_only(part_lists(&checkpoints)?, &*device)?;
        if cold.has_rows() || may_get_cold_tier(options.cold_tier, &budget) {
            budget.limit_index_beside_parts();
        }
        let waiters = Arc::new(Waiters::new(KeyHash::new(manifest.hash_seed)));
        let counters = Arc::new(Counters::default());
        let space =
            Space::new(options, checkpoints.clone(), log_begins(&checkpoints)?, &budget, &counters);
        let parts = CoreParts {
            index,
            budget,
            device,
            counters,
            waiters: Arc::clone(&waiters),
            space,
            cold,
            named: named(&checkpoints, &manifest.tables)?,
            incarnations: Vec::new(),
        };
        // Pages that are written from this address on contain the id of this opening.
        let lineage = manifest.lineage().then(manifest.pages().end, new_id());
        let core = Core::new(parts, &manifest, lineage)?;
        core.counters.newest_checkpoint.set(newest.unwrap_or(0));
        // A process may have crashed after a checkpoint and before it freed the log that the
        // checkpoint released.
        core.space.free(&core.log, 0)?;
        let core = Arc::new(core);
        let writer = start_threads(&core, dir.path(), has_rows_of_log)?;
        if let Some(made) = made {
            made.done();
        }
        Ok(Store {
            serving: Serving::Writing(core),
            waiters,
            writer: Some(writer),
            checkpoints,
            // The images are not those of an index that has lost the log's rows.
            newest: Mutex::new(Newest::opened(
                newest,
                if has_rows_of_log { manifest.images } else { Vec::new() },
            )),
            checkpoints_kept: options.checkpoints_kept,
            segment_bytes: manifest.segment_bytes,
            hash_seed: manifest.hash_seed,
            bank: manifest.bank,
            opening: new_id(),
            recovered,
            dir: Arc::clone(dir),
            lock: Some(Mutex::new(lock)),
        })
    }
}

/// Starts the log's writer thread, and the compaction thread if the options ask for one. In
/// between, moves the log's rows to the cold tier unless the index has them. After an error, no
/// thread runs.
fn start_threads(core: &Arc<Core>, dir: &Path, has_rows_of_log: bool) -> Result<JoinHandle<()>> {
    let refused = |source| Error::ThreadRefused { thread: "writer", path: dir.to_owned(), source };
    let writing = Arc::clone(core);
    let write = move || writing.log.run_writer(|| writing.cache.give_way(&writing.log));
    let writer = thread_start::start("embank-writer".into(), write).map_err(refused)?;
    let moved = if has_rows_of_log { Ok(()) } else { move_whole_log(core) };
    if let Err(error) = moved.and_then(|()| thread::begin(core, dir)) {
        core.log.shut_down();
        // The writer thread has nothing to write, so it ends at once.
        let _ = writer.join();
        return Err(error);
    }
    Ok(writer)
}

/// A bank with its newest checkpoint, and the lock on the bank.
struct Found<'a> {
    dir: &'a Arc<Directory>,
    lock: BankLock,
    /// Removes a bank that this call has made, unless the opening succeeds. Must be dropped before
    /// `lock`.
    made: Option<Making>,
    checkpoints: Checkpoints,
    /// The newest checkpoint's number. `None` before the first checkpoint.
    newest: Option<u64>,
    manifest: Manifest,
}

/// An index, and the budget that it is charged to.
struct Indexed {
    index: Index,
    budget: Arc<Budget>,
    /// False if the index is empty although the log has rows. They must then go to the cold tier.
    has_rows_of_log: bool,
}

impl Indexed {
    fn empty(budget: Budget, has_rows_of_log: bool) -> Result<Self> {
        Ok(Indexed { index: Index::new(&budget)?, budget: Arc::new(budget), has_rows_of_log })
    }
}

/// Loads the index from `images`, or makes an empty one without images. In a bank that has parts or
/// may get some, an index that does not fit the budget stays empty. In a bank with parts, an index
/// that leaves them too little memory stays empty, too.
///
/// # Errors
/// The errors of `budget`, which makes a budget, and of [`Index::load`].
fn index_of(
    images: Option<Images>,
    budget: impl Fn() -> Result<Budget>,
    has_parts: bool,
    cold_tier: ColdTier,
) -> Result<Indexed> {
    let first = budget()?;
    let Some(images) = images else { return Indexed::empty(first, true) };
    match Index::load(&images, &first) {
        Ok(index) if !has_parts || leaves_memory_to_parts(&first) => {
            Ok(Indexed { index, budget: Arc::new(first), has_rows_of_log: true })
        }
        Ok(_) => Indexed::empty(budget()?, false),
        Err(Error::BudgetTooSmall { .. }) if has_parts || may_get_cold_tier(cold_tier, &first) => {
            Indexed::empty(budget()?, false)
        }
        Err(error) => Err(error),
    }
}

/// Loads the blob of a checkpoint, and checks that the log has the last page that the checkpoint
/// names.
fn recover(
    checkpoints: &Checkpoints,
    manifest: &Manifest,
    device: &dyn Device,
) -> Result<Recovered> {
    let blob = checkpoints.blob(manifest)?;
    check_last_page(device, manifest)?;
    Ok(Recovered { checkpoint: manifest.number, blob })
}

/// Removes the segment files of a bank that never had a checkpoint. No row in them is durable. The
/// caller holds the bank's lock, and makes the removal durable with `Device::truncate`.
fn discard_log(dir: &Arc<Directory>) -> Result<()> {
    let folder = dir.place("log");
    let names = match folder.names() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        names => names.map_err(|e| Error::io("list", &folder, e))?,
    };
    for name in names {
        if device::is_segment(&name) {
            let place = folder.join(name);
            place.remove_file().map_err(|e| Error::io("remove", &place, e))?;
        }
    }
    Ok(())
}

/// Returns each checkpoint on disk with the address at which its log begins. If its manifest is
/// damaged, the address is 0, so that no part of its log is freed.
pub(crate) fn log_begins(checkpoints: &Checkpoints) -> Result<Vec<(u64, u64)>> {
    let begin = |number| checkpoints.manifest(number).map_or(0, |manifest| manifest.log_begin);
    Ok(checkpoints
        .numbers_with_manifest()?
        .into_iter()
        .map(|number| (number, begin(number)))
        .collect())
}

/// Returns each checkpoint on disk with its list of parts. `None` in place of a list that can't be
/// read.
pub(crate) fn part_lists(checkpoints: &Checkpoints) -> Result<Vec<(u64, Option<PartList>)>> {
    let list = |number| checkpoints.parts(&checkpoints.manifest(number)?);
    let numbers = checkpoints.numbers_with_manifest()?.into_iter();
    Ok(numbers.map(|number| (number, list(number).ok())).collect())
}

/// Fails if the disk quota leaves compaction too little room to work.
pub(super) fn check_quota(options: &StoreOptions, page_bytes: u64) -> Result<()> {
    let reserve = quota_reserve_bytes(page_bytes, options.memory_budget_bytes);
    let least = QUOTA_PAGES_MIN * page_bytes + reserve;
    match options.disk_quota_bytes {
        Some(quota) if quota < least => Err(Error::option(
            "disk_quota_bytes",
            format!("must be at least {least} for pages of {page_bytes} bytes, not {quota}"),
        )),
        _ => Ok(()),
    }
}

pub(super) fn new_bank(options: &StoreOptions, limits: Limits) -> Result<Manifest> {
    let page_bytes = match options.page_size_bytes {
        None => Budget::page_bytes_for(options.memory_budget_bytes),
        Some(bytes)
            if bytes.is_power_of_two()
                && (limits.page_bytes_min..=PAGE_BYTES_MAX).contains(&u64::from(bytes)) =>
        {
            u64::from(bytes)
        }
        Some(bytes) => {
            return Err(Error::option(
                "page_size_bytes",
                format!("must be a power of two from 8 KiB to 4 MiB, not {bytes}"),
            ));
        }
    };
    let segment_bytes = match options.segment_size_bytes {
        None => device::SEGMENT_SIZE_BYTES_DEFAULT,
        Some(bytes) if bytes.is_power_of_two() && (page_bytes..=64 << 30).contains(&bytes) => bytes,
        Some(bytes) => {
            return Err(Error::option(
                "segment_size_bytes",
                format!(
                    "must be a power of two from the page size, {page_bytes} bytes, to 64 GiB, not {bytes}"
                ),
            ));
        }
    };
    Ok(Manifest {
        number: 0,
        id: 0,
        bank: new_id(),
        page_bits: page_bytes.ilog2(),
        segment_bytes,
        // The seed comes from the operating system's random source, so a caller cannot choose keys
        // that collide. The seed is no cryptographic secret: see `hash`.
        hash_seed: new_id(),
        log_begin: 0,
        log_end: 0,
        openings: Vec::new(),
        images: Vec::new(),
        blob_id: 0,
        blob_bytes: 0,
        unix_s: 0,
        tables: Vec::new(),
        cold: None,
    })
}

/// Returns the error for a bank that has lost all its checkpoints.
pub(super) fn no_checkpoint_left(dir: &Directory) -> Error {
    let what = "the bank had checkpoints and none is left; restore this directory from a copy (the log is \
                untouched), or remove the bank and make a new one";
    Error::Damaged { path: dir.path().join("checkpoints"), offset: 0, what: what.into() }
}

/// Fails if the bank file and a checkpoint have different bank ids.
pub(crate) fn check_bank_file(
    dir: &Directory,
    bank_file: BankFile,
    manifest: &Manifest,
) -> Result<()> {
    if manifest.bank == bank_file.bank {
        return Ok(());
    }
    let found = manifest.bank;
    let expected = bank_file.bank;
    let number = manifest.number;
    let what = format!(
        "checkpoint {number} belongs to bank {found:016x}, not to this one, {expected:016x}"
    );
    Err(Error::Damaged { path: dir.path().join("checkpoints"), offset: 0, what })
}

/// Reads and checks the last page of a checkpoint's log. So a log that was cut short fails at the
/// opening, and not later during training.
pub(crate) fn check_last_page(device: &dyn Device, manifest: &Manifest) -> Result<()> {
    if manifest.log_end == manifest.log_begin {
        return Ok(());
    }
    let page_bytes = 1u64 << manifest.page_bits;
    let start = manifest.log_end - page_bytes;
    let mut page = device::AlignedBuffer::zeroed(page_bytes as usize);
    device.read_many(&mut [device::Read { offset: start, buffer: &mut page }])?;
    let identity = manifest.lineage().page(start >> manifest.page_bits);
    check_image(&page, identity, || device.locate(start)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceChoice;
    use crate::engine::space::options::CompactionOptions;
    use crate::process::thread_start::with_threads_left;

    const THREADS: [&str; 2] = ["writer", "compactor"];

    fn options() -> StoreOptions {
        StoreOptions {
            device: DeviceChoice::Threads,
            memory_budget_bytes: 1 << 20,
            compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
            ..StoreOptions::default()
        }
    }

    fn assert_refused(dir: &Path, left: usize) {
        let error = with_threads_left(left, || Store::open(dir, &options())).unwrap_err();
        let Error::ThreadRefused { thread, path, .. } = &error else { panic!("{error}") };
        assert_eq!((*thread, path.as_path()), (THREADS[left], dir));
        for part in [THREADS[left], &format!("{dir:?}"), "pids", "`ulimit -u`"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    /// Regression test: an opening left a new bank on disk if the system refused to start the
    /// second thread. A failed opening must leave no new bank.
    #[test]
    fn a_new_bank_that_is_refused_a_thread_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        for left in 0..THREADS.len() {
            assert_refused(&dir.path().join("folder/bank"), left);
            assert!(!dir.path().join("folder").exists());
        }
    }

    #[test]
    fn a_bank_that_is_refused_a_thread_opens_later() {
        let dir = tempfile::tempdir().unwrap();
        let bank = dir.path().join("bank");
        let store = Store::open(&bank, &options()).unwrap();
        store.checkpoint(b"step 1").unwrap();
        drop(store);
        for left in 0..THREADS.len() {
            assert_refused(&bank, left);
        }
        // Two threads are enough, because the opening reads the bank's files in the calling thread.
        let store = with_threads_left(THREADS.len(), || Store::open(&bank, &options())).unwrap();
        assert_eq!(store.recovered().unwrap().blob, b"step 1");
        store.checkpoint(b"step 2").unwrap();
    }
}
