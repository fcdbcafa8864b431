//! Tests of the index alone, with a log that stores only each record's key and previous address.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::checkpoint::identity::CheckpointIdentity;
use crate::error::Error;
use crate::files::directory::Place;
use crate::index::cut::Cut;
use crate::index::image::{ImageHead, ImageKind, ImageWriter, Images};
use crate::limits::Limits;
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;

pub(super) const TABLE: TableNumber = TableNumber(1);

pub(super) fn hash(table: TableNumber, key: u64) -> u64 {
    KeyHash::new(7).of(table, key)
}

/// The address of record n is n * `STRIDE`. Record numbers begin at 1, so no record lies at address
/// 0.
pub(super) const STRIDE: u64 = 64;

/// The key and the previous address of each record, by record number. Number 0 means "no record".
pub(super) struct Records {
    keys: Vec<AtomicU64>,
    previous: Vec<AtomicU64>,
    pub(super) taken: AtomicU64,
}

impl Records {
    fn new(count: usize) -> Self {
        let words = || (0..=count).map(|_| AtomicU64::new(0)).collect();
        Records { keys: words(), previous: words(), taken: AtomicU64::new(0) }
    }

    pub(super) fn append(&self, key: u64) -> Address {
        let number = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        self.keys[number as usize].store(key, Ordering::Relaxed);
        Address::new(number * STRIDE)
    }

    pub(super) fn key(&self, address: Address) -> u64 {
        self.keys[(address.raw() / STRIDE) as usize].load(Ordering::Relaxed)
    }

    pub(super) fn previous(&self, address: Address) -> Address {
        Address::new(self.previous[(address.raw() / STRIDE) as usize].load(Ordering::Relaxed))
    }

    pub(super) fn link(&self, address: Address, previous: Address) {
        let number = (address.raw() / STRIDE) as usize;
        self.previous[number].store(previous.raw(), Ordering::Relaxed);
    }
}

pub(super) struct Indexed {
    pub(super) budget: Budget,
    pub(super) index: Index,
    pub(super) records: Records,
}

impl Indexed {
    pub(super) fn new(budget_bytes: u64, records: usize) -> Self {
        let page_bytes = Budget::page_bytes_for(budget_bytes);
        let budget = Budget::new(budget_bytes, page_bytes, Limits::PRODUCT).unwrap();
        let index = Index::new(&budget).unwrap();
        Indexed { budget, index, records: Records::new(records) }
    }

    fn look(&self, address: Address) -> Look {
        Look::Record(hash(TABLE, self.records.key(address)), self.records.previous(address))
    }

    pub(super) fn assert_counts(&self) {
        assert_eq!(self.index.counts(), self.index.recount());
    }

    /// Returns the key's entry and the address of its newest record.
    fn find(&self, key: u64, candidates: &mut Candidates) -> Option<(Entry, Address)> {
        self.index.candidates(hash(TABLE, key), candidates);
        for entry in candidates.iter() {
            let mut address = entry.address();
            while !address.is_none() {
                if self.records.key(address) == key {
                    return Some((entry, address));
                }
                let previous = self.records.previous(address);
                assert!(previous < address, "chains go back");
                address = previous;
            }
        }
        None
    }

    pub(super) fn insert(&self, key: u64) -> Address {
        let address = self.records.append(key);
        let mut searched = Candidates::default();
        loop {
            assert_eq!(self.find(key, &mut searched), None, "key {key}");
            let link = |previous| self.records.link(address, previous);
            let hash = hash(TABLE, key);
            match self.index.insert(&self.budget, hash, &searched, address, link, || true) {
                Inserted::Yes => break,
                Inserted::Changed => {}
            }
        }
        self.index.grow(&self.budget, |address| self.look(address));
        address
    }

