//! Decoded rows, as columns of a block that fits in the processor's cache.

use super::field::FieldKind;
use super::layout::{Layout, Target};

/// Largest number of rows of a block. With 40 columns of 32 bits, a block of this length takes 160
/// KiB, which fits in the second-level cache together with the text. It is a multiple of the number
/// of rows that a kernel converts together.
pub(crate) const BLOCK_ROWS: usize = 1024;
/// Values from the start of one column to the start of the next. The distance is not a multiple of
/// 4 KiB. Otherwise all values of a row would map to one set of the first-level cache.
pub(crate) const COLUMN_STRIDE: usize = BLOCK_ROWS + 16;

/// Width and index of a column in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Values of 32 bits. The plan decides whether they are i32, u32 or f32.
    Word(usize),
    /// Values of 64 bits.
    Wide(usize),
    /// Byte strings.
    Bytes(usize),
    /// Arrays, which are in the batch and not in the block. The index is that of
    /// [`Plan::arrays`](crate::plan::Plan::arrays).
    Array(usize),
}

/// Place of the bits that mark missing values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MissingBit {
    /// Index in [`Block::missing`].
    pub(crate) plane: usize,
    /// Number of the bit in each byte of the plane.
    pub(crate) bit: u8,
}

/// Number of columns of each width.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ColumnCounts {
    /// Number of columns of 32 bits.
    pub(crate) words: usize,
    /// Number of columns of 64 bits.
    pub(crate) wides: usize,
    /// Number of columns of byte strings.
    pub(crate) bytes: usize,
}

/// Byte strings, stored one after the other.
#[derive(Debug, Default, Clone)]
pub(crate) struct ByteColumn {
    /// For each string, the place after its last byte.
    pub(crate) ends: Vec<u32>,
    pub(crate) bytes: Vec<u8>,
}

impl ByteColumn {
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.bytes.clear();
    }

    pub(crate) fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(crate) fn get(&self, row: usize) -> &[u8] {
        let begin = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        &self.bytes[begin..self.ends[row] as usize]
    }

    /// Keeps the rows whose entry in `kept` is true, in their order.
    fn retain(&mut self, kept: &[bool]) {
        if self.ends.is_empty() {
            // Only arrays were made of the strings, and they are not needed any more.
            return;
        }
        let all = std::mem::take(self);
        for (row, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
            self.push(all.get(row));
        }
    }
}

/// The columns of up to [`BLOCK_ROWS`] rows.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) rows: usize,
    /// The line in the chunk of the first row that was read. A text with quotes counts rows.
    pub(crate) first_line: usize,
    /// For each row the number of rows that were read before it. Empty if no row was removed.
    read_before: Vec<u32>,
    words: Vec<u32>,
    wides: Vec<u64>,
    pub(crate) bytes: Vec<ByteColumn>,
    /// Planes of missing bits. A plane has one byte for each row, whose bits mark the missing
    /// values of up to eight columns.
    missing: Vec<[u8; BLOCK_ROWS]>,
}

