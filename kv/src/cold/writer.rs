//! Writes a part: blocks, sections and trailer from the first to the last, then the header.
//!
//! ```text
//! part     = header (4 KiB) | blocks | sections, zeros up to a multiple of 4 KiB | trailer (4 KiB)
//! sections = group* | long block* | filter*
//! group    = first hash (8) | words of a column of its filter (4) | zero (4) | 64 fences (2 each)
//! long     = block (4) | its length in blocks (4)
//! filter   = words (8 each), see `filter`
//! ```

use crate::cold::block::{BlockBuilder, BlockIdentity};
use crate::cold::fence::{Fences, GROUP_BLOCKS};
use crate::cold::filter::{COLUMNS_MAX, FilterBuilder};
use crate::cold::head::{PAGE_BYTES, PartHead, PartSite, part_address};
use crate::cold::keep::{KeepAll, PartMemory};
use crate::cold::part::Part;
use crate::cold::row::{ColdRow, ROW_BYTES_MAX, RowOrder};
use crate::cold::trailer::{Counts, Trailer};
use crate::device::AlignedBuffer;
use crate::error::Result;

/// Most bytes that are written together.
pub(crate) const UNIT_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(ROW_BYTES_MAX + 2 * (16 << 10) <= UNIT_BYTES_MAX);
/// Fewest bytes that are written together: two pages.
pub(crate) const UNIT_BYTES_MIN: usize = 2 * PAGE_BYTES;

/// Writes the rows of a part to the device, in transfers of one length. A part whose writer is
/// dropped before `finish` is unfinished: the caller removes it.
#[derive(Debug)]
pub(crate) struct PartWriter<'d> {
    site: PartSite<'d>,
    head: PartHead,
    address: u64,
    columns: u32,
    /// What is written with one transfer. It grows for a block that is longer.
    unit: AlignedBuffer,
    /// The offset of `unit` in the part.
    unit_offset: u64,
    /// Bytes of `unit` before the present block.
    filled: usize,
    block: BlockBuilder,
    /// The length of the present block.
    block_bytes: usize,
    fences: Fences,
    /// The first hashes of the present group's blocks.
    first_hashes: Vec<u64>,
    /// The hashes of the present group's rows. Empty if the part has no filters.
    hashes: Vec<u64>,
    builder: FilterBuilder,
    filters: Vec<u64>,
    counts: Counts,
    last: Option<RowOrder>,
}

impl<'d> PartWriter<'d> {
    /// Begins a part. Its filters have `columns` columns, 0 to 16; 0 stands for no filters.
    /// Transfers have at most 1 MiB.
    pub(crate) fn new(site: PartSite<'d>, head: PartHead, columns: u32) -> Self {
        Self::with_unit(site, head, columns, UNIT_BYTES_MAX)
    }

    /// Does what `new` does. Transfers have `unit_bytes` bytes.
    pub(crate) fn with_unit(
        site: PartSite<'d>,
        head: PartHead,
        columns: u32,
        unit_bytes: usize,
    ) -> Self {
        let unit_bytes = unit_bytes.clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES;
        assert!(columns <= COLUMNS_MAX, "a filter has at most {COLUMNS_MAX} columns");
        PartWriter {
            site,
            address: part_address(head.number, site.segment_size_bytes),
            columns,
            unit: AlignedBuffer::zeroed(unit_bytes),
            unit_offset: PAGE_BYTES as u64,
            filled: 0,
            block: BlockBuilder::new(),
            block_bytes: 0,
            fences: Fences::default(),
            head,
            first_hashes: Vec::new(),
            hashes: Vec::new(),
            builder: FilterBuilder::default(),
            filters: Vec::new(),
            counts: Counts::default(),
            last: None,
        }
    }

    /// Appends a row, whose order must be above that of the row before.
    ///
    /// # Errors
    /// The errors of the device.
    #[inline]
    pub(crate) fn push(&mut self, row: &ColdRow<'_>) -> Result<()> {
        let order = row.order();
        assert!(self.last < Some(order), "rows come in order, each once");
        debug_assert_eq!(row.hash, self.site.key_hash.of(row.table, row.key));
        debug_assert!(self.head.hashes.contains(&row.hash));
        self.last = Some(order);
        if !self.block.is_empty() && !self.block.has_room(row, self.block_bytes) {
            self.seal();
        }
        if self.block.is_empty() {
            self.begin_block(row)?;
        }
        self.block.push(row, &mut self.unit[self.filled..self.filled + self.block_bytes]);
        if self.columns > 0 {
            self.hashes.push(row.hash);
        }
        self.counts.rows += 1;
        self.counts.tombstones += u64::from(row.flags.tombstone);
        self.counts.uncounted += u64::from(row.flags.uncounted);
        self.counts.row_bytes += row.stored_bytes() as u64;
        Ok(())
    }

    /// Begins a block for a row.
    fn begin_block(&mut self, row: &ColdRow<'_>) -> Result<()> {
        let unit_bytes = 1 << self.head.block_bits;
        self.block_bytes = BlockBuilder::bytes_for(row, unit_bytes);
        if self.filled + self.block_bytes > self.unit.len() {
            self.write_unit()?;
        }
        if self.block_bytes > self.unit.len() {
            self.unit = AlignedBuffer::zeroed(self.block_bytes);
        }
        if self.first_hashes.len() == GROUP_BLOCKS {
            self.close_group(row.hash);
        }
        if self.block_bytes > unit_bytes {
            let number = self.fences.blocks() + self.first_hashes.len();
            self.fences.push_long(number as u32, (self.block_bytes / unit_bytes) as u32);
        }
        self.first_hashes.push(row.hash);
        Ok(())
    }

