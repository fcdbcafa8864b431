//! A run: rows in the order of their hashes, in blocks with fences.
//!
//! A group has 64 blocks. For each block it has a fence, the upper 16 bits of the distance of the
//! block's first hash from the group's. A lookup takes the last block whose fence is not above the
//! key's. If this fence equals the key's, the key may also lie in a block before.

use std::ops::RangeInclusive;

use anyhow::{Result, ensure};

use crate::measure::cold::rows::{
    BlockWriter, block_bytes, check_block, hash_of, key_of, rows_a_block, rows_of,
};

/// Blocks of a group.
const GROUP_BLOCKS: usize = 64;

/// A run in memory.
#[derive(Debug)]
pub(crate) struct Run<const ROW: usize> {
    pub(crate) blocks: Vec<u8>,
    fences: Fences,
    pub(crate) rows: usize,
}

/// The fences of a run.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// The first hash of each group.
    groups: Vec<u64>,
    /// The bits by which a distance in the group is shifted to make its fence.
    shifts: Vec<u32>,
    fences: Vec<[u16; GROUP_BLOCKS]>,
    /// The first hashes of the last group's blocks.
    open: Vec<u64>,
}

impl Fences {
    /// Adds a block.
    #[inline]
    pub(crate) fn push(&mut self, first_hash: u64) {
        if self.open.len() == GROUP_BLOCKS {
            self.close(first_hash);
        }
        self.open.push(first_hash);
    }

    /// Makes the fences of the last group, which ends before the hash `end`.
    fn close(&mut self, end: u64) {
        let Some(&first) = self.open.first() else { return };
        let width = end.saturating_sub(first);
        let shift = (u64::BITS - u16::BITS).saturating_sub(width.leading_zeros());
        let mut fences = [u16::MAX; GROUP_BLOCKS];
        for (fence, hash) in fences.iter_mut().zip(&self.open) {
            *fence = fence_of(hash - first, shift);
        }
        self.groups.push(first);
        self.shifts.push(shift);
        self.fences.push(fences);
        self.open.clear();
    }

    /// Ends the last group.
    pub(crate) fn finish(&mut self) {
        self.close(u64::MAX);
    }

    /// Bytes of the fences.
    pub(crate) fn bytes(&self) -> usize {
        self.groups.len() * (size_of::<u64>() + GROUP_BLOCKS * size_of::<u16>())
    }

    /// Returns the blocks that may have a hash. The last one has it most likely.
    #[inline]
    pub(crate) fn find(&self, hash: u64) -> RangeInclusive<usize> {
        let mut group = ((u128::from(hash) * self.groups.len() as u128) >> 64) as usize;
        // Both loops end at an end of the groups.
        while group > 0 && self.groups[group] > hash {
            group -= 1;
        }
        while self.groups.get(group + 1).is_some_and(|&first| first <= hash) {
            group += 1;
        }
        let distance = hash.saturating_sub(self.groups[group]);
        let fence = fence_of(distance, self.shifts[group]);
        let fences = &self.fences[group];
        let not_above = fences.iter().map(|&other| u16::from(other <= fence)).sum::<u16>();
        let last = usize::from(not_above) - 1;
        let mut first = last;
        // The loop ends at the group's first block, whose first hash is not above the key's.
        while first > 0 && fences[first] == fence {
            first -= 1;
        }
        group * GROUP_BLOCKS + first..=group * GROUP_BLOCKS + last
    }
}

/// Returns the fence of a distance. The largest number stands for blocks that do not exist.
#[inline]
fn fence_of(distance: u64, shift: u32) -> u16 {
    (distance >> shift).min(u64::from(u16::MAX) - 1) as u16
}