    /// Appends a new record for an existing key.
    fn move_to_tail(&self, key: u64) -> Address {
        let address = self.records.append(key);
        let mut searched = Candidates::default();
        loop {
            let (entry, old) = self.find(key, &mut searched).unwrap();
            let is_head = entry.address() == old;
            let previous = if is_head { self.records.previous(old) } else { entry.address() };
            self.records.link(address, previous);
            if self.index.replace(hash(TABLE, key), entry, address, previous.is_none()) {
                return address;
            }
        }
    }
}

/// Inserts and moves keys in an index and in a `HashMap`. Checks that the index finds each key at
/// its newest record.
fn compare_with_a_map(budget_bytes: u64, rows: u64) -> Indexed {
    let indexed = Indexed::new(budget_bytes, rows as usize * 2);
    let mut map = HashMap::new();
    let mut searched = Candidates::default();
    for key in 0..rows {
        map.insert(key, indexed.insert(key));
        if key % 3 == 0 {
            let moved = hash(TABLE, key) % (key + 1);
            map.insert(moved, indexed.move_to_tail(moved));
        }
    }
    for (&key, &address) in &map {
        let found = indexed.find(key, &mut searched);
        assert_eq!(found.map(|(_, found)| found), Some(address), "key {key}");
    }
    for key in rows..rows + 1000 {
        assert_eq!(indexed.find(key, &mut searched), None);
    }
    indexed
}

#[test]
fn keys_are_found_at_their_newest_record_while_the_index_grows() {
    let rows = if cfg!(miri) { 500 } else { 200_000 };
    let Indexed { index, budget, .. } = compare_with_a_map(64 << 20, rows);
    assert!(index.entry_count() <= index.bucket_count() * 5);
    assert!(budget.index_bytes() <= 16 * rows + 2 * index.granule_bytes + (16 << 10));
    // The known hash bits keep most keys apart, so few keys share a slot.
    assert!(index.entry_count() * 100 > rows * 97, "{} entries", index.entry_count());
}

#[test]
fn keys_are_found_when_slots_are_shared() {
    let rows = if cfg!(miri) { 500 } else { 60_000 };
    let Indexed { index, budget, .. } = compare_with_a_map(256 << 10, rows);
    if !cfg!(miri) {
        assert!(index.entry_count() * 2 < rows, "{} entries", index.entry_count());
    }
    assert!(budget.index_bytes() <= budget.index_bytes_max());
}

#[test]
fn a_key_is_in_the_chain_of_one_slot() {
    let rows = if cfg!(miri) { 300 } else { 40_000 };
    let Indexed { index, records, .. } = compare_with_a_map(4 << 20, rows);
    let mut slots_of = vec![0; rows as usize];
    for i in 0..index.bucket_count() {
        let bucket = index.bucket(i);
        let meta = Meta(bucket.meta().load(Ordering::Acquire));
        assert!(!meta.is_locked() && !meta.is_splitting());
        for slot in index.chain(bucket, meta).flat_map(Bucket::slots) {
            let entry = Entry(slot.load(Ordering::Acquire));
            if entry.is_empty() {
                continue;
            }
            let mut keys = std::collections::HashSet::new();
            let mut address = entry.address();
            while !address.is_none() {
                keys.insert(records.key(address));
                address = records.previous(address);
            }
            for key in keys {
                // A superseded record may lie in the chain of a bucket that its key has left in a
                // split, so only the bucket of the key's hash counts.
                let probe = Probe::new(hash(TABLE, key), meta.depth());
                if low_bits(hash(TABLE, key), meta.depth()) == i && entry.matches(probe) {
                    slots_of[key as usize] += 1;
                }
            }
        }
    }
    assert!(slots_of.iter().all(|&slots| slots == 1));
}

