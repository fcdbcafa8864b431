//! The log's boundaries and frames, as a pinned batch uses them.

use crate::record::address::Address;
use crate::record::layout::RecordRef;
use crate::sync::AtomicU64;
use crate::sync::Ordering;

/// Maps addresses of pages in memory to pointers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frames<'a> {
    pub(crate) base: *mut u8,
    /// See `shifts` of [`Log`](super::Log). The length is a power of two.
    pub(crate) shifts: &'a [AtomicU64],
    pub(crate) page_bits: u32,
}

impl Frames<'_> {
    #[inline]
    pub(crate) fn place(self, address: Address) -> *mut u8 {
        let address = address.raw();
        let slot = (address >> self.page_bits) as usize & (self.shifts.len() - 1);
        // SAFETY: the mask is the length minus 1. The length is a power of two and not zero
        // (`Log::new`).
        let shift = unsafe { self.shifts.get_unchecked(slot) };
        // Relaxed: a thread with an address in this page received it, through allocation and index,
        // after the Release store of the tail in `begin_page`.
        let shift = shift.load(Ordering::Relaxed);
        self.base.wrapping_add(address.wrapping_add(shift) as usize)
    }
}

/// The boundaries and frames that are valid for a thread from its pin to its unpin. One copy serves
/// a whole batch, so the batch does not read the log's fields for each key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// A reader ignores index entries and links to addresses below this one.
    pub(crate) begin: u64,
    /// Rows at or above this address are in memory. The address is never below `begin`.
    pub(crate) head: u64,
    pub(crate) read_only: u64,
    pub(crate) frames: Frames<'a>,
}

impl<'a> View<'a> {
    /// Returns the pointer to an address in memory.
    #[inline]
    pub(crate) fn place(self, address: Address) -> *mut u8 {
        self.frames.place(address)
    }

    /// Returns the record at an address in memory.
    ///
    /// # Safety
    /// The thread has stayed pinned since it took this view, and `address` is at or above its
    /// `head`. The address came from the index, a record's link or a hint, so a complete record is
    /// there. Or `allocate` returned the address, and the caller begins a new record there before
    /// it reads a field.
    #[inline]
    pub(crate) unsafe fn record(self, address: Address) -> RecordRef<'a> {
        // SAFETY: the duty is that a record, or room for one, is at the address and stays there.
        // The contract says so, and invariant 2 of the log keeps the page's frame.
        unsafe { RecordRef::new(self.place(address).cast(), address) }
    }

    #[inline]
    pub(crate) fn in_memory(self, address: Address) -> bool {
        address.raw() >= self.head
    }

    #[inline]
    pub(crate) fn mutable(self, address: Address) -> bool {
        address.raw() >= self.read_only
    }
}
