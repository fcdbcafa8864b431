//! Reserved address space that takes memory as it is touched.

#[cfg(miri)]
use heap::Map;
#[cfg(not(miri))]
use system::Map;

use crate::error::Result;

/// Regions at least this long are advised for huge pages; below, a 2 MiB page would be too coarse a
/// unit for the budget.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed memory. Untouched parts take none; `release` gives touched parts back.
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

    /// Gives the memory of a range back to the system: those of the system's pages that lie in it as a whole.
    ///
    /// # Safety
    /// Nobody refers to the range, and none of its content is wanted any more.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.len());
        // SAFETY: inside the map, and the caller has the range to itself.
        unsafe { self.map.release(offset, bytes) };
    }
}

#[cfg(not(miri))]
mod system {
    use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

    use crate::error::{Error, Result};

    /// Bytes of one of the system's pages.
    fn page_bytes() -> usize {
        // SAFETY: asks for a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).expect("systems have pages")
    }

    /// An anonymous map.
    #[derive(Debug)]
    pub(crate) struct Map(MmapRaw);

    impl Map {
        pub(crate) fn reserve(bytes: usize, huge_pages: bool) -> Result<Self> {
            let map = MmapOptions::new()
                .len(bytes)
                .no_reserve_swap()
                .map_anon()
                .map(MmapRaw::from)
                .map_err(|source| Error::AddressSpaceRefused { bytes: bytes as u64, source })?;
            // Advice only: a kernel without transparent huge pages refuses it and nothing is lost. The
            // opposite advice keeps a small budget from being rounded up where THP is "always".
            let _ = map.advise(if huge_pages { Advice::HugePage } else { Advice::NoHugePage });
            Ok(Map(map))
        }

        pub(crate) fn as_ptr(&self) -> *mut u8 {
            self.0.as_mut_ptr()
        }

        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }

        /// # Safety
        /// The range lies inside, and nobody refers to it.
        pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
            // The system would take all of a page of which the range has a part: of 64 KiB, on some machines.
            let page_bytes = page_bytes();
            let end = (offset + bytes) / page_bytes * page_bytes;
            let offset = offset.next_multiple_of(page_bytes);
            let Some(bytes) = end.checked_sub(offset).filter(|&bytes| bytes > 0) else { return };
            // SAFETY: by this function's contract. Failing only means that the memory is given back later, with
            // the map.
            let _ =
                unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, bytes) };
        }
    }
}

/// Miri knows no advice on maps.
#[cfg(miri)]
mod heap {
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

    use crate::error::Result;

    /// Aligned as pages are.
    #[derive(Debug)]
    pub(crate) struct Map {
        start: *mut u8,
        layout: Layout,
    }

    // SAFETY: plain memory; who shares what is in it is the callers' business, as with a map.
    unsafe impl Send for Map {}
    // SAFETY: as above.
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
        /// The range lies inside, and nobody refers to it.
        pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
            // SAFETY: by this function's contract.
            unsafe { self.start.add(offset).write_bytes(0, bytes) };
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: allocated in `reserve` with this layout.
            unsafe { dealloc(self.start, self.layout) };
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// The system was asked for all pages of which the range has a part, and zeroed the others' part as well.
    #[test]
    fn what_lies_beside_a_released_range_stays() {
        const PART: usize = 512;
        let region = Region::reserve(1 << 20, false).unwrap();
        // SAFETY: the region is that long, and nobody else has it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len()) };
        bytes.fill(7);
        for start in [0, PART, (256 << 10) + PART, region.len() - PART] {
            // SAFETY: nobody reads the range as it was.
            unsafe { region.release(start, PART) };
        }
        assert!(bytes.iter().all(|&byte| byte == 7), "parts of pages were released");
        // SAFETY: as above.
        unsafe { region.release(PART, 512 << 10) };
        assert!(bytes[PART + (64 << 10)..448 << 10].iter().all(|&byte| byte == 0));
        assert!(bytes[..PART].iter().chain(&bytes[PART + (512 << 10)..]).all(|&byte| byte == 7));
    }
}
