//! A part in memory: its fences and filters, and lookups in it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::cold::block::{Block, BlockIdentity};
use crate::cold::cursor::{PartCursor, UNIT_BYTES};
use crate::cold::fence::{Fences, GROUP_BLOCKS, Group, GroupFences};
use crate::cold::filter::{COLUMNS_MAX, FilterWindow, MixedHash, PADDING};
use crate::cold::head::{
    PAGE_BYTES, PartHead, PartSite, VERSION, check_page, part_address, seal_page, u32_at, u64_at,
};
use crate::cold::row::ColdRow;
use crate::cold::writer::GROUP_BYTES;
use crate::device::{AlignedBuffer, Device, Read};
use crate::error::{Error, Result};
use crate::memory::cpu_hint;
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;

/// Bytes that a load reads with one transfer.
const READ_BYTES: usize = 1 << 20;

/// A block to read. The caller passes it on to [`Part::find`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// The block's address.
    pub(crate) address: u64,
    /// The bytes to read from there.
    pub(crate) bytes: u32,
    /// Where in the block the row lies most likely, as a fraction of 2^16.
    guess: u16,
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

/// How many rows a part has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All rows, tombstones included.
    pub(super) rows: u64,
    pub(super) tombstones: u64,
    pub(super) uncounted: u64,
    /// Bytes of all rows with their headers.
    pub(super) row_bytes: u64,
}

/// The trailer of a part.
///
/// ```text
/// bytes 0..8      magic "EMBKPEND"       8..12     version 1
/// bytes 12..16    CRC-32C of bytes 0..12 and 16..4096
/// bytes 16..24    bank id                24..32    salt
/// bytes 32..40    number of the part     40..48    rows
/// bytes 48..56    tombstones             56..64    rows with the mark uncounted
/// bytes 64..72    blocks                 72..80    long blocks
/// bytes 80..88    words of the filters   88..92    columns of the filters
/// bytes 92..96    CRC-32C in the header  96..104   offset of the sections in the part
/// bytes 104..112  length of the sections 112..116  CRC-32C of the sections
/// bytes 116..120  zero                   120..128  bytes of all rows
/// bytes 128..     zero
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) head_crc: u32,
    pub(super) number: u64,
    pub(super) bank: u64,
    pub(super) salt: u64,
    pub(super) counts: Counts,
    pub(super) columns: u32,
    pub(super) blocks: u64,
    pub(super) long_blocks: u64,
    pub(super) filter_words: u64,
    pub(super) sections: u64,
    pub(super) sections_bytes: u64,
    pub(super) sections_crc: u32,
}

const TRAILER_MAGIC: [u8; 8] = *b"EMBKPEND";

