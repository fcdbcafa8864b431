//! Writes the index as of one moment while other threads continue to change it.
//!
//! **Problem.** A checkpoint needs the index exactly as it was while batches were paused. Copying
//! the whole index takes hundreds of milliseconds for 100 million rows, and most buckets have not
//! changed since the previous checkpoint.
//!
//! **Approach.** A *cut* is the moment of the index that a checkpoint saves. It ends the old era
//! and begins the new era. Eras are numbered 0 and 1 in turn. Each bucket has one bit for each era,
//! which means that its entries changed in that era. A thread that changes a bucket sets the
//! present era's bit under the bucket's lock. While batches are paused, the cut only changes the
//! era. After that, batches run again and the writer of the image visits all buckets. A bucket
//! without the old era's bit has not changed since the previous cut, and the writer skips it. The
//! writer locks and copies a bucket with the bit, and clears the bit. A batch that wants to change
//! a bucket with the old era's bit first *saves* its content for the writer, and clears the bit
//! itself. Every bucket that changed in the old era is therefore written exactly once, as it was at
//! the cut.
//!
//! For a *whole* image, `mark_all_changed` marks all buckets as changed before the cut, so the
//! writer writes all of them.
//!
//! **Invariants.**
//! 1. After the cut, the old era's bits are only cleared, under the bucket's lock. If the writer
//!    finds a bucket without the bit, it need not check that bucket again.
//! 2. The era changes only while no thread is pinned, and a thread that changes the index is
//!    pinned. A thread therefore never works in two eras at once.
//! 3. Buckets that splits add after the cut have only the new era's bit, and the image does not
//!    include them.
//! 4. No bucket is folded between the decision for a whole image or one of changes and the image's
//!    end (`keep_numbers`). An image of changes can't say that buckets are gone, and an older image
//!    has them. The first image after a fold is therefore whole (`has_folded`).
//!
//! **Memory.** The writer fetches the saved buckets after each group of buckets that it visits. If
//! the image's disk is too slow, batches wait in `wait_for_image`, with no pin and no bucket lock.
//! Between two calls of `wait_for_image`, each thread may save up to 50 KiB, or more if it splits
//! buckets. The budget does not count these bytes.

use super::bucket::{Bucket, Meta};
use super::entry::Entry;
use super::image::{ImageHead, ImageKind, ImageWriter};
use super::{Index, LockedBucket};
use crate::checkpoint::identity::CheckpointIdentity;
use crate::error::Result;
use crate::files::directory::Place;
use crate::files::held_file::HeldFile;
use crate::sync::{
    AtomicBool, AtomicU64, Backoff, Condvar, Mutex, MutexGuard, Ordering, Planted, planted,
};

/// Number of buckets that the image's writer visits before it fetches the buckets that batches have
/// saved.
const BUCKETS_PER_TURN: u64 = 64;
/// Approximate number of buckets that `changed_part` samples.
const SAMPLE: u64 = 4096;

/// The present era, and the buckets that batches saved before they changed them.
#[derive(Debug)]
pub(super) struct Eras {
    /// The number of the present era, 0 or 1. Changes only while no thread is pinned.
    now: AtomicU64,
    /// True while an image is being written. A bucket that changed in the era before must then be
    /// saved before it changes again.
    capturing: AtomicBool,
    /// True if buckets were folded since the last cut. The next image must then be whole. Changes
    /// only under the lock `numbers` of the index.
    folded: AtomicBool,
    /// Saved buckets as of the cut, in the image's encoding.
    saved: Mutex<Vec<u8>>,
    fetched: Condvar,
    /// Batches wait while the saved buckets have more than this number of bytes.
    saved_bytes_max: usize,
}

impl Eras {
    pub(super) fn new(saved_bytes_max: usize) -> Self {
        Eras {
            now: AtomicU64::new(0),
            capturing: AtomicBool::new(false),
            folded: AtomicBool::new(false),
            saved: Mutex::default(),
            fetched: Condvar::new(),
            saved_bytes_max,
        }
    }

    fn now(&self) -> u64 {
        // Relaxed: the era changes only while no thread is pinned. The caller is pinned, or is the
        // thread that changes the era.
        self.now.load(Ordering::Relaxed)
    }
}

