//! Scans: a scan reads every row of a table as a checkpoint holds it.
//!
//! **Problem.** Only a part of the table fits in memory. During the scan, other threads add and
//! delete rows, and rows move to the tail and leave memory. The scan must return each row exactly
//! once, as it was at one moment, at the speed of sequential reads.
//!
//! **Approach.** The scan reads a checkpoint, which holds the rows of one moment. Its log, from
//! `log_begin` to `log_end`, never changes, and its index image says which records of the log were
//! current. The scan reads the log in *windows*. For each window it reads the whole image as a
//! stream, and sets a bit for each entry that leads into the window. A bit stands for 32 bytes of
//! log, because no record is shorter. Then the scan reads and verifies the window's pages in order.
//! A record whose bit is set is a row.
//!
//! A window is 256 times as long as its bits, so it has at most 256 pages. The image has about 10
//! bytes a row, and the scan reads it once for each window. The scan does not use the live index,
//! so writers, compaction and later checkpoints continue. A pin keeps the log from being freed.
//!
//! For two kinds of entries, the image alone does not say which records are current. An entry of
//! the first kind leads to a chain of several records. An entry of the second kind has no tag bits,
//! so a split of its bucket may have left a stale copy in another bucket. The scan walks these
//! chains from their heads, many chains at once. In a chain, the first record of each key is
//! current, and only in the bucket of the key's own hash. Both kinds are rare if the index has
//! enough memory. If most keys share slots, walking the chains costs random reads.
//!
//! **The cold tier.** If the checkpoint has parts, the scan then returns their rows (`cold`).
//!
//! **Memory.** The scan borrows about two pages from the memory budget, and the log gives up frames
//! for them. One page holds the page of the log that is read. The other page holds the window's
//! bits, and bits that mark the buckets that the scan has read. With parts, it
//! borrows about an eighth of the budget more.

mod cold;
#[cfg(test)]
mod tests;

use crate::record::check;
use crate::record::check::Checked;
use crate::record::check::Site;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::checkpoint::manifest::Manifest;
use crate::device::{AlignedBuffer, BLOCK_BYTES, Read};
use crate::engine::cold::view::ColdView;
use crate::engine::core::Core;
use crate::engine::space::pins::LogPin;
use crate::error::{Error, Result};
use crate::index::image::Images;
use crate::log::page::PAGE_HEADER_BYTES;
use crate::memory::budget::SCAN_PAGES;
use crate::operation::Width;
use crate::record::address::{Address, TableId, TableNumber};
use crate::record::layout::{HEADER_BYTES, RecordImage, record_bytes};
use crate::store::Store;
use cold::ColdScan;

/// Number of bytes of log for each bit of a window. This is the length of the shortest record.
const GRAIN_BYTES: u64 = HEADER_BYTES as u64;
/// Number of chains that the scan walks together, so that their reads run in parallel.
const CHAINS: usize = 256;
/// Number of bytes that the first read of a record brings. Most records are shorter; a longer
/// record takes a second read.
const FIRST_BYTES: usize = BLOCK_BYTES;

/// A row that a [`Scan`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedRow<'a> {
    /// The row's key.
    pub key: u64,
    /// The row's value.
    pub value: &'a [u8],
}

/// An iterator over the rows of a table in a checkpoint. It returns each row once, in no particular
/// order. See [`Store::scan`](crate::Store::scan).
#[derive(Debug)]
pub struct Scan<'a> {
    core: Arc<Core>,
    /// The scan borrows the store, so the store stays open. [`Store::scan_shared`] holds the store
    /// in `_held` instead.
    _borrowed: PhantomData<&'a Store>,
    _held: Option<Arc<Store>>,
    images: Arc<Images>,
    checkpoint: u64,
    table: TableNumber,
    width: Width,
    value_bytes: usize,
    rows: u64,
    has_exact_rows: bool,
    log_begin: u64,
    log_end: u64,
    window: Window,
    page: AlignedBuffer,
    /// The address of the page in `page`. `offset` is the position of the next record in the page,
    /// and `used` is the end of the page's records.
    page_start: u64,
    offset: usize,
    used: usize,
    /// The rows of the cold tier. `None` if the checkpoint has no parts.
    cold: Option<Box<ColdScan>>,
    /// Keeps the log that the scan reads from being freed. Dropped after `Scan::drop` has returned
    /// the scan's memory.
    _pin: LogPin,
    lent_bytes: u64,
}

