//! What a batch sees of the log while it is pinned.

use crate::record::address::Address;
use crate::record::layout::RecordRef;
use crate::sync::AtomicU64;
use crate::sync::Ordering;

/// Where pages in memory lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frames<'a> {
    pub(crate) base: *mut u8,
    /// See [`Log::shifts`]; their number is a power of two.
    pub(crate) shifts: &'a [AtomicU64],
    pub(crate) page_bits: u32,
}

impl Frames<'_> {
    #[inline]
    pub(crate) fn place(self, address: Address) -> *mut u8 {
        let address = address.raw();
        let slot = (address >> self.page_bits) as usize & (self.shifts.len() - 1);
        // SAFETY: masked by their number less one, which is not zero (`Log::new`).
        let shift = unsafe { self.shifts.get_unchecked(slot) };
        // Relaxed: a thread that has an address in this page got it after the Release store of the
        // tail in `begin_page`, through the page's allocations and the index.
        let shift = shift.load(Ordering::Relaxed);
        self.base.wrapping_add(address.wrapping_add(shift) as usize)
    }
}

/// The state that holds for a thread from its pin to its unpin: the boundaries, and where frames
/// lie. One copy serves a whole batch, so no key pays for reading the log's fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// Entries and links that lead below it lead nowhere.
    pub(crate) begin: u64,
    /// Rows at or above this address are in memory. Not below `begin`.
    pub(crate) head: u64,
    pub(crate) read_only: u64,
    pub(crate) frames: Frames<'a>,
}

impl<'a> View<'a> {
    /// Where an address lies if it is in memory.
    #[inline]
    pub(crate) fn place(self, address: Address) -> *mut u8 {
        self.frames.place(address)
    }

    /// The record at an address in memory.
    ///
    /// # Safety
    /// The thread is still pinned as it was when it took this view, `address` lies at or above its
    /// `head`, and a record's header has been written there (the address came from the index, a
    /// record's link, or `allocate`).
    #[inline]
    pub(crate) unsafe fn record(self, address: Address) -> RecordRef<'a> {
        // SAFETY: within the page's frame, which stays by invariant 2; the header is written.
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
