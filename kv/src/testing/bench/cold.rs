//! Parts of the cold tier in memory: written, looked up and merged by the store's own code.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cold::block::block_bits_for;
use crate::cold::filter::{FilterWindow, MixedHash};
use crate::cold::head::{Kind, PartHead, PartSite};
use crate::cold::keep::KeepAll;
use crate::cold::merge::{Merge, NewPart, Target};
use crate::cold::part::{BlockPlace, Found, Part};
use crate::cold::row::{ColdRow, RowFlags};
use crate::cold::writer::PartWriter;
use crate::device::{Device, Freed, PartFile, Read};
use crate::error::Result;
use crate::record::address::TableNumber;
use crate::record::hash::{KeyHash, unhash};
use crate::sync::{Mutex, RwLock};

const TABLE: TableNumber = TableNumber(1);
/// No part of a measurement is longer.
const SPAN_BYTES: u64 = 64 << 30;
/// Bytes of a row before its value.
const ROW_HEADER_BYTES: usize = 16;
/// Keys that are looked up together.
const KEYS_AT_ONCE: usize = 32;
/// Bytes of rows that a merge takes at once.
const UNIT_BYTES: u64 = 1 << 20;

/// Returns the hash by which the rows of a part are ordered.
#[inline]
#[must_use]
pub fn hash_of(key: u64) -> u64 {
    KeyHash::new(0).of(TABLE, key)
}

/// Returns the key that has a hash.
#[must_use]
pub fn key_of(hash: u64) -> u64 {
    unhash(TABLE, hash)
}

/// A device in memory. It keeps the bytes of parts, or discards them.
#[derive(Debug)]
pub struct Shelf {
    parts: RwLock<BTreeMap<u64, Vec<u8>>>,
    /// The memory of parts that were removed. New parts get it, so that a measurement does not
    /// measure the kernel's page faults.
    spare: Mutex<Vec<Vec<u8>>>,
    keeps: bool,
    next: AtomicU64,
}

impl Shelf {
    /// Makes an empty device. If `keeps` is false, parts can be asked but not read.
    #[must_use]
    pub fn new(keeps: bool) -> Self {
        Shelf { parts: RwLock::default(), spare: Mutex::default(), keeps, next: AtomicU64::new(0) }
    }

    fn site(&self) -> PartSite<'_> {
        PartSite { device: self, segment_size_bytes: SPAN_BYTES, key_hash: KeyHash::new(0) }
    }

    /// Writes a part with filters of `columns` columns. Of each row, `rows` has its hash and its
    /// value of `value_bytes` bytes. Hashes ascend.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write<'r>(
        &self,
        columns: u32,
        value_bytes: usize,
        rows: impl Iterator<Item = (u64, u64, &'r [u8])>,
    ) -> Result<ColdPart> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let head = PartHead {
            bank: 1,
            salt: number,
            number,
            kind: Kind::Run,
            level: 0,
            block_bits: block_bits_for(ROW_HEADER_BYTES + value_bytes),
            runs: number + 1..=number + 1,
            hashes: 0..=u64::MAX,
            log: 0..0,
        };
        let mut writer = PartWriter::new(self.site(), head, columns);
        for (hash, key, value) in rows {
            let (table, flags) = (TABLE, RowFlags::default());
            writer.push(&ColdRow { table, key, hash, flags, unused_bytes: 0, uses: 0, value })?;
        }
        Ok(ColdPart(Arc::new(writer.finish()?)))
    }

    /// Returns a copy of the bytes of a part.
    #[must_use]
    pub fn bytes(&self, part: &ColdPart) -> Vec<u8> {
        self.parts.read().get(&part.0.head().number).cloned().unwrap_or_default()
    }

    /// Consolidates runs, the newest first.
    ///
    /// # Errors
    /// The errors of the merge.
    pub fn consolidate(&self, runs: &[ColdPart], columns: u32) -> Result<Vec<ColdPart>> {
        let (part_bytes, block_bits_max) = (SPAN_BYTES / 2, 14);
        let (cursors_bytes, writer_bytes) = (runs.len() << 20, 1 << 20);
        let memory = &KeepAll;
        let target = Target {
            bank: 1,
            memory,
            cursors_bytes,
            writer_bytes,
            columns,
            part_bytes,
            block_bits_max,
        };
        let runs = runs.iter().map(|run| vec![Arc::clone(&run.0)]).collect();
        let new_part = || {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            NewPart { number, salt: number }
        };
        let mut merge = Merge::consolidate(self.site(), runs, &[], target, |_| false, new_part)?;
        // The loop ends: each round takes rows of the runs.
        while merge.advance(UNIT_BYTES)? {}
        Ok(merge.finish()?.parts.into_iter().map(ColdPart).collect())
    }

    /// Reads a part in order and calls `visit` with each row's key and value.
    ///
    /// # Errors
    /// The errors of the cursor.
    pub fn read(&self, part: &ColdPart, mut visit: impl FnMut(u64, &[u8])) -> Result<()> {
        let mut cursor = part.0.cursor(self);
        while let Some(row) = cursor.next()? {
            visit(row.key, row.value);
        }
        Ok(())
    }

    /// Forgets the bytes of a part.
    pub fn remove(&self, part: &ColdPart) {
        if let Some(mut bytes) = self.parts.write().remove(&part.0.head().number) {
            bytes.clear();
            self.spare.lock().push(bytes);
        }
    }
}

