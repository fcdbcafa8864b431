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
    /// Reads ahead end here.
    ahead_end: u64,
    /// Bytes that were read. It grows for a block that is longer.
    unit: AlignedBuffer,
    /// The address of `unit`, and its bytes that have been read.
    unit_address: u64,
    unit_bytes: usize,
    /// Bytes of `unit` after these that a read ahead brings.
    ahead_bytes: usize,
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
            ahead_end: part.data_end(),
            part,
            device,
            from,
            unit: AlignedBuffer::zeroed(unit_bytes),
            unit_address: 0,
            unit_bytes: 0,
            ahead_bytes: 0,
            block: 0..0,
            next_block,
            rows_left: 0,
            next_row: 0,
            row: None,
        }
    }

    /// Says that the caller needs no row with a higher hash than `last`. The cursor then does not
    /// read ahead what it can do without.
    pub(crate) fn ends_at(self, last: u64) -> Self {
        let Some(next) = last.checked_add(1) else { return self };
        let block_bytes = 1 << self.part.head().block_bits;
        let ahead_end = (self.part.address_from(next) + block_bytes).min(self.part.data_end());
        Cursor { ahead_end, ..self }
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

    /// True if the next step reads from the device.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.rows_left == 0 && self.bytes_left() == 0 && self.next_block < self.part.data_end()
    }

    /// Returns the bytes after the present block that have been read.
    fn bytes_left(&self) -> usize {
        (self.unit_address + self.unit_bytes as u64).saturating_sub(self.next_block) as usize
    }

    /// Returns a read of the blocks after those that have been read, if the cursor has room for at
    /// least half of its bytes. If `keeps_row` is true, the present row stays.
    /// [`note_ahead`](Self::note_ahead) must follow the read.
    pub(crate) fn read_ahead(&mut self, keeps_row: bool) -> Option<Read<'_>> {
        let left = self.bytes_left();
        let kept = if keeps_row || self.rows_left > 0 { self.block.len() + left } else { left };
        let next = self.next_block + left as u64;
        let rest = self.ahead_end.saturating_sub(next);
        let room = (self.unit.len() - kept).min(rest as usize);
        if kept > self.unit.len() / 2 || room == 0 {
            return None;
        }
        // The kept bytes end where the read begins.
        let start = self.unit_bytes - kept;
        self.unit.copy_within(start..start + kept, 0);
        self.unit_address = next - kept as u64;
        self.block = 0..self.block.end.saturating_sub(start);
        (self.unit_bytes, self.ahead_bytes) = (kept, room);
        Some(Read { offset: next, buffer: &mut self.unit[kept..kept + room] })
    }

    /// Must be called after the read of [`read_ahead`](Self::read_ahead) has succeeded.
    pub(crate) fn note_ahead(&mut self) {
        self.unit_bytes += std::mem::take(&mut self.ahead_bytes);
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
