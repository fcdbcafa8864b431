//! Memory that batches of a thread use again and again.

use std::cell::Cell;

/// Keys that go through together.
pub(crate) const CHUNK_KEYS: usize = 1024;

use crate::device::AlignedBuffer;
use crate::index::{Candidates, Entry};
use crate::record::address::Address;
use crate::sync::thread_local;

/// Keys whose rows must be read are set aside until there are so many: bounds the scratch memory.
pub(super) const PENDING_KEYS_MAX: usize = 4096;
/// A thread's scratch is nearly all keys set aside; docs/architecture.md says that it stays below this.
const SCRATCH_BYTES_MAX: usize = 1 << 20;
// A vector that grows by doubling.
const _: () = assert!(
    (PENDING_KEYS_MAX + CHUNK_KEYS).next_power_of_two() * size_of::<Pending>() < SCRATCH_BYTES_MAX
);

/// A key whose search goes on at `address` on disk.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) i: u32,
    pub(super) hash: u64,
    /// The slot whose chain is being searched, and the place reached in it.
    pub(super) entry: Entry,
    pub(super) address: Address,
    /// Where the log began when the chains were entered: a link below that is the end of its chain. (One
    /// below a later beginning is not: the row may have been moved while the search was on its way.)
    pub(super) begin: u64,
    /// Bytes to read there.
    pub(super) bytes: usize,
    /// Other chains of the key, and where they go on.
    pub(super) rest: Vec<(Entry, Address)>,
    /// The key has been dealt with, or is to be searched again.
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
    /// To read into, in place of one from the pool: compaction must not wait for batches that wait for it.
    pub(crate) own_buffer: Option<AlignedBuffer>,
    /// Places of keys to be looked for in overflow buckets.
    pub(super) deferred: Vec<u32>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// The thread's scratch; a new one for a batch within a batch, or in a destructor as the thread ends.
pub(crate) fn take_scratch() -> Box<Scratch> {
    SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

pub(crate) fn give_back_scratch(scratch: Box<Scratch>) {
    // A thread that is ending keeps none.
    let _ = SCRATCH.try_with(|place| place.set(Some(scratch)));
}
