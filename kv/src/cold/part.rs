//! A part in memory: its fences and filters, and lookups in it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::cold::block::{Block, BlockIdentity};
use crate::cold::cursor::{PartCursor, UNIT_BYTES};
use crate::cold::fence::{Fences, Group};
use crate::cold::filter::{FilterWindow, MixedHash, PADDING, keep_columns};
use crate::cold::head::{PAGE_BYTES, PartHead, PartSite, part_address};
use crate::cold::keep::{Keep, Kept, PartNeeds};
use crate::cold::row::ColdRow;
use crate::cold::trailer::Trailer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::budget::ColdCharge;
use crate::memory::cpu_hint;
use crate::memory::kept_words::KeptWords;
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;

/// A block to read, or a range of blocks. The caller passes it on to [`Part::find`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// The address of its first byte.
    pub(crate) address: u64,
    /// The bytes to read from there.
    pub(crate) bytes: u32,
    /// Where in the block or range the row lies most likely, as a fraction of 2^16.
    pub(super) guess: u16,
}

/// What a block says of a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    Row(ColdRow<'a>),
    /// The part does not have the row.
    Missing,
    /// The row may lie in the block before: read this one.
    Before(BlockPlace),
}

/// A part in memory. It never changes.
#[derive(Debug)]
pub(crate) struct Part {
    head: PartHead,
    address: u64,
    key_hash: KeyHash,
    trailer: Trailer,
    trailer_crc: u32,
    fences: Fences,
    /// The columns that are kept of the filters of all groups, and [`PADDING`]. Empty without
    /// columns.
    filters: KeptWords,
    keep: Keep,
    /// The budget's memory of fences and filters.
    _charge: Option<ColdCharge>,
}

impl Part {
    /// Makes a part of all its fences and filters, of which `kept` stays.
    pub(super) fn new(
        site: PartSite<'_>,
        head: PartHead,
        trailer: Trailer,
        (mut fences, mut filters): (Fences, Vec<u64>),
        kept: Kept,
    ) -> Self {
        let Kept { keep, charge } = kept;
        let (all, columns) = (trailer.columns as usize, keep.columns as usize);
        if columns < all {
            let mut to = 0;
            for group in fences.groups_mut() {
                let (from, words) = (group.filter as usize, group.words as usize);
                keep_columns(&mut filters, (from, to), words, (all, columns));
                group.filter = to as u32;
                to += words * columns;
            }
            filters.truncate(to);
        }
        if columns > 0 {
            filters.resize(filters.len() + PADDING, 0);
        }
        if keep.stride_bits > 0 && columns == 0 {
            fences = fences.thinned(keep.stride_bits);
        }
        let address = part_address(head.number, site.segment_size_bytes);
        let trailer_crc = trailer.crc();
        Part {
            head,
            address,
            key_hash: site.key_hash,
            trailer,
            trailer_crc,
            fences,
            filters: filters.into(),
            keep,
            _charge: charge,
        }
    }

    pub(crate) fn head(&self) -> &PartHead {
        &self.head
    }

    /// Returns the address of the part's first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Number of rows, tombstones included.
    pub(crate) fn rows(&self) -> u64 {
        self.trailer.counts.rows
    }

    pub(crate) fn tombstones(&self) -> u64 {
        self.trailer.counts.tombstones
    }

    /// Number of rows with the mark *uncounted*.
    pub(crate) fn uncounted(&self) -> u64 {
        self.trailer.counts.uncounted
    }

