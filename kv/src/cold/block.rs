//! A block of a part: rows in order, and checksums of the block's sectors.
//!
//! ```text
//! bytes 0..4    magic "EBK1"
//! bytes 4..8    checksum of sector 0, from byte 32 on
//! bytes 8..16   the block's address
//! bytes 16..24  the part's salt
//! bytes 24..28  bytes in use
//! bytes 28..30  number of rows
//! bytes 30..32  length of each row in units of 8 bytes; 0 if the rows differ in length
//! bytes 32..    checksums of sectors 1, 2, 3 and so on, then zeros up to a multiple of 8
//!               rows, then zeros
//! ```
//!
//! **Sectors.** A lookup checks only the sectors that contain its row. The checksum of a sector
//! continues the checksum of bytes 8..32. A sector with a right checksum therefore vouches for
//! address, salt, row count and row length too. In a block whose rows have one length, these lead
//! to the row. In another block a lookup passes all rows before its own, so it checks their sectors
//! too. A lookup that does not find its row checks the whole block: no damage looks like a missing
//! row.
//!
//! A row that does not fit a block has a *long block* of its own: several blocks' bytes, with one
//! checksum of everything from byte 32 on.

use crate::cold::row::{ColdRow, ROW_HEADER_BYTES, RowHeader, RowOrder};
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;

const MAGIC: [u8; 4] = *b"EBK1";
/// Bytes before the checksums of sectors.
const FIXED_BYTES: usize = 32;
/// Blocks have `1 << bits` bytes, with bits in this range.
pub(super) const BLOCK_BITS: std::ops::RangeInclusive<u8> = 12..=14;

/// Returns the length of the pieces of a block that have a checksum of their own: 256 bytes, or 512
/// in blocks of 16 KiB. All checksums lie in sector 0.
#[inline]
const fn sector_bytes(block_bytes: usize) -> usize {
    let shortest = 8 << 10;
    if block_bytes > shortest { block_bytes / 32 } else { shortest / 32 }
}

/// Returns the bytes of a block before its first row.
#[inline]
const fn header_bytes(block_bytes: usize, is_long: bool) -> usize {
    let sums = if is_long { 0 } else { block_bytes / sector_bytes(block_bytes) - 1 };
    (FIXED_BYTES + sums * size_of::<u32>()).next_multiple_of(8)
}

/// Returns the block bits for rows of this mean length, which includes their headers: the first of
/// 4, 8 and 16 KiB that loses at most 5%. If each loses more, the one that loses least.
pub(crate) fn block_bits_for(row_bytes: usize) -> u8 {
    // Thousandths of the bytes that rows fill.
    let filled = |bits: u8| {
        let block = 1 << bits;
        let room = block - header_bytes(block, false);
        let (rows, blocks) = match room / row_bytes {
            0 => (1, (FIXED_BYTES + row_bytes).div_ceil(block).max(2)),
            rows => (rows, 1),
        };
        rows * row_bytes * 1_000 / (blocks * block)
    };
    let best = || BLOCK_BITS.max_by_key(|&bits| (filled(bits), std::cmp::Reverse(bits)));
    BLOCK_BITS.into_iter().find(|&bits| filled(bits) >= 950).or_else(best).expect("three sizes")
}

/// What identifies a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockIdentity {
    pub(super) address: u64,
    pub(super) salt: u64,
}

/// A block that rows are put into.
#[derive(Debug)]
pub(super) struct BlockBuilder {
    block_bytes: usize,
    used: usize,
    rows: usize,
    /// The length of each row; `None` if they differ.
    row_bytes: Option<usize>,
}

