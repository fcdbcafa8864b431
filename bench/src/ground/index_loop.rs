//! The bare index + record loop: the limit of any store with a hash index on this machine.
//!
//! A plain gather touches one place in memory for each row. A store touches two: the bucket with
//! the record's address, and the record, which is a header and the row. On a virtual machine whose
//! host backs it with 4 KiB pages, each of the two places also costs a nested page walk, even
//! inside a huge page of the guest (see `roofline`). So no store can reach the rate of the gather.
//! This loop touches both places, without hashing, tags, locks or key checks. It therefore shows
//! which part of the difference between store and gather is due to the machine.
//!
//! The index has 16 bytes for each row: four slots in a 64-byte line. The line of a key is random.
//! A slot has the number of its key's record. That number is random too, so the second access
//! depends on the first, as in any index. A record is 32 bytes and the row, rounded up to 8 bytes.
//!
//! The loop tries two ways to overlap the misses. *Key by key*, it fetches the line of key `i + 2d`
//! and the record of key `i + d`, and copies key `i`. *In stages of a group*, it fetches all lines,
//! then all records, then copies all rows.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use memmap2::MmapMut;

use crate::ground::content::{KeyStream, scattered};
use crate::ground::gather::{Ground, Hint, LINE_BYTES, Pages, fastest, hint, map, prefetch};
use crate::ground::rounds::Contender;

/// Bytes of index for each row.
const SLOT_BYTES: usize = 16;
/// Bytes of a record before its row.
const HEADER_BYTES: usize = 32;
/// Largest number of rows of a group.
const GROUP_ROWS_MAX: usize = 256;

/// The way to overlap misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// Key by key, with this number of keys between one stage and the next.
    Distance(usize),
    /// Stage by stage over groups of this number of keys.
    Group(usize),
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Overlap::Distance(rows) => write!(f, "stages {rows} keys apart"),
            Overlap::Group(rows) => write!(f, "stages over groups of {rows}"),
        }
    }
}

/// Bytes of a record with a row of `row_bytes`.
pub(crate) fn record_bytes(row_bytes: usize) -> usize {
    HEADER_BYTES + row_bytes.next_multiple_of(8)
}

/// The memory of a bare index: 16 bytes for each row. It does not depend on the row length.
#[derive(Debug)]
pub(crate) struct BareIndex {
    map: MmapMut,
    rows: u64,
}

impl BareIndex {
    /// # Errors
    /// Fails if the kernel refuses the memory map.
    pub(crate) fn filled(rows: u64) -> Result<Self> {
        let bytes = (rows as usize * SLOT_BYTES).next_multiple_of(LINE_BYTES);
        let mut map = map(bytes, Pages::Huge)?;
        let words: &mut [u64] = bytemuck::cast_slice_mut(&mut map);
        for (key, slot) in (0..rows).zip(words.chunks_exact_mut(2)) {
            slot[0] = key;
            slot[1] = scattered(key, rows);
        }
        Ok(Self { map, rows })
    }
}

/// The loop over an index and records.
#[derive(Debug)]
pub(crate) struct IndexAndRecord<'a> {
    index: &'a BareIndex,
    records: &'a Ground,
    row_bytes: usize,
    overlap: Overlap,
    hint: Hint,
}

impl<'a> IndexAndRecord<'a> {
    /// The loop with the overlap that is fastest on this machine.
    pub(crate) fn tuned(
        index: &'a BareIndex,
        records: &'a Ground,
        row_bytes: usize,
        batch: usize,
    ) -> Self {
        let needed = index.rows as usize * record_bytes(row_bytes);
        assert!(needed <= records.bytes().len(), "the ground holds the records");
        let keys = KeyStream::new(2, 0, 1, index.rows).draw(batch * 32);
        let with = |overlap, hint| IndexAndRecord { index, records, row_bytes, overlap, hint };
        let distances = [4, 8, 16, 32, 64].map(Overlap::Distance);
        let groups = [16, 32, 64, 128, 256].map(Overlap::Group);
        let overlap = fastest(distances.into_iter().chain(groups), |overlap| {
            with(overlap, Hint::T0).time(&keys, batch)
        });
        let hint = fastest(Hint::ALL, |hint| with(overlap, hint).time(&keys, batch));
        with(overlap, hint)
    }

    /// The loop's overlap, for the report.
    pub(crate) fn how(&self) -> String {
        format!("{}, {:?}", self.overlap, self.hint)
    }

    fn time(&self, keys: &[u64], batch: usize) -> Duration {
        let mut out = vec![0; batch * self.row_bytes];
        let started = Instant::now();
        for keys in keys.chunks_exact(batch) {
            self.fetch(keys, &mut out);
        }
        started.elapsed()
    }

    fn fetch(&self, keys: &[u64], out: &mut [u8]) {
        assert_eq!(out.len(), keys.len() * self.row_bytes, "one output row a key");
        match self.hint {
            Hint::T0 => self.fetch_sized::<{ hint::T0 }>(keys, out),
            Hint::T1 => self.fetch_sized::<{ hint::T1 }>(keys, out),
            Hint::NonTemporal => self.fetch_sized::<{ hint::NON_TEMPORAL }>(keys, out),
        }
    }