impl Block {
    pub(crate) fn new(columns: ColumnCounts, planes: usize) -> Self {
        Self {
            rows: 0,
            first_line: 0,
            read_before: Vec::new(),
            words: vec![0; columns.words * COLUMN_STRIDE],
            wides: vec![0; columns.wides * COLUMN_STRIDE],
            bytes: vec![ByteColumn::default(); columns.bytes],
            missing: vec![[0; BLOCK_ROWS]; planes],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        self.read_before.clear();
        self.bytes.iter_mut().for_each(ByteColumn::clear);
    }

    /// Gives the memory of all blobs back. Nothing may read them any more.
    pub(crate) fn drop_blobs(&mut self, layout: &Layout) {
        for field in 0..layout.fields() {
            if layout.kind(field) == Some(FieldKind::Blob)
                && let Some(Target { slot: Slot::Bytes(column), .. }) = layout.target(field)
            {
                self.bytes[column] = ByteColumn::default();
            }
        }
    }

    /// The line in the chunk of a row.
    pub(crate) fn line(&self, row: usize) -> usize {
        self.first_line + self.read_before.get(row).map_or(row, |&before| before as usize)
    }

    /// Returns a column of 32-bit values.
    #[inline]
    pub(crate) fn word(&self, column: usize) -> &[u32] {
        &self.words[column * COLUMN_STRIDE..][..self.rows]
    }

    #[inline]
    pub(crate) fn word_mut(&mut self, column: usize) -> &mut [u32] {
        &mut self.words[column * COLUMN_STRIDE..][..self.rows]
    }

    /// Returns a column of 64-bit values.
    #[inline]
    pub(crate) fn wide(&self, column: usize) -> &[u64] {
        &self.wides[column * COLUMN_STRIDE..][..self.rows]
    }

    #[inline]
    pub(crate) fn wide_mut(&mut self, column: usize) -> &mut [u64] {
        &mut self.wides[column * COLUMN_STRIDE..][..self.rows]
    }

    /// Returns a 64-bit column to read and a 32-bit column to write.
    pub(crate) fn wide_and_word_mut(&mut self, wide: usize, word: usize) -> (&[u64], &mut [u32]) {
        let rows = self.rows;
        (
            &self.wides[wide * COLUMN_STRIDE..][..rows],
            &mut self.words[word * COLUMN_STRIDE..][..rows],
        )
    }

    /// Returns a column of byte strings to read and a 64-bit column to write.
    pub(crate) fn bytes_and_wide_mut(
        &mut self,
        bytes: usize,
        wide: usize,
    ) -> (&ByteColumn, &mut [u64]) {
        (&self.bytes[bytes], &mut self.wides[wide * COLUMN_STRIDE..][..self.rows])
    }

    /// Returns a 32-bit column to write and a plane of missing bits to read.
    pub(crate) fn word_and_missing_mut(
        &mut self,
        column: usize,
        plane: usize,
    ) -> (&mut [u32], &[u8]) {
        (&mut self.words[column * COLUMN_STRIDE..][..self.rows], &self.missing[plane][..self.rows])
    }

    /// Returns a 64-bit column to write and a plane of missing bits to read.
    pub(crate) fn wide_and_missing_mut(
        &mut self,
        column: usize,
        plane: usize,
    ) -> (&mut [u64], &[u8]) {
        (&mut self.wides[column * COLUMN_STRIDE..][..self.rows], &self.missing[plane][..self.rows])
    }

    pub(crate) fn copy_word(&mut self, from: usize, to: usize) {
        let from = from * COLUMN_STRIDE;
        self.words.copy_within(from..from + self.rows, to * COLUMN_STRIDE);
    }

    pub(crate) fn copy_wide(&mut self, from: usize, to: usize) {
        let from = from * COLUMN_STRIDE;
        self.wides.copy_within(from..from + self.rows, to * COLUMN_STRIDE);
    }

    /// Converts a 32-bit column into a 64-bit column.
    pub(crate) fn widen(&mut self, from: usize, to: usize, convert: impl Fn(u32) -> u64) {
        let values = &self.words[from * COLUMN_STRIDE..][..self.rows];
        let into = &mut self.wides[to * COLUMN_STRIDE..][..self.rows];
        for (value, into) in values.iter().zip(into) {
            *into = convert(*value);
        }
    }

    /// All 32-bit columns, [`COLUMN_STRIDE`] values apart. Values after the block's last row are
    /// invalid.
    pub(crate) fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    pub(crate) fn wides_mut(&mut self) -> &mut [u64] {
        &mut self.wides
    }

    /// A plane of missing bits. Bytes after the block's last row are invalid.
    pub(crate) fn missing(&self, plane: usize) -> &[u8; BLOCK_ROWS] {
        &self.missing[plane]
    }

    pub(crate) fn missing_mut(&mut self, plane: usize) -> &mut [u8; BLOCK_ROWS] {
        &mut self.missing[plane]
    }

    /// Returns the 32-bit columns and a plane of missing bits. The kernels write both.
    pub(crate) fn words_and_missing_mut(
        &mut self,
        plane: usize,
    ) -> (&mut [u32], &mut [u8; BLOCK_ROWS]) {
        (&mut self.words, &mut self.missing[plane])
    }

    /// Removes the rows whose entry in `kept` is false, and keeps the order of the others.
    #[cold]
    pub(crate) fn retain(&mut self, kept: &[bool]) {
        assert_eq!(kept.len(), self.rows, "a mark for each row");
        let rows = self.rows;
        self.words
            .chunks_exact_mut(COLUMN_STRIDE)
            .for_each(|column| retain(&mut column[..rows], kept));
        self.wides
            .chunks_exact_mut(COLUMN_STRIDE)
            .for_each(|column| retain(&mut column[..rows], kept));
        self.missing.iter_mut().for_each(|plane| retain(&mut plane[..rows], kept));
        self.bytes.iter_mut().for_each(|column| column.retain(kept));
        if self.read_before.is_empty() {
            self.read_before.extend(0..rows as u32);
        }
        retain(&mut self.read_before, kept);
        self.rows = kept.iter().filter(|kept| **kept).count();
    }
}

fn retain<T: Copy>(values: &mut [T], kept: &[bool]) {
    let rows = kept.iter().enumerate().filter(|(_, kept)| **kept);
    for (next, (row, _)) in rows.enumerate() {
        values[next] = values[row];
    }
}
