//! A checkpoint's form of the index: a whole image, and images of later changes.
//!
//! ```text
//! level (4) | zero (4) | split pointer (8) | overflow buckets (8) | checkpoint of the image before (8), 0 for none
//! for each bucket, in any order: number << 20 | entries in its chain (8) | those entries (8 each)
//! all ones (8)
//! ```
//!
//! An image is a checked stream, which has checksums (see `checked_stream`). A *whole* image has
//! every bucket of the index. An *image of changes* has the buckets that changed since the image
//! before it. A checkpoint names a whole image and the images of changes that follow it. A bucket's
//! content is in the newest image that has the bucket. A bucket's depth follows from its number and
//! from the newest image's level and split pointer. This holds for every bucket, because a bucket
//! that was split later is in a later image. Loading assigns new overflow buckets.

use std::fs::File;

use super::bucket::SLOTS;
use super::entry::Entry;
use super::{BUCKET_BYTES, Index, MAX_CHAIN};
use crate::checkpoint::identity::CheckpointIdentity;
use crate::error::{Error, Result};
use crate::files::checked_stream::{CheckedReader, CheckedWriter, StreamKind};
use crate::files::directory::Place;
use crate::files::held_file::HeldFile;
use crate::limits::Limits;
use crate::memory::budget::Budget;
use crate::process::descriptors;

const COUNT_BITS: u32 = 20;
const END: u64 = u64::MAX;
/// Number of buckets that are read from an image of changes before they are put into the index in
/// memory. They lie far apart there, so their cache lines are prefetched together.
const LOADED_AT_ONCE: usize = 32;

/// The kind of an image's stream.
pub(crate) const KIND: StreamKind =
    StreamKind { name: "index", magic: *b"EMBKINDX", oldest: 3, newest: 4 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageKind {
    /// The image has every bucket.
    Whole,
    /// The image has the buckets that changed since the image of this checkpoint.
    Since(u64),
}

/// The head of an image, which describes the index as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageHead {
    pub(super) kind: ImageKind,
    pub(super) level: u32,
    pub(super) split: u64,
    /// Number of overflow buckets in use, which determines how much memory loading takes.
    pub(super) overflow: u64,
}

impl ImageHead {
    /// Returns the number of primary buckets of the index.
    pub(super) fn bucket_count(&self) -> u64 {
        (1 << self.level) + self.split
    }

    /// Returns the number of buckets that the image must have. `None` for an image of changes.
    fn due(&self) -> Option<u64> {
        (self.kind == ImageKind::Whole).then(|| self.bucket_count())
    }

    fn depth(&self, bucket: u64) -> u32 {
        self.level + u32::from(bucket < self.split || bucket >= 1 << self.level)
    }

    fn read(input: &mut CheckedReader, limits: Limits) -> Result<Self> {
        let mut head = [0; 32];
        input.read(&mut head)?;
        let half = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let word = |i: usize| u64::from(half(i)) | u64::from(half(i + 4)) << 32;
        let level = half(0);
        let split = word(8);
        let overflow = word(16);
        let kind = match word(24) {
            0 => ImageKind::Whole,
            before => ImageKind::Since(before),
        };
        if !(limits.initial_level..44).contains(&level) || split >= 1 << level {
            return Err(input.damaged(0, format!("level {level} and split {split} do not fit")));
        }
        Ok(ImageHead { kind, level, split, overflow })
    }
}

/// Writes one image to a file.
pub(super) struct ImageWriter(CheckedWriter);

impl ImageWriter {
    pub(super) fn create(path: &Place, of: CheckpointIdentity, head: ImageHead) -> Result<Self> {
        let mut out = CheckedWriter::create(path, of.stream(KIND))?;
        let before = match head.kind {
            ImageKind::Whole => 0,
            ImageKind::Since(before) => before,
        };
        out.write(&u64::from(head.level).to_le_bytes())?;
        for word in [head.split, head.overflow, before] {
            out.write(&word.to_le_bytes())?;
        }
        Ok(ImageWriter(out))
    }

    /// Appends a bucket in the image's encoding to `into`.
    pub(super) fn encode(number: u64, entries: impl Iterator<Item = Entry>, into: &mut Vec<u8>) {
        let head = into.len();
        into.extend_from_slice(&[0; 8]);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            into.extend_from_slice(&entry.0.to_le_bytes());
        }
        let count = ((into.len() - head) / 8 - 1) as u64;
        into[head..head + 8].copy_from_slice(&(number << COUNT_BITS | count).to_le_bytes());
    }

    /// Writes encoded buckets.
    pub(super) fn write(&mut self, encoded: &[u8]) -> Result<()> {
        self.0.write(encoded)
    }

    /// Ends the image. Returns the file, not yet synced, and its length in bytes.
    pub(super) fn finish(mut self) -> Result<(HeldFile, u64)> {
        self.0.write(&END.to_le_bytes())?;
        self.0.finish()
    }
}

