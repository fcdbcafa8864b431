//! Reserved address space. Its pages take memory when they are first read or written.

#[cfg(miri)]
use heap::Map;
#[cfg(not(miri))]
use system::Map;

use crate::error::Result;

/// Length of a huge page in bytes. A memory budget below 128 MiB uses no huge pages, because 2 MiB
/// would be too coarse a unit.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed memory. Parts that were never read or written take no memory. `release` gives the memory
/// of other parts back to the system.
#[derive(Debug)]
pub(crate) struct Region {
    map: Map,
}

impl Region {
    /// Reserves `bytes` of zeroed memory.
    pub(crate) fn reserve(bytes: usize, huge_pages: bool) -> Result<Self> {
        Map::reserve(bytes, huge_pages).map(|map| Region { map })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Gives back to the system the memory of all system pages that lie completely in the range.
    ///
    /// # Safety
    /// No thread may refer to the range, and its content must not be needed any more.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.len());
        // SAFETY: the range is inside the map, and the caller promises that no thread refers to it.
        unsafe { self.map.release(offset, bytes) };
    }
}

#[cfg(not(miri))]
mod system {
    use std::io;
    use std::ptr;

    use crate::error::{Error, Result};

    /// Length of a page of the operating system, in bytes.
    fn page_bytes() -> usize {
        // SAFETY: `sysconf` takes no pointer and returns a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).expect("the system reports a page size")
    }

    /// An anonymous map.
    ///
    /// A program may have locked its future memory (`mlockall(MCL_FUTURE)`). A locked map takes all
    /// of its memory at once, and does not give any back. The map is longer than the memory budget,
    /// so it is unlocked before it is made accessible.
    #[derive(Debug)]
    pub(crate) struct Map {
        start: *mut libc::c_void,
        bytes: usize,
    }

    // SAFETY: the map is plain memory, and its users synchronise their accesses.
    unsafe impl Send for Map {}
    // SAFETY: the map is plain memory, and its users synchronise their accesses.
    unsafe impl Sync for Map {}

    impl Map {
        pub(crate) fn reserve(bytes: usize, huge_pages: bool) -> Result<Self> {
            let bytes = bytes.max(1);
            let refused = |source| Error::AddressSpaceRefused { bytes: bytes as u64, source };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: the call makes a new map at an address that the system chooses.
            let start =
                unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
            if start == libc::MAP_FAILED {
                return Err(refused(io::Error::last_os_error()));
            }
            let map = Map { start, bytes };
            // SAFETY: the range is the whole map. A failure has no consequence, unless the program
            // locks its memory: then the map takes more memory than the budget.
            unsafe { libc::munlock(start, bytes) };
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the range is the whole map, and no code refers to it yet.
            if unsafe { libc::mprotect(start, bytes, access) } != 0 {
                return Err(refused(io::Error::last_os_error()));
            }
            #[cfg(target_os = "linux")]
            {
                let advice = if huge_pages { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
                // The result is ignored. A kernel without transparent huge pages refuses the
                // advice, and the map works without huge pages. Small budgets advise against huge
                // pages, because some kernels use them by default, and the map would then take more
                // memory than the budget.
                // SAFETY: the range is the whole map, and the advice changes no content.
                unsafe { libc::madvise(start, bytes, advice) };
            }
            #[cfg(not(target_os = "linux"))]
            let _ = huge_pages;
            Ok(map)
        }

        pub(crate) fn as_ptr(&self) -> *mut u8 {
            self.start.cast()
        }

        pub(crate) fn len(&self) -> usize {
            self.bytes
        }

        /// # Safety
        /// The range must lie inside the map, and no thread may refer to it.
        pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
            // Only whole system pages are released. If a page is only partly in the range, the
            // system would release all of it, with bytes that are still needed. A system page has
            // up to 64 KiB on some machines.
            let page_bytes = page_bytes();
            let end = (offset + bytes) / page_bytes * page_bytes;
            let offset = offset.next_multiple_of(page_bytes);
            let Some(bytes) = end.checked_sub(offset).filter(|&bytes| bytes > 0) else { return };
            // SAFETY: the range is in the map, by the contract of this function.
            let start = unsafe { self.start.byte_add(offset) };
            // SAFETY: no thread refers to the range, by the contract of this function.
            let release = || unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED) };
            if release() != 0 {
                // The system does not release locked pages. The program has locked all its memory
                // since the map was made (`mlockall(MCL_CURRENT)`). If the second attempt fails
                // too, the memory goes back with the map. SAFETY: the range is in the map, by the
                // contract of this function.
                unsafe { libc::munlock(start, bytes) };
                release();
            }
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: `reserve` made the map with this length, and no code refers to it any more. A
            // failure leaks the map.
            unsafe { libc::munmap(self.start, self.bytes) };
        }
    }
}

