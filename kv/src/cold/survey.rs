//! Reads what is sound of a part that may be damaged.
//!
//! A [`cursor`](crate::cold::cursor) ends with an error at the first damaged block, and it needs
//! the part's fences. A survey goes on behind the damage, and needs nothing but the blocks: each
//! says where it belongs, and how long it is. In a damaged block, the rows count whose checksums
//! are right.
//!
//! Each damaged range of blocks is a [`Gap`]. Rows with the hashes of a gap may have been there.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::cold::block::{Block, BlockIdentity, RowPlace};
use crate::cold::head::{PAGE_BYTES, PartHead, PartSite, part_address};
use crate::cold::newest::OrderedRows;
use crate::cold::part::Part;
use crate::cold::row::{ColdRow, RowOrder};
use crate::device::{AlignedBuffer, Read};
use crate::error::{Error, Result};
use crate::record::address::TableNumber;

/// Bytes that are read together.
const UNIT_BYTES: usize = 256 << 10;

/// Damaged blocks, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The address of the first damaged byte's block.
    pub(crate) address: u64,
    /// Length of the damaged blocks in bytes.
    pub(crate) bytes: u64,
    /// The hashes of the rows that may have been there.
    pub(crate) hashes: RangeInclusive<u64>,
    /// Tables of the rows that are sound in the damaged blocks and in the blocks beside them.
    pub(crate) tables: BTreeSet<TableNumber>,
    /// Says what is wrong with the first of the blocks.
    pub(crate) what: String,
    /// True if no sound block follows, and it is not known where the blocks end. What follows the
    /// blocks then counts as damaged too.
    pub(crate) is_open: bool,
}

/// The sound rows of a part, in order.
#[derive(Debug)]
pub(crate) struct Survey<'d> {
    site: PartSite<'d>,
    head: PartHead,
    /// Rows with a lower hash are left out.
    from: u64,
    /// The address behind the last block, and whether it is certain.
    end: u64,
    knows_end: bool,
    unit: AlignedBuffer,
    /// The address of `unit`, and its bytes that have been read.
    unit_address: u64,
    unit_bytes: usize,
    /// The address of the next block.
    next_block: u64,
    /// The address of the present block, its bytes, and its rows that are left, last one first.
    address: u64,
    block: Vec<u8>,
    left: Vec<(RowOrder, RowPlace)>,
    row: Option<(RowOrder, RowPlace)>,
    /// The order of the last sound row.
    last: Option<RowOrder>,
    /// Tables of the rows of the present block.
    tables: BTreeSet<TableNumber>,
    gaps: Vec<Gap>,
}

impl<'d> Survey<'d> {
    /// Returns the rows with at least the hash `from`. `file_bytes` is the length of the part's
    /// file. `part` is the part in memory; `None` if its fences and filters can't be read.
    pub(crate) fn new(
        site: PartSite<'d>,
        head: &PartHead,
        file_bytes: u64,
        part: Option<&Part>,
        from: u64,
    ) -> Self {
        let address = part_address(head.number, site.segment_size_bytes);
        let first = address + PAGE_BYTES as u64;
        let block_bytes = 1_u64 << head.block_bits;
        let (next_block, end) = match part {
            Some(part) => (part.address_from(from), part.data_end()),
            // The trailer lies behind the blocks.
            None => {
                let bytes = file_bytes.saturating_sub(2 * PAGE_BYTES as u64);
                (first, first + bytes / block_bytes * block_bytes)
            }
        };
        Survey {
            site,
            head: head.clone(),
            from,
            end,
            knows_end: part.is_some(),
            unit: AlignedBuffer::zeroed(UNIT_BYTES),
            unit_address: 0,
            unit_bytes: 0,
            next_block,
            address: 0,
            block: Vec::new(),
            left: Vec::new(),
            row: None,
            last: None,
            tables: BTreeSet::new(),
            gaps: Vec::new(),
        }
    }

    pub(crate) fn head(&self) -> &PartHead {
        &self.head
    }

