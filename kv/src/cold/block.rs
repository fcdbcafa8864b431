//! A block of a part: rows in order, and a checksum for each few rows.
//!
//! ```text
//! bytes 0..4    magic "EBK1"
//! bytes 4..6    k, the number of rows that share a checksum
//! bytes 6..8    zero
//! bytes 8..16   the block's address
//! bytes 16..24  the part's salt
//! bytes 24..28  bytes in use, up to the end of the last row
//! bytes 28..30  number of rows
//! bytes 30..32  length of each row in units of 8 bytes; 0 if the rows differ in length
//! bytes 32..    rows, then zeros
//! at the end    checksums of 4 bytes: the last is of rows 0 to k - 1, the one before it of the next
//!               k rows, and so on
//! ```
//!
//! A checksum is the CRC-32C of its rows, XOR the CRC-32C of bytes 0..32. So it vouches for
//! address, salt, row count and row length too.
//!
//! **Lookups** check only the rows that share a checksum with the row that they want. In a block
//! whose rows have one length, the header and the row's number say where these rows are. In another
//! block a lookup passes all rows before its own, so it checks them too. A lookup that does not
//! find its row checks the whole block: no damage looks like a missing row.
//!
//! A row that does not fit a block has a *long block* of its own, which is several times as long.

use crate::cold::row::{ColdRow, ROW_HEADER_BYTES, RowHeader, RowOrder};
use crate::memory::cpu_hint;
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;

const MAGIC: [u8; 4] = *b"EBK1";
/// Bytes of a block before its first row.
const HEADER_BYTES: usize = 32;
const SUM_BYTES: usize = 4;
/// Rows of fewer bytes share a checksum with as many other rows as fit this. Fewer bytes would make
/// checks faster, and cost a block of 4 KiB one of its 50 rows of 64 bytes.
const SUMMED_BYTES: usize = 320;
/// Blocks have `1 << bits` bytes, with bits in this range.
pub(super) const BLOCK_BITS: std::ops::RangeInclusive<u8> = 12..=14;

/// Returns the number of rows that share a checksum, for rows of this length.
#[inline]
const fn rows_a_sum(row_bytes: usize) -> usize {
    if row_bytes > SUMMED_BYTES { 1 } else { SUMMED_BYTES / row_bytes }
}

/// Returns the length of a block with the only row of this length.
fn bytes_for(row_bytes: usize, block_bytes: usize) -> usize {
    (HEADER_BYTES + row_bytes + SUM_BYTES).next_multiple_of(block_bytes)
}

/// Returns the block bits for rows of this mean length, which includes their headers: the first of
/// 4, 8 and 16 KiB that loses at most 12%. If each loses more, the one that loses least. A lookup
/// reads a whole block, and a drive at its limit of bytes reads fewer of the longer ones.
pub(crate) fn block_bits_for(row_bytes: usize) -> u8 {
    let row_bytes = row_bytes.next_multiple_of(8).max(ROW_HEADER_BYTES);
    // Thousandths of the bytes that rows fill.
    let filled = |bits: u8| {
        let block = 1 << bits;
        let each = rows_a_sum(row_bytes);
        let room = block - HEADER_BYTES;
        // As many groups of `each` rows as fit, then as many rows as fit.
        let groups = room / (each * row_bytes + SUM_BYTES);
        let rest = room - groups * (each * row_bytes + SUM_BYTES);
        let rows = groups * each + rest.saturating_sub(SUM_BYTES) / row_bytes;
        match rows {
            0 => row_bytes * 1_000 / bytes_for(row_bytes, block),
            rows => rows * row_bytes * 1_000 / block,
        }
    };
    let best = || BLOCK_BITS.max_by_key(|&bits| (filled(bits), std::cmp::Reverse(bits)));
    BLOCK_BITS.into_iter().find(|&bits| filled(bits) >= 880).or_else(best).expect("three sizes")
}

/// What identifies a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockIdentity {
    pub(super) address: u64,
    pub(super) salt: u64,
}

/// Puts rows into a block.
#[derive(Debug)]
pub(super) struct BlockBuilder {
    /// Bytes of the rows and of the header.
    used: usize,
    rows: usize,
    /// Rows that share a checksum.
    each: usize,
    /// The length of each row; 0 if they differ.
    row_bytes: usize,
    /// Ends of the rows that share a checksum, of all but the last.
    ends: Vec<usize>,
}