impl BlockBuilder {
    pub(super) fn new(block_bits: u8) -> Self {
        let block_bytes = 1 << block_bits;
        let used = header_bytes(block_bytes, false);
        BlockBuilder { block_bytes, used, rows: 0, row_bytes: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// True if a row fits behind the rows of the block.
    pub(super) fn has_room(&self, row: &ColdRow<'_>) -> bool {
        self.used + row.stored_bytes() <= self.block_bytes
    }

    /// Returns the bytes of the long block of a row; those of a block if the row needs no long
    /// block.
    pub(super) fn bytes_for(&self, row: &ColdRow<'_>) -> usize {
        if header_bytes(self.block_bytes, false) + row.stored_bytes() <= self.block_bytes {
            return self.block_bytes;
        }
        let bytes = (FIXED_BYTES + row.stored_bytes()).next_multiple_of(self.block_bytes);
        // A reader knows a long block by its length.
        bytes.max(2 * self.block_bytes)
    }

    /// Appends a row for which there is room. `block` has the bytes of the block.
    #[inline]
    pub(super) fn push(&mut self, row: &ColdRow<'_>, block: &mut [u8]) {
        row.write(&mut block[self.used..]);
        let bytes = row.stored_bytes();
        if self.rows == 0 {
            self.row_bytes = Some(bytes);
        } else if self.row_bytes != Some(bytes) {
            self.row_bytes = None;
        }
        self.used += bytes;
        self.rows += 1;
    }

    /// Writes the header and the checksums, and begins the next block.
    pub(super) fn seal(&mut self, identity: BlockIdentity, block: &mut [u8]) {
        debug_assert_eq!(block.len(), self.block_bytes);
        block[self.used..].fill(0);
        let unit = self.row_bytes.map_or(0, |bytes| bytes / 8);
        write_fixed(identity, self.used, self.rows, unit, block);
        let header = header_bytes(self.block_bytes, false);
        block[FIXED_BYTES..header].fill(0);
        let seed = seed_of(block);
        let sector_bytes = sector_bytes(self.block_bytes);
        for sector in 1..self.block_bytes / sector_bytes {
            let bytes = sector * sector_bytes..(sector + 1) * sector_bytes;
            let sum = crc32c::crc32c_append(seed, &block[bytes]);
            let at = place_of_sum(sector);
            block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let sum = crc32c::crc32c_append(seed, &block[FIXED_BYTES..sector_bytes]);
        block[4..8].copy_from_slice(&sum.to_le_bytes());
        (self.used, self.rows, self.row_bytes) = (header, 0, None);
    }

    /// Writes the long block of a row. `block` has `bytes_for` bytes.
    pub(super) fn write_long(identity: BlockIdentity, row: &ColdRow<'_>, block: &mut [u8]) {
        let used = FIXED_BYTES + row.stored_bytes();
        row.write(&mut block[FIXED_BYTES..]);
        block[used..].fill(0);
        write_fixed(identity, used, 1, 0, block);
        let sum = crc32c::crc32c_append(seed_of(block), &block[FIXED_BYTES..]);
        block[4..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Writes bytes 0..32, except the checksum.
fn write_fixed(identity: BlockIdentity, used: usize, rows: usize, unit: usize, block: &mut [u8]) {
    block[..4].copy_from_slice(&MAGIC);
    block[8..16].copy_from_slice(&identity.address.to_le_bytes());
    block[16..24].copy_from_slice(&identity.salt.to_le_bytes());
    block[24..28].copy_from_slice(&(used as u32).to_le_bytes());
    block[28..30].copy_from_slice(&(rows as u16).to_le_bytes());
    block[30..32].copy_from_slice(&(unit as u16).to_le_bytes());
}

/// Returns the checksum with which those of the sectors begin.
#[inline]
fn seed_of(block: &[u8]) -> u32 {
    crc32c::crc32c(&block[8..FIXED_BYTES])
}

/// Returns the offset of a sector's checksum.
#[inline]
const fn place_of_sum(sector: usize) -> usize {
    if sector == 0 { 4 } else { FIXED_BYTES + (sector - 1) * size_of::<u32>() }
}

/// The bytes of a block that was read. They may be damaged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block<'a> {
    bytes: &'a [u8],
    is_long: bool,
    identity: BlockIdentity,
}

/// A row's place in its block.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPlace {
    pub(super) offset: usize,
    header: RowHeader,
}

impl<'a> Block<'a> {
    /// `bytes` has one block, or one long block.
    #[inline]
    pub(super) fn new(bytes: &'a [u8], block_bits: u8, identity: BlockIdentity) -> Self {
        debug_assert!(bytes.len().is_multiple_of(1 << block_bits) && !bytes.is_empty());
        Block { bytes, is_long: bytes.len() > 1 << block_bits, identity }
    }

    #[inline]
    fn used(&self) -> usize {
        let [a, b, c, d] = [24, 25, 26, 27].map(|at| self.bytes[at]);
        u32::from_le_bytes([a, b, c, d]) as usize
    }

    #[inline]
    pub(super) fn rows(&self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[28], self.bytes[29]]))
    }

    /// The length of each row; 0 if they differ.
    #[inline]
    fn row_bytes(&self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[30], self.bytes[31]])) * 8
    }

    /// The offset of the first row.
    #[inline]
    pub(super) fn first(&self) -> usize {
        header_bytes(self.bytes.len(), self.is_long)
    }

    /// Finds a row and checks the sectors on which the answer depends. `None` if the row is not
    /// there or a sector is damaged: then only `check` tells.
    ///
    /// `guess` is the row's likely place in the block, as a fraction of 2^16.
    #[inline]
    pub(super) fn find(
        &self,
        guess: u16,
        hash: u64,
        table: TableNumber,
        key: u64,
    ) -> Option<ColdRow<'a>> {
        let (first, row_bytes) = (self.first(), self.row_bytes());
        let is_even = row_bytes != 0;
        let offset = if is_even {
            self.find_even(first, row_bytes, guess, table, key)?
        } else {
            self.find_among_uneven(first, table, key)?
        };
        let header = RowHeader::read(&self.bytes[offset..])?;
        let end = offset + header.stored_bytes();
        let value = self.bytes.get(offset + ROW_HEADER_BYTES..end)?;
        let from = if is_even { offset } else { 0 };
        (self.is_of(self.identity) && self.are_sound(from, end))
            .then(|| header.row(hash, value))
            .flatten()
    }

    /// Finds a row in a block whose rows have one length: from the guess on, in both directions.
    #[inline]
    fn find_even(
        &self,
        first: usize,
        row_bytes: usize,
        guess: u16,
        table: TableNumber,
        key: u64,
    ) -> Option<usize> {
        let rows = self.bytes.get(first..first + self.rows() * row_bytes)?;
        let count = self.rows();
        let guess = (usize::from(guess) * count) >> 16;
        let is_at = |row: usize| {
            let header = RowHeader::read(&rows[row * row_bytes..]);
            header.is_some_and(|header| header.key == key && header.table() == table)
        };
        for distance in 0..count {
            let (after, before) = (guess + distance, guess.wrapping_sub(distance));
            if after < count && is_at(after) {
                return Some(first + after * row_bytes);
            }
            if before < count && is_at(before) {
                return Some(first + before * row_bytes);
            }
        }
        None
    }

    /// Finds a row in a block whose rows differ in length, or in a long block.
    fn find_among_uneven(&self, first: usize, table: TableNumber, key: u64) -> Option<usize> {
        let mut offset = first;
        for _ in 0..self.rows() {
            let header = RowHeader::read(self.bytes.get(offset..)?)?;
            if header.key == key && header.table() == table {
                return Some(offset);
            }
            offset += header.stored_bytes();
        }
        None
    }

    /// True if the block's header names this place.
    #[inline]
    fn is_of(&self, identity: BlockIdentity) -> bool {
        self.bytes[..4] == MAGIC
            && self.bytes[8..16] == identity.address.to_le_bytes()
            && self.bytes[16..24] == identity.salt.to_le_bytes()
    }

    /// True if the sectors that contain the bytes from `from` to `end` have their checksums. `end`
    /// lies in the block.
    #[inline]
    fn are_sound(&self, from: usize, end: usize) -> bool {
        let seed = seed_of(self.bytes);
        if self.is_long {
            return self.sum(0) == crc32c::crc32c_append(seed, &self.bytes[FIXED_BYTES..]);
        }
        let bytes = sector_bytes(self.bytes.len());
        (from / bytes..end.div_ceil(bytes))
            .all(|sector| self.sum(sector) == self.computed(seed, sector, bytes))
    }

    /// Returns the checksum that a sector of this length has.
    #[inline]
    fn computed(&self, seed: u32, sector: usize, sector_bytes: usize) -> u32 {
        let start = if sector == 0 { FIXED_BYTES } else { sector * sector_bytes };
        crc32c::crc32c_append(seed, &self.bytes[start..(sector + 1) * sector_bytes])
    }

    #[inline]
    fn sum(&self, sector: usize) -> u32 {
        let at = place_of_sum(sector);
        let [a, b, c, d] = [at, at + 1, at + 2, at + 3].map(|at| self.bytes[at]);
        u32::from_le_bytes([a, b, c, d])
    }

    /// Checks the whole block.
    ///
    /// # Errors
    /// A description of what is wrong. Its subject is the block.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.bytes[..4] != MAGIC {
            return Err("it does not begin with the mark of a block".into());
        }
        let seed = seed_of(self.bytes);
        let all_bytes = self.bytes.len();
        let bytes = if self.is_long { all_bytes } else { sector_bytes(all_bytes) };
        let is_sound = |&sector: &usize| self.sum(sector) == self.computed(seed, sector, bytes);
        let mut sectors = 0..all_bytes / bytes;
        if let Some(sector) = sectors.clone().find(|sector| !is_sound(sector)) {
            // A damaged header changes the checksum of every sector.
            return Err(if !sectors.any(|sector| is_sound(&sector)) {
                "it fails its checksums".into()
            } else {
                let (from, end) = (sector * bytes, (sector + 1) * bytes - 1);
                format!("its bytes {from} to {end} fail their checksum")
            });
        }
        if !self.is_of(self.identity) {
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&self.bytes[at..at + 8]);
                u64::from_le_bytes(word)
            };
            return Err(format!(
                "here lies the block of address {:#x} and salt {:016x}, not of address {:#x} and salt {:016x}: the \
                 file is of another part, of a copy that has gone on by itself, or of before a crash",
                word(8),
                word(16),
                self.identity.address,
                self.identity.salt
            ));
        }
        if self.rows() == 0 || self.used() > self.bytes.len() {
            return Err(format!("it claims {} rows in {} bytes", self.rows(), self.used()));
        }
        let mut offset = self.first();
        for row in 0..self.rows() {
            let place = self.place(offset).filter(|place| {
                [0, place.header.stored_bytes()].contains(&self.row_bytes())
                    && place.row(0, self.bytes).is_some()
            });
            let Some(place) = place else {
                return Err(format!("its row {row}, at byte {offset} of the block, is none"));
            };
            offset = place.end();
        }
        if offset == self.used() {
            return Ok(());
        }
        Err(format!("its rows end at byte {offset}, not {}", self.used()))
    }

    /// Returns the place of the row at `offset`. `None` if no row fits there.
    #[inline]
    pub(super) fn place(&self, offset: usize) -> Option<RowPlace> {
        let header = RowHeader::read(self.bytes.get(offset..self.used())?)?;
        let place = RowPlace { offset, header };
        (place.end() <= self.used()).then_some(place)
    }

    /// Returns the order of the first row. The block must be sound.
    pub(super) fn first_order(&self, key_hash: KeyHash) -> Option<RowOrder> {
        let place = self.place(self.first())?;
        Some(place.order(key_hash))
    }
}

impl RowPlace {
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.offset + self.header.stored_bytes()
    }

    #[inline]
    pub(super) fn order(&self, key_hash: KeyHash) -> RowOrder {
        let (table, key) = (self.header.table(), self.header.key);
        (key_hash.of(table, key), table, key)
    }

    /// Returns the row. `block` has the bytes of its block.
    #[inline]
    pub(super) fn row<'a>(&self, hash: u64, block: &'a [u8]) -> Option<ColdRow<'a>> {
        let start = self.offset + ROW_HEADER_BYTES;
        self.header.row(hash, block.get(start..self.end())?)
    }
}
