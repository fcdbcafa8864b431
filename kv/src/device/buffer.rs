//! Page-aligned memory for direct transfers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use crate::sync::{AtomicU64, Ordering};

/// Alignment of every buffer, in bytes: one page, so that a transfer uses as few pages as possible.
const ALIGNMENT_BYTES: usize = 4096;

/// Page-aligned bytes, zero at first. Dereferences to a slice.
///
/// The memory comes from the allocator and not from `mmap`. Small buffers are therefore cheap, and
/// Miri can check them.
///
/// ```
/// use embank_kv::device::AlignedBuffer;
/// let mut buffer = AlignedBuffer::zeroed(1024);
/// buffer[0] = 1;
/// assert_eq!(buffer.len(), 1024);
/// assert_eq!(buffer.as_ptr() as usize % 4096, 0);
/// ```
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    number: Option<u64>,
}

impl AlignedBuffer {
    /// Makes a buffer of `len` zero bytes. Aborts the process if there is no memory, as `Vec` does.
    ///
    /// # Panics
    /// If `len` rounded up to a page exceeds `isize::MAX`.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { start: NonNull::<Page>::dangling().cast(), len, number: None };
        }
        let layout = Self::layout(len);
        // SAFETY: `alloc_zeroed` requires a size above zero, which the check above ensures.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len, number: None }
    }

    /// Makes a buffer as [`zeroed`](Self::zeroed) does, for use by many streams of one device. The
    /// device may register the buffer with the kernel. The kernel then keeps the buffer's pages in
    /// memory until the device is closed, even after the buffer is dropped.
    ///
    /// ```
    /// use embank_kv::device::AlignedBuffer;
    /// assert_eq!(AlignedBuffer::for_streams(8192).len(), 8192);
    /// ```
    pub fn for_streams(len: usize) -> Self {
        let mut buffer = Self::zeroed(len);
        buffer.number = Some(Self::new_number());
        buffer
    }

    fn new_number() -> u64 {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        NUMBERS.fetch_add(1, Ordering::Relaxed)
    }

    /// The buffer's number, which is unique in the process: a later buffer at the same address has
    /// another number. `None` if the buffer must not be registered.
    pub(super) fn number(&self) -> Option<u64> {
        self.number
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGNMENT_BYTES)
            .expect("a buffer's length rounded up to a page fits isize")
    }
}

/// Alignment of the dangling pointer of an empty buffer.
#[repr(align(4096))]
struct Page;

const _: () = assert!(align_of::<Page>() == ALIGNMENT_BYTES);

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `start` came from `alloc_zeroed` with this layout, and only this call frees
            // it.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

// SAFETY: the buffer is the only owner of its bytes, like a `Box<[u8]>`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: a shared borrow only reads, as with a `Box<[u8]>`.
unsafe impl Sync for AlignedBuffer {}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` has `len` initialised bytes, or is dangling and aligned if `len` is 0.
        // The borrow of self prevents writes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` has `len` initialised bytes, or is dangling and aligned if `len` is 0.
        // The exclusive borrow of self makes this the only slice.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
impl AlignedBuffer {
    /// Returns the buffer's pages to the system. The buffer keeps its address, and its bytes are
    /// then zero.
    pub(super) fn replace_pages(&mut self) {
        assert_eq!(
            self.len % ALIGNMENT_BYTES,
            0,
            "whole pages, so that nobody else's bytes go along"
        );
        // SAFETY: the range belongs to this buffer, which is borrowed exclusively. It is anonymous
        // private memory, like all memory of the allocator. Zeros are valid bytes.
        let done =
            unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Gives the buffer a new number, so that a device treats it as another buffer.
    pub(super) fn renumber(&mut self) {
        self.number = Some(Self::new_number());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_of_the_length_asked_for() {
        for len in [0, 1, 511, 512, 4096, 4097, 1 << 20] {
            let mut buffer = AlignedBuffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT_BYTES, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(0xA5);
            assert!(buffer.iter().all(|&byte| byte == 0xA5));
        }
    }
}