/// The images of a checkpoint's index.
#[derive(Debug)]
pub(crate) struct Images {
    /// The files, newest first. The last one is a whole image. A file is `None` if it is opened
    /// each time that it is read.
    files: Vec<(Option<File>, Place, CheckpointIdentity)>,
    log_begin: u64,
    log_end: u64,
    limits: Limits,
}

impl Images {
    /// Names the whole image and the images of changes that follow it, given in `files`, oldest
    /// first. Readers skip entries below `log_begin`. An entry at or beyond `log_end` is damage. A
    /// reader opens one file at a time. The caller keeps the checkpoint from being removed.
    pub(crate) fn new(
        files: impl DoubleEndedIterator<Item = (Place, CheckpointIdentity)>,
        log_begin: u64,
        log_end: u64,
        limits: Limits,
    ) -> Self {
        let files = files.rev().map(|(place, of)| (None, place, of)).collect();
        Images { files, log_begin, log_end, limits }
    }

    /// Opens all files and keeps them open. The checkpoint may then be removed.
    pub(crate) fn keep_open(mut self) -> Result<Self> {
        for (file, place, _) in &mut self.files {
            *file = Some(place.open().map_err(|e| Error::io("open", &*place, e))?);
        }
        Ok(self)
    }

    /// Begins to read all buckets. Only one reader may exist at a time, because readers share the
    /// position in each file that is kept open.
    pub(crate) fn read(&self) -> Result<BucketReader<'_>> {
        let (input, newest) = self.newest()?;
        let mut reader = BucketReader {
            images: self,
            newest,
            input,
            file: 0,
            due: newest.due(),
            read: vec![0; newest.bucket_count().div_ceil(64) as usize],
            left: newest.bucket_count(),
            bytes: Vec::new(),
        };
        reader.check_kind(newest.kind)?;
        Ok(reader)
    }

    /// Returns the bytes of memory that a reader needs to note which buckets it has seen: one bit
    /// for each bucket.
    pub(crate) fn reader_bytes(&self) -> Result<u64> {
        Ok(self.newest()?.1.bucket_count().div_ceil(8))
    }

    /// Opens the newest image and reads its head. Each bucket takes at least 8 bytes of one of the
    /// files. A head that claims more buckets than fit in the files is therefore damage, and no
    /// memory is allocated for it.
    fn newest(&self) -> Result<(CheckedReader, ImageHead)> {
        let mut input = self.reader(0)?;
        let head = ImageHead::read(&mut input, self.limits)?;
        let mut file_bytes = 0_u64;
        for (file, path, _) in &self.files {
            let len = match file {
                Some(file) => file.metadata().map(|found| found.len()),
                None => path.len(),
            };
            file_bytes += len.map_err(|e| Error::io("stat", path, e))?;
        }
        if head.bucket_count() > file_bytes / 8 {
            let what = format!("{} buckets are more than its files hold", head.bucket_count());
            return Err(input.damaged(0, what));
        }
        Ok((input, head))
    }

    fn reader(&self, i: usize) -> Result<CheckedReader> {
        let (file, path, of) = &self.files[i];
        let file = match file {
            Some(file) => descriptors::opened(|| Ok(file.try_clone()?.into())).map(File::from),
            None => path.open(),
        };
        let file = file.map_err(|e| Error::io("open", path, e))?;
        CheckedReader::from_file(file, path, of.stream(KIND))
    }
}

impl ImageHead {
    /// Returns the bytes of primary buckets and of overflow buckets that loading takes.
    fn memory_bytes(&self) -> (u64, u64) {
        let bytes = |buckets: u64| buckets.saturating_mul(BUCKET_BYTES as u64);
        // Overflow bucket 0 is never used, and the pool charges memory for one unused overflow
        // bucket.
        (bytes(self.bucket_count()), bytes(self.overflow.saturating_add(2)))
    }
}

impl Images {
    /// Makes the budget for loading this index.
    ///
    /// # Errors
    /// `BudgetTooSmall`, which names the bytes that pages, index and a scan need.
    pub(crate) fn budget(&self, total_bytes: u64, page_bytes: u64) -> Result<Budget> {
        let limits = self.limits;
        Budget::new(total_bytes, page_bytes, limits).map_err(|refused| match self.read() {
            Ok(reader) => {
                let needs = reader.newest.memory_bytes();
                Budget::too_small(total_bytes, page_bytes, needs, limits)
            }
            Err(_) => refused,
        })
    }
}

/// Reads each bucket of a checkpoint's index once, in no particular order.
pub(crate) struct BucketReader<'a> {
    images: &'a Images,
    newest: ImageHead,
    input: CheckedReader,
    file: usize,
    /// If the present file is a whole image, the number of its buckets that have not been read.
    /// Wraps below 0 if the image has a bucket twice. `None` for an image of changes.
    due: Option<u64>,
    /// One bit for each bucket that has been read.
    read: Vec<u64>,
    /// Number of buckets that have not been read.
    left: u64,
    bytes: Vec<u8>,
}