impl BlockBuilder {
    pub(super) fn new() -> Self {
        BlockBuilder { used: HEADER_BYTES, rows: 0, each: 1, row_bytes: 0, ends: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// True if a row fits behind the rows of a block of `block_bytes` bytes.
    #[inline]
    pub(super) fn has_room(&self, row: &ColdRow<'_>, block_bytes: usize) -> bool {
        let sums = self.ends.len() + 1 + usize::from(self.rows.is_multiple_of(self.each));
        self.used + row.stored_bytes() + sums * SUM_BYTES <= block_bytes
    }

    /// Returns the length of the block that begins with a row: `block_bytes`, unless the row needs
    /// a long block.
    pub(super) fn bytes_for(row: &ColdRow<'_>, block_bytes: usize) -> usize {
        bytes_for(row.stored_bytes(), block_bytes)
    }

    /// Appends a row for which there is room. `block` has the bytes of the block.
    #[inline]
    pub(super) fn push(&mut self, row: &ColdRow<'_>, block: &mut [u8]) {
        let bytes = row.stored_bytes();
        if self.rows == 0 {
            self.row_bytes = bytes;
            self.each = rows_a_sum(bytes);
        } else {
            if self.row_bytes != bytes {
                self.row_bytes = 0;
            }
            if self.rows.is_multiple_of(self.each) {
                self.ends.push(self.used);
            }
        }
        row.write(&mut block[self.used..]);
        self.used += bytes;
        self.rows += 1;
    }

    /// Writes the header and the checksums, and begins the next block.
    pub(super) fn seal(&mut self, identity: BlockIdentity, block: &mut [u8]) {
        block[self.used..].fill(0);
        block[..4].copy_from_slice(&MAGIC);
        block[4..6].copy_from_slice(&(self.each as u16).to_le_bytes());
        block[6..8].fill(0);
        block[8..16].copy_from_slice(&identity.address.to_le_bytes());
        block[16..24].copy_from_slice(&identity.salt.to_le_bytes());
        block[24..28].copy_from_slice(&(self.used as u32).to_le_bytes());
        block[28..30].copy_from_slice(&(self.rows as u16).to_le_bytes());
        // A row of a long block may have a length that the field can't name.
        let unit = u16::try_from(self.row_bytes / 8).unwrap_or(0);
        block[30..32].copy_from_slice(&unit.to_le_bytes());
        let seed = crc32c::crc32c(&block[..HEADER_BYTES]);
        self.ends.push(self.used);
        let mut start = HEADER_BYTES;
        for (sum, &end) in self.ends.iter().enumerate() {
            let crc = crc32c::crc32c(&block[start..end]) ^ seed;
            let at = block.len() - (sum + 1) * SUM_BYTES;
            block[at..at + SUM_BYTES].copy_from_slice(&crc.to_le_bytes());
            start = end;
        }
        self.ends.clear();
        (self.used, self.rows) = (HEADER_BYTES, 0);
    }
}

/// The bytes of a block that was read. They may be damaged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block<'a> {
    bytes: &'a [u8],
    identity: BlockIdentity,
}

/// A row's place in its block.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPlace {
    offset: usize,
    header: RowHeader,
}

impl<'a> Block<'a> {
    /// `bytes` has a whole block: at least 4 KiB.
    #[inline]
    pub(super) fn new(bytes: &'a [u8], identity: BlockIdentity) -> Self {
        debug_assert!(bytes.len() >= 1 << BLOCK_BITS.start());
        Block { bytes, identity }
    }

    #[inline]
    fn u16_at(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    #[inline]
    fn u32_at(&self, at: usize) -> u32 {
        let [a, b, c, d] = [at, at + 1, at + 2, at + 3].map(|at| self.bytes[at]);
        u32::from_le_bytes([a, b, c, d])
    }

    /// The number of rows that share a checksum; 0 only in a damaged block.
    #[inline]
    fn each(&self) -> usize {
        self.u16_at(4)
    }

    #[inline]
    fn used(&self) -> usize {
        self.u32_at(24) as usize
    }

    #[inline]
    pub(super) fn rows(&self) -> usize {
        self.u16_at(28)
    }

    /// The length of each row; 0 if they differ.
    #[inline]
    fn row_bytes(&self) -> usize {
        self.u16_at(30) * 8
    }

    /// The offset of the first row.
    pub(super) const FIRST: usize = HEADER_BYTES;

    /// Finds a row and checks the rows on which the answer depends. `None` if the row is not there
    /// or the block is damaged: then only `check` tells.
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
        let is_of = self.is_of(self.identity);
        let row_bytes = self.row_bytes();
        let offset = if row_bytes == 0 {
            self.find_among_uneven(table, key)?
        } else {
            self.find_even(row_bytes, guess, table, key)?
        };
        let header = RowHeader::read(&self.bytes[offset..])?;
        let value = offset + ROW_HEADER_BYTES..offset + header.stored_bytes();
        let row = header.row(hash, self.bytes.get(value)?);
        if is_of { row } else { None }
    }

