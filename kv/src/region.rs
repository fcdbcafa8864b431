//! Reserved address space that takes memory as it is touched.

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use crate::error::{Error, Result};

/// Regions at least this long are advised for huge pages; below, a 2 MiB page would be too coarse a
/// unit for the budget.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An anonymous map. Untouched parts take no memory; `release` gives touched parts back.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapRaw,
}

impl Region {
    /// Reserves `bytes` of zeroed memory.
    pub(crate) fn reserve(bytes: usize, huge_pages: bool) -> Result<Self> {
        let map = MmapOptions::new()
            .len(bytes)
            .no_reserve_swap()
            .map_anon()
            .map(MmapRaw::from)
            .map_err(|source| Error::io("reserve memory for", "the memory budget", source))?;
        // Advice only: a kernel without transparent huge pages refuses it and nothing is lost. The
        // opposite advice keeps a small budget from being rounded up where THP is "always".
        let _ = map.advise(if huge_pages { Advice::HugePage } else { Advice::NoHugePage });
        Ok(Region { map })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Gives the memory of a range back to the system; it reads as zeros afterwards.
    ///
    /// # Safety
    /// Nobody refers to the range, and none of its content is wanted any more.
    pub(crate) unsafe fn release(&self, offset: usize, bytes: usize) {
        // SAFETY: the caller has the range to itself; the range is inside an anonymous map. Failing
        // only means that the memory is given back later, with the map.
        let _ =
            unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, bytes) };
    }
}