    fn fetch_sized<const HINT: i32>(&self, keys: &[u64], out: &mut [u8]) {
        match self.row_bytes {
            8 => self.fetch_loop::<8, HINT>(keys, out),
            64 => self.fetch_loop::<64, HINT>(keys, out),
            256 => self.fetch_loop::<256, HINT>(keys, out),
            512 => self.fetch_loop::<512, HINT>(keys, out),
            _ => self.fetch_loop::<0, HINT>(keys, out),
        }
    }

    fn fetch_loop<const BYTES: usize, const HINT: i32>(&self, keys: &[u64], out: &mut [u8]) {
        match self.overlap {
            Overlap::Distance(distance) => {
                self.by_distance::<BYTES, HINT>(keys, distance, out);
            }
            Overlap::Group(rows) => {
                let row_bytes = if BYTES == 0 { self.row_bytes } else { BYTES };
                let rows = rows.min(GROUP_ROWS_MAX);
                for (keys, out) in keys.chunks(rows).zip(out.chunks_mut(rows * row_bytes)) {
                    self.group::<BYTES, HINT>(keys, out);
                }
            }
        }
    }

    /// Serves one group, stage by stage.
    fn group<const BYTES: usize, const HINT: i32>(&self, keys: &[u64], out: &mut [u8]) {
        let row_bytes = if BYTES == 0 { self.row_bytes } else { BYTES };
        let mut found = [0; GROUP_ROWS_MAX];
        for &key in keys {
            prefetch::<HINT>(self.slot(key), 1);
        }
        for (&key, found) in keys.iter().zip(&mut found) {
            *found = self.look_up(key);
            prefetch::<HINT>(self.record(*found, row_bytes), usize::MAX / LINE_BYTES);
        }
        for (&found, to) in found.iter().zip(out.chunks_exact_mut(row_bytes)) {
            self.copy(found, row_bytes, to);
        }
    }

    /// Serves key by key, with the three stages `distance` keys apart.
    fn by_distance<const BYTES: usize, const HINT: i32>(
        &self,
        keys: &[u64],
        distance: usize,
        out: &mut [u8],
    ) {
        let row_bytes = if BYTES == 0 { self.row_bytes } else { BYTES };
        // The numbers of records whose index line was read but whose row is not copied yet. The
        // length is a power of two, so a mask of the key's place in the batch gives the place here.
        let mut found = [0; GROUP_ROWS_MAX];
        let mut out = out.chunks_exact_mut(row_bytes);
        for i in 0..keys.len() + 2 * distance {
            if let Some(&key) = keys.get(i) {
                prefetch::<HINT>(self.slot(key), 1);
            }
            let probed = i.wrapping_sub(distance);
            if let Some(&key) = keys.get(probed) {
                let record = self.look_up(key);
                found[probed % GROUP_ROWS_MAX] = record;
                prefetch::<HINT>(self.record(record, row_bytes), usize::MAX / LINE_BYTES);
            }
            if i >= 2 * distance
                && let Some(to) = out.next()
            {
                self.copy(found[(i - 2 * distance) % GROUP_ROWS_MAX], row_bytes, to);
            }
        }
    }

    #[inline(always)]
    fn slot(&self, key: u64) -> &[u8] {
        &self.index.map[key as usize * SLOT_BYTES..][..SLOT_BYTES]
    }

    #[inline(always)]
    fn look_up(&self, key: u64) -> u64 {
        let slot: &[u64] = bytemuck::cast_slice(self.slot(key));
        slot[1]
    }

    #[inline(always)]
    fn record(&self, record: u64, row_bytes: usize) -> &[u8] {
        let bytes = record_bytes(row_bytes);
        &self.records.bytes()[record as usize * bytes..][..bytes]
    }

    /// Copies a row and reads its header, as a store does to compare the key.
    #[inline(always)]
    fn copy(&self, record: u64, row_bytes: usize, to: &mut [u8]) {
        let record = self.record(record, row_bytes);
        black_box(record[0]);
        to.copy_from_slice(&record[HEADER_BYTES..][..row_bytes]);
    }
}

impl Contender for IndexAndRecord<'_> {
    fn name(&self) -> &str {
        "index + record"
    }

    fn rows(&self) -> Option<u64> {
        Some(self.index.rows)
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let out = bytemuck::cast_slice_mut(rows);
        let started = Instant::now();
        self.fetch(keys, out);
        Ok(started.elapsed())
    }

    fn check(&self, key: u64, row: &[f32]) -> Result<()> {
        let record = scattered(key, self.index.rows) as usize * record_bytes(self.row_bytes);
        Ground::check(key, record + HEADER_BYTES, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_overlap_gives_the_same_rows() {
        let index = BareIndex::filled(1_000).unwrap();
        let records = Ground::filled(1_000 * record_bytes(512), Pages::Small).unwrap();
        let overlaps = [1, 4, 64].map(Overlap::Distance).into_iter();
        for overlap in overlaps.chain([1, 16, 256].map(Overlap::Group)) {
            for row_bytes in [8, 12, 64, 256, 512] {
                for n in [0, 1, 100, 600] {
                    let keys = KeyStream::new(1, 0, 1, 1_000).draw(n);
                    let hint = Hint::T0;
                    let contender = IndexAndRecord {
                        index: &index,
                        records: &records,
                        row_bytes,
                        overlap,
                        hint,
                    };
                    let mut out = vec![0.0; n * row_bytes / 4];
                    contender.batch(&keys, &mut out).unwrap();
                    for (&key, row) in keys.iter().zip(out.chunks_exact(row_bytes / 4)) {
                        contender.check(key, row).unwrap();
                    }
                }
            }
        }
    }
}