    fn identity(&self) -> BlockIdentity {
        let address = self.address + self.unit_offset + self.filled as u64;
        BlockIdentity { address, salt: self.head.salt }
    }

    /// Ends the present block.
    fn seal(&mut self) {
        let identity = self.identity();
        self.block.seal(identity, &mut self.unit[self.filled..self.filled + self.block_bytes]);
        self.filled += self.block_bytes;
    }

    /// Makes fences and filter of the present group.
    fn close_group(&mut self, end: u64) {
        let filter = self.filters.len() as u32;
        let words = self.builder.build(&self.hashes, self.columns, &mut self.filters);
        self.fences.push_group(&self.first_hashes, end, filter, words);
        self.first_hashes.clear();
        self.hashes.clear();
    }

    fn write_unit(&mut self) -> Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        let offset = self.address + self.unit_offset;
        self.site.device.write(offset, &self.unit[..self.filled])?;
        self.unit_offset += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Sets the last hash for which the part answers. No row above it was pushed.
    pub(crate) fn end_at(&mut self, last_hash: u64) {
        assert!(self.last.is_none_or(|last| last.0 <= last_hash), "a row lies behind the end");
        self.head.hashes = *self.head.hashes.start()..=last_hash;
    }

    /// Returns the order of the last row.
    pub(crate) fn last(&self) -> Option<RowOrder> {
        self.last
    }

    /// Returns the length of the part so far, in bytes, without its sections and trailer.
    pub(crate) fn bytes_written(&self) -> u64 {
        let open = if self.block.is_empty() { 0 } else { self.block_bytes };
        self.unit_offset + (self.filled + open) as u64
    }

    /// Returns an upper bound of the length that the part's file has if the writer finishes now.
    pub(crate) fn file_bytes_max(&self) -> u64 {
        let filter_words = self.filters.len() + self.hashes.len() * self.columns as usize / 32;
        let groups = self.fences.groups().len() + 1;
        let long = self.fences.long().len();
        let sections = groups * GROUP_BYTES + (long + filter_words + COLUMNS_MAX as usize) * 8;
        self.bytes_written() + (sections + 2 * PAGE_BYTES) as u64
    }

    /// Writes what is left. All fences and filters stay in memory. The part is durable after the
    /// device's next sync.
    ///
    /// # Errors
    /// The errors of the device.
    pub(crate) fn finish(self) -> Result<Part> {
        self.finish_within(&KeepAll)
    }

    /// Does what `finish` does. `memory` says how much of the part stays in memory.
    ///
    /// # Errors
    /// Those of `finish`, and `BudgetTooSmall`.
    pub(crate) fn finish_within(mut self, memory: &dyn PartMemory) -> Result<Part> {
        if !self.block.is_empty() {
            self.seal();
        }
        if !self.first_hashes.is_empty() {
            self.close_group(*self.head.hashes.end());
        }
        self.fences.finish(*self.head.hashes.end());
        let sections = self.unit_offset + self.filled as u64;
        let mut crc = 0;
        let mut sections_bytes = 0;
        let filter_words = self.filters.len();
        let (fences, filters) =
            (std::mem::take(&mut self.fences), std::mem::take(&mut self.filters));
        for (group, its) in fences.groups().iter().zip(fences.fences()) {
            let mut bytes = [0; GROUP_BYTES];
            bytes[..8].copy_from_slice(&group.first_hash.to_le_bytes());
            bytes[8..12].copy_from_slice(&group.words.to_le_bytes());
            for (fence, to) in its.0.iter().zip(bytes[16..].chunks_exact_mut(2)) {
                to.copy_from_slice(&fence.to_le_bytes());
            }
            self.write_section(&bytes, &mut crc)?;
            sections_bytes += GROUP_BYTES as u64;
        }
        for long in fences.long() {
            let word = u64::from(long.block) | u64::from(long.units) << 32;
            self.write_section(&word.to_le_bytes(), &mut crc)?;
            sections_bytes += 8;
        }
        for word in &filters {
            self.write_section(&word.to_le_bytes(), &mut crc)?;
            sections_bytes += 8;
        }
        let padded = self.filled.next_multiple_of(PAGE_BYTES);
        self.unit[self.filled..padded].fill(0);
        self.filled = padded;
        if self.filled == self.unit.len() {
            self.write_unit()?;
        }
        let trailer = Trailer {
            head_crc: self.head.crc(),
            number: self.head.number,
            bank: self.head.bank,
            salt: self.head.salt,
            counts: self.counts,
            columns: self.columns,
            blocks: fences.blocks() as u64,
            long_blocks: fences.long().len() as u64,
            filter_words: filter_words as u64,
            sections,
            sections_bytes,
            sections_crc: crc,
        };
        let page = trailer.encode();
        self.unit[self.filled..self.filled + PAGE_BYTES].copy_from_slice(&page);
        self.filled += PAGE_BYTES;
        self.write_unit()?;
        // The header comes last, because a merge knows the last hash only now.
        self.unit[..PAGE_BYTES].copy_from_slice(&self.head.encode());
        self.site.device.write(self.address, &self.unit[..PAGE_BYTES])?;
        let kept = memory.keep(&trailer.needs(&self.head))?;
        Ok(Part::new(self.site, self.head, trailer, (fences, filters), kept))
    }

    /// Writes bytes of the sections.
    fn write_section(&mut self, mut bytes: &[u8], crc: &mut u32) -> Result<()> {
        *crc = crc32c::crc32c_append(*crc, bytes);
        while !bytes.is_empty() {
            if self.filled == self.unit.len() {
                self.write_unit()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.unit.len() - self.filled));
            self.unit[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
        }
        Ok(())
    }
}

/// Bytes of a group in the sections.
pub(super) const GROUP_BYTES: usize = 16 + GROUP_BLOCKS * 2;
