//! The index as a checkpoint holds it.
//!
//! ```text
//! level (4) | zero (4) | split pointer (8) | overflow buckets (8)
//! for each primary bucket in order: entries in its chain (4) | those entries (8 each)
//! ```
//!
//! in a checked stream (see `checked_stream`). A bucket's depth follows from its number; overflow
//! buckets are laid out anew on loading.

use std::fs::File;
use std::path::Path;

use super::bucket::{Bucket, SLOTS};
use super::entry::Entry;
use super::{BUCKET_BYTES, INITIAL_LEVEL, Index, MAX_CHAIN};
use crate::budget::Budget;
use crate::checked_stream::{CheckedReader, CheckedWriter, StreamIdentity};
use crate::checkpoint::CheckpointIdentity;
use crate::error::Result;
use crate::sync::Ordering;

pub(crate) fn identity(of: CheckpointIdentity) -> StreamIdentity {
    let CheckpointIdentity { bank, checkpoint } = of;
    StreamIdentity { magic: *b"EMBKINDX", version: 2, bank, checkpoint }
}

impl Index {
    /// Writes the image while nobody changes the index, less what leads below `log_begin`. Returns the
    /// file, not yet synced, and its length in bytes.
    pub(crate) fn write_image(
        &self,
        path: &Path,
        of: CheckpointIdentity,
        log_begin: u64,
    ) -> Result<(File, u64)> {
        let (level, split) = self.state();
        let mut out = CheckedWriter::create(path, identity(of))?;
        out.write(&level.to_le_bytes())?;
        out.write(&[0; 4])?;
        out.write(&split.to_le_bytes())?;
        out.write(&self.overflow_count().to_le_bytes())?;
        let mut bytes = Vec::new();
        for i in 0..self.bucket_count() {
            let bucket = self.bucket(i);
            let meta = super::Meta(bucket.meta().load(Ordering::Acquire));
            debug_assert!(!meta.is_locked());
            bytes.clear();
            bytes.extend_from_slice(&[0; 4]);
            for slot in self.chain(bucket, meta).flat_map(Bucket::slots) {
                let entry = slot.load(Ordering::Acquire);
                if entry != 0 && Entry(entry).address().raw() >= log_begin {
                    bytes.extend_from_slice(&entry.to_le_bytes());
                }
            }
            let count = (bytes.len() / 8) as u32;
            bytes[..4].copy_from_slice(&count.to_le_bytes());
            out.write(&bytes)?;
        }
        out.finish()
    }

    /// Loads an image. All addresses lie below `log_end`.
    ///
    /// # Errors
    /// Damage, a file cut short, or a budget that can't hold the index.
    pub(crate) fn read_image(
        path: &Path,
        of: CheckpointIdentity,
        budget: &Budget,
        log_end: u64,
    ) -> Result<Self> {
        let index = Self::unallocated(budget)?;
        let mut image = ImageReader::new(CheckedReader::open(path, identity(of))?)?;
        let (level, split, count) = (image.level, image.split, image.count);
        let bytes = count.saturating_add(image.overflow).saturating_mul(BUCKET_BYTES as u64);
        let too_small = || budget.too_small_for_index(bytes);
        if !index.reserve_buckets(budget, &mut index.growth.lock(), count) {
            return Err(too_small());
        }
        let mut chain = Vec::new();
        while let Some((bucket, depth)) = image.next_bucket(&mut chain, log_end)? {
            if !index.load_bucket(budget, bucket, depth, &chain) {
                return Err(too_small());
            }
        }
        image.finish()?;
        index.set_state(level, split);
        Ok(index)
    }
}

/// Reads an image bucket by bucket.
pub(crate) struct ImageReader {
    input: CheckedReader,
    level: u32,
    split: u64,
    /// Overflow buckets in use when it was written.
    overflow: u64,
    /// Primary buckets, and how many have been read.
    count: u64,
    read: u64,
    bytes: Vec<u8>,
}

impl ImageReader {
    pub(crate) fn new(mut input: CheckedReader) -> Result<Self> {
        let mut head = [0; 24];
        input.read(&mut head)?;
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[i..i + 8]);
            u64::from_le_bytes(word)
        };
        let (level, split, overflow) = (word(0), word(8), word(16));
        if !(u64::from(INITIAL_LEVEL)..48).contains(&level) || split >= 1 << level {
            return Err(input.damaged(16, format!("level {level} and split {split} do not fit")));
        }
        let (level, count) = (level as u32, (1 << level) + split);
        Ok(ImageReader { input, level, split, overflow, count, read: 0, bytes: Vec::new() })
    }

    /// The entries of the next bucket's chain, its number and its depth; none after the last.
    pub(crate) fn next_bucket(
        &mut self,
        entries: &mut Vec<Entry>,
        log_end: u64,
    ) -> Result<Option<(u64, u32)>> {
        let i = self.read;
        if i == self.count {
            return Ok(None);
        }
        self.read += 1;
        let mut length = [0; 4];
        self.input.read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_CHAIN * SLOTS {
            return Err(self.input.damaged(0, format!("bucket {i} claims {length} entries")));
        }
        self.bytes.resize(length * 8, 0);
        self.input.read(&mut self.bytes)?;
        entries.clear();
        for word in self.bytes.as_chunks::<8>().0 {
            let entry = Entry(u64::from_le_bytes(*word));
            if !entry.is_sound() || entry.address().raw() >= log_end {
                return Err(self.input.damaged(0, format!("bucket {i} points beyond the log")));
            }
            entries.push(entry);
        }
        let deeper = i < self.split || i >= 1 << self.level;
        Ok(Some((i, self.level + u32::from(deeper))))
    }

    /// Checks that nothing follows the last bucket.
    pub(crate) fn finish(self) -> Result<()> {
        self.input.finish()
    }
}
