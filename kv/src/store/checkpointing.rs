//! Takes checkpoints of a store, and keeps the facts about the newest checkpoint that the next one
//! needs.

use crate::checkpoint::manifest::TableEntry;
use crate::cold::list::PartList;
use crate::engine::cold::PartsPin;
use crate::engine::core::Core;
use crate::engine::space::compactor::Marked;
use crate::engine::space::pins::CheckpointPin;
use crate::engine::tables::Reach;
use crate::index::cut::Cut;
use crate::record::address::Address;
use std::time::Duration;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Store;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::bank_file::BankFile;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::ColdEntry;
use crate::checkpoint::manifest::ImageEntry;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::manifest::UNSOUND;
use crate::checkpoint::partial::PartialCheckpoint;
use crate::error::{Error, Result};
use crate::index::image::ImageKind;

/// Facts about the newest checkpoint.
#[derive(Debug)]
pub(super) struct Newest {
    /// The checkpoint's number. 0 if there is no checkpoint.
    pub(super) number: u64,
    /// True if the bank file says that the bank has a checkpoint.
    pub(super) noted: bool,
    /// True if this opening has already failed to take the checkpoint with the next number.
    pub(super) is_retry: bool,
    /// The images of the checkpoint's index. Empty if the changes since that checkpoint are not
    /// known: then the next image is whole.
    pub(super) images: Vec<ImageEntry>,
}

/// The state of the store that a checkpoint shows, recorded while all batches were paused.
struct Moment<'a> {
    log_end: Address,
    /// The pin that keeps the checkpoint's log from being freed.
    pin: CheckpointPin<'a>,
    /// The pin that keeps the checkpoint's parts, and their list.
    parts: PartsPin<'a>,
    tables: Vec<TableEntry>,
    /// For each table a bound on the number of its uncounted versions.
    uncounted: Vec<u64>,
    index: Cut<'a>,
    /// The checkpoint's id.
    id: u64,
    /// The length of the pause of all batches.
    paused: Duration,
}

/// Largest total size of the images of changes after one whole image of the index, as a fraction of
/// the size of that image. If the next image of changes would exceed the limit, the next image is
/// whole. So an opening reads at most one whole image and this fraction of it.
const CHANGES_PART: f64 = 0.25;
/// Largest number of images of changes after one whole image. Each image is one more file to open.
const CHANGE_IMAGES_MAX: usize = 64;

impl Newest {
    /// Returns the facts for a store that was opened at checkpoint `number`. `number` is `None` for
    /// a new store.
    pub(super) fn opened(number: Option<u64>, images: Vec<ImageEntry>) -> Self {
        Newest { number: number.unwrap_or(0), noted: number.is_some(), is_retry: false, images }
    }

    /// True if the next image should be an image of changes. `changed_part` is the fraction of the
    /// buckets that have changed since the newest checkpoint.
    fn takes_changes(&self, changed_part: f64) -> bool {
        let [whole, changes @ ..] = &self.images[..] else { return false };
        let bytes: u64 = changes.iter().map(|image| image.file_bytes).sum();
        let part = bytes as f64 / whole.file_bytes as f64 + changed_part;
        changes.len() < CHANGE_IMAGES_MAX && part <= CHANGES_PART
    }
}

fn check_not_in_callback() -> Result<()> {
    if crate::epoch::is_pinned() {
        return Err(Error::InvalidArgument(
            "an operation's callback can't take a checkpoint: the checkpoint would wait for the callback's own batch".into(),
        ));
    }
    Ok(())
}

impl Store {
    /// Writes all records of the log to the device, if a table has uncounted versions in a bank
    /// with two tiers. Returns what a pass of compaction then counts. `None` if every put knew its
    /// row.
    pub(super) fn settle_marked(&self, core: &Core) -> Result<Option<Marked>> {
        // A callback's own batch is pinned, and the pause would wait for it.
        if core.tables.marked().is_empty() || crate::epoch::is_pinned() {
            return Ok(None);
        }
        let settled = || {
            // Locked, so that no checkpoint is taken meanwhile.
            let _newest = self.newest.lock();
            let reserved = core.log.reserve_frame()?;
            let pause = core.gate.pause();
            let end = core.log.cut(reserved)?;
            let tables = core.tables.marked();
            drop(pause);
            core.log.await_flushed(end)?;
            Ok(Some(Marked { end, tables }))
        };
        match settled() {
            // Compaction makes room on a full disk, and leaves the versions uncounted.
            Err(error) if Error::is_shortage(&error) => Ok(None),
            settled => settled,
        }
    }

