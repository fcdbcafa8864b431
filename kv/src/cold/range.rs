//! Looks for a row in a range of neighbouring blocks, where memory has one fence for all of them.
//!
//! The blocks of a range lie one behind the other. The lookup passes from block to block by the
//! lengths in their headers, up to the last block whose first row is not behind the wanted one.
//!
//! **Damage.** The lookup trusts nothing that it passes. A row that it finds has a right checksum,
//! which covers the place of its block. The answer *missing* needs two blocks that were checked as
//! a whole: the one that would have the row, and the one behind it, unless the range ends there. A
//! checked block is a block of this place of this part, and its length leads to the next one. So
//! the two are neighbours, and the row would lie between their first rows.

use std::path::PathBuf;

use crate::cold::block::Block;
use crate::cold::part::{BlockPlace, Found, Part};
use crate::cold::row::RowOrder;
use crate::error::Result;

/// A block of a range: its offset, its bytes, and the order of its first row as it says.
struct Passed<'a> {
    offset: usize,
    block: Block<'a>,
    first: RowOrder,
}

impl Part {
    /// Looks for the row at `order` in the bytes of a range.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not the part's.
    pub(super) fn find_in_range<'a>(
        &self,
        at: BlockPlace,
        bytes: &'a [u8],
        order: RowOrder,
        locate: impl FnOnce() -> (PathBuf, u64),
    ) -> Result<Found<'a>> {
        let found = self.look_in_range(at, bytes, order);
        found.map_err(|(offset, what)| {
            let (path, file_offset) = locate();
            let offset = offset as u64;
            self.damaged(at.address + offset, (path, file_offset + offset), &what)
        })
    }

    /// Does what `find_in_range` does. An error has the offset of the damaged block, and what is
    /// wrong with it.
    fn look_in_range<'a>(
        &self,
        at: BlockPlace,
        bytes: &'a [u8],
        order: RowOrder,
    ) -> std::result::Result<Found<'a>, (usize, String)> {
        let check =
            |passed: &Passed<'_>| passed.block.check().map_err(|what| (passed.offset, what));
        let mut holder: Option<Passed<'a>> = None;
        let mut behind = None;
        let mut offset = 0;
        // The loop ends: each block has at least one byte.
        while offset < bytes.len() {
            let (block, end) = self.block_in(at, bytes, offset).map_err(|damage| {
                // The block before may have claimed a wrong length.
                let before = holder.as_ref().and_then(|before| check(before).err());
                before.unwrap_or(damage)
            })?;
            let first = block.first_order(self.key_hash());
            let first = first.ok_or_else(|| (offset, "it has no first row".to_owned()))?;
            let passed = Passed { offset, block, first };
            if first > order {
                behind = Some(passed);
                break;
            }
            holder = Some(passed);
            offset = end;
        }
        let Some(holder) = holder else {
            if let Some(first) = &behind {
                check(first)?;
            }
            let before = self.place_before(at.address);
            return Ok(before.map_or(Found::Missing, Found::Before));
        };
        let guess = guess_of(order.0, holder.first.0, behind.as_ref().map(|next| next.first.0));
        if let Some(row) = holder.block.find(guess, order.0, order.1, order.2) {
            return Ok(Found::Row(row));
        }
        check(&holder)?;
        if let Some(behind) = &behind {
            check(behind)?;
        }
        Ok(Found::Missing)
    }

    /// Returns the block at an offset of a range, and where it ends.
    fn block_in<'a>(
        &self,
        at: BlockPlace,
        bytes: &'a [u8],
        offset: usize,
    ) -> std::result::Result<(Block<'a>, usize), (usize, String)> {
        let address = at.address + offset as u64;
        let unit_bytes = 1 << self.head().block_bits;
        let cut_short = || (offset, "it ends behind its range of blocks".to_owned());
        let short = bytes.get(offset..offset + unit_bytes).ok_or_else(cut_short)?;
        let block = self.block(address, short);
        if !block.is_in_place() {
            // The check says what lies here instead.
            return Err((offset, block.check().err().unwrap_or_else(|| "it is damaged".into())));
        }
        match block.long_bytes() {
            None => Ok((block, offset + unit_bytes)),
            Some(long_bytes) => {
                let end = offset + long_bytes;
                let long = bytes.get(offset..end).ok_or_else(cut_short)?;
                Ok((self.block(address, long), end))
            }
        }
    }
}

/// Returns where in its block a hash lies most likely, as a fraction of 2^16. The block has the
/// hashes from `first` up to `next`, or to an unknown one.
fn guess_of(hash: u64, first: u64, next: Option<u64>) -> u16 {
    let Some(next) = next else { return u16::MAX / 2 };
    let width = u128::from(next.saturating_sub(first).max(1));
    let within = (u128::from(hash.saturating_sub(first)) << 16) / width;
    within.min(u128::from(u16::MAX)) as u16
}