    /// Returns the damage that was found so far, in order.
    pub(crate) fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Returns the address of the present row's block.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Enters the next block that has a sound row. False if there is none.
    fn enter(&mut self) -> bool {
        // The loop ends: each turn moves to a block with a higher address.
        while self.next_block < self.end {
            let address = self.next_block;
            let fault = self.read_block(address).err();
            self.next_block += self.block.len() as u64;
            self.address = address;
            self.tables = self.left.iter().map(|((_, table, _), _)| *table).collect();
            if let Some(what) = fault {
                self.note_gap(address, what);
            } else if let Some(gap) = self.gaps.last_mut()
                && gap.address + gap.bytes == address
            {
                let start = *gap.hashes.start();
                let first = self.left.last().map_or(start, |((hash, _, _), _)| *hash);
                gap.hashes = start..=first;
                gap.tables.extend(&self.tables);
                gap.is_open = false;
            }
            if !self.left.is_empty() {
                return true;
            }
        }
        false
    }

    /// Notes that the block at `address` is damaged.
    fn note_gap(&mut self, address: u64, what: String) {
        let bytes = self.block.len() as u64;
        if let Some(gap) = self.gaps.last_mut()
            && gap.address + gap.bytes == address
        {
            gap.bytes += bytes;
            gap.tables.extend(&self.tables);
            return;
        }
        let first = self.last.map_or(*self.head.hashes.start(), |(hash, _, _)| hash);
        self.gaps.push(Gap {
            address,
            bytes,
            hashes: first..=*self.head.hashes.end(),
            tables: self.tables.clone(),
            what,
            is_open: !self.knows_end,
        });
    }

    /// Reads the block at `address`, and its sound rows.
    ///
    /// # Errors
    /// A description of what is wrong.
    fn read_block(&mut self, address: u64) -> std::result::Result<(), String> {
        let block_bytes = 1 << self.head.block_bits;
        let identity = BlockIdentity { address, salt: self.head.salt };
        self.read(address, block_bytes)?;
        let block = Block::new(&self.block, identity);
        let mut checked = block.check();
        if checked.is_err()
            && let Some(bytes) = block.long_bytes()
            && address + bytes as u64 <= self.end
        {
            let short = self.block.clone();
            self.read(address, bytes)?;
            if Block::new(&self.block, identity).check().is_ok() {
                checked = Ok(());
            } else {
                self.block = short;
            }
        }
        let block = Block::new(&self.block, identity);
        let mut rows = block.sound_rows();
        let key_hash = self.site.key_hash;
        let mut last = self.last;
        rows.retain(|place| {
            let order = place.order(key_hash);
            let fits = Some(order) > last && self.head.hashes.contains(&order.0);
            if fits {
                last = Some(order);
            } else if checked.is_ok() {
                checked = Err("its rows are out of order, or not of the part's hashes".into());
            }
            fits
        });
        self.left = rows.iter().rev().map(|place| (place.order(key_hash), *place)).collect();
        checked
    }

    /// Reads bytes into `block`.
    fn read(&mut self, address: u64, bytes: usize) -> std::result::Result<(), String> {
        self.left.clear();
        self.block.clear();
        self.block.resize(bytes, 0);
        let device = self.site.device;
        let has =
            |from: u64, len: usize| address >= from && address + bytes as u64 <= from + len as u64;
        if !has(self.unit_address, self.unit_bytes) {
            let len = (self.end - address).min(UNIT_BYTES as u64) as usize;
            let reads = &mut [Read { offset: address, buffer: &mut self.unit[..len] }];
            let read = device.read_many_behind(reads);
            (self.unit_address, self.unit_bytes) = (address, if read.is_ok() { len } else { 0 });
        }
        if has(self.unit_address, self.unit_bytes) {
            let start = (address - self.unit_address) as usize;
            self.block.copy_from_slice(&self.unit[start..start + bytes]);
            return Ok(());
        }
        // The block is longer than the buffer, or some of the buffer's blocks can't be read.
        let mut alone = AlignedBuffer::zeroed(bytes);
        let reads = &mut [Read { offset: address, buffer: &mut alone }];
        device.read_many_behind(reads).map_err(|error| match error {
            Error::Truncated { .. } => "the file is cut short".to_owned(),
            error => error.to_string(),
        })?;
        self.block.copy_from_slice(&alone);
        Ok(())
    }
}

impl OrderedRows for Survey<'_> {
    fn advance(&mut self) -> Result<bool> {
        // The loop ends at the first row with at least the hash `from`, or with the last block.
        loop {
            self.row = self.left.pop();
            if let Some((order, _)) = self.row {
                self.last = Some(order);
                if order.0 >= self.from {
                    return Ok(true);
                }
            } else if !self.enter() {
                return Ok(false);
            }
        }
    }

    fn row(&self) -> Option<ColdRow<'_>> {
        let (order, place) = self.row.as_ref()?;
        place.row(order.0, &self.block)
    }
}