/// Regression test: an insert linked its record to a newer record, if the newer record had been
/// inserted first. The chain then led to a higher address.
#[test]
fn no_record_is_linked_to_a_newer_one() {
    let rows = if cfg!(miri) { 300 } else { 40_000 };
    let late = rows / 10;
    let indexed = Indexed::new(256 << 10, rows as usize * 2);
    let records: Vec<Address> =
        (rows..rows + late).map(|key| indexed.records.append(key)).collect();
    for key in 0..rows {
        indexed.insert(key);
    }
    let mut searched = Candidates::default();
    let mut refused = 0;
    for (key, &record) in (rows..).zip(&records) {
        let hash = hash(TABLE, key);
        // The record was appended before the keys below `rows` were inserted, so the search may
        // find newer records.
        indexed.index.candidates(hash, &mut searched);
        let older = searched.iter().all(|entry| entry.address() < record);
        let mut previous = Address::NONE;
        let link = |address| previous = address;
        let done = indexed.index.insert(&indexed.budget, hash, &searched, record, link, || true);
        assert!(!older || previous < record, "key {key}: {record:?} follows {previous:?}");
        refused += u64::from(done == Inserted::Changed);
    }
    assert!(cfg!(miri) || refused > 0, "there was room for all");
}

#[test]
fn a_lookup_never_misses_a_key_while_buckets_split() {
    let rows: u64 = if cfg!(miri) { 300 } else { 300_000 };
    let indexed = Indexed::new(64 << 20, rows as usize * 2);
    let inserted = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for key in 0..rows {
                indexed.insert(key);
                // Release: a reader that sees this count also finds the key.
                inserted.store(key + 1, Ordering::Release);
                if key % 5 == 0 {
                    indexed.move_to_tail(key / 2);
                }
            }
            done.store(true, Ordering::Release);
        });
        for thread in 0..2u64 {
            let indexed = &indexed;
            let inserted = &inserted;
            let done = &done;
            s.spawn(move || {
                let mut searched = Candidates::default();
                let mut random = thread;
                while !done.load(Ordering::Acquire) {
                    let there = inserted.load(Ordering::Acquire);
                    if there == 0 {
                        std::thread::yield_now();
                        continue;
                    }
                    random = hash(TABLE, random + 1);
                    let key = random % there;
                    assert!(indexed.find(key, &mut searched).is_some(), "key {key} of {there}");
                }
            });
        }
    });
}

#[test]
fn threads_that_insert_the_same_keys_insert_each_once() {
    let rows: u64 = if cfg!(miri) { 50 } else { 50_000 };
    let indexed = Indexed::new(16 << 20, rows as usize * 4);
    let wins = AtomicU64::new(0);
    std::thread::scope(|s| {
        for thread in 0..4 {
            let indexed = &indexed;
            let wins = &wins;
            s.spawn(move || {
                let mut searched = Candidates::default();
                for i in 0..rows {
                    let key = (i + thread * 3) % rows;
                    let address = indexed.records.append(key);
                    let hash = hash(TABLE, key);
                    while indexed.find(key, &mut searched).is_none() {
                        let link = |previous| indexed.records.link(address, previous);
                        let new = indexed.index.insert(
                            &indexed.budget,
                            hash,
                            &searched,
                            address,
                            link,
                            || true,
                        );
                        if new == Inserted::Yes {
                            wins.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                    }
                    indexed.index.grow(&indexed.budget, |address| indexed.look(address));
                }
            });
        }
    });
    assert_eq!(wins.load(Ordering::Relaxed), rows);
}

/// Returns all entries, sorted.
pub(super) fn entries(index: &Index) -> Vec<u64> {
    let mut all = Vec::new();
    for i in 0..index.bucket_count() {
        let bucket = index.bucket(i);
        let meta = Meta(bucket.meta().load(Ordering::Acquire));
        let slots = index.chain(bucket, meta).flat_map(Bucket::slots);
        all.extend(slots.map(|slot| slot.load(Ordering::Acquire)).filter(|&entry| entry != 0));
    }
    all.sort_unstable();
    all
}

/// A folder of images of an index: a whole image, and images of the changes since the image before.
pub(super) struct Album {
    dir: tempfile::TempDir,
    written: u64,
    /// The last whole image and the images after it.
    images: Vec<u64>,
}

impl Album {
    pub(super) fn new() -> Self {
        Album { dir: tempfile::tempdir().unwrap(), written: 0, images: Vec::new() }
    }

    fn path(&self, number: u64) -> Place {
        Place::of_path(&self.dir.path().join(number.to_string())).unwrap()
    }

    /// Writes the image of the cut that the argument `cut` makes. Returns the image's length in
    /// bytes.
    pub(super) fn add<'a>(&mut self, whole: bool, cut: impl FnOnce() -> Cut<'a>) -> u64 {
        let kind = if whole { ImageKind::Whole } else { ImageKind::Since(self.written) };
        if whole {
            self.images.clear();
        }
        self.written += 1;
        self.images.push(self.written);
        let of = CheckpointIdentity { bank: 7, checkpoint: self.written, id: 70 };
        cut().write(&self.path(self.written), of, kind).unwrap().1
    }

    pub(super) fn open(&self, log_begin: u64, log_end: u64) -> Images {
        let of = |number| CheckpointIdentity { bank: 7, checkpoint: number, id: 70 };
        let files = self.images.iter().map(|&number| (self.path(number), of(number)));
        Images::new(files, log_begin, log_end, Limits::PRODUCT)
    }

    pub(super) fn load(&self, budget: &Budget) -> Index {
        Index::load(&self.open(0, u64::MAX), budget).unwrap()
    }
}

