//! A part in memory: its fences and filters, and lookups in it.

use std::path::PathBuf;

use crate::cold::cursor::PartCursor;
use crate::cold::head::{PartHead, PartSite};
use crate::cold::row::ColdRow;
use crate::device::Device;
use crate::error::Result;
use crate::record::address::TableNumber;

/// The part of a hash that filters use. A batch computes it once for each key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MixedHash {}

impl MixedHash {
    pub(crate) fn of(_hash: u64) -> Self {
        todo!("follows")
    }
}

/// The memory of a lookup in a part's filters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FilterWindow {}

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

/// A part in memory. It never changes.
#[derive(Debug)]
pub(crate) struct Part {
    head: PartHead,
}

impl Part {
    /// Loads the fences and filters of a part, and checks them.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if the part is not the one that `head` names.
    pub(crate) fn load(
        _site: PartSite<'_>,
        _head: &PartHead,
        _file_bytes: u64,
        _trailer_crc: u32,
    ) -> Result<Part> {
        todo!("follows")
    }

    pub(crate) fn head(&self) -> &PartHead {
        &self.head
    }

    /// The part's first byte.
    pub(crate) fn address(&self) -> u64 {
        todo!("follows")
    }

    /// Number of rows, tombstones included.
    pub(crate) fn rows(&self) -> u64 {
        todo!("follows")
    }

    pub(crate) fn tombstones(&self) -> u64 {
        todo!("follows")
    }

    /// Number of rows with the mark *uncounted*.
    pub(crate) fn uncounted(&self) -> u64 {
        todo!("follows")
    }

    /// Bytes of the blocks.
    pub(crate) fn data_bytes(&self) -> u64 {
        todo!("follows")
    }

    /// Bytes of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        todo!("follows")
    }

    pub(crate) fn trailer_crc(&self) -> u32 {
        todo!("follows")
    }

    /// Bytes of memory of fences and filters.
    pub(crate) fn memory_bytes(&self) -> usize {
        todo!("follows")
    }

    /// Finds the memory of a lookup in the filters and prefetches it.
    pub(crate) fn prefetch(&self, _hash: u64, _mixed: MixedHash) -> FilterWindow {
        todo!("follows")
    }

    /// False if the part does not have a row with this hash. True if it has no filters.
    pub(crate) fn may_have_at(&self, _window: FilterWindow, _mixed: MixedHash) -> bool {
        todo!("follows")
    }

    /// Does `prefetch` and `may_have_at` for one hash.
    pub(crate) fn may_have(&self, _hash: u64) -> bool {
        todo!("follows")
    }

    /// Returns the block to read for a hash. `None` if the part has no row with this hash.
    pub(crate) fn block_of(&self, _hash: u64) -> Option<BlockPlace> {
        todo!("follows")
    }

    /// Looks for a row in the bytes of a block. `locate` gives the block's file and the offset in
    /// it for an error.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not the block's.
    pub(crate) fn find<'a>(
        &self,
        _at: BlockPlace,
        _bytes: &'a [u8],
        _hash: u64,
        _table: TableNumber,
        _key: u64,
        _locate: impl FnOnce() -> (PathBuf, u64),
    ) -> Result<Found<'a>> {
        todo!("follows")
    }

    /// Returns a cursor over all rows.
    pub(crate) fn cursor<'a>(&'a self, _device: &'a dyn Device) -> PartCursor<'a> {
        todo!("follows")
    }

    /// Returns a cursor over the rows from the first one with at least this hash on.
    pub(crate) fn cursor_from<'a>(&'a self, _device: &'a dyn Device, _hash: u64) -> PartCursor<'a> {
        todo!("follows")
    }
}