/// Where the scan's present row is.
enum At {
    /// In `page`: the row's key, and the range of its value.
    Page(u64, Range<usize>),
    Cold,
}

/// The part of the log that the scan reads now. A bit is set for each current record.
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

/// A chain that the scan walks from its head down to the start of the window.
struct Chain {
    bucket: u64,
    depth: u32,
    at: u64,
    /// Number of bytes to read at `at`.
    bytes: usize,
    /// The keys whose newest record the walk has passed.
    seen: Vec<(TableNumber, u64)>,
}

impl Store {
    /// Begins a scan, which reads all rows of a table as the newest checkpoint holds them. Each row
    /// is returned once, in no particular order. Other calls continue during the scan. The scan
    /// reads the checkpoint's whole log, including the records of other tables. Until the scan is
    /// dropped, the log and the parts that it needs are not freed. The scan borrows about two pages
    /// of the memory budget, and an eighth of it if the bank has a cold tier. In a read-only store,
    /// the scan shows the checkpoint of the store at the beginning of the scan.
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
    /// - `NoSuchTable` if the table does not exist, or did not exist at the checkpoint.
    /// - `NoSuchCheckpoint` if the store has no checkpoint.
    /// - `BudgetTooSmall` if the scan cannot borrow its memory.
    /// - `Io` or `Damaged` if the checkpoint cannot be read.
    pub fn scan(&self, table: TableId) -> Result<Scan<'_>> {
        self.scan_held(table, None)
    }

    /// Begins a [`scan`](Self::scan) that holds a reference to the store, for a caller that cannot
    /// borrow the store until the scan ends.
    ///
    /// # Errors
    /// The errors of [`scan`](Self::scan).
    pub fn scan_shared(self: &Arc<Self>, table: TableId) -> Result<Scan<'static>> {
        self.scan_held(table, Some(Arc::clone(self)))
    }

    fn scan_held<'a>(&self, table: TableId, held: Option<Arc<Store>>) -> Result<Scan<'a>> {
        let core = self.core().into_shared();
        if let Some(at) = &core.reading {
            core.tables.width(table)?;
            let images = self.checkpoints.images(&at.manifest);
            let pin = LogPin::new(&core, at.manifest.log_begin);
            let held = (Arc::clone(&core), held);
            return Scan::new(held, &at.manifest, images, table, (pin, core.cold.view()));
        }
        // Held until the log is pinned. Otherwise a later checkpoint could remove this checkpoint,
        // or give the table's number to another table.
        let newest = self.newest.lock();
        core.tables.width(table)?;
        if newest.number == 0 {
            return Err(Error::no_such_checkpoint(self.path(), None, Vec::new()));
        }
        let manifest = self.checkpoints.manifest(newest.number)?;
        let images = self.checkpoints.images(&manifest).keep_open()?;
        let pin = LogPin::new(&core, manifest.log_begin);
        let list = self.checkpoints.parts(&manifest)?;
        let view = core.cold.view_of(&list, manifest.part_site(&*core.log.device));
        drop(newest);
        let held = (Arc::clone(&core), held);
        let begun =
            view.and_then(|view| Scan::new(held, &manifest, images, table, (pin, Arc::new(view))));
        begun.inspect_err(|_| {
            // The call may have loaded parts that no scan has now.
            core.remove_unneeded_parts();
            core.log.allowance_changed();
        })
    }
}