pub(super) fn budget(bytes: u64) -> Budget {
    Budget::new(bytes, Budget::page_bytes_for(bytes), Limits::PRODUCT).unwrap()
}

#[test]
fn an_image_round_trips() {
    for (name, budget_bytes) in [("roomy", 64 << 20), ("shared", 256 << 10)] {
        let rows = if cfg!(miri) { 300 } else { 30_000 };
        let Indexed { index, budget: before, records } = compare_with_a_map(budget_bytes, rows);
        let mut album = Album::new();
        index.mark_all_changed();
        album.add(true, || index.cut());
        let budget_again = budget(budget_bytes);
        let again = album.load(&budget_again);
        assert_eq!(again.state(), index.state());
        assert_eq!(entries(&again), entries(&index));
        assert_eq!(again.entry_count(), entries(&index).len() as u64);
        assert!(budget_again.index_bytes() <= before.index_bytes());
        // The loaded index must still be able to grow.
        let indexed = Indexed { index: again, budget: budget_again, records };
        let mut searched = Candidates::default();
        for key in 0..rows {
            assert!(indexed.find(key, &mut searched).is_some(), "{name}: key {key}");
        }
        for key in rows..rows + 100 {
            indexed.insert(key);
        }
    }
}

#[test]
fn a_whole_image_and_images_of_changes_are_the_index() {
    let rows: u64 = if cfg!(miri) { 200 } else { 20_000 };
    let indexed = Indexed::new(64 << 20, rows as usize * 20);
    let mut album = Album::new();
    let mut there = 0;
    for round in 0..12 {
        let whole = round % 5 == 0;
        for _ in 0..if round % 5 < 2 { rows / 4 } else { 20 } {
            indexed.insert(there);
            there += 1;
        }
        for i in 0..there / 50 {
            let key = hash(TABLE, i + 1000 * round) % there;
            indexed.move_to_tail(key);
            if i % 8 == 0 {
                // Deletes the key and inserts it again.
                let mut searched = Candidates::default();
                let (entry, _) = indexed.find(key, &mut searched).unwrap();
                if entry.stands_alone() {
                    assert!(indexed.index.remove(hash(TABLE, key), entry));
                    indexed.insert(key);
                }
            }
        }
        if whole {
            indexed.index.mark_all_changed();
        }
        album.add(whole, || indexed.index.cut());
        let again = album.load(&budget(64 << 20));
        assert_eq!(again.state(), indexed.index.state(), "round {round}");
        assert_eq!(entries(&again), entries(&indexed.index), "round {round}");
        // A second cut directly after the first has nothing to write.
        let bytes = album.add(false, || indexed.index.cut());
        assert!(bytes < 200, "round {round}: {bytes} bytes");
        assert_eq!(entries(&album.load(&budget(64 << 20))), entries(&indexed.index));
    }
}