impl LockedBucket<'_> {
    /// Must be called before the bucket's entries change. Marks the bucket as changed, and saves
    /// its present content if the image that is being written still needs it.
    pub(super) fn will_change(&mut self) {
        let eras = &self.index.eras;
        let now = eras.now();
        let old = 1 - now;
        if self.meta.changed_in(old) && !planted(Planted::ChangeUnsaved) {
            self.save();
            self.meta = self.meta.with_changed_in(old, false);
        }
        self.meta = self.meta.with_changed_in(now, true);
    }

    #[cold]
    fn save(&self) {
        let eras = &self.index.eras;
        // `capturing` is read under the lock of `saved`, because the end of an image clears it
        // under that lock. Otherwise a bucket that is saved after the end would go into the next
        // image. If no image is being written although the bucket has the old era's bit, the last
        // image failed. The next image is then whole and needs no saved bucket.
        let mut saved = eras.saved.lock();
        if eras.capturing.load(Ordering::Relaxed) {
            let entries = self.chain().flat_map(Bucket::slots);
            let entries = entries.map(|slot| Entry(slot.load(Ordering::Relaxed)));
            ImageWriter::encode(self.number, entries, &mut saved);
        }
    }

    fn clear_changed(mut self, era: u64) {
        self.meta = self.meta.with_changed_in(era, false);
    }
}

impl Index {
    /// Returns the meta word, marked as changed in the present era, for a bucket that a split
    /// fills.
    pub(super) fn changed_now(&self, meta: Meta) -> Meta {
        meta.with_changed_in(self.eras.now(), true)
    }

    pub(super) fn lock_number(&self, number: u64) -> LockedBucket<'_> {
        let bucket = self.bucket(number);
        let mut backoff = Backoff::new();
        loop {
            let meta = Meta(bucket.meta().load(Ordering::Acquire));
            match self.try_lock_bucket(number, bucket, meta) {
                Some(locked) => return locked,
                None => backoff.snooze(),
            }
        }
    }

    /// Keeps all buckets and their numbers until the result is dropped: no bucket is folded.
    /// Splits go on. A checkpoint holds the result from its decision for a whole image or one of
    /// changes until it has written the image.
    pub(crate) fn keep_numbers(&self) -> MutexGuard<'_, ()> {
        self.numbers.lock()
    }

    /// True if the next image must be whole, because buckets were folded since the last cut. The
    /// caller keeps the numbers ([`keep_numbers`](Self::keep_numbers)).
    pub(crate) fn has_folded(&self) -> bool {
        // Relaxed: the lock `numbers` orders the accesses.
        self.eras.folded.load(Ordering::Relaxed)
    }

    /// Notes that buckets were folded. The caller holds the lock `numbers`.
    pub(super) fn note_folded(&self) {
        debug_assert!(!self.eras.capturing.load(Ordering::Relaxed));
        self.eras.folded.store(!planted(Planted::FoldUntold), Ordering::Relaxed);
    }

    /// Returns the share of buckets that changed since the last cut, estimated from a sample. The
    /// caller keeps the numbers ([`keep_numbers`](Self::keep_numbers)).
    pub(crate) fn changed_part(&self) -> f64 {
        let era = self.eras.now();
        let mut looked = 0u64;
        let mut changed = 0u64;
        let stride = self.bucket_count().div_ceil(SAMPLE);
        for i in (0..self.bucket_count()).step_by(stride as usize) {
            looked += 1;
            let meta = Meta(self.bucket(i).meta().load(Ordering::Relaxed));
            changed += u64::from(meta.changed_in(era));
        }
        changed as f64 / looked as f64
    }

    /// Marks every bucket as changed, so the next cut's image is whole. Must be called by the
    /// thread that makes the cut, because the era must not change meanwhile. That thread keeps the
    /// numbers ([`keep_numbers`](Self::keep_numbers)).
    pub(crate) fn mark_all_changed(&self) {
        let era = self.eras.now();
        // The loop does not visit buckets that splits add meanwhile. The splits mark these buckets
        // themselves.
        for number in 0..self.bucket_count() {
            if !Meta(self.bucket(number).meta().load(Ordering::Relaxed)).changed_in(era) {
                let mut locked = self.lock_number(number);
                locked.meta = locked.meta.with_changed_in(era, true);
            }
        }
    }

    /// Fixes the state that the next image shows. Must be called while no thread is pinned. The
    /// image can be written while batches run again. The caller keeps the numbers
    /// ([`keep_numbers`](Self::keep_numbers)) until the result is written or dropped.
    pub(crate) fn cut(&self) -> Cut<'_> {
        let old = self.eras.now();
        let (level, split) = self.state();
        // Relaxed: the end of the pause publishes both stores to every thread that pins later.
        self.eras.now.store(1 - old, Ordering::Relaxed);
        self.eras.capturing.store(true, Ordering::Relaxed);
        // If this image fails, the next one is whole anyway.
        let has_folded = self.eras.folded.load(Ordering::Relaxed);
        self.eras.folded.store(false, Ordering::Relaxed);
        Cut { index: self, old, level, split, overflow: self.overflow_count(), has_folded }
    }

    #[cfg(test)]
    pub(super) fn saved_bytes(&self) -> usize {
        self.eras.saved.lock().len()
    }

    /// If too many saved bytes wait for the image's writer, waits until the writer has fetched
    /// them. The caller must not be pinned or hold a bucket's lock.
    #[inline]
    pub(crate) fn wait_for_image(&self) {
        if self.eras.capturing.load(Ordering::Relaxed) {
            self.wait_while_capturing();
        }
    }

    #[cold]
    fn wait_while_capturing(&self) {
        let mut saved = self.eras.saved.lock();
        // The loop ends: the image's writer fetches the saved buckets after each group of buckets.
        // The writer also wakes all waiting threads when it ends for any reason.
        while saved.len() > self.eras.saved_bytes_max && self.eras.capturing.load(Ordering::Relaxed)
        {
            self.eras.fetched.wait(&mut saved);
        }
    }
}