impl<const ROW: usize> Run<ROW> {
    /// Makes a run of rows, which must lie by hash.
    pub(crate) fn of<'a>(rows: impl Iterator<Item = &'a [u8; ROW]>) -> Self {
        let mut blocks = Vec::new();
        let (mut fences, mut count) = (Fences::default(), 0);
        let mut writer = BlockWriter::new(|unit: &[u8]| blocks.extend_from_slice(unit));
        for row in rows {
            if writer.push(row) {
                fences.push(hash_of(key_of(row)));
            }
            count += 1;
        }
        writer.finish();
        fences.finish();
        Run { blocks, fences, rows: count }
    }

    /// Returns the bytes and the address of a block.
    #[inline]
    pub(crate) fn block(&self, number: usize) -> (&[u8], u64) {
        let at = number * const { block_bytes::<ROW>() };
        (&self.blocks[at..at + const { block_bytes::<ROW>() }], at as u64)
    }

    /// Returns the number of blocks.
    pub(crate) fn block_count(&self) -> usize {
        self.rows.div_ceil(const { rows_a_block::<ROW>() })
    }

    /// Returns the fences.
    pub(crate) fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Finds a key. Counts the blocks that it looks at in `blocks`. `checked`: verifies their
    /// checksums.
    ///
    /// # Errors
    /// Fails if a block is damaged.
    #[inline]
    pub(crate) fn find(
        &self,
        key: u64,
        checked: bool,
        blocks: &mut u64,
    ) -> Result<Option<&[u8; ROW]>> {
        let hash = hash_of(key);
        for number in self.fences.find(hash).rev() {
            let (block, address) = self.block(number);
            *blocks += 1;
            if checked {
                check_block(block, address)?;
            }
            if let Some(row) = find_in::<ROW>(block, hash, key, self.rows) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Checks that every block is sound and every row in its place.
    ///
    /// # Errors
    /// Fails if a block is damaged, or a row lies out of order.
    pub(crate) fn check(&self) -> Result<()> {
        let (mut rows, mut last) = (0, None);
        for number in 0..self.block_count() {
            let (block, address) = self.block(number);
            check_block(block, address)?;
            for row in rows_of::<ROW>(block) {
                let hash = hash_of(key_of(row));
                ensure!(last < Some(hash), "wrong answer: a row out of order in block {number}");
                (last, rows) = (Some(hash), rows + 1);
            }
        }
        ensure!(rows == self.rows, "wrong answer: {rows} of {} rows", self.rows);
        Ok(())
    }
}

/// Finds a key in a block of a run of `all` rows: guesses its place by its hash and goes on from
/// there.
#[inline]
fn find_in<const ROW: usize>(block: &[u8], hash: u64, key: u64, all: usize) -> Option<&[u8; ROW]> {
    let rows = rows_of::<ROW>(block);
    let distance = hash.checked_sub(hash_of(key_of(rows.first()?)))?;
    let guess = ((u128::from(distance) * all as u128) >> 64) as usize;
    let mut place = guess.min(rows.len() - 1);
    // The first loop ends at the first row, whose hash is not above the key's. The second ends at
    // the last row.
    while hash_of(key_of(&rows[place])) > hash {
        place -= 1;
    }
    while key_of(&rows[place]) != key {
        place += 1;
        if place == rows.len() || hash_of(key_of(&rows[place])) > hash {
            return None;
        }
    }
    Some(&rows[place])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measure::cold::rows::{fill_row, version_of};

    pub(crate) fn run_of(keys: impl Iterator<Item = u64>, version: u64) -> Run<80> {
        let mut rows: Vec<[u8; 80]> = keys
            .map(|key| {
                let mut row = [0; 80];
                fill_row(key, version, &mut row);
                row
            })
            .collect();
        rows.sort_by_key(|row| hash_of(key_of(row)));
        Run::of(rows.iter())
    }

    #[test]
    fn every_row_is_found_and_no_other() {
        for count in [1, 49, 50, 51, 3_200, 3_201, 10_000] {
            let run = run_of(0..count, 7);
            run.check().unwrap();
            let mut blocks = 0;
            for key in 0..count {
                let row = run.find(key, true, &mut blocks).unwrap();
                assert_eq!(version_of(row.unwrap()).unwrap(), 7, "key {key} of {count}");
                assert!(run.find(key + count, true, &mut blocks).unwrap().is_none());
            }
            assert!(blocks as f64 <= 2.0 + 2.02 * count as f64, "{blocks} blocks, {count} rows");
        }
    }

    /// The fences of three blocks are equal, because the last group reaches to the last hash.
    #[test]
    fn equal_fences_lead_to_the_blocks_before() {
        let mut fences = Fences::default();
        for first_hash in [0, 5 << 40, 6 << 40, 1 << 60] {
            fences.push(first_hash);
        }
        fences.finish();
        assert_eq!(fences.find(7 << 40), 0..=2);
        assert_eq!(fences.find(1 << 50), 2..=2);
        assert_eq!(fences.find(1 << 60), 2..=3);
        assert_eq!(fences.find(u64::MAX), 3..=3);
    }
}
