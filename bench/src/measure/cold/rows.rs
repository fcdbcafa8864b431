//! Rows and blocks of a part, as the design of the cold tier has them.
//!
//! A row has 16 bytes before its value: key (8), table (2), length / 8 (2), flags (1), uses (1),
//! zeros (2). A block has 32 bytes before its rows: `EBK1`, CRC-32C (4), address (8), salt (8),
//! bytes in use (4), rows (2), blocks taken (2). Rows lie by hash. The type parameter `ROW` is the
//! length of a row, so that the compiler copies rows with a few wide moves.

use anyhow::{Result, ensure};

/// Bytes of a row before its value.
pub(crate) const ROW_HEADER_BYTES: usize = 16;
/// Bytes of a block before its rows.
const BLOCK_HEADER_BYTES: usize = 32;
const MAGIC: [u8; 4] = *b"EBK1";
const SALT: u64 = 0x5a17;
/// The lengths of blocks. A part takes the first that loses at most 5% with its rows.
const BLOCK_BYTES: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];
/// Bytes that are written together.
const UNIT_BYTES: usize = 1 << 20;

/// Returns the hash by which rows lie. It does the work of the store's own.
#[inline]
pub(crate) fn hash_of(key: u64) -> u64 {
    let x = key ^ 0x9e37_79b9_7f4a_7c15;
    let x = (x ^ (x >> 27)).wrapping_mul(0x3c79_ac49_2ba7_b653);
    let x = (x ^ (x >> 33)).wrapping_mul(0x1c69_b3f7_4ac4_ae35);
    x ^ (x >> 27)
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Returns a row's key.
#[inline]
pub(crate) fn key_of(row: &[u8]) -> u64 {
    word(row)
}

/// Writes a row of a key: `version` and a pattern of the key are its value.
pub(crate) fn fill_row<const ROW: usize>(key: u64, version: u64, row: &mut [u8; ROW]) {
    row[..8].copy_from_slice(&key.to_le_bytes());
    row[8..10].copy_from_slice(&1u16.to_le_bytes());
    row[10..12].copy_from_slice(&((ROW - ROW_HEADER_BYTES) as u16 / 8).to_le_bytes());
    row[12..16].fill(0);
    let (words, _) = row[ROW_HEADER_BYTES..].as_chunks_mut::<8>();
    for (place, word) in words.iter_mut().enumerate() {
        let number = if place == 0 { version } else { key.wrapping_mul(place as u64 * 2 + 1) };
        *word = number.to_le_bytes();
    }
}

/// Checks a row's value and returns its version.
///
/// # Errors
/// Fails if the value is not that of the key.
pub(crate) fn version_of<const ROW: usize>(row: &[u8; ROW]) -> Result<u64> {
    let (key, version) = (key_of(row), word(&row[ROW_HEADER_BYTES..]));
    let mut expected = [0; ROW];
    fill_row(key, version, &mut expected);
    ensure!(*row == expected, "wrong answer: the row of key {key:#x} has another value");
    Ok(version)
}

/// Returns the length of the blocks for rows of `ROW` bytes.
pub(crate) const fn block_bytes<const ROW: usize>() -> usize {
    let mut place = 0;
    while place + 1 < BLOCK_BYTES.len() {
        let bytes = BLOCK_BYTES[place];
        if (bytes - BLOCK_HEADER_BYTES) / ROW * ROW * 20 >= bytes * 19 {
            return bytes;
        }
        place += 1;
    }
    BLOCK_BYTES[place]
}

/// Returns the number of rows of a full block.
pub(crate) const fn rows_a_block<const ROW: usize>() -> usize {
    (block_bytes::<ROW>() - BLOCK_HEADER_BYTES) / ROW
}

/// The rows of a block.
#[inline]
pub(crate) fn rows_of<const ROW: usize>(block: &[u8]) -> &[[u8; ROW]] {
    let count = u16::from_le_bytes([block[28], block[29]]) as usize;
    &block[BLOCK_HEADER_BYTES..].as_chunks::<ROW>().0[..count]
}

/// Checks a block's checksum.
///
/// # Errors
/// Fails if the block is damaged or lies elsewhere.
#[inline]
pub(crate) fn check_block(block: &[u8], address: u64) -> Result<()> {
    let stored = u32::from_le_bytes(block[4..8].try_into().expect("four bytes"));
    let right = block[..4] == MAGIC
        && stored == crc32c::crc32c(&block[8..])
        && word(&block[8..]) == address
        && word(&block[16..]) == SALT;
    ensure!(right, "wrong answer: the block at {address} is damaged");
    Ok(())
}

/// Puts rows into blocks, and hands over the blocks in units of 1 MiB.
#[derive(Debug)]
pub(crate) struct BlockWriter<const ROW: usize, Sink: FnMut(&[u8])> {
    unit: Vec<u8>,
    /// The first byte of the present block in the unit.
    block: usize,
    /// Rows of the present block.
    rows: usize,
    /// The address of the unit.
    address: u64,
    sink: Sink,
}

impl<const ROW: usize, Sink: FnMut(&[u8])> BlockWriter<ROW, Sink> {
    pub(crate) fn new(sink: Sink) -> Self {
        BlockWriter { unit: vec![0; UNIT_BYTES], block: 0, rows: 0, address: 0, sink }
    }

    /// Appends a row. True if it is the first of its block.
    #[inline]
    pub(crate) fn push(&mut self, row: &[u8; ROW]) -> bool {
        if self.rows == const { rows_a_block::<ROW>() } {
            self.seal();
        }
        let at = self.block + BLOCK_HEADER_BYTES + self.rows * ROW;
        self.unit[at..at + ROW].copy_from_slice(row);
        self.rows += 1;
        self.rows == 1
    }

    /// Ends the present block.
    fn seal(&mut self) {
        let address = self.address + self.block as u64;
        let block = &mut self.unit[self.block..][..const { block_bytes::<ROW>() }];
        let used = BLOCK_HEADER_BYTES + self.rows * ROW;
        block[used..].fill(0);
        block[..4].copy_from_slice(&MAGIC);
        block[8..16].copy_from_slice(&address.to_le_bytes());
        block[16..24].copy_from_slice(&SALT.to_le_bytes());
        block[24..28].copy_from_slice(&(used as u32).to_le_bytes());
        block[28..30].copy_from_slice(&(self.rows as u16).to_le_bytes());
        block[30..32].copy_from_slice(&1u16.to_le_bytes());
        let checksum = crc32c::crc32c(&block[8..]);
        block[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.block += block.len();
        self.rows = 0;
        if self.block == self.unit.len() {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        (self.sink)(&self.unit[..self.block]);
        self.address += self.block as u64;
        self.block = 0;
    }

    /// Ends the last block and hands it over.
    pub(crate) fn finish(mut self) {
        if self.rows > 0 {
            self.seal();
        }
        if self.block > 0 {
            self.hand_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_64_and_512_bytes_have_the_blocks_of_the_design() {
        assert_eq!((block_bytes::<80>(), rows_a_block::<80>()), (4096, 50));
        assert_eq!((block_bytes::<528>(), rows_a_block::<528>()), (8192, 15));
    }

    #[test]
    fn a_flipped_bit_or_another_place_is_damage() {
        let mut blocks = Vec::new();
        let mut writer = BlockWriter::<80, _>::new(|unit: &[u8]| blocks.extend_from_slice(unit));
        let mut row = [0; 80];
        for key in 0..51 {
            fill_row(key, 3, &mut row);
            assert_eq!(writer.push(&row), key % 50 == 0);
        }
        writer.finish();
        assert_eq!(blocks.len(), 8192);
        check_block(&blocks[..4096], 0).unwrap();
        check_block(&blocks[4096..], 4096).unwrap();
        assert_eq!(version_of(&rows_of::<80>(&blocks[4096..])[0]).unwrap(), 3);
        assert_eq!(rows_of::<80>(&blocks[4096..]).len(), 1);
        assert!(check_block(&blocks[..4096], 4096).is_err());
        blocks[2000] ^= 1;
        assert!(check_block(&blocks[..4096], 0).is_err());
        assert!(version_of(&rows_of::<80>(&blocks)[24]).is_err());
    }
}