/// The state of the index at one moment, ready to be written.
#[must_use]
pub(crate) struct Cut<'a> {
    index: &'a Index,
    /// The era that the cut ended.
    old: u64,
    level: u32,
    split: u64,
    overflow: u64,
    /// True if buckets were folded since the cut before.
    has_folded: bool,
}

impl Cut<'_> {
    /// Writes the image. Returns the file, not yet synced, and its length in bytes. After an error,
    /// the next image must be whole, because some changed buckets may then be in no complete image.
    pub(crate) fn write(
        self,
        path: &Place,
        of: CheckpointIdentity,
        kind: ImageKind,
    ) -> Result<(HeldFile, u64)> {
        let Cut { index, level, split, overflow, has_folded, .. } = self;
        assert!(!has_folded || kind == ImageKind::Whole, "an image after a fold is whole");
        let head = ImageHead { kind, level, split, overflow };
        let mut out = ImageWriter::create(path, of, head)?;
        let mut encoded = Vec::new();
        let mut fetched = Vec::new();
        let count = head.bucket_count();
        for start in (0..count).step_by(BUCKETS_PER_TURN as usize) {
            for number in start..count.min(start + BUCKETS_PER_TURN) {
                // Acquire: pairs with the unlock by the thread that cleared the bit. That thread
                // saved the bucket before, so a later `fetch` finds it.
                let meta = Meta(index.bucket(number).meta().load(Ordering::Acquire));
                if meta.changed_in(self.old) {
                    self.copy(number, &mut encoded);
                }
            }
            self.fetch(&mut fetched);
            for bytes in [&mut encoded, &mut fetched] {
                out.write(bytes)?;
                bytes.clear();
            }
        }
        // Fetches the buckets saved since the last group. No batch can save more buckets, because
        // no bucket has the old era's bit any more.
        self.fetch(&mut fetched);
        out.write(&fetched)?;
        out.finish()
    }

    /// Copies a bucket if no batch has saved it since the caller checked its bit.
    fn copy(&self, number: u64, encoded: &mut Vec<u8>) {
        let locked = self.index.lock_number(number);
        if locked.meta.changed_in(self.old) || planted(Planted::CopyUnchecked) {
            let entries = locked.chain().flat_map(Bucket::slots);
            let entries = entries.map(|slot| Entry(slot.load(Ordering::Relaxed)));
            ImageWriter::encode(number, entries, encoded);
            locked.clear_changed(self.old);
        }
    }

    fn fetch(&self, into: &mut Vec<u8>) {
        let eras = &self.index.eras;
        let mut saved = eras.saved.lock();
        std::mem::swap(&mut *saved, into);
        eras.fetched.notify_all();
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        let eras = &self.index.eras;
        let mut saved = eras.saved.lock();
        eras.capturing.store(false, Ordering::Relaxed);
        *saved = Vec::new();
        eras.fetched.notify_all();
    }
}