#[test]
fn an_image_shows_the_moment_of_its_cut_whatever_changes_meanwhile() {
    let rows: u64 = if cfg!(miri) { 100 } else { 30_000 };
    let rounds = if cfg!(miri) { 3 } else { 12 };
    let indexed = Indexed::new(64 << 20, (rows * rounds * 4) as usize);
    let mut album = Album::new();
    let mut expected = Vec::new();
    let mut saved = 0;
    for round in 0..rounds {
        let whole = round % 4 == 0;
        for key in round * rows..(round + 1) * rows {
            indexed.insert(key);
        }
        if whole {
            indexed.index.mark_all_changed();
        }
        let there = (round + 1) * rows;
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            album.add(whole, || {
                expected = entries(&indexed.index);
                let cut = indexed.index.cut();
                // The buckets of these keys change before the writer begins the image, so their old
                // content must be saved.
                for key in 0..20 {
                    indexed.move_to_tail(key);
                }
                saved += indexed.index.saved_bytes();
                for thread in 0..2 {
                    let indexed = &indexed;
                    let stop = &stop;
                    s.spawn(move || {
                        for i in 0..rows {
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                            let key = hash(TABLE, i * 2 + thread) % (there / 2) * 2 + thread;
                            indexed.move_to_tail(key);
                            indexed.index.grow(&indexed.budget, |address| indexed.look(address));
                            indexed.index.wait_for_image();
                        }
                    });
                }
                cut
            });
            stop.store(true, Ordering::Relaxed);
        });
        let again = album.load(&budget(64 << 20));
        assert_eq!(entries(&again), expected, "round {round}");
    }
    assert!(saved > 0);
}

#[test]
fn after_an_image_that_failed_a_whole_one_is_right() {
    let indexed = Indexed::new(16 << 20, 20_000);
    let mut album = Album::new();
    let rows = if cfg!(miri) { 100 } else { 2000 };
    for key in 0..rows {
        indexed.insert(key);
    }
    indexed.index.mark_all_changed();
    album.add(true, || indexed.index.cut());
    for key in 0..rows / 4 {
        indexed.move_to_tail(key);
    }
    let of = CheckpointIdentity { bank: 7, checkpoint: 9, id: 70 };
    let nowhere = album.path(0).directory().place("nowhere/9");
    assert!(indexed.index.cut().write(&nowhere, of, ImageKind::Since(1)).is_err());
    // Changes some of the same buckets again, leaves others unchanged, and lets a second image
    // fail.
    for key in rows / 5..rows / 2 {
        indexed.move_to_tail(key);
    }
    assert!(indexed.index.cut().write(&nowhere, of, ImageKind::Since(1)).is_err());
    indexed.move_to_tail(3);
    indexed.index.mark_all_changed();
    album.add(true, || indexed.index.cut());
    assert_eq!(entries(&album.load(&budget(16 << 20))), entries(&indexed.index));
    indexed.move_to_tail(4);
    album.add(false, || indexed.index.cut());
    assert_eq!(entries(&album.load(&budget(16 << 20))), entries(&indexed.index));
}