/// A part of a [`Shelf`].
#[derive(Debug, Clone)]
pub struct ColdPart(Arc<Part>);

impl ColdPart {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// Bytes of the part's file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.0.file_bytes()
    }

    /// Bytes of fences and filters in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// False if the filters deny a hash.
    #[must_use]
    pub fn may_have(&self, hash: u64) -> bool {
        self.0.may_have(hash)
    }

    /// Returns the address of the block that may have a hash, 0 if there is none.
    #[inline]
    #[must_use]
    pub fn block_of(&self, hash: u64) -> u64 {
        self.0.block_of(hash).map_or(0, |place| place.address)
    }

    /// Finds a row in the bytes of the part. Adds to `blocks` how many blocks it looks at.
    ///
    /// # Errors
    /// `Damaged` if a block is damaged.
    #[inline]
    pub fn find<'b>(
        &self,
        bytes: &'b [u8],
        key: u64,
        blocks: &mut u64,
    ) -> Result<Option<&'b [u8]>> {
        let hash = hash_of(key);
        let start = self.0.address();
        let mut next = self.0.block_of(hash);
        // The loop ends at the part's first block.
        while let Some(at) = next {
            *blocks += 1;
            let BlockPlace { address, bytes: length, .. } = at;
            let offset = (address - start) as usize;
            let block = &bytes[offset..offset + length as usize];
            let locate = || (PathBuf::from("<memory>"), address);
            match self.0.find(at, block, hash, TABLE, key, locate)? {
                Found::Row(row) => return Ok(Some(row.value)),
                Found::Missing => return Ok(None),
                Found::Before(before) => next = Some(before),
            }
        }
        Ok(None)
    }
}

/// Asks the filters of all parts for each hash. Bit `i` of a candidate says that part `i` may have
/// the hash. While the processor fetches the memory of one part's filters for a group of keys, the
/// keys ask the filters of the part before.
pub fn probe(parts: &[ColdPart], hashes: &[u64], candidates: &mut [u32]) {
    let batches = hashes.chunks(KEYS_AT_ONCE).zip(candidates.chunks_mut(KEYS_AT_ONCE));
    for (hashes, candidates) in batches {
        let mut mixed = [MixedHash::default(); KEYS_AT_ONCE];
        for (mixed, &hash) in mixed.iter_mut().zip(hashes) {
            *mixed = MixedHash::of(hash);
        }
        candidates.fill(0);
        let mut windows = [[FilterWindow::default(); KEYS_AT_ONCE]; 2];
        let ask = |number: usize, windows: &[FilterWindow], candidates: &mut [u32]| {
            for ((&mixed, &window), candidates) in mixed.iter().zip(windows).zip(candidates) {
                *candidates |= u32::from(parts[number].0.may_have_at(window, mixed)) << number;
            }
        };
        for (number, part) in parts.iter().enumerate() {
            for ((window, &hash), &mixed) in windows[number % 2].iter_mut().zip(hashes).zip(&mixed)
            {
                *window = part.0.prefetch(hash, mixed);
            }
            if let Some(before) = number.checked_sub(1) {
                ask(before, &windows[before % 2], candidates);
            }
        }
        if let Some(last) = parts.len().checked_sub(1) {
            ask(last, &windows[last % 2], candidates);
        }
    }
}

impl Device for Shelf {
    fn name(&self) -> &'static str {
        "shelf"
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        let parts = self.parts.read();
        for read in reads {
            let (number, offset) = place_of(read.offset);
            let bytes = parts.get(&number).map_or(&[][..], Vec::as_slice);
            read.buffer.copy_from_slice(&bytes[offset..offset + read.buffer.len()]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        black_box(bytes);
        if self.keeps {
            let (number, offset) = place_of(offset);
            let mut parts = self.parts.write();
            let spare = || self.spare.lock().pop().unwrap_or_default();
            let part = parts.entry(number).or_insert_with(spare);
            if part.len() < offset {
                part.resize(offset, 0);
            }
            let (within, beyond) = bytes.split_at(bytes.len().min(part.len() - offset));
            part[offset..offset + within.len()].copy_from_slice(within);
            part.extend_from_slice(beyond);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn truncate(&self, _end: u64) -> Result<()> {
        Ok(())
    }

    fn free(&self, below: u64) -> Result<Freed> {
        Ok(Freed { end: below, segments: 0 })
    }

    fn part_files(&self) -> Result<Vec<PartFile>> {
        Ok(Vec::new())
    }

    fn remove_part(&self, _begin: u64) -> Result<()> {
        Ok(())
    }

    fn locate(&self, offset: u64) -> (PathBuf, u64) {
        (PathBuf::from("<memory>"), offset)
    }
}

/// Returns the part that has an offset, and the offset in it.
fn place_of(offset: u64) -> (u64, usize) {
    let within = offset - crate::cold::head::COLD_BEGIN;
    (within / SPAN_BYTES, (within % SPAN_BYTES) as usize)
}