    /// Takes a checkpoint of all tables. Stores `blob` with the checkpoint; only the caller
    /// interprets these bytes. Returns the checkpoint's number.
    ///
    /// When the call returns, the checkpoint is on stable storage. It shows the store at one moment
    /// of the call. All batches are paused for that moment, and continue while the checkpoint is
    /// written. The pause may fall inside a batch of another thread. The checkpoint then holds only
    /// a part of that batch's changes. The call writes only the pages of the log and the buckets of
    /// the index that have changed since the last checkpoint.
    ///
    /// # Errors
    /// After an error, the newest checkpoint is the same as before the call, with the two
    /// exceptions below.
    ///
    /// - `Io` or `Poisoned` if something cannot be written or synced. Exception 1: the new
    ///   checkpoint's name could not be made durable. Then the store takes no more writes, and a
    ///   reopening finds the old or the new checkpoint, both complete. Exception 2: the call could
    ///   not record in `BANK` that the bank has a checkpoint. Then the new checkpoint is the newest
    ///   one.
    /// - `DiskFull` if the disk has no room for the checkpoint, and `TooManyOpenFiles` if no file
    ///   descriptor is free. No row is lost, and the caller can call again.
    /// - `DirectoryMoved` if the bank's path now leads to another directory. Nothing is written.
    ///   The caller can call again when the directory is back.
    /// - `InvalidArgument` if an operation's callback makes this call.
    /// - `Inconsistent` if the checkpoint could not be opened again.
    pub fn checkpoint(&self, blob: &[u8]) -> Result<u64> {
        let before = self.newest.lock().number;
        let taken = self.take_checkpoint(blob);
        match &taken {
            // This case applies only if the new checkpoint is not complete. If it is complete, the
            // full disk stopped only the last step, the record in `BANK`.
            Err(error) if !self.core().log.is_poisoned() && self.newest.lock().number == before => {
                self.core().log.device.return_surplus();
                error.want().map_or(taken, |want| Err(want.into()))
            }
            _ => taken,
        }
    }

    /// Keeps a checkpoint beyond `checkpoints_kept` until it is [unpinned](Self::unpin), also after
    /// a reopening. This is useful for the best epoch of a training. A pinned checkpoint keeps the
    /// log with its rows. A rollback to an older checkpoint removes the pinned checkpoint.
    ///
    /// # Errors
    /// - `NoSuchCheckpoint` if the bank has no checkpoint with this number.
    /// - `ReadOnly` if the store is open read-only.
    /// - `DirectoryMoved` if the bank's path now leads to another directory.
    /// - `Io` if a file cannot be read or written.
    pub fn pin(&self, number: u64) -> Result<()> {
        self.with_checkpoint(number, |checkpoints| checkpoints.pin(number))
    }

    /// Ends the [pin](Self::pin) of a checkpoint. If the checkpoint is older than the kept ones,
    /// the next checkpoint removes it. Does nothing if the checkpoint is not pinned.
    ///
    /// # Errors
    /// The errors of [`pin`](Self::pin).
    pub fn unpin(&self, number: u64) -> Result<()> {
        self.with_checkpoint(number, |checkpoints| checkpoints.unpin(number))
    }

