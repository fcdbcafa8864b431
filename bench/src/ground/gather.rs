//! The bare random-gather loop: the limit of this machine's memory without a store.
//!
//! Rows lie in one anonymous map that asks for huge pages. The loop takes row numbers at random and
//! prefetches each row before it is needed. It copies the row to the output of the batch, which
//! stays in the core's own cache. The loop has no hashing, index or locks. A short sweep finds the
//! fastest prefetch: its distance in rows, its cache level and its number of cache lines.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::ground::content;
use crate::ground::rounds::Contender;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// The pages that a map asks the kernel for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// 2 MiB pages, if the kernel has them.
    Huge,
    /// 4 KiB pages only.
    Small,
}

/// Memory whose every byte is a function of its offset, so that rows of any length and stride can
/// be gathered from it and checked.
#[derive(Debug)]
pub(crate) struct Ground {
    map: MmapMut,
}

impl Ground {
    /// Maps and fills at least `bytes` bytes; see [`content::word`].
    ///
    /// # Errors
    /// Fails if the memory can't be mapped.
    pub(crate) fn filled(bytes: usize, pages: Pages) -> Result<Self> {
        let mut map = map(bytes.next_multiple_of(LINE_BYTES), pages)?;
        let words: &mut [u64] = bytemuck::cast_slice_mut(&mut map);
        for (place, word) in words.iter_mut().enumerate() {
            *word = content::word(place);
        }
        Ok(Self { map })
    }

    /// The whole memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Checks that `row` holds the bytes at `offset`, which is a multiple of four.
    ///
    /// # Errors
    /// Fails if `row` holds other bytes.
    pub(crate) fn check(key: u64, offset: usize, row: &[f32]) -> Result<()> {
        for (column, found) in row.iter().enumerate() {
            let cell = offset / size_of::<f32>() + column;
            let word = content::word(cell / 2);
            let expected = if cell.is_multiple_of(2) { word as u32 } else { (word >> 32) as u32 };
            if found.to_bits() != expected {
                bail!("wrong answer: the bare loop's row of key {key} differs in column {column}");
            }
        }
        Ok(())
    }
}

/// An anonymous map of zeros, with the advice to use `pages`.
///
/// # Errors
/// Fails if the memory can't be mapped.
pub(crate) fn map(bytes: usize, pages: Pages) -> Result<MmapMut> {
    let map = MmapOptions::new()
        .len(bytes)
        .map_anon()
        .with_context(|| format!("mapping {bytes} bytes for a bare loop"))?;
    let advice = match pages {
        Pages::Huge => Advice::HugePage,
        Pages::Small => Advice::NoHugePage,
    };
    // The result is ignored, because a kernel without huge pages refuses the advice. The report
    // prints how much memory is in huge pages.
    let _ = map.advise(advice);
    Ok(map)
}

/// The cache levels that a prefetch fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// All levels.
    T0,
    /// The second level and beyond.
    T1,
    /// The level nearest to the core, without the levels between.
    NonTemporal,
}

impl Hint {
    /// All variants.
    pub(crate) const ALL: [Hint; 3] = [Hint::T0, Hint::T1, Hint::NonTemporal];
}

/// How the loop prefetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Rows between a prefetch and its use; 0 means no prefetch.
    pub(crate) distance: usize,
    /// How many of a row's cache lines the loop prefetches, from the first on. The processor's own
    /// prefetcher fetches the others.
    pub(crate) lines: usize,
    pub(crate) hint: Hint,
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.distance {
            0 => write!(f, "no prefetch"),
            _ => write!(f, "{} rows ahead, {} lines, {:?}", self.distance, self.lines, self.hint),
        }
    }
}

/// The prefetch distances that the sweep tries, in rows.
const DISTANCES: [usize; 8] = [0, 4, 8, 16, 32, 64, 96, 128];

/// The gather loop: row `k` lies at `k * row_bytes`.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    ground: &'a Ground,
    rows: u64,
    row_bytes: usize,
    ahead: Ahead,
}