impl BucketReader<'_> {
    /// Appends the entries of the next bucket, and returns the bucket's number and depth. `None`
    /// after the last bucket.
    pub(crate) fn next_bucket(&mut self, entries: &mut Vec<Entry>) -> Result<Option<(u64, u32)>> {
        // The loop ends: each iteration reads at least 8 bytes of the files or moves to the next
        // file.
        while self.file < self.images.files.len() {
            let mut head = [0; 8];
            self.input.read(&mut head)?;
            let head = u64::from_le_bytes(head);
            if head == END {
                self.input.finish()?;
                match self.due.unwrap_or(0).cast_signed() {
                    0 => {}
                    due @ 1.. => {
                        let what = format!("the whole image lacks {due} buckets");
                        return Err(self.input.damaged(0, what));
                    }
                    due => {
                        let what = format!("the whole image has {} buckets twice", -due);
                        return Err(self.input.damaged(0, what));
                    }
                }
                self.next_file()?;
                continue;
            }
            let number = head >> COUNT_BITS;
            let length = head as usize & ((1 << COUNT_BITS) - 1);
            if number >= self.newest.bucket_count() || length > MAX_CHAIN * SLOTS {
                let what = format!("bucket {number} claims {length} entries");
                return Err(self.input.damaged(0, what));
            }
            self.due = self.due.map(|due| due.wrapping_sub(1));
            self.bytes.resize(length * 8, 0);
            self.input.read(&mut self.bytes)?;
            let word = number as usize / 64;
            let bit = 1 << (number % 64);
            if self.read[word] & bit != 0 {
                // The reader has already read this bucket from a newer image.
                continue;
            }
            self.read[word] |= bit;
            self.left -= 1;
            for word in self.bytes.as_chunks::<8>().0 {
                let entry = Entry(u64::from_le_bytes(*word));
                if !entry.is_sound() || entry.address().raw() >= self.images.log_end {
                    let what = format!("bucket {number} points beyond the log");
                    return Err(self.input.damaged(0, what));
                }
                if entry.address().raw() >= self.images.log_begin {
                    entries.push(entry);
                }
            }
            return Ok(Some((number, self.newest.depth(number))));
        }
        Ok(None)
    }

    /// True if the bucket that was read last came from an image of changes, whose buckets lie far
    /// apart in the index.
    fn is_in_changes(&self) -> bool {
        self.file + 1 < self.images.files.len()
    }

    /// Continues with the next older image, if there is one.
    fn next_file(&mut self) -> Result<()> {
        self.file += 1;
        if self.file == self.images.files.len() {
            return match self.left {
                0 => Ok(()),
                left => Err(self.input.damaged(0, format!("{left} buckets are missing"))),
            };
        }
        self.input = self.images.reader(self.file)?;
        let head = ImageHead::read(&mut self.input, self.images.limits)?;
        self.due = head.due();
        self.check_kind(head.kind)
    }

    fn check_kind(&mut self, kind: ImageKind) -> Result<()> {
        let before = self.images.files.get(self.file + 1).map(|(.., of)| of.checkpoint);
        let expected = before.map_or(ImageKind::Whole, ImageKind::Since);
        if kind != expected {
            let what = format!("its image of the index is {kind:?}, not {expected:?}");
            return Err(self.input.damaged(0, what));
        }
        Ok(())
    }
}

impl Index {
    /// Loads a checkpoint's index.
    ///
    /// # Errors
    /// `Damaged` or `Truncated` if an image does not verify; `BudgetTooSmall` if the budget can't
    /// hold the index; `Io`.
    pub(crate) fn load(images: &Images, budget: &Budget) -> Result<Self> {
        let index = Self::unallocated(budget)?;
        let mut reader = images.read()?;
        let ImageHead { level, split, .. } = reader.newest;
        let count = reader.newest.bucket_count();
        let needs = reader.newest.memory_bytes();
        let too_small = || {
            let limits = budget.limits();
            Budget::too_small(budget.total_bytes(), budget.page_bytes(), needs, limits)
        };
        if !index.reserve_buckets(budget, &mut index.growth.lock(), count) {
            return Err(too_small());
        }
        let mut batch = Vec::with_capacity(LOADED_AT_ONCE);
        let mut chains = Vec::new();
        // The loop ends: the reader returns each bucket once.
        while let Some(first) = reader.next_bucket(&mut chains)? {
            let mut next = Some(first);
            while let Some((bucket, depth)) = next {
                batch.push((bucket, depth, chains.len()));
                if !reader.is_in_changes() || batch.len() == LOADED_AT_ONCE {
                    break;
                }
                crate::memory::cpu_hint::line(index.bucket(bucket));
                next = reader.next_bucket(&mut chains)?;
            }
            let mut start = 0;
            for (bucket, depth, end) in batch.drain(..) {
                if !index.load_bucket(budget, bucket, depth, &chains[start..end]) {
                    return Err(too_small());
                }
                start = end;
            }
            chains.clear();
        }
        index.set_state(level, split);
        // The images don't say which entries splits have copied to both buckets.
        index.growth.lock().copies_end = images.log_end;
        Ok(index)
    }
}