/// Regression test: loading accepted a whole image that had a bucket twice, and took the copy that
/// came first. A whole image without a bucket must be damage too.
#[test]
fn a_whole_image_with_a_bucket_twice_or_none_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let of = CheckpointIdentity { bank: 7, checkpoint: 1, id: 70 };
    let head = ImageHead { kind: ImageKind::Whole, level: INITIAL_LEVEL, split: 0, overflow: 0 };
    let all: Vec<u64> = (0..1 << INITIAL_LEVEL).collect();
    let load = |name: &str, buckets: &[u64]| {
        let path = Place::of_path(&dir.path().join(name)).unwrap();
        let mut out = ImageWriter::create(&path, of, head).unwrap();
        let mut encoded = Vec::new();
        for &number in buckets {
            ImageWriter::encode(number, std::iter::empty(), &mut encoded);
        }
        out.write(&encoded).unwrap();
        out.finish().unwrap();
        let images = Images::new(std::iter::once((path, of)), 0, u64::MAX, Limits::PRODUCT);
        Index::load(&images, &budget(4 << 20)).map(|index| index.bucket_count())
    };
    assert_eq!(load("all", &all).unwrap(), 1 << INITIAL_LEVEL);
    let twice: Vec<u64> = all.iter().copied().chain([77]).collect();
    let Err(Error::Damaged { what, .. }) = load("twice", &twice) else { panic!("loaded") };
    assert!(what.contains("twice"), "{what}");
    let Err(Error::Damaged { what, .. }) = load("lacks", &all[1..]) else { panic!("loaded") };
    assert!(what.contains("lacks"), "{what}");
}

#[test]
fn images_that_do_not_belong_together_are_damaged() {
    let mut album = Album::new();
    let indexed = Indexed::new(4 << 20, 3000);
    let last = (0..100).map(|key| indexed.insert(key)).max().unwrap();
    indexed.index.mark_all_changed();
    album.add(true, || indexed.index.cut());
    let load = |album: &Album, begin, end| {
        Index::load(&album.open(begin, end), &budget(4 << 20)).map(|index| index.entry_count())
    };
    assert_eq!(load(&album, 0, last.raw() + 8).unwrap(), 100);
    assert!(matches!(load(&album, 0, last.raw()), Err(Error::Damaged { .. })));
    // Loading skips entries that lead below the log's beginning.
    assert_eq!(load(&album, last.raw(), last.raw() + 8).unwrap(), 1);
    for key in 100..if cfg!(miri) { 1600 } else { 2000 } {
        indexed.insert(key);
    }
    album.add(false, || indexed.index.cut());
    indexed.move_to_tail(0);
    album.add(false, || indexed.index.cut());
    assert_eq!(load(&album, 0, u64::MAX).unwrap(), indexed.index.entry_count());
    // These lists of images lack the image of changes in the middle, lack the whole image, repeat
    // the whole image, or have the wrong order.
    for wrong in [vec![1, 3], vec![2, 3], vec![1, 1], vec![3, 2]] {
        album.images = wrong.clone();
        let loaded = load(&album, 0, u64::MAX);
        assert!(matches!(loaded, Err(Error::Damaged { .. })), "{wrong:?}: {loaded:?}");
    }
}

/// Regression test: a lookup read a bucket that did not exist, and never ended. Its outline (a copy
/// of the level and the split pointer) was older than two splits of the hash's bucket. The bucket
/// that the hash moved to had not been split.
#[test]
fn a_look_from_before_several_splits_finds_the_bucket() {
    let indexed = Indexed::new(64 << 20, 4000);
    let before = indexed.index.outline();
    let mut keys = 0;
    // Splits the first bucket twice, and each other bucket once.
    while indexed.index.bucket_count() <= 2 << INITIAL_LEVEL {
        indexed.insert(keys);
        keys += 1;
    }
    assert!(indexed.index.bucket_count() < 3 << INITIAL_LEVEL);
    for hash in (0..8 << INITIAL_LEVEL).chain((0..keys).map(|key| hash(TABLE, key))) {
        let (number, _, meta) = before.find_bucket(hash);
        assert!(number < indexed.index.bucket_count(), "hash {hash:#x}");
        assert_eq!(number, low_bits(hash, meta.depth()));
        assert_eq!(number, indexed.index.outline().guess(hash).0);
    }
}

