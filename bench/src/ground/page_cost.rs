//! The cost of a second cache line, by its place: in the first line's 4 KiB page, in another page
//! of its 2 MiB page, or in another 2 MiB page.
//!
//! On bare metal with huge pages, the first two places cost equally much, because one TLB entry
//! covers 2 MiB. On a virtual machine whose host backs it with 4 KiB pages, a TLB entry covers only
//! the 4 KiB that both mappings share. A line in another 4 KiB page then costs a nested page walk,
//! so the second place costs as much as the third. A store touches a bucket and a record. On such a
//! machine it cannot come near a loop that touches one place for each row; see
//! [`crate::ground::index_loop`].

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::ground::gather::{Ground, LINE_BYTES, hint, prefetch};
use crate::ground::rounds::Contender;

/// Rows between a prefetch and its use.
const DISTANCE: usize = 32;
/// The number of lines is rounded down to a multiple of this. Flipping a bit of a line's number, as
/// [`Second`] does, then gives another line of the loop's memory.
const UNIT_LINES: usize = 1 << 17;

/// The place of a row's second line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Second {
    Nowhere,
    SameSmallPage,
    SameHugePage,
    OtherHugePage,
}

impl Second {
    /// All variants.
    pub(crate) const ALL: [Second; 4] =
        [Second::Nowhere, Second::SameSmallPage, Second::SameHugePage, Second::OtherHugePage];

    /// Returns the bit to flip in the first line's number to get the second line's number. The
    /// lowest bit is never flipped, because the processor fetches lines in pairs.
    fn flip(self) -> usize {
        match self {
            Second::Nowhere => 0,
            Second::SameSmallPage => 1 << 5,
            Second::SameHugePage => 1 << 12,
            Second::OtherHugePage => 1 << 16,
        }
    }
}

/// A loop that reads random cache lines and, for each, a second line at the place that `second`
/// gives.
#[derive(Debug)]
pub(crate) struct PageCost<'a> {
    ground: &'a Ground,
    lines: usize,
    second: Second,
}

impl<'a> PageCost<'a> {
    /// The loop over `bytes` of the ground, rounded down to 8 MiB. `None` if that is 0.
    pub(crate) fn new(ground: &'a Ground, bytes: usize, second: Second) -> Option<Self> {
        let lines = bytes.min(ground.bytes().len()) / LINE_BYTES / UNIT_LINES * UNIT_LINES;
        (lines > 0).then_some(Self { ground, lines, second })
    }

    fn line(&self, number: usize) -> &[u8] {
        &self.ground.bytes()[number * LINE_BYTES..][..LINE_BYTES]
    }
}

impl Contender for PageCost<'_> {
    fn name(&self) -> &str {
        match self.second {
            Second::Nowhere => "one line",
            Second::SameSmallPage => "and one in the same 4 KiB page",
            Second::SameHugePage => "and one in another 4 KiB page of the same 2 MiB page",
            Second::OtherHugePage => "and one in another 2 MiB page",
        }
    }

    fn rows(&self) -> Option<u64> {
        Some(self.lines as u64)
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let out: &mut [u8] = bytemuck::cast_slice_mut(rows);
        let flip = self.second.flip();
        let started = Instant::now();
        for (i, (&key, to)) in keys.iter().zip(out.chunks_exact_mut(LINE_BYTES)).enumerate() {
            if let Some(&ahead) = keys.get(i + DISTANCE) {
                prefetch::<{ hint::T0 }>(self.line(ahead as usize), 1);
                if flip != 0 {
                    prefetch::<{ hint::T0 }>(self.line(ahead as usize ^ flip), 1);
                }
            }
            to.copy_from_slice(self.line(key as usize));
            if flip != 0 {
                black_box(self.line(key as usize ^ flip)[0]);
            }
        }
        Ok(started.elapsed())
    }

    fn check(&self, key: u64, row: &[f32]) -> Result<()> {
        Ground::check(key, key as usize * LINE_BYTES, row)
    }
}