impl Scan<'_> {
    /// Makes a scan of `table` in the checkpoint of `manifest`. `pin` keeps the checkpoint's log,
    /// and `view` has its parts.
    pub(crate) fn new(
        (core, held): (Arc<Core>, Option<Arc<Store>>),
        manifest: &Manifest,
        images: Images,
        table: TableId,
        (pin, view): (LogPin, Arc<ColdView>),
    ) -> Result<Self> {
        let page_bytes = core.log.page_bytes();
        // The bits that mark the buckets that were read use a part of the window's memory, but at
        // most half a page of it.
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
            has_exact_rows: true,
            log_begin: manifest.log_begin,
            log_end: manifest.log_end,
            window: Window { start: manifest.log_begin, end: manifest.log_begin, bits: Vec::new() },
            page: AlignedBuffer::zeroed(BLOCK_BYTES),
            page_start: manifest.log_begin,
            offset: 0,
            used: 0,
            cold: None,
            _pin: pin,
            lent_bytes: 0,
        };
        let mut entries = manifest.tables.iter().enumerate();
        let entry = entries.find(|(_, entry)| entry.number == table.number() && !entry.dropped);
        let Some((place, entry)) = entry else {
            let name = core.tables.name(table);
            let number = manifest.number;
            return Err(Error::NoSuchTable(format!("{name:?} in checkpoint {number}")));
        };
        scan.width = entry.width();
        scan.value_bytes = entry.value_bytes as usize;
        let uncounted = manifest.cold.as_ref().and_then(|cold| cold.uncounted.get(place));
        let uncounted = uncounted.copied().unwrap_or(0);
        scan.has_exact_rows = uncounted == 0;
        // There are no more rows than records and versions in parts.
        let log_bytes = manifest.log_end - manifest.log_begin;
        let versions = view.rows() + log_bytes / record_bytes(scan.value_bytes) as u64;
        scan.rows = match scan.has_exact_rows {
            true => entry.rows,
            false => entry.rows.saturating_add(uncounted).min(versions),
        };
        let budget_bytes = core.budget.total_bytes();
        let cold = ColdScan::new(view, &core.log.device, table.number, budget_bytes);
        let (cold, cold_bytes) = cold.map_or((None, 0), |(cold, bytes)| (Some(cold), bytes));
        // Set before the budget can refuse, so that the parts are released.
        scan.cold = cold;
        let lent_bytes = lent_bytes + cold_bytes;
        core.budget.lend(lent_bytes)?;
        scan.lent_bytes = lent_bytes;
        core.cache.give_way(&core.log);
        core.log.give_way()?;
        scan.page = AlignedBuffer::zeroed(page_bytes as usize);
        scan.window.bits = vec![0; (page_bytes - from_window) as usize / 8];
        if let Some(cold) = &mut scan.cold {
            cold.allocate();
        }
        Ok(scan)
    }

    /// Returns the number of the checkpoint that the scan reads.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Returns the number of rows that the whole scan returns. An upper bound if
    /// [`has_exact_rows`](Self::has_exact_rows) is false.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// False if the checkpoint does not know the number of rows, because it has
    /// [blind puts](crate::Operation::BLIND) of which it does not know whether their rows are new.
    #[must_use]
    pub fn has_exact_rows(&self) -> bool {
        self.has_exact_rows
    }

    /// Returns the next row. `None` after the last row.
    ///
    /// # Errors
    /// `Damaged`, `Truncated` or `Io` if a part of the checkpoint cannot be read.
    pub fn next_row(&mut self) -> Result<Option<ScannedRow<'_>>> {
        let Some(at) = self.advance()? else { return Ok(None) };
        let (key, value) = match (at, &self.cold) {
            (At::Page(key, value), _) => (key, &self.page[value]),
            (At::Cold, Some(cold)) => cold.row(self.width, self.value_bytes)?,
            (At::Cold, None) => unreachable!("only the cold side returns rows of parts"),
        };
        Ok(Some(ScannedRow { key, value }))
    }

    /// Moves to the next row. `None` after the last row.
    fn advance(&mut self) -> Result<Option<At>> {
        // The loop ends: the log and the parts of a slice end, and each slice has higher hashes.
        loop {
            if self.cold.as_ref().is_none_or(|cold| cold.is_noting()) {
                if let Some(row) = self.advance_in_log()? {
                    return Ok(Some(row));
                }
                let Some(cold) = &mut self.cold else { return Ok(None) };
                cold.begin_merging();
            }
            let Some(cold) = &mut self.cold else { return Ok(None) };
            if cold.advance()? {
                return Ok(Some(At::Cold));
            }
            if !cold.next_slice() {
                return Ok(None);
            }
            self.rewind();
        }
    }

    /// Moves to the next row of the log. `None` after the last row.
    fn advance_in_log(&mut self) -> Result<Option<At>> {
        // The loop ends: each iteration moves to the next record, the next page or the next window.
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
            let is_current = shape.table() == self.table
                && !link.is_invalid()
                && self.window.is_set(self.page_start + at as u64);
            let (key, is_row) = (image.key(), !link.is_tombstone());
            let counts = is_current
                && match &mut self.cold {
                    None => is_row,
                    Some(cold) => {
                        cold.note(self.core.key_hash.of(self.table, key));
                        is_row && cold.is_first_slice()
                    }
                };
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
                return Ok(Some(At::Page(key, value)));
            }
        }
    }

    /// Goes back to the beginning of the log.
    fn rewind(&mut self) {
        self.window.end = self.log_begin;
        self.window.start = self.log_begin;
        self.page_start = self.log_begin;
        (self.offset, self.used) = (0, 0);
    }

    /// Reads the next page. Returns false after the last page.
    fn next_page(&mut self) -> Result<bool> {
        let page_bytes = self.page.len() as u64;
        let next = if self.used == 0 { self.page_start } else { self.page_start + page_bytes };
        if next >= self.log_end {
            return Ok(false);
        }
        if next >= self.window.end {
            self.next_window(next)?;
        }
        self.used = self.core.log.read_page(&mut self.page, next)?;
        self.page_start = next;
        self.offset = PAGE_HEADER_BYTES as usize;
        Ok(true)
    }

    /// Begins the window at `start`: sets the bits of the current records in it.
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
                // Along a chain the addresses only become smaller. So a chain whose head lies below
                // the window has no record in the window.
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

    /// Follows chains down to the window's start, and sets the bits of their current records.
    fn walk(&mut self, chains: &mut Vec<Chain>) -> Result<()> {
        if chains.is_empty() {
            return Ok(());
        }
        let core = Arc::clone(&self.core);
        let mut buffer = core.buffers.take();
        // The loop ends: each iteration moves every chain that it reads to an older record, or
        // reads more of the chain's record.
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

    /// Reads the next record of the first chains, as many as fit into the buffer. Returns the
    /// position of each record in the buffer.
    fn read_chains(&self, chains: &[Chain], buffer: &mut [u8]) -> Result<Vec<usize>> {
        let block = self.core.log.device.block_bytes() as u64;
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

    /// Handles the record that was read for a chain, and moves the chain to its next older record.
    /// Returns false if the chain has no further record in the window.
    fn step(&mut self, chain: &mut Chain, bytes: &[u8]) -> Result<bool> {
        let bytes = &bytes[..chain.bytes.min(bytes.len())];
        let address = Address::new(chain.at);
        let page_bytes = self.page.len() as u64;
        let site = Site {
            address,
            origin: self.core.log.lineage().origin(address),
            room_bytes: (page_bytes - chain.at % page_bytes) as usize,
            record_bytes_max: self.core.tables.record_bytes_max,
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
        if !self.core.home.is_here() {
            return;
        }
        if let Some(cold) = self.cold.take() {
            drop(cold.into_view());
            self.core.remove_unneeded_parts();
        }
        self.core.budget.take_back(self.lent_bytes);
        self.core.log.allowance_changed();
    }
}
