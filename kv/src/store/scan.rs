//! Every row of a table, as a checkpoint holds it.
//!
//! **Problem.** Rows come and go, move to the tail and age out while somebody goes through a table of which
//! only a part fits the memory. Each row must come exactly once, as it was at one moment, at the speed of
//! sequential reads.
//!
//! **Approach.** A checkpoint is such a moment: its log, from `log_begin` to `log_end`, never changes, and its
//! index image says which records of it were current. The log is gone through in *windows*. For each one
//! the image is streamed, and each entry that leads into the window sets a bit, one for 32 bytes of log
//! (records are no shorter). Then the window's pages are read one after another and verified; a record whose
//! bit is set is a row. A window is 256 times as long as its bits, so the image, some 10 bytes a row, is
//! read once for each three or four budgets of log. Nothing is asked of the live store, so writers, compaction
//! and later checkpoints go on; a lease keeps the space from being given back.
//!
//! Entries that a chain follows don't say which of its records are current. Such chains are walked from
//! the head, many at once, and the first record of each key counts. So are entries without tag bits, of which
//! a split may have left a stale copy in another bucket: a record counts only in its own hash's bucket.
//! With enough memory both are rare; where keys share slots as a rule, walking costs random reads.
//!
//! **Memory.** A page to read into and as much for the bits, those that tell which buckets have been seen among
//! them, lent by the budget: frames give way.

use crate::record::check;
use crate::record::check::Checked;
use crate::record::check::Site;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::checkpoint::manifest::Manifest;
use crate::device::{AlignedBuffer, BLOCK_BYTES, Read};
use crate::engine::compaction::LogPin;
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::index::image::Images;
use crate::log::page::{PAGE_HEADER_BYTES, check_image};
use crate::memory::budget::SCAN_PAGES;
use crate::operation::Width;
use crate::record::address::{Address, TableId, TableNumber};
use crate::record::layout::{HEADER_BYTES, RecordImage};
use crate::store::Store;

/// Bytes of log for each bit: the shortest record.
const GRAIN_BYTES: u64 = HEADER_BYTES as u64;
/// Chains that are walked together.
const CHAINS: usize = 256;
/// What is read of a record at first; most fit.
const FIRST_BYTES: usize = BLOCK_BYTES;

/// A row that a [`Scan`] yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedRow<'a> {
    /// Its key.
    pub key: u64,
    /// Its value.
    pub value: &'a [u8],
}

/// The rows of a table as of a checkpoint, each once, in no particular order. See
/// [`Store::scan`](crate::Store::scan).
#[derive(Debug)]
pub struct Scan<'a> {
    core: Arc<Core>,
    /// The store, which must not close meanwhile, is borrowed or held.
    _borrowed: PhantomData<&'a Store>,
    _held: Option<Arc<Store>>,
    images: Arc<Images>,
    checkpoint: u64,
    table: TableNumber,
    width: Width,
    value_bytes: usize,
    rows: u64,
    log_begin: u64,
    log_end: u64,
    window: Window,
    page: AlignedBuffer,
    /// The page that is in `page`, and how far it has been gone through.
    page_start: u64,
    offset: usize,
    used: usize,
    /// Dropped after the memory has gone back.
    _pin: LogPin,
    lent_bytes: u64,
}

/// Which records of a part of the log are current.
#[derive(Debug)]
struct Window {
    start: u64,
    end: u64,
    bits: Vec<u64>,
}