/// Replaces the map under Miri, which does not support advice on maps.
#[cfg(miri)]
mod heap {
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

    use crate::error::Result;

    /// Memory from the allocator, aligned to a page of 4096 bytes.
    #[derive(Debug)]
    pub(crate) struct Map {
        start: *mut u8,
        layout: Layout,
    }

    // SAFETY: the map is plain memory, and its users synchronise their accesses.
    unsafe impl Send for Map {}
    // SAFETY: the map is plain memory, and its users synchronise their accesses.
    unsafe impl Sync for Map {}

    impl Map {
        pub(crate) fn reserve(bytes: usize, _: bool) -> Result<Self> {
            let layout = Layout::from_size_align(bytes.max(1), 4096).expect("a length in bounds");
            // SAFETY: the layout is not empty.
            let start = unsafe { alloc_zeroed(layout) };
            if start.is_null() {
                handle_alloc_error(layout);
            }
            Ok(Map { start, layout })
        }

        pub(crate) fn as_ptr(&self) -> *mut u8 {
            self.start
        }

        pub(crate) fn len(&self) -> usize {
            self.layout.size()
        }

        /// # Safety
        /// The range must lie inside the map, and no thread may refer to it.
        pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
            // SAFETY: the contract of this function says that the range lies inside the allocation,
            // and that no thread refers to it.
            unsafe { self.start.add(offset).write_bytes(0, bytes) };
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: `reserve` allocated the memory with this layout.
            unsafe { dealloc(self.start, self.layout) };
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Regression test: `release` zeroed system pages that were only partly in the range. It must
    /// leave the bytes beside the range unchanged.
    #[test]
    fn what_lies_beside_a_released_range_stays() {
        const PART: usize = 512;
        let region = Region::reserve(1 << 20, false).unwrap();
        // SAFETY: the region has this length, and this test is its only user.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len()) };
        bytes.fill(7);
        for start in [0, PART, (256 << 10) + PART, region.len() - PART] {
            // SAFETY: no thread refers to the range, and its old content is not needed.
            unsafe { region.release(start, PART) };
        }
        assert!(bytes.iter().all(|&byte| byte == 7), "parts of pages were released");
        // SAFETY: no thread refers to the range, and its old content is not needed.
        unsafe { region.release(PART, 512 << 10) };
        assert!(bytes[PART + (64 << 10)..448 << 10].iter().all(|&byte| byte == 0));
        assert!(bytes[..PART].iter().chain(&bytes[PART + (512 << 10)..]).all(|&byte| byte == 7));
    }

    /// The system does not release locked pages, so a program that locks its memory got no memory
    /// back.
    #[test]
    fn locked_memory_is_released_too() {
        let region = Region::reserve(256 << 10, false).unwrap();
        // SAFETY: the region has this length, and this test is its only user.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len()) };
        bytes.fill(7);
        // SAFETY: the range is the whole region. Locking changes no content.
        if unsafe { libc::mlock(region.as_ptr().cast(), region.len()) } != 0 {
            eprintln!("skipped: mlock is refused: {}", std::io::Error::last_os_error());
            return;
        }
        // SAFETY: no thread refers to the range, and its old content is not needed.
        unsafe { region.release(0, 128 << 10) };
        assert!(bytes[..128 << 10].iter().all(|&byte| byte == 0));
        assert!(bytes[128 << 10..].iter().all(|&byte| byte == 7));
    }
}