    /// Finds a row in a block whose rows have one length: from the guess on, in both directions.
    /// Checks the rows that share its checksum.
    #[inline]
    fn find_even(
        &self,
        row_bytes: usize,
        guess: u16,
        table: TableNumber,
        key: u64,
    ) -> Option<usize> {
        let (count, each) = (self.rows(), self.each());
        let rows = self.bytes.get(HEADER_BYTES..HEADER_BYTES + count * row_bytes)?;
        let guess = (usize::from(guess) * count) >> 16;
        cpu_hint::prefetch(self.bytes.get(self.place_of_sum(guess.checked_div(each)?)?)?);
        let row = self.find_in(rows, row_bytes, guess, table, key)?;
        let first = row / each * each;
        let summed = first * row_bytes..((first + each) * row_bytes).min(rows.len());
        for line in summed.clone().step_by(cpu_hint::LINE_BYTES) {
            cpu_hint::prefetch(&rows[line]);
        }
        let crc = crc32c::crc32c(&rows[summed]);
        let is_sound = self.is_sum(row / each, crc ^ self.seed());
        is_sound.then_some(HEADER_BYTES + row * row_bytes)
    }

    /// Returns the number of a row among rows of one length.
    #[inline]
    fn find_in(
        &self,
        rows: &[u8],
        row_bytes: usize,
        guess: usize,
        table: TableNumber,
        key: u64,
    ) -> Option<usize> {
        let count = rows.len() / row_bytes;
        let is_at = |row: usize| {
            let header = RowHeader::read(&rows[row * row_bytes..]);
            header.is_some_and(|header| header.key == key && header.table() == table)
        };
        for distance in 0..count {
            let (after, before) = (guess + distance, guess.wrapping_sub(distance));
            if after < count && is_at(after) {
                return Some(after);
            }
            if before < count && is_at(before) {
                return Some(before);
            }
        }
        None
    }

    /// Finds a row in a block whose rows differ in length. Checks all rows before it, and those
    /// that share its checksum.
    fn find_among_uneven(&self, table: TableNumber, key: u64) -> Option<usize> {
        let mut found = None;
        self.walk(|place| {
            if place.header.key == key && place.header.table() == table {
                found = Some(place.offset);
            }
            found.is_none()
        })
        .ok()?;
        found
    }

    /// Passes the rows until `wants_more` returns false. Checks all rows that it has passed, and
    /// those that share a checksum with the last one.
    #[inline]
    fn walk(&self, mut wants_more: impl FnMut(RowPlace) -> bool) -> Result<(), String> {
        let (rows, each, row_bytes) = (self.rows(), self.each().max(1), self.row_bytes());
        let seed = self.seed();
        let mut end = HEADER_BYTES;
        let mut row = 0;
        while row < rows {
            let start = end;
            let mut is_enough = false;
            for _ in row..(row + each).min(rows) {
                let place = self.place(end).filter(|place| {
                    [0, place.header.stored_bytes()].contains(&row_bytes)
                        && place.row(0, self.bytes).is_some()
                });
                let Some(place) = place else {
                    return Err(format!("no row begins at its byte {end}"));
                };
                end = place.end();
                is_enough = is_enough || !wants_more(place);
            }
            if !self.is_sum(row / each, crc32c::crc32c(&self.bytes[start..end]) ^ seed) {
                let or = if row == 0 { " or its header" } else { "" };
                return Err(format!("its bytes {start} to {}{or} fail their checksum", end - 1));
            }
            if is_enough {
                return Ok(());
            }
            row += each;
        }
        Ok(())
    }

    /// True if the bytes begin with a header that names the block's place. It may be damaged.
    #[inline]
    pub(super) fn is_in_place(&self) -> bool {
        self.bytes[..4] == MAGIC && self.is_of(self.identity)
    }

    /// True if the block's header names this place.
    #[inline]
    fn is_of(&self, identity: BlockIdentity) -> bool {
        self.bytes[8..16] == identity.address.to_le_bytes()
            && self.bytes[16..24] == identity.salt.to_le_bytes()
    }