    /// Runs `work` while no other thread takes a checkpoint, so that no checkpoint is removed
    /// meanwhile.
    fn with_checkpoint(
        &self,
        number: u64,
        work: impl FnOnce(&Checkpoints) -> Result<()>,
    ) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly { path: self.path().into() });
        }
        let _newest = self.newest.lock();
        self.checkpoints.check_in_place()?;
        let there = self.checkpoints.numbers_with_manifest()?;
        if !there.contains(&number) {
            return Err(Error::no_such_checkpoint(self.path(), Some(number), there));
        }
        work(&self.checkpoints)
    }

    /// Fails if the store cannot write, or if its path leads to another directory.
    fn check_place(&self, core: &Core) -> Result<()> {
        core.log.check_poison()?;
        self.checkpoints.check_in_place()?;
        core.space.note_in_place();
        if let Some(lock) = &self.lock {
            lock.lock().renew(&self.dir)?;
        }
        Ok(())
    }

    /// Removes the checkpoints beyond `checkpoints_kept`, and frees the log that only they needed.
    /// An error here does not affect the newest checkpoint. The statistics report the error, and
    /// the next checkpoint tries again.
    fn let_go_of_older(&self, core: &Core, newest: u64) {
        let mut gone = Vec::new();
        let _ = self.checkpoints.prune(self.checkpoints_kept, newest, &mut gone);
        // Unpins the log only of the checkpoints that this call removed. If the folder cannot be
        // read, other checkpoints may still exist. If freeing fails here, the next page of
        // compaction or the next checkpoint tries again.
        core.space.unpin(&gone);
        core.cold.unpin(&gone);
        let _ = core.space.free(&core.log, 0);
        core.remove_unneeded_parts();
    }

    /// Pauses all batches and records the state of the store. Calls `id_of` during the pause.
    fn moment<'a>(
        &self,
        core: &'a Core,
        number: u64,
        id_of: impl FnOnce(u64) -> u64,
    ) -> Result<Moment<'a>> {
        let reserved = core.log.reserve_frame()?;
        let pausing = Instant::now();
        let pause = core.gate.pause();
        let log_end = core.log.cut(reserved)?;
        // The lock is held until the log is pinned and the tables are recorded. Otherwise another
        // thread could make a table in between, when the log's beginning has already passed the
        // pin. That table could get a number whose old records this checkpoint still has.
        let tables = core.tables.lock();
        // From here on, the log that this checkpoint names is not freed.
        let pin = core.space.pin_checkpoint(&core.log, number);
        let parts = core.cold.pin_checkpoint(number);
        let begin = Reach { log: pin.begin, part: core.cold.view().oldest_part() };
        let end = Reach { log: log_end.raw(), part: core.cold.parts_end() };
        let uncounted = tables.uncounted();
        let tables = tables.cut(number, begin, end);
        let index = core.index.cut();
        let id = id_of(number);
        drop(pause);
        Ok(Moment { log_end, pin, parts, tables, uncounted, index, id, paused: pausing.elapsed() })
    }

    fn take_checkpoint(&self, blob: &[u8]) -> Result<u64> {
        let core = self.core();
        check_not_in_callback()?;
        let mut newest = self.newest.lock();
        self.check_place(&core)?;
        let started = Instant::now();
        // Read before the pause, so that the checkpoint holds every change that is counted here.
        let changed = core.counters.changes();
        let state = self.state_id();
        let number = self.checkpoints.number_after(newest.number);
        // `newest.is_retry` stays true unless the checkpoint is completed.
        let is_retry = std::mem::replace(&mut newest.is_retry, true);
        let partial = self.checkpoints.begin(number)?;
        // The index does not fold until its image is written. Waits for at most a portion of a
        // fold. A lock order: see `index::fold`.
        let numbers = core.index.keep_numbers();
        let kind = self.next_image(&newest, &partial)?;
        let moment =
            self.moment(&core, number, |number| self.checkpoint_id(number, state, is_retry))?;
        let Moment { log_end, mut pin, mut parts, tables, uncounted, index, id, paused } = moment;
        let log_begin = pin.begin;
        let identity = CheckpointIdentity { bank: self.bank, checkpoint: number, id };
        // `newest.images` stays empty unless the checkpoint is completed. After a failure, the
        // changes since the last complete checkpoint are not known.
        let mut images = std::mem::take(&mut newest.images);
        if kind == ImageKind::Whole {
            images.clear();
        }
        let path = partial.image_path(number);
        let (image, file_bytes) = index.write(&path, identity, kind)?;
        drop(numbers);
        images.push(ImageEntry { checkpoint: number, id: identity.id, file_bytes });
        core.log.await_flushed(log_end)?;
        // Parts whose writes have completed are durable with the log.
        core.log.device.sync().inspect_err(|e| core.log.poison(e))?;
        image.sync_all().map_err(|e| Error::io("sync", &path, e))?;
        drop(image);
        partial.write_blob(identity, blob)?;
        let cold = write_list(&parts.list, &partial, identity, uncounted)?;
        let page_bits = core.log.page_bytes().ilog2();
        let pages = log_begin >> page_bits..log_end.raw() >> page_bits;
        let manifest = Manifest {
            number,
            id: identity.id,
            bank: self.bank,
            page_bits,
            segment_bytes: self.segment_bytes,
            hash_seed: self.hash_seed,
            log_begin,
            log_end: log_end.raw(),
            openings: core.log.lineage().of_pages(pages),
            images: images.clone(),
            blob_id: identity.id,
            blob_bytes: blob.len() as u64,
            unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
            tables,
            cold,
        };
        if !manifest.is_sound(self.checkpoints.limits) {
            return Err(Error::Inconsistent { what: format!("checkpoint {number}: {UNSOUND}") });
        }
        partial.complete(&manifest)?;
        pin.keep();
        parts.keep();
        newest.number = number;
        newest.images = images;
        newest.is_retry = false;
        // If the sync fails, a reopening may find the old or the new checkpoint. The store
        // therefore stops writing.
        self.checkpoints.sync().inspect_err(|e| core.log.poison(e))?;
        if !newest.noted {
            BankFile { bank: self.bank, has_checkpoint: true }.write(&self.dir)?;
            newest.noted = true;
        }
        self.let_go_of_older(&core, number);
        drop(pin);
        core.counters.newest_checkpoint.set(number);
        core.counters.changed_at_checkpoint.set(changed);
        core.counters.note_checkpoint(started.elapsed(), paused);
        Ok(number)
    }

    /// Decides if the next checkpoint gets a whole image of the index or an image of changes. For
    /// an image of changes, links the images that it builds on into the new checkpoint. The caller
    /// keeps the numbers of the index's buckets until the image is written.
    fn next_image(&self, newest: &Newest, partial: &PartialCheckpoint<'_>) -> Result<ImageKind> {
        let core = self.core();
        if !core.index.has_folded() && newest.takes_changes(core.index.changed_part()) {
            if partial.link_images(newest.number, &newest.images) {
                return Ok(ImageKind::Since(newest.number));
            }
            partial.unlink_images(&newest.images)?;
        }
        core.index.mark_all_changed();
        Ok(ImageKind::Whole)
    }
}