/// Regression test: a split did not count the entries without tag bits that it copied, so the
/// number of entries went below zero when copies were removed. The copies must not make the index
/// grow either: each split would then add as many entries as it divides.
#[test]
fn copies_that_splits_make_are_counted_and_do_not_make_the_index_grow() {
    let rows: u64 = if cfg!(miri) { 400 } else { 20_000 };
    let indexed = Indexed::new(64 << 20, rows as usize * 5);
    for key in 0..rows {
        indexed.insert(key);
    }
    indexed.assert_counts();
    indexed.index.forget_tags();
    indexed.assert_counts();
    let buckets = indexed.index.bucket_count();
    for _ in 0..10 {
        indexed.index.grow(&indexed.budget, |_| Look::Unseen);
    }
    assert_eq!(indexed.index.bucket_count(), buckets, "splits gain nothing");
    // Adds three new rows for each old one. The index then has many more buckets, so nearly every
    // old entry was in a bucket that was split, and was copied.
    for key in rows..4 * rows {
        let mut searched = Candidates::default();
        let address = indexed.records.append(key);
        indexed.index.candidates(hash(TABLE, key), &mut searched);
        let link = |previous| indexed.records.link(address, previous);
        let hash = hash(TABLE, key);
        let done = indexed.index.insert(&indexed.budget, hash, &searched, address, link, || true);
        assert_eq!(done, Inserted::Yes);
        indexed.index.grow(&indexed.budget, |_| Look::Unseen);
    }
    indexed.assert_counts();
    assert!(indexed.index.bucket_count() <= 4 * buckets, "{}", indexed.index.bucket_count());
    if !cfg!(miri) {
        assert!(indexed.index.entry_count() > 5 * rows, "copies are slots in use");
    }
    let mut searched = Candidates::default();
    for key in 0..4 * rows {
        assert!(indexed.find(key, &mut searched).is_some(), "key {key}");
    }
    let buckets = indexed.index.bucket_count();
    assert_eq!(indexed.index.purge(u64::MAX, 0, buckets), 0);
    assert_eq!(indexed.index.counts(), (0, 0));
    assert_eq!(indexed.index.recount(), (0, 0));
    assert!(!indexed.index.wants_growth());
}

/// Shows that a split moves an entry without tag bits to one bucket only, if the entry's records
/// are in memory.
#[test]
fn a_split_sends_an_entry_to_its_side_if_its_records_are_in_memory() {
    let rows: u64 = if cfg!(miri) { 400 } else { 20_000 };
    let indexed = Indexed::new(64 << 20, rows as usize * 4);
    for key in 0..rows {
        indexed.insert(key);
    }
    let before = indexed.index.entry_count();
    indexed.index.forget_tags();
    // Some entries get chains of several records.
    let mut searched = Candidates::default();
    for key in rows..rows + rows / 10 {
        let entry = {
            indexed.index.candidates(hash(TABLE, key), &mut searched);
            searched.iter().next()
        };
        let Some(entry) = entry else { continue };
        let address = indexed.records.append(key);
        indexed.records.link(address, entry.address());
        assert!(indexed.index.replace(hash(TABLE, key), entry, address, false));
    }
    for key in 2 * rows..3 * rows {
        let address = indexed.records.append(key);
        indexed.index.candidates(hash(TABLE, key), &mut searched);
        let link = |previous| indexed.records.link(address, previous);
        let hash = hash(TABLE, key);
        let done = indexed.index.insert(&indexed.budget, hash, &searched, address, link, || true);
        assert_eq!(done, Inserted::Yes);
        indexed.index.grow(&indexed.budget, |address| indexed.look(address));
    }
    indexed.assert_counts();
    // A split may copy only chains whose records belong in both buckets.
    let after = indexed.index.entry_count() - rows;
    assert!(after <= before + rows / 10, "{before} entries became {after}");
    for key in (0..rows).chain(2 * rows..3 * rows) {
        assert!(indexed.find(key, &mut searched).is_some(), "key {key}");
    }
}
