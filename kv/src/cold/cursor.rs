//! Reads the rows of a part in order.

use std::ops::Deref;
use std::sync::Arc;

use crate::cold::block::{Block, RowPlace};
use crate::cold::part::Part;
use crate::cold::row::{ColdRow, RowOrder};
use crate::device::{AlignedBuffer, Device, Read};
use crate::error::{Error, Result};

/// Most bytes that are read together.
pub(crate) const UNIT_BYTES: usize = 1 << 20;

/// A cursor that borrows its device.
pub(crate) type PartCursor<'d> = Cursor<&'d dyn Device>;
/// A cursor that shares its device.
pub(crate) type SharedCursor = Cursor<Arc<dyn Device>>;

/// Reads the rows of a part in order: in transfers of at most 1 MiB, in the background. Checks each
/// block before it returns a row of it.
#[derive(Debug)]
pub(crate) struct Cursor<D> {
    part: Arc<Part>,
    device: D,
    /// Rows with a lower hash are left out.
    from: u64,
    /// Bytes that were read. It grows for a block that is longer.
    unit: AlignedBuffer,
    /// The address of `unit`, and its bytes that have been read.
    unit_address: u64,
    unit_bytes: usize,
    /// The present block: its offset in `unit` and its length.
    block: std::ops::Range<usize>,
    /// The address of the block after the present one.
    next_block: u64,
    /// Rows of the present block that are left.
    rows_left: usize,
    /// The offset of the next row in the present block.
    next_row: usize,
    row: Option<(RowOrder, RowPlace)>,
}

impl<D: Deref<Target: Device>> Cursor<D> {
    /// Returns a cursor over the rows from the first one with at least the hash `from` on. It reads
    /// `unit_bytes` bytes at a time, in whole blocks, but at least a block.
    pub(crate) fn new(part: Arc<Part>, device: D, from: u64, unit_bytes: usize) -> Self {
        let next_block = part.address_from(from);
        let block_bytes = 1 << part.head().block_bits;
        let unit_bytes = (unit_bytes / block_bytes).max(1) * block_bytes;
        let unit_bytes = unit_bytes.min(part.data_bytes() as usize);
        Cursor {
            part,
            device,
            from,
            unit: AlignedBuffer::zeroed(unit_bytes),
            unit_address: 0,
            unit_bytes: 0,
            block: 0..0,
            next_block,
            rows_left: 0,
            next_row: 0,
            row: None,
        }
    }

    /// Goes to the next row and returns it. `None` after the last one.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if a block is damaged; the next call then fails too.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<ColdRow<'_>>> {
        Ok(self.step()?.and_then(|_| self.row()))
    }

    /// Does what `next` does, and returns only the row's order. [`row`](Self::row) returns the row.
    ///
    /// # Errors
    /// Those of `next`.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<Option<RowOrder>> {
        // The loop ends at the first row with at least the hash `from`, or at the part's end.
        loop {
            if self.rows_left == 0 && !self.enter()? {
                self.row = None;
                return Ok(None);
            }
            let address = self.unit_address + self.block.start as u64;
            let block = self.part.block(address, &self.unit[self.block.clone()]);
            let place = block.place(self.next_row).expect("a sound block has rows");
            let order = place.order(self.part.key_hash());
            if self.row.is_some_and(|(last, _)| order <= last) {
                return Err(self.damaged("its rows are out of order"));
            }
            self.next_row = place.end();
            self.rows_left -= 1;
            self.row = Some((order, place));
            if order.0 >= self.from {
                return Ok(Some(order));
            }
        }
    }

    /// Returns the row to which the last call of `next` or `step` went. `None` after the last row.
    #[inline]
    pub(crate) fn row(&self) -> Option<ColdRow<'_>> {
        let (order, place) = self.row.as_ref()?;
        place.row(order.0, &self.unit[self.block.clone()])
    }

    /// Returns the error of the present block, which is damaged as `what` says.
    pub(crate) fn damaged(&self, what: &str) -> Error {
        let address = self.unit_address + self.block.start as u64;
        self.part.damaged(address, self.device.locate(address), what)
    }

    /// Enters the next block. False if there is none.
    fn enter(&mut self) -> Result<bool> {
        let address = self.next_block;
        if address >= self.part.data_end() {
            return Ok(false);
        }
        let unit_bytes = 1 << self.part.head().block_bits;
        self.bring(address, unit_bytes)?;
        // The header says how long a long block is, and the check below that the header is right.
        let long_bytes = self.part.block(address, &self.unit[self.block.clone()]).long_bytes();
        if let Some(bytes) = long_bytes {
            if address + bytes as u64 > self.part.data_end() {
                return Err(self.damaged("it ends behind the part's last block"));
            }
            self.bring(address, bytes)?;
        }
        let block = self.part.block(address, &self.unit[self.block.clone()]);
        let (rows, checked) = (block.rows(), block.check());
        checked.map_err(|what| self.damaged(&what))?;
        (self.rows_left, self.next_row) = (rows, Block::FIRST);
        self.next_block += self.block.len() as u64;
        Ok(true)
    }

    /// Makes `bytes` bytes from `address` on the present block.
    fn bring(&mut self, address: u64, bytes: usize) -> Result<()> {
        let is_there = self.unit_bytes > 0
            && address >= self.unit_address
            && address + bytes as u64 <= self.unit_address + self.unit_bytes as u64;
        if !is_there {
            self.read(address, bytes)?;
        }
        let start = (address - self.unit_address) as usize;
        self.block = start..start + bytes;
        Ok(())
    }

    /// Reads from a block of `block_bytes` bytes on.
    fn read(&mut self, address: u64, block_bytes: usize) -> Result<()> {
        self.unit_bytes = 0;
        if self.unit.len() < block_bytes {
            self.unit = AlignedBuffer::zeroed(block_bytes);
        }
        let end = self.part.data_end();
        let bytes = (end - address).min(self.unit.len() as u64) as usize;
        let reads = &mut [Read { offset: address, buffer: &mut self.unit[..bytes] }];
        self.device.read_many_behind(reads)?;
        (self.unit_address, self.unit_bytes) = (address, bytes);
        Ok(())
    }
}