impl Trailer {
    pub(super) fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&TRAILER_MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let words = [
            (16, self.bank),
            (24, self.salt),
            (32, self.number),
            (40, self.counts.rows),
            (48, self.counts.tombstones),
            (56, self.counts.uncounted),
            (64, self.blocks),
            (72, self.long_blocks),
            (80, self.filter_words),
            (96, self.sections),
            (104, self.sections_bytes),
            (120, self.counts.row_bytes),
        ];
        for (at, word) in words {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        for (at, number) in [(88, self.columns), (92, self.head_crc), (112, self.sections_crc)] {
            page[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        seal_page(&mut page);
        page
    }

    fn decode(page: &[u8]) -> std::result::Result<Self, String> {
        check_page(page, TRAILER_MAGIC)?;
        let (word, number) = (|at| u64_at(page, at), |at| u32_at(page, at));
        Ok(Trailer {
            bank: word(16),
            salt: word(24),
            number: word(32),
            counts: Counts {
                rows: word(40),
                tombstones: word(48),
                uncounted: word(56),
                row_bytes: word(120),
            },
            blocks: word(64),
            long_blocks: word(72),
            filter_words: word(80),
            columns: number(88),
            head_crc: number(92),
            sections: word(96),
            sections_bytes: word(104),
            sections_crc: number(112),
        })
    }

    fn crc(&self) -> u32 {
        u32_at(&self.encode(), 12)
    }

    /// Returns the length of the part's file.
    fn file_bytes(&self) -> u64 {
        self.sections + self.sections_bytes.next_multiple_of(PAGE_BYTES as u64) + PAGE_BYTES as u64
    }

    /// Checks the trailer of a part with this head and length.
    fn check(&self, head: &PartHead, file_bytes: u64) -> std::result::Result<(), String> {
        if (self.bank, self.salt, self.number) != (head.bank, head.salt, head.number) {
            return Err(format!(
                "here lies part {} with salt {:016x} of bank {:016x}, not part {} with salt {:016x} of bank {:016x}",
                self.number, self.salt, self.bank, head.number, head.salt, head.bank
            ));
        }
        if self.head_crc != head.crc() {
            return Err("the checkpoint's list of parts and the part disagree on its header".into());
        }
        let groups = self.blocks.div_ceil(GROUP_BLOCKS as u64);
        // All numbers are below the file's length, so no product overflows.
        let is_right =
            [self.blocks, self.long_blocks, self.filter_words, self.sections, self.sections_bytes]
                .iter()
                .all(|&number| number <= file_bytes)
                && self.columns <= COLUMNS_MAX
                && self.sections >= PAGE_BYTES as u64
                && self.sections.is_multiple_of(PAGE_BYTES as u64)
                && self.sections_bytes
                    == groups * GROUP_BYTES as u64 + (self.long_blocks + self.filter_words) * 8
                && self.file_bytes() == file_bytes
                && self.counts.rows >= self.blocks
                && self.counts.tombstones.max(self.counts.uncounted) <= self.counts.rows
                && self.counts.row_bytes <= self.sections;
        if is_right { Ok(()) } else { Err("its numbers contradict each other".into()) }
    }
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
    /// The filters of all groups, and [`PADDING`].
    filters: Vec<u64>,
}

impl Part {
    pub(super) fn new(
        site: PartSite<'_>,
        head: PartHead,
        trailer: Trailer,
        fences: Fences,
        filters: Vec<u64>,
    ) -> Self {
        let address = part_address(head.number, site.segment_size_bytes);
        let trailer_crc = trailer.crc();
        Part { head, address, key_hash: site.key_hash, trailer, trailer_crc, fences, filters }
    }

    /// Loads the fences and filters of a part, and checks them. `file_bytes` and `trailer_crc` are
    /// those of the checkpoint's list.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if the part is not the one that `head` names.
    pub(crate) fn load(
        site: PartSite<'_>,
        head: &PartHead,
        file_bytes: u64,
        trailer_crc: u32,
    ) -> Result<Part> {
        let address = part_address(head.number, site.segment_size_bytes);
        let damaged = |within: u64, what: String| {
            let (path, offset) = site.device.locate(address + within);
            Error::Damaged { path, offset, what: format!("part {}: {what}", head.number) }
        };
        let page = PAGE_BYTES as u64;
        if file_bytes < 2 * page || !file_bytes.is_multiple_of(page) {
            return Err(damaged(0, format!("its length is listed as {file_bytes} bytes")));
        }
        head.check(head.number).map_err(|what| damaged(0, what))?;
        let end = file_bytes - page;
        let mut bytes = AlignedBuffer::zeroed(PAGE_BYTES);
        read(site.device, address + end, &mut bytes)?;
        let of_trailer = |what| damaged(end, format!("the trailer: {what}"));
        let trailer = Trailer::decode(&bytes).map_err(of_trailer)?;
        trailer.check(head, file_bytes).map_err(of_trailer)?;
        if trailer.crc() != trailer_crc {
            let what =
                "the checkpoint's list names another trailer, so the file is of another part";
            return Err(of_trailer(what.into()));
        }
        let mut bytes = AlignedBuffer::zeroed((end - trailer.sections) as usize);
        read(site.device, address + trailer.sections, &mut bytes)?;
        let (fences, filters) = sections(&bytes, &trailer, head)
            .map_err(|what| damaged(trailer.sections, format!("its fences and filters: {what}")))?;
        Ok(Part::new(site, head.clone(), trailer, fences, filters))
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

    /// Bytes of all fences of the part's file in memory.
    pub(crate) fn fence_bytes(&self) -> u64 {
        self.fences.memory_bytes() as u64
    }

    /// Finds the memory of a lookup in the filters and prefetches it.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64, mixed: MixedHash) -> FilterWindow {
        let columns = self.trailer.columns as usize;
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

    /// False if the part does not have a row with this hash. True if it has no filters, unless the
    /// hash lies before the part's first row.
    #[inline]
    pub(crate) fn may_have_at(&self, window: FilterWindow, mixed: MixedHash) -> bool {
        window.may_have(mixed, self.trailer.columns as usize, &self.filters)
    }

    /// Does `prefetch` and `may_have_at` for one hash.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let mixed = MixedHash::of(hash);
        self.may_have_at(self.prefetch(hash, mixed), mixed)
    }

    /// Returns the block to read for a hash. `None` if the part has no row with this hash.
    #[inline]
    pub(crate) fn block_of(&self, hash: u64) -> Option<BlockPlace> {
        let found = self.fences.find(hash)?;
        Some(self.place_of(found.block, found.guess))
    }

    /// Returns the place of a block.
    #[inline]
    fn place_of(&self, block: usize, guess: u16) -> BlockPlace {
        let units = self.fences.units_of(block);
        let bits = self.head.block_bits;
        let address = self.address + PAGE_BYTES as u64 + (units.first << bits);
        BlockPlace { address, bytes: units.count << bits, guess }
    }

    /// Returns the block whose first byte is at `address`.
    fn block_at(&self, address: u64) -> Option<usize> {
        let within = address.checked_sub(self.address + PAGE_BYTES as u64)?;
        self.fences.block_at(within >> self.head.block_bits)
    }

    fn block<'a>(&self, address: u64, bytes: &'a [u8]) -> Block<'a> {
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

    /// Looks for a row in the bytes of a block. `locate` gives the block's file and the offset in
    /// that file for an error.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not the block's.
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
            Ok(_) => {
                let before = self.block_at(at.address).and_then(|block| block.checked_sub(1));
                Ok(before.map_or(Found::Missing, |block| {
                    // The row is near the block's end.
                    Found::Before(self.place_of(block, u16::MAX))
                }))
            }
        }
    }

    /// Returns a cursor over all rows.
    pub(crate) fn cursor<'d>(self: &Arc<Self>, device: &'d dyn Device) -> PartCursor<'d> {
        PartCursor::new(Arc::clone(self), device, 0, UNIT_BYTES)
    }

    /// Returns a cursor over the rows from the first one with at least this hash on.
    pub(crate) fn cursor_from<'d>(
        self: &Arc<Self>,
        device: &'d dyn Device,
        hash: u64,
    ) -> PartCursor<'d> {
        PartCursor::new(Arc::clone(self), device, hash, UNIT_BYTES)
    }

    pub(super) fn blocks(&self) -> usize {
        self.fences.blocks()
    }

    /// Returns the first block that may have rows with at least this hash.
    pub(super) fn first_block(&self, hash: u64) -> usize {
        self.fences.first_from(hash)
    }

    /// Returns address and length of a block.
    pub(super) fn extent_of(&self, block: usize) -> (u64, usize) {
        let place = self.place_of(block, 0);
        (place.address, place.bytes as usize)
    }

    pub(super) fn block_of_bytes<'a>(&self, address: u64, bytes: &'a [u8]) -> Block<'a> {
        self.block(address, bytes)
    }

    /// Returns the address behind the last block.
    pub(super) fn data_end(&self) -> u64 {
        self.address + self.trailer.sections
    }

    pub(super) fn key_hash(&self) -> KeyHash {
        self.key_hash
    }
}