/// Writes the list of parts of a checkpoint. `uncounted` has a bound for each table. `None` if the
/// bank never had a part: its checkpoints have no list, and no put of it was blind.
fn write_list(
    list: &PartList,
    partial: &PartialCheckpoint<'_>,
    of: CheckpointIdentity,
    uncounted: Vec<u64>,
) -> Result<Option<ColdEntry>> {
    if list.is_unused() {
        return Ok(None);
    }
    let list_bytes = list.write(&partial.list_path(), of)?;
    Ok(Some(ColdEntry { list_bytes, part_bytes: list.part_bytes(), uncounted }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::space::options::CompactionOptions;
    use crate::limits::Limits;
    use crate::options::StoreOptions;

    /// Shows that a checkpoint fails if no reader would accept its manifest, and that the last
    /// checkpoint then stays the newest.
    #[test]
    fn a_checkpoint_that_could_not_be_opened_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let table = store.create_table("rows", 8, b"").unwrap();
        let first = store.checkpoint(b"first").unwrap();
        store.core().tables.add_rows(table, u64::MAX);
        let error = store.checkpoint(b"second").unwrap_err();
        assert!(matches!(error, Error::Inconsistent { .. }), "{error}");
        drop(store);
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        assert_eq!(store.recovered().map(|recovered| recovered.checkpoint), Some(first));
        assert_eq!(store.checkpoint(b"second").unwrap(), first + 1);
    }

    struct PutZeros;

    impl crate::Operation for PutZeros {
        const ACCESS: crate::Access = crate::Access::Put;
        fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
            true
        }
    }

    /// Regression test: batches filled the log up to its last page. A checkpoint then had no
    /// address at which it could end, so all rows written since the last checkpoint were lost.
    #[test]
    fn a_log_that_has_used_up_its_addresses_has_one_for_a_checkpoint() {
        use crate::log::last_page;
        // With pages of 8 KiB the log runs out of page numbers first; with pages of 256 KiB it runs
        // out of addresses first.
        for page_bytes in [8_u32 << 10, 256 << 10] {
            let dir = tempfile::tempdir().unwrap();
            let options = StoreOptions {
                memory_budget_bytes: 8 << 20,
                page_size_bytes: Some(page_bytes),
                compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
                ..StoreOptions::default()
            };
            let open = || Store::open(dir.path(), &options).unwrap();
            let store = open();
            let table = store.create_table("rows", 1000, b"").unwrap();
            store.checkpoint(b"").unwrap();
            let stats = store.stats();
            assert_eq!(stats.log_address_warning, None);
            assert!(stats.log_address_left_bytes > 31 << 40);
            drop(store);
            // Moves the empty log to an address three pages before its last possible address.
            let path = dir.path().join("checkpoints/0000000001/manifest");
            let bytes = std::fs::read(&path).unwrap();
            let page_bits = page_bytes.ilog2();
            let end = (last_page(page_bits) - 3) << page_bits;
            let manifest = Manifest {
                log_begin: end,
                log_end: end,
                openings: Vec::new(),
                ..Manifest::decode(&bytes, 1, Limits::PRODUCT).unwrap()
            };
            std::fs::write(&path, manifest.encode()).unwrap();

            let store = open();
            let stats = store.stats();
            assert!(stats.log_address_left_bytes <= 3 * u64::from(page_bytes));
            let warning = stats.log_address_warning.unwrap();
            assert!(warning.contains("export"), "{warning}");
            let mut rows = 0;
            // The loop ends: three pages hold a limited number of rows.
            let error = loop {
                match store.execute(table, &[rows], crate::Clock::Keep, &mut PutZeros) {
                    Ok(_) => rows += 1,
                    Err(error) => break error,
                }
                assert!(rows < 4 * u64::from(page_bytes) / 1000);
            };
            assert!(error.to_string().contains("new bank"), "{error}");
            assert!(rows >= 3 * (u64::from(page_bytes) / 1040));
            for number in [2, 3] {
                assert_eq!(store.checkpoint(b"full").unwrap(), number);
                assert_eq!(store.stats().log_address_left_bytes, 0);
                store.execute(table, &[rows], crate::Clock::Keep, &mut PutZeros).unwrap_err();
            }
            drop(store);
            let store = open();
            assert_eq!(store.rows(table).unwrap(), rows);
            let mut scan = store.scan(table).unwrap();
            for _ in 0..rows {
                assert!(scan.next_row().unwrap().is_some());
            }
            drop(scan);
            store.execute(table, &[rows], crate::Clock::Keep, &mut PutZeros).unwrap_err();
            assert_eq!(store.checkpoint(b"full").unwrap(), 4);
        }
    }

    /// Shows that the check that the program registered with `check_while_waiting` ends a wait at
    /// the disk quota. In this test, only a checkpoint could end the wait otherwise.
    #[test]
    fn a_wait_for_space_ends_when_the_program_says_so() {
        thread_local! {
            static IS_STOPPED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
        }
        struct Put;
        impl crate::Operation for Put {
            const ACCESS: crate::Access = crate::Access::Put;
            fn update(&mut self, _: usize, _: &mut [u8]) {}
            fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
                true
            }
        }
        // The check works only for this thread, because other tests of this process wait in other
        // threads.
        crate::check_while_waiting(|| IS_STOPPED.get());
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            memory_budget_bytes: 1 << 20,
            disk_quota_bytes: Some(2 << 20),
            compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        let table = store.create_table("rows", 1000, b"").unwrap();
        let put = |keys: &[u64], clock| store.execute(table, keys, clock, &mut Put);
        let core = store.core();
        let pin = core.space.pin_checkpoint(&core.log, 1);
        IS_STOPPED.set(true);
        // The loop ends: the log grows until it reaches the quota.
        let interrupted = (0..)
            .find_map(|key| put(&[key], crate::Clock::Keep).err())
            .expect("the keys do not end");
        assert!(matches!(interrupted, Error::Interrupted { .. }), "{interrupted}");
        // The next call waits again and is interrupted again. A batch that ends leases completes
        // without waiting.
        assert!(matches!(put(&[u64::MAX], crate::Clock::Keep), Err(Error::Interrupted { .. })));
        let leased: Vec<u64> = (1_000_000..1_001_000).collect();
        put(&leased, crate::Clock::Release).unwrap();
        assert_eq!(store.delete(table, &leased).unwrap(), 1000);
        IS_STOPPED.set(false);
        drop(pin);
    }
}