impl Window {
    fn covers(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    fn set(&mut self, address: u64) {
        if self.covers(address) {
            let grain = (address - self.start) / GRAIN_BYTES;
            self.bits[grain as usize / 64] |= 1 << (grain % 64);
        }
    }

    fn is_set(&self, address: u64) -> bool {
        let grain = (address - self.start) / GRAIN_BYTES;
        self.bits[grain as usize / 64] & 1 << (grain % 64) != 0
    }
}

/// A chain on its way from the head to the window.
struct Chain {
    bucket: u64,
    depth: u32,
    at: u64,
    /// Bytes to read there.
    bytes: usize,
    /// Keys whose newest record has been seen.
    seen: Vec<(TableNumber, u64)>,
}

impl Store {
    /// Goes through a table as the newest checkpoint holds it: each of its rows once, in no particular order,
    /// while other calls go on. Reads the checkpoint's log from end to end, whatever other tables lie in it.
    /// While a scan lives, the log's space is not given back, and two pages of the memory budget are lent to
    /// it. Of a store that is opened to read only: as the checkpoint that it is at holds it, to the scan's end.
    ///
    /// ```
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let store = embank_kv::Store::open(dir.path(), &embank_kv::StoreOptions::default())?;
    /// # let table = store.create_table("squares", 8, b"")?;
    /// store.checkpoint(b"")?;
    /// let mut scan = store.scan(table)?;
    /// while let Some(row) = scan.next_row()? {
    ///     println!("{}: {:?}", row.key, row.value);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NoSuchTable` if there is no such table, or was none at the checkpoint; `NoSuchCheckpoint` without a
    /// checkpoint; `BudgetTooSmall`; `Io` or `Damaged` for a checkpoint that can't be read.
    pub fn scan(&self, table: TableId) -> Result<Scan<'_>> {
        self.scan_held(table, None)
    }

    /// As [`scan`](Self::scan), for whoever can't borrow the store for so long: the scan keeps it open.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub fn scan_shared(self: &Arc<Self>, table: TableId) -> Result<Scan<'static>> {
        self.scan_held(table, Some(Arc::clone(self)))
    }

    fn scan_held<'a>(&self, table: TableId, held: Option<Arc<Store>>) -> Result<Scan<'a>> {
        let core = self.core().into_shared();
        if let Some(at) = &core.reading {
            core.width(table)?;
            let images = self.checkpoints.images(&at.manifest)?;
            let pin = core.pin_log(at.manifest.log_begin);
            return Scan::new((Arc::clone(&core), held), &at.manifest, images, table, pin);
        }
        // Held until the log is pinned: no later checkpoint removes this one before, or has the
        // table's number for another table.
        let newest = self.newest.lock();
        core.width(table)?;
        if newest.number == 0 {
            return Err(Error::no_such_checkpoint(self.path(), None, Vec::new()));
        }
        let manifest = self.checkpoints.manifest(newest.number)?;
        let images = self.checkpoints.images(&manifest)?;
        let pin = core.pin_log(manifest.log_begin);
        drop(newest);
        Scan::new((core, held), &manifest, images, table, pin)
    }
}