/// Reads `buffer.len()` bytes in transfers of at most 1 MiB.
fn read(device: &dyn Device, address: u64, buffer: &mut [u8]) -> Result<()> {
    let offsets = (address..).step_by(READ_BYTES);
    let reads = offsets.zip(buffer.chunks_mut(READ_BYTES));
    let mut reads: Vec<_> = reads.map(|(offset, buffer)| Read { offset, buffer }).collect();
    if reads.is_empty() { Ok(()) } else { device.read_many(&mut reads) }
}

/// Decodes and checks the sections of a part. `bytes` has them and the zeros behind them.
///
/// # Errors
/// A description of what is wrong.
fn sections(
    bytes: &[u8],
    trailer: &Trailer,
    head: &PartHead,
) -> std::result::Result<(Fences, Vec<u64>), String> {
    let (sections, zeros) = bytes.split_at(trailer.sections_bytes as usize);
    let crc = crc32c::crc32c(sections);
    if crc != trailer.sections_crc {
        return Err(format!("their checksum is {crc:#010x}, not {:#010x}", trailer.sections_crc));
    }
    if zeros.iter().any(|&byte| byte != 0) {
        return Err("bytes behind them are not zero".into());
    }
    let groups = (trailer.blocks as usize).div_ceil(GROUP_BLOCKS);
    let (groups, rest) = sections.split_at(groups * GROUP_BYTES);
    let (long, filters) = rest.split_at(trailer.long_blocks as usize * 8);
    let mut fences = Fences::default();
    let mut left = trailer.blocks as usize;
    let mut filter = 0_u64;
    for bytes in groups.chunks_exact(GROUP_BYTES) {
        let words = u32_at(bytes, 8);
        if words == 0
            || filter + u64::from(words) * u64::from(trailer.columns) > trailer.filter_words
        {
            return Err(format!("a filter of {words} words a column does not fit"));
        }
        let group = Group { first_hash: u64_at(bytes, 0), filter: filter as u32, words };
        let mut its = [0; GROUP_BLOCKS];
        for (fence, bytes) in its.iter_mut().zip(bytes[16..].chunks_exact(2)) {
            *fence = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        let blocks = left.min(GROUP_BLOCKS);
        fences.push_read(group, GroupFences(its), blocks);
        left -= blocks;
        filter += u64::from(words) * u64::from(trailer.columns);
    }
    if filter != trailer.filter_words || u32::try_from(filter).is_err() {
        return Err(format!("the filters have {} words, not {filter}", trailer.filter_words));
    }
    for bytes in long.chunks_exact(8) {
        let units = u32_at(bytes, 4);
        if units < 2 || u64::from(units) << head.block_bits > READ_BYTES as u64 {
            return Err(format!("a long block can't have the length of {units} blocks"));
        }
        fences.push_long(u32_at(bytes, 0), units);
    }
    fences.finish(*head.hashes.end());
    fences.check(*head.hashes.start())?;
    let data_bytes = trailer.sections - PAGE_BYTES as u64;
    if fences.units().checked_mul(1 << head.block_bits) != Some(data_bytes) {
        return Err(format!("{} blocks do not take {data_bytes} bytes", trailer.blocks));
    }
    let mut words = Vec::with_capacity(filters.len() / 8 + PADDING);
    words.extend(filters.chunks_exact(8).map(|bytes| u64_at(bytes, 0)));
    words.resize(words.len() + PADDING, 0);
    Ok((fences, words))
}
