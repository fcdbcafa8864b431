//! Memory that a thread keeps from one batch to the next.

use std::cell::Cell;
use std::fmt;

/// Number of keys of a chunk. After each chunk, the batch looks for rows to retain.
pub(crate) const CHUNK_KEYS: usize = 1024;

use super::cold::ColdKey;
use crate::device::AlignedBuffer;
use crate::index::{Candidates, Entry};
use crate::record::address::Address;
use crate::sync::thread_local;

/// A batch reads the rows that it has set aside once their number reaches this limit. The limit
/// bounds the scratch memory.
pub(super) const PENDING_KEYS_MAX: usize = 4096;
/// Largest size in bytes of a thread's list of the keys that are set aside. The list is nearly all
/// of the thread's scratch memory. docs/architecture.md states this limit.
const SCRATCH_BYTES_MAX: usize = 1 << 20;
// The vector of keys grows by doubling, so its capacity is a power of two.
const _: () = assert!(
    (PENDING_KEYS_MAX + CHUNK_KEYS).next_power_of_two() * size_of::<Pending>() < SCRATCH_BYTES_MAX
);

/// What a search of the index saw. If the search finds no row, an insert of the key compares this
/// with the present state (`Batch::insert`).
#[derive(Debug, Clone, Default)]
pub(super) struct Searched {
    pub(super) entries: Candidates,
    /// `Log::settled` before the search.
    pub(super) settled: u64,
}

/// A key whose search continues at `address` on disk.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) i: u32,
    pub(super) hash: u64,
    /// The index entry whose chain is searched. `address` is the record that the search has
    /// reached.
    pub(super) entry: Entry,
    pub(super) address: Address,
    /// The log's beginning when the search entered the chains. A link below this address ends its
    /// chain. Compaction may have moved the row since then, so a link below a later beginning does
    /// not end the chain.
    pub(super) begin: u64,
    /// Number of bytes to read at `address`.
    pub(super) bytes: usize,
    /// The other chains that may hold the key, and the address at which the search continues in
    /// each.
    pub(super) rest: Vec<(Entry, Address)>,
    /// True if the key is completed, or will be searched again from the index.
    pub(super) done: bool,
    pub(super) searched: Searched,
}

/// Memory that a thread keeps from one batch to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) value: Vec<u64>,
    pub(super) searched: Searched,
    pub(super) pending: Vec<Pending>,
    /// Keys that the log does not have.
    pub(super) cold: Vec<ColdKey>,
    /// Keys that are searched again from the index.
    pub(super) redo: Vec<u32>,
    /// A copy of a record from the read cache.
    pub(super) cached: Vec<u64>,
    /// A row of the cold tier in the form of a record, for the read cache.
    pub(super) image: Vec<u8>,
    /// A read buffer that this thread uses in place of a buffer from the pool. Compaction has such
    /// a buffer, because batches may hold all buffers of the pool.
    pub(crate) own_buffer: Option<AlignedBuffer>,
    /// Indices of the keys whose entries are in overflow buckets.
    pub(super) deferred: Vec<u32>,
}

impl Scratch {
    /// True if the batch has keys that are not completed.
    pub(super) fn has_set_aside(&self) -> bool {
        !(self.pending.is_empty() && self.cold.is_empty() && self.redo.is_empty())
    }
}

/// Shows no content, because it has values of rows.
impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Takes the thread's scratch memory. Returns new scratch memory to a batch that runs within
/// another batch, and to a destructor that runs while the thread ends.
pub(crate) fn take_scratch() -> Box<Scratch> {
    SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

pub(crate) fn give_back_scratch(scratch: Box<Scratch>) {
    // Fails if the thread is ending. The scratch memory is then freed.
    let _ = SCRATCH.try_with(|place| place.set(Some(scratch)));
}
