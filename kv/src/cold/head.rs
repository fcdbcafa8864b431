//! What a part's header says, and where a part lies.

use std::ops::{Range, RangeInclusive};

use crate::device::Device;
pub(crate) use crate::device::placement::COLD_BEGIN;
use crate::device::placement::part_span_bytes;
use crate::error::Result;
use crate::record::hash::KeyHash;

/// Returns the address of a part's first byte.
pub(crate) fn part_address(number: u64, segment_size_bytes: u64) -> u64 {
    COLD_BEGIN + number * part_span_bytes(segment_size_bytes)
}

/// Where the parts of a bank lie, and by which hash their rows are ordered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartSite<'d> {
    pub(crate) device: &'d dyn Device,
    pub(crate) segment_size_bytes: u64,
    pub(crate) key_hash: KeyHash,
}

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The part is the oldest source of its hashes.
    Base,
    /// The part belongs to a run, whose rows are newer than those of the base.
    Run,
}

/// What a part's header says. The checkpoint's list of parts repeats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartHead {
    /// The bank's id.
    pub(crate) bank: u64,
    /// Random. A part of an abandoned opening with the same number has another salt.
    pub(crate) salt: u64,
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    /// Of a run: how many times its rows were consolidated. 0 for a base part.
    pub(crate) level: u8,
    /// Blocks have `1 << block_bits` bytes: 12 to 14.
    pub(crate) block_bits: u8,
    /// The numbers of the runs whose rows the part has. Of a base part, the end is the newest run
    /// that was merged into it.
    pub(crate) runs: RangeInclusive<u64>,
    /// The hashes that the part answers for.
    pub(crate) hashes: RangeInclusive<u64>,
    /// The log addresses from which the rows of a run of level 0 came.
    pub(crate) log: Range<u64>,
}

impl PartHead {
    /// Reads the header of the part `number`, for `verify` and `repair`, which do not trust the
    /// list.
    ///
    /// # Errors
    /// The errors of the device. `Damaged` if there is no sound header of this part.
    pub(crate) fn read(_site: PartSite<'_>, _number: u64) -> Result<PartHead> {
        todo!("follows")
    }
}
