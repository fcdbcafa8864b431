//! Memory that batches of a thread use again and again.

use std::cell::Cell;

/// Keys of a chunk: a batch works on this many before it looks for rows to retain.
pub(crate) const CHUNK_KEYS: usize = 1024;

use crate::device::AlignedBuffer;
use crate::index::{Candidates, Entry};
use crate::record::address::Address;
use crate::sync::thread_local;

/// A batch reads the rows that it has set aside once there are this many keys. This limits the
/// scratch memory.
pub(super) const PENDING_KEYS_MAX: usize = 4096;
/// Limit of a thread's scratch memory, nearly all of it keys that are set aside.
/// docs/architecture.md states it.
const SCRATCH_BYTES_MAX: usize = 1 << 20;
// The vector of keys grows by doubling.
const _: () = assert!(
    (PENDING_KEYS_MAX + CHUNK_KEYS).next_power_of_two() * size_of::<Pending>() < SCRATCH_BYTES_MAX
);

/// A key whose search continues at `address` on disk.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) i: u32,
    pub(super) hash: u64,
    /// The slot whose chain is searched, and the address that the search has reached in it.
    pub(super) entry: Entry,
    pub(super) address: Address,
    /// The log's beginning when the search entered the chains. A link below it ends its chain. A
    /// link below a later beginning does not, because compaction may have moved the row during the
    /// search.
    pub(super) begin: u64,
    /// Bytes to read at `address`.
    pub(super) bytes: usize,
    /// Other chains of the key, and the address at which the search continues in each.
    pub(super) rest: Vec<(Entry, Address)>,
    /// True if the key is completed, or is to be searched again from the index.
    pub(super) done: bool,
    pub(super) searched: Candidates,
}

/// Memory that batches of a thread use again and again.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) value: Vec<u64>,
    pub(super) candidates: Candidates,
    pub(super) pending: Vec<Pending>,
    pub(super) redo: Vec<u32>,
    /// A record copied from the row cache.
    pub(super) cached: Vec<u64>,
    /// A read buffer of this thread, used in place of one from the pool: compaction must not wait
    /// for a buffer of batches that wait for compaction.
    pub(crate) own_buffer: Option<AlignedBuffer>,
    /// Places of the keys that are looked for in overflow buckets.
    pub(super) deferred: Vec<u32>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Takes the thread's scratch. A batch within a batch, and a destructor that runs while the thread
/// ends, get a new one.
pub(crate) fn take_scratch() -> Box<Scratch> {
    SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

pub(crate) fn give_back_scratch(scratch: Box<Scratch>) {
    // A thread that is ending has no place to keep the scratch.
    let _ = SCRATCH.try_with(|place| place.set(Some(scratch)));
}