impl Scan<'_> {
    /// A scan of `table` in the checkpoint of `manifest`, whose log `pin` keeps.
    pub(crate) fn new(
        (core, held): (Arc<Core>, Option<Arc<Store>>),
        manifest: &Manifest,
        images: Images,
        table: TableId,
        pin: LogPin,
    ) -> Result<Self> {
        let page_bytes = core.log.page_bytes();
        // The buckets' bits come out of the window's, as long as they leave it half a page.
        let bucket_bytes = images.reader_bytes()?;
        let from_window = bucket_bytes.min(page_bytes / 2);
        let lent_bytes = SCAN_PAGES * page_bytes + bucket_bytes - from_window;
        let mut scan = Scan {
            core: Arc::clone(&core),
            _borrowed: PhantomData,
            _held: held,
            images: Arc::new(images),
            checkpoint: manifest.number,
            table: table.number,
            width: Width::Fixed,
            value_bytes: 0,
            rows: 0,
            log_begin: manifest.log_begin,
            log_end: manifest.log_end,
            window: Window { start: manifest.log_begin, end: manifest.log_begin, bits: Vec::new() },
            page: AlignedBuffer::zeroed(BLOCK_BYTES),
            page_start: manifest.log_begin,
            offset: 0,
            used: 0,
            _pin: pin,
            lent_bytes: 0,
        };
        let entry =
            manifest.tables.iter().find(|entry| entry.number == table.number() && !entry.dropped);
        let Some(entry) = entry else {
            let name = core.table_name(table);
            let number = manifest.number;
            return Err(Error::NoSuchTable(format!("{name:?} in checkpoint {number}")));
        };
        scan.width = entry.width();
        scan.value_bytes = entry.value_bytes as usize;
        scan.rows = entry.rows;
        core.budget.lend(lent_bytes)?;
        scan.lent_bytes = lent_bytes;
        core.cache.give_way(&core.log);
        core.log.give_way()?;
        scan.page = AlignedBuffer::zeroed(page_bytes as usize);
        scan.window.bits = vec![0; (page_bytes - from_window) as usize / 8];
        Ok(scan)
    }

    /// The checkpoint's number.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// How many rows the scan yields in all.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The next row; none after the last.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` for a part of the checkpoint that can't be read.
    pub fn next_row(&mut self) -> Result<Option<ScannedRow<'_>>> {
        // Ends: each turn goes a record on, a page on, or to the next window.
        loop {
            if self.offset + HEADER_BYTES > self.used {
                if !self.next_page()? {
                    return Ok(None);
                }
                continue;
            }
            let at = self.offset;
            let image = RecordImage::new(&self.page[at..self.used]);
            let bytes = image.shape().record_bytes();
            let link = image.link();
            let shape = image.shape();
            if at + bytes > self.used {
                return Err(self.damaged(self.page_start + at as u64, "it runs past its page"));
            }
            self.offset += bytes;
            let counts = shape.table() == self.table
                && !link.is_invalid()
                && !link.is_tombstone()
                && self.window.is_set(self.page_start + at as u64);
            if counts {
                let value_bytes = image.value_bytes().filter(|&bytes| match self.width {
                    Width::Fixed => bytes == self.value_bytes,
                    Width::Variable => bytes <= self.value_bytes,
                });
                let Some(value_bytes) = value_bytes else {
                    let address = self.page_start + at as u64;
                    return Err(self.damaged(address, "its length is not the table's"));
                };
                let value = at + HEADER_BYTES..at + HEADER_BYTES + value_bytes;
                let key = RecordImage::new(&self.page[at..self.used]).key();
                return Ok(Some(ScannedRow { key, value: &self.page[value] }));
            }
        }
    }

    /// Reads the page after the present one; false at the end.
    fn next_page(&mut self) -> Result<bool> {
        let page_bytes = self.page.len() as u64;
        let next = if self.used == 0 { self.page_start } else { self.page_start + page_bytes };
        if next >= self.log_end {
            return Ok(false);
        }
        if next >= self.window.end {
            self.next_window(next)?;
        }
        self.core.read_page(&mut self.page, next)?;
        let identity = self.core.log.lineage().page(next / page_bytes);
        let used = check_image(&self.page, identity, || self.core.log.device.locate(next))?;
        self.page_start = next;
        self.used = used as usize;
        self.offset = PAGE_HEADER_BYTES as usize;
        Ok(true)
    }

    /// Finds out which records from `start` on are current.
    fn next_window(&mut self, start: u64) -> Result<()> {
        let window = &mut self.window;
        let page_bytes = self.page.len() as u64;
        let length = window.bits.len() as u64 * 64 * GRAIN_BYTES / page_bytes * page_bytes;
        window.bits.fill(0);
        (window.start, window.end) = (start, self.log_end.min(start + length));
        let images = Arc::clone(&self.images);
        let mut buckets = images.read()?;
        let mut chains = Vec::new();
        let mut entries = Vec::new();
        while let Some((bucket, depth)) = buckets.next_bucket(&mut entries)? {
            for entry in entries.drain(..) {
                let address = entry.address().raw();
                // Chains go down: from below the window, none leads into it.
                if address < self.window.start {
                    continue;
                }
                if entry.stands_alone() {
                    self.window.set(address);
                } else {
                    let seen = Vec::new();
                    chains.push(Chain { bucket, depth, at: address, bytes: FIRST_BYTES, seen });
                }
            }
            if chains.len() >= CHAINS {
                self.walk(&mut chains)?;
            }
        }
        self.walk(&mut chains)
    }

    /// Follows chains down to the window's start and sets the bits of their current records.
    fn walk(&mut self, chains: &mut Vec<Chain>) -> Result<()> {
        if chains.is_empty() {
            return Ok(());
        }
        let core = Arc::clone(&self.core);
        let mut buffer = core.buffers.take();
        // Ends: each round takes the chains that it reads a record down, or reads more of that record.
        while !chains.is_empty() {
            chains.sort_unstable_by_key(|chain| chain.at);
            let places = self.read_chains(chains, &mut buffer)?;
            let mut i = 0;
            let mut failed = None;
            chains.retain_mut(|chain| {
                let Some(&place) = places.get(i) else { return true };
                i += 1;
                let more = self.step(chain, &buffer[place..]);
                more.unwrap_or_else(|error| {
                    failed = Some(error);
                    false
                })
            });
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads the next record of as many of the first chains as fit; returns their places in the buffer.
    fn read_chains(&self, chains: &[Chain], buffer: &mut [u8]) -> Result<Vec<usize>> {
        let block = BLOCK_BYTES as u64;
        let page_bytes = self.page.len() as u64;
        let mut reads = Vec::new();
        let mut places = Vec::new();
        let mut rest = buffer;
        let mut used = 0;
        for chain in chains {
            let start = chain.at / block * block;
            let page_end = (chain.at / page_bytes + 1) * page_bytes;
            let end = (chain.at + chain.bytes as u64).next_multiple_of(block).min(page_end);
            let bytes = (end - start) as usize;
            if bytes > rest.len() {
                break;
            }
            let (now, later) = rest.split_at_mut(bytes);
            reads.push(Read { offset: start, buffer: now });
            places.push(used + (chain.at - start) as usize);
            rest = later;
            used += bytes;
        }
        self.core.log.device.read_many_behind(&mut reads)?;
        Ok(places)
    }

    /// Takes a chain a record down; false at its end.
    fn step(&mut self, chain: &mut Chain, bytes: &[u8]) -> Result<bool> {
        let bytes = &bytes[..chain.bytes.min(bytes.len())];
        let address = Address::new(chain.at);
        let page_bytes = self.page.len() as u64;
        let site = Site {
            address,
            origin: self.core.log.lineage().origin(address),
            room_bytes: (page_bytes - chain.at % page_bytes) as usize,
            record_bytes_max: self.core.record_bytes_max(),
        };
        let image = match check::check(bytes, site) {
            Ok(Checked::Sound(image)) => image,
            Ok(Checked::Needs(record_bytes)) => {
                chain.bytes = record_bytes;
                return Ok(true);
            }
            Err(unsound) => return Err(self.damaged(chain.at, &unsound.to_string())),
        };
        let row = (image.shape().table(), image.key());
        let mask = (1 << chain.depth) - 1;
        if self.core.key_hash.of(row.0, row.1) & mask == chain.bucket && !chain.seen.contains(&row)
        {
            chain.seen.push(row);
            self.window.set(chain.at);
        }
        let previous = image.link().previous().raw();
        if previous >= chain.at {
            return Err(self.damaged(chain.at, "its chain does not go back"));
        }
        chain.at = previous;
        chain.bytes = FIRST_BYTES;
        Ok(previous >= self.window.start.max(self.log_begin).max(1))
    }

    #[cold]
    fn damaged(&self, address: u64, what: &str) -> Error {
        let (path, offset) = self.core.log.device.locate(address);
        let page = address / self.core.log.page_bytes();
        Error::Damaged { path, offset, what: format!("page {page}, a record of a scan: {what}") }
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        self.core.budget.take_back(self.lent_bytes);
        self.core.log.allowance_changed();
    }
}
