//! The bare random-gather loop: what this machine's memory gives when there is no store at all.
//!
//! One anonymous map of `rows x dim` f32, advised for huge pages; row numbers at random; each row is
//! asked for a fixed number of rows ahead of its use with a software prefetch and then copied into the
//! output of its batch, which stays in the core's own cache. No hashing, no index, no locks: a store
//! that also looks a key up touches at least one more cache line a row, so this is the limit to come
//! near, not one to beat.

use std::time::Instant;

use anyhow::{Context, Result};
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::content;

/// The prefetch distances worth trying, in rows. Zero is no prefetch at all.
pub(crate) const DISTANCES: [usize; 7] = [0, 4, 8, 16, 32, 64, 128];

/// Whether the map asks the kernel for 2 MiB pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// 2 MiB pages where the kernel has them.
    Huge,
    /// 4 KiB pages only.
    Small,
}

/// A table without a store: row `k` lies at `k * dim`.
#[derive(Debug)]
pub(crate) struct RowTable {
    map: MmapMut,
    dim: usize,
}

impl RowTable {
    /// Maps and fills `rows` rows; see [`content`].
    ///
    /// # Errors
    /// The map can't be had.
    pub(crate) fn filled(rows: usize, dim: usize, pages: Pages) -> Result<Self> {
        let bytes = rows * dim * size_of::<f32>();
        let mut map = MmapOptions::new()
            .len(bytes)
            .map_anon()
            .with_context(|| format!("mapping {bytes} bytes for the gather loop"))?;
        let advice = match pages {
            Pages::Huge => Advice::HugePage,
            Pages::Small => Advice::NoHugePage,
        };
        // A kernel without huge pages refuses the advice; the report prints how many there are.
        let _ = map.advise(advice);
        let cells: &mut [f32] = bytemuck::cast_slice_mut(&mut map);
        for (key, row) in cells.chunks_exact_mut(dim).enumerate() {
            content::fill(&[key as u64], dim, row);
        }
        Ok(Self { map, dim })
    }

    /// Copies the rows of `keys` to `out` (`keys.len() * dim`), each prefetched `distance` rows ahead.
    ///
    /// # Panics
    /// A key that is not below the number of rows, or an output of the wrong length.
    pub(crate) fn gather(&self, keys: &[u64], distance: usize, out: &mut [f32]) {
        assert_eq!(out.len(), keys.len() * self.dim, "one output row a key");
        let cells: &[f32] = bytemuck::cast_slice(&self.map);
        match self.dim {
            4 => gather_fixed::<4>(cells, keys, distance, out),
            8 => gather_fixed::<8>(cells, keys, distance, out),
            16 => gather_fixed::<16>(cells, keys, distance, out),
            32 => gather_fixed::<32>(cells, keys, distance, out),
            64 => gather_fixed::<64>(cells, keys, distance, out),
            128 => gather_fixed::<128>(cells, keys, distance, out),
            dim => gather_any(cells, dim, keys, distance, out),
        }
    }

    /// The distance at which the loop is fastest here: the best of three passes over `keys` for each.
    ///
    /// # Panics
    /// Fewer keys than `batch`.
    pub(crate) fn best_distance(&self, keys: &[u64], batch: usize) -> usize {
        let mut out = vec![0.0; batch * self.dim];
        let mut fastest = |distance: usize| {
            (0..3)
                .map(|_| {
                    let started = Instant::now();
                    for keys in keys.chunks_exact(batch) {
                        self.gather(keys, distance, &mut out);
                    }
                    started.elapsed()
                })
                .min()
        };
        DISTANCES.into_iter().min_by_key(|&distance| fastest(distance)).expect("distances to try")
    }

    /// Checks one batch of answers in full.
    ///
    /// # Errors
    /// A row that is not its key's.
    #[cfg(test)]
    fn check(&self, keys: &[u64], out: &[f32]) -> Result<()> {
        for (&key, row) in keys.iter().zip(out.chunks_exact(self.dim)) {
            if content::sign(key, row)? {
                anyhow::bail!("wrong answer: the gather loop's row of key {key} is negated");
            }
        }
        Ok(())
    }
}

/// The loop for a row length known to the compiler, so that a row is copied with a few wide moves.
fn gather_fixed<const DIM: usize>(cells: &[f32], keys: &[u64], distance: usize, out: &mut [f32]) {
    let (rows, _) = cells.as_chunks::<DIM>();
    let (out, _) = out.as_chunks_mut::<DIM>();
    if distance == 0 {
        for (&key, to) in keys.iter().zip(out) {
            *to = rows[key as usize];
        }
        return;
    }
    for &key in &keys[..distance.min(keys.len())] {
        prefetch(&rows[key as usize]);
    }
    let ahead = keys.iter().skip(distance).map(Some).chain(std::iter::repeat(None));
    for ((&key, ahead), to) in keys.iter().zip(ahead).zip(out) {
        if let Some(&ahead) = ahead {
            prefetch(&rows[ahead as usize]);
        }
        *to = rows[key as usize];
    }
}

/// The same loop for any other row length.
fn gather_any(cells: &[f32], dim: usize, keys: &[u64], distance: usize, out: &mut [f32]) {
    let row = |key: u64| &cells[key as usize * dim..][..dim];
    for (i, (&key, to)) in keys.iter().zip(out.chunks_exact_mut(dim)).enumerate() {
        if distance > 0
            && let Some(&ahead) = keys.get(i + distance)
        {
            prefetch(row(ahead));
        }
        to.copy_from_slice(row(key));
    }
}

/// Asks for every cache line of a row. Does nothing where there is no such instruction.
#[inline(always)]
fn prefetch(row: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in row.chunks(64 / size_of::<f32>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program and never faults; the pointer is that of a
        // live slice all the same.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

/// How much of this process's anonymous memory lies in huge pages, in bytes; `None` where the kernel
/// does not say.
pub(crate) fn huge_page_bytes() -> Option<u64> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find(|line| line.starts_with("AnonHugePages:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::KeyStream;

    #[test]
    fn every_distance_and_row_length_gives_the_same_rows() {
        for dim in [1, 3, 4, 8, 16, 20, 32, 64, 128] {
            let table = RowTable::filled(1_000, dim, Pages::Huge).unwrap();
            for n in [0, 1, 7, 200] {
                let keys = KeyStream::new(1, 0, 1, 1_000).draw(n);
                for distance in DISTANCES {
                    let mut out = vec![0.0; n * dim];
                    table.gather(&keys, distance, &mut out);
                    table.check(&keys, &out).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_wrong_row_is_found() {
        let table = RowTable::filled(10, 16, Pages::Small).unwrap();
        let mut out = vec![0.0; 16];
        table.gather(&[3], 8, &mut out);
        assert!(table.check(&[4], &out).is_err());
    }
}