    /// Bytes of all rows with their headers.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.trailer.counts.row_bytes
    }

    /// Bytes of the blocks.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.trailer.sections - PAGE_BYTES as u64
    }

    /// Bytes of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.trailer.file_bytes()
    }

    pub(crate) fn trailer_crc(&self) -> u32 {
        self.trailer_crc
    }

    /// Bytes of memory of fences and filters.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.fences.memory_bytes() + size_of_val(&*self.filters)
    }

    /// Returns the sizes of the file's fences and filters.
    pub(crate) fn needs(&self) -> PartNeeds {
        self.trailer.needs(&self.head)
    }

    /// Returns how much of the fences and filters is in memory.
    #[cfg(test)]
    pub(crate) fn keep(&self) -> Keep {
        self.keep
    }

    /// Length of the longest block in bytes.
    pub(crate) fn longest_block_bytes(&self) -> usize {
        (self.fences.longest() as usize) << self.head.block_bits
    }

    /// Finds the memory of a lookup in the filters and prefetches it.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64, mixed: MixedHash) -> FilterWindow {
        let columns = self.keep.columns as usize;
        let Some(group) = self.fences.group_of(hash) else { return FilterWindow::none() };
        let Group { filter, words, .. } = self.fences.groups()[group];
        let window = FilterWindow::of(mixed, filter, words);
        if columns > 0 {
            // 64 bytes that mostly begin within a line: this prefetches the first and last line.
            let first = &self.filters[window.first_word(columns)..];
            cpu_hint::prefetch(&first[0]);
            cpu_hint::prefetch(&first[7]);
        }
        window
    }

    /// False if the part does not have a row with this hash. True if it has no filters in memory,
    /// unless the hash lies before the part's first row.
    #[inline]
    pub(crate) fn may_have_at(&self, window: FilterWindow, mixed: MixedHash) -> bool {
        window.may_have(mixed, self.keep.columns as usize, &self.filters)
    }

    /// Does `prefetch` and `may_have_at` for one hash.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let mixed = MixedHash::of(hash);
        self.may_have_at(self.prefetch(hash, mixed), mixed)
    }

    /// Returns the block or range to read for a hash. `None` if the part has no row with this hash.
    #[inline]
    pub(crate) fn block_of(&self, hash: u64) -> Option<BlockPlace> {
        let found = self.fences.find(hash)?;
        Some(self.place_of(found.block, found.guess))
    }

    /// Returns the place of a block or range.
    #[inline]
    fn place_of(&self, block: usize, guess: u16) -> BlockPlace {
        let units = self.fences.units_of(block);
        let bits = self.head.block_bits;
        let address = self.address + PAGE_BYTES as u64 + (units.first << bits);
        BlockPlace { address, bytes: units.count << bits, guess }
    }

    /// Returns the block or range whose first byte is at `address`.
    fn block_at(&self, address: u64) -> Option<usize> {
        let within = address.checked_sub(self.address + PAGE_BYTES as u64)?;
        self.fences.block_at(within >> self.head.block_bits)
    }

    /// Returns the place of the block or range before the one at `address`. `None` if that is the
    /// first.
    pub(super) fn place_before(&self, address: u64) -> Option<BlockPlace> {
        let before = self.block_at(address)?.checked_sub(1)?;
        // The row is near the block's end.
        Some(self.place_of(before, u16::MAX))
    }

    pub(super) fn block<'a>(&self, address: u64, bytes: &'a [u8]) -> Block<'a> {
        let identity = BlockIdentity { address, salt: self.head.salt };
        Block::new(bytes, identity)
    }

    /// Returns the error of a block that is damaged as `what` says.
    pub(super) fn damaged(&self, address: u64, place: (PathBuf, u64), what: &str) -> Error {
        let (path, offset) = place;
        let number = self.head.number;
        Error::Damaged {
            path,
            offset,
            what: format!("the block of rows at address {address:#x} of part {number}: {what}"),
        }
    }

    /// Looks for a row in the bytes of a block or range. `locate` gives the file and the offset in
    /// that file for an error.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not the part's.
    #[inline]
    pub(crate) fn find<'a>(
        &self,
        at: BlockPlace,
        bytes: &'a [u8],
        hash: u64,
        table: TableNumber,
        key: u64,
        locate: impl FnOnce() -> (PathBuf, u64),
    ) -> Result<Found<'a>> {
        if self.fences.has_ranges() {
            return self.find_in_range(at, bytes, (hash, table, key), locate);
        }
        match self.block(at.address, bytes).find(at.guess, hash, table, key) {
            Some(row) => Ok(Found::Row(row)),
            None => self.not_found(at, bytes, hash, table, key, locate),
        }
    }

    /// Says why a block does not have a row.
    #[cold]
    fn not_found<'a>(
        &self,
        at: BlockPlace,
        bytes: &'a [u8],
        hash: u64,
        table: TableNumber,
        key: u64,
        locate: impl FnOnce() -> (PathBuf, u64),
    ) -> Result<Found<'a>> {
        let block = self.block(at.address, bytes);
        let first = block.check().and_then(|()| {
            block.first_order(self.key_hash).ok_or_else(|| "it has no first row".to_owned())
        });
        match first {
            Err(what) => Err(self.damaged(at.address, locate(), &what)),
            Ok(first) if first < (hash, table, key) => Ok(Found::Missing),
            Ok(_) => Ok(self.place_before(at.address).map_or(Found::Missing, Found::Before)),
        }
    }

    /// Returns a cursor over all rows.
    pub(crate) fn cursor<'d>(self: &Arc<Self>, device: &'d dyn Device) -> PartCursor<'d> {
        PartCursor::new(Arc::clone(self), device, 0, UNIT_BYTES)
    }

    /// Returns a cursor over the rows from the first one with at least this hash on. It reads
    /// `unit_bytes` bytes at a time.
    pub(crate) fn cursor_from<'d>(
        self: &Arc<Self>,
        device: &'d dyn Device,
        hash: u64,
        unit_bytes: usize,
    ) -> PartCursor<'d> {
        PartCursor::new(Arc::clone(self), device, hash, unit_bytes)
    }

    /// Returns the address of a block in front of which no row has at least this hash.
    pub(super) fn address_from(&self, hash: u64) -> u64 {
        match self.fences.first_from(hash) {
            block if block < self.fences.blocks() => self.place_of(block, 0).address,
            _ => self.data_end(),
        }
    }

    /// Returns the address behind the last block.
    pub(super) fn data_end(&self) -> u64 {
        self.address + self.trailer.sections
    }

    pub(super) fn key_hash(&self) -> KeyHash {
        self.key_hash
    }
}