impl<'a> Gather<'a> {
    /// The loop with the prefetch that is fastest on this machine.
    pub(crate) fn tuned(ground: &'a Ground, rows: u64, row_bytes: usize, batch: usize) -> Self {
        assert!(rows as usize * row_bytes <= ground.bytes().len(), "the ground holds the rows");
        let lines_all = row_bytes.div_ceil(LINE_BYTES);
        let mut best = Ahead { distance: 0, lines: lines_all, hint: Hint::T0 };
        let keys = content::KeyStream::new(1, 0, 1, rows).draw(batch * 32);
        let with = |ahead| Gather { ground, rows, row_bytes, ahead };
        let lines = [1, 2, 4, lines_all];
        let tried: Vec<usize> =
            lines.into_iter().filter(|&n| n < lines_all).chain([lines_all]).collect();
        let first = DISTANCES.iter().flat_map(|&distance| {
            tried.iter().map(move |&lines| Ahead { distance, lines, hint: Hint::T0 })
        });
        best = fastest(first.chain([best]), |ahead| with(ahead).time(&keys, batch));
        let hints = Hint::ALL.map(|hint| Ahead { hint, ..best });
        best = fastest(hints, |ahead| with(ahead).time(&keys, batch));
        with(best)
    }

    /// The loop's prefetch.
    pub(crate) fn ahead(&self) -> Ahead {
        self.ahead
    }

    fn time(&self, keys: &[u64], batch: usize) -> Duration {
        let mut out = vec![0; batch * self.row_bytes];
        let started = Instant::now();
        for keys in keys.chunks_exact(batch) {
            self.gather(keys, &mut out);
        }
        started.elapsed()
    }

    /// Copies the rows of `keys` to `out` (`keys.len() * row_bytes`).
    ///
    /// # Panics
    /// Panics if a key is not below the number of rows, or if the output has the wrong length.
    fn gather(&self, keys: &[u64], out: &mut [u8]) {
        assert_eq!(out.len(), keys.len() * self.row_bytes, "one output row a key");
        match self.ahead.hint {
            Hint::T0 => self.gather_sized::<{ hint::T0 }>(keys, out),
            Hint::T1 => self.gather_sized::<{ hint::T1 }>(keys, out),
            Hint::NonTemporal => self.gather_sized::<{ hint::NON_TEMPORAL }>(keys, out),
        }
    }

    /// Calls the loop with the row length as a constant if it is a common one. The compiler then
    /// copies a row with a few wide moves.
    fn gather_sized<const HINT: i32>(&self, keys: &[u64], out: &mut [u8]) {
        match self.row_bytes {
            8 => self.gather_loop::<8, HINT>(keys, out),
            64 => self.gather_loop::<64, HINT>(keys, out),
            256 => self.gather_loop::<256, HINT>(keys, out),
            512 => self.gather_loop::<512, HINT>(keys, out),
            _ => self.gather_loop::<0, HINT>(keys, out),
        }
    }

    fn gather_loop<const BYTES: usize, const HINT: i32>(&self, keys: &[u64], out: &mut [u8]) {
        let row_bytes = if BYTES == 0 { self.row_bytes } else { BYTES };
        let ground = self.ground.bytes();
        let row = |key: u64| &ground[key as usize * row_bytes..][..row_bytes];
        let Ahead { distance, lines, .. } = self.ahead;
        let first = distance.min(keys.len());
        for &key in &keys[..first] {
            prefetch::<HINT>(row(key), lines);
        }
        // The second loop copies the last `distance` rows, behind which no row is left to prefetch.
        // If `distance` is 0, it copies all rows.
        let last = if distance == 0 { 0 } else { keys.len() - first };
        let mut out = out.chunks_exact_mut(row_bytes);
        for ((&key, &ahead), to) in keys[..last].iter().zip(&keys[first..]).zip(&mut out) {
            prefetch::<HINT>(row(ahead), lines);
            to.copy_from_slice(row(key));
        }
        for (&key, to) in keys[last..].iter().zip(out) {
            to.copy_from_slice(row(key));
        }
    }
}