    #[inline]
    fn seed(&self) -> u32 {
        crc32c::crc32c(&self.bytes[..HEADER_BYTES])
    }

    /// Returns the offset of a checksum. `None` if it would lie in the header.
    #[inline]
    fn place_of_sum(&self, sum: usize) -> Option<usize> {
        let at = self.bytes.len().checked_sub((sum + 1) * SUM_BYTES)?;
        (at >= HEADER_BYTES).then_some(at)
    }

    #[inline]
    fn is_sum(&self, sum: usize, crc: u32) -> bool {
        self.place_of_sum(sum).is_some_and(|at| self.u32_at(at) == crc)
    }

    /// Checks the whole block.
    ///
    /// # Errors
    /// A description of what is wrong. Its subject is the block.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.bytes[..4] != MAGIC {
            return Err("it does not begin with the mark of a block".into());
        }
        let (rows, used) = (self.rows(), self.used());
        let sums = rows.div_ceil(self.each().max(1));
        let end = sums.checked_sub(1).and_then(|last| self.place_of_sum(last)).unwrap_or(0);
        if self.each() == 0 || used > end {
            return Err(format!("it claims {rows} rows in {used} bytes"));
        }
        let mut last = HEADER_BYTES;
        self.walk(|place| {
            last = place.end();
            true
        })?;
        if !self.is_of(self.identity) {
            let word = |at| u64::from(self.u32_at(at)) | u64::from(self.u32_at(at + 4)) << 32;
            let BlockIdentity { address, salt } = self.identity;
            return Err(format!(
                "here lies the block of address {:#x} with salt {:016x}, not of address {address:#x} with salt \
                 {salt:016x}: the file is of another part, of a copy that has gone on by itself, or of before a crash",
                word(8),
                word(16)
            ));
        }
        if last != used || self.bytes[used..end].iter().any(|&byte| byte != 0) {
            return Err(format!(
                "bytes that are not zero follow its rows, which end at byte {last}"
            ));
        }
        Ok(())
    }

    /// Returns the length of the long block that these bytes begin, as its header claims. `None` if
    /// they begin no long block of this place.
    pub(super) fn long_bytes(&self) -> Option<usize> {
        let sums = self.rows().div_ceil(self.each().max(1));
        let bytes = (self.used() + sums * SUM_BYTES).next_multiple_of(self.bytes.len());
        (self.is_of(self.identity) && bytes > self.bytes.len()).then_some(bytes)
    }

    /// Returns the rows whose checksums are right: all rows of a sound block.
    pub(super) fn sound_rows(&self) -> Vec<RowPlace> {
        let mut found = Vec::new();
        let (rows, each, row_bytes) = (self.rows(), self.each(), self.row_bytes());
        if each == 0 || !self.is_of(self.identity) {
            return found;
        }
        let seed = self.seed();
        let mut end = HEADER_BYTES;
        for first in (0..rows).step_by(each) {
            let start = if row_bytes == 0 { end } else { HEADER_BYTES + first * row_bytes };
            let count = each.min(rows - first);
            let mut summed = Vec::with_capacity(count);
            end = start;
            while summed.len() < count
                && let Some(place) = self.place(end)
                && [0, place.header.stored_bytes()].contains(&row_bytes)
            {
                end = place.end();
                summed.push(place);
            }
            // A damaged header may claim rows beyond the block.
            let is_sound = self.bytes.get(start..end).is_some_and(|bytes| {
                summed.len() == count && self.is_sum(first / each, crc32c::crc32c(bytes) ^ seed)
            });
            if is_sound {
                found.extend(summed.iter().filter(|place| place.row(0, self.bytes).is_some()));
            } else if row_bytes == 0 {
                // The damaged rows do not tell where the next ones begin.
                break;
            }
        }
        found
    }

    /// Returns the place of the row at `offset`. `None` if no row fits there.
    #[inline]
    pub(super) fn place(&self, offset: usize) -> Option<RowPlace> {
        let header = RowHeader::read(self.bytes.get(offset..self.used())?)?;
        let place = RowPlace { offset, header };
        (place.end() <= self.used()).then_some(place)
    }

    /// Returns the order of the first row.
    pub(super) fn first_order(&self, key_hash: KeyHash) -> Option<RowOrder> {
        Some(self.place(HEADER_BYTES)?.order(key_hash))
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