impl Contender for Gather<'_> {
    fn name(&self) -> &str {
        "gather"
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let out = bytemuck::cast_slice_mut(rows);
        let started = Instant::now();
        self.gather(keys, out);
        Ok(started.elapsed())
    }

    fn check(&self, key: u64, row: &[f32]) -> Result<()> {
        Ground::check(key, key as usize * self.row_bytes, row)
    }
}

/// Returns the candidate with the shortest time. Each candidate is timed three times, and its
/// shortest time counts. The candidates take turns, so a slow moment of the machine slows all of
/// them.
pub(crate) fn fastest<T: Copy>(
    candidates: impl IntoIterator<Item = T>,
    time: impl Fn(T) -> Duration,
) -> T {
    let candidates: Vec<T> = candidates.into_iter().collect();
    let mut best = vec![Duration::MAX; candidates.len()];
    for _ in 0..3 {
        for (candidate, best) in candidates.iter().zip(&mut best) {
            *best = (*best).min(time(*candidate));
        }
    }
    let place = (0..candidates.len()).min_by_key(|&i| best[i]).expect("candidates to try");
    candidates[place]
}

/// The processor's numbers for [`Hint`].
pub(crate) mod hint {
    #[cfg(target_arch = "x86_64")]
    mod numbers {
        use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1};
        pub(crate) const T0: i32 = _MM_HINT_T0;
        pub(crate) const T1: i32 = _MM_HINT_T1;
        pub(crate) const NON_TEMPORAL: i32 = _MM_HINT_NTA;
    }
    #[cfg(not(target_arch = "x86_64"))]
    mod numbers {
        pub(crate) const T0: i32 = 0;
        pub(crate) const T1: i32 = 1;
        pub(crate) const NON_TEMPORAL: i32 = 2;
    }
    pub(crate) use numbers::{NON_TEMPORAL, T0, T1};
}

/// Prefetches the first `lines` cache lines of `bytes`. If that is all of them and the bytes do not
/// begin at a cache line, it also prefetches the last line. Does nothing on processors without such
/// an instruction.
#[inline(always)]
pub(crate) fn prefetch<const HINT: i32>(bytes: &[u8], lines: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::_mm_prefetch;
        for line in bytes.chunks(LINE_BYTES).take(lines) {
            // SAFETY: a prefetch never faults, and the pointer points into a live slice.
            unsafe { _mm_prefetch::<HINT>(line.as_ptr().cast()) };
        }
        if lines * LINE_BYTES >= bytes.len()
            && let Some(last) = bytes.last()
        {
            // SAFETY: a prefetch never faults, and the pointer points to a live byte.
            unsafe { _mm_prefetch::<HINT>(std::ptr::from_ref(last).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, lines);
}

/// Returns the bytes of this process's anonymous memory in huge pages. `None` if the kernel does
/// not report them.
pub(crate) fn huge_page_bytes() -> Option<u64> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find(|line| line.starts_with("AnonHugePages:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::content::KeyStream;

    #[test]
    fn every_way_to_prefetch_gives_the_same_rows() {
        let ground = Ground::filled(1_000 * 512, Pages::Huge).unwrap();
        for row_bytes in [4, 8, 12, 64, 100, 256, 512] {
            for n in [0, 1, 7, 200] {
                let keys = KeyStream::new(1, 0, 1, 1_000).draw(n);
                for distance in DISTANCES {
                    for hint in Hint::ALL {
                        let ahead = Ahead { distance, lines: 2, hint };
                        let gather = Gather { ground: &ground, rows: 1_000, row_bytes, ahead };
                        let mut out = vec![0.0; n * row_bytes / 4];
                        gather.batch(&keys, &mut out).unwrap();
                        for (&key, row) in keys.iter().zip(out.chunks_exact(row_bytes / 4)) {
                            gather.check(key, row).unwrap();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_wrong_row_is_found() {
        let ground = Ground::filled(640, Pages::Small).unwrap();
        let gather = Gather::tuned(&ground, 10, 64, 1);
        let mut out = vec![0.0; 16];
        gather.batch(&[3], &mut out).unwrap();
        assert!(gather.check(3, &out).is_ok());
        assert!(gather.check(4, &out).is_err());
    }
}
