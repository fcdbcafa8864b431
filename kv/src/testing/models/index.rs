//! Models of the index. Threads insert, move, remove and look up entries while buckets fill up,
//! split and are folded.

use std::path::Path;
use std::sync::Arc;

use super::{SMALL, explore, finds};
use crate::checkpoint::identity::CheckpointIdentity;
use crate::epoch::Gate;
use crate::files::directory::Place as FilePlace;
use crate::index::image::{ImageKind, Images};
use crate::index::{Candidates, Entry, Index, Inserted, Look};
use crate::memory::budget::Budget;
use crate::record::address::Address;
use crate::sync::{Planted, quietly, thread};

/// Distance between the addresses of two successive records, in bytes. The first record is at
/// address `STRIDE`, because address 0 means "no record".
const STRIDE: u64 = 64;

/// The parts of a record that the index needs.
#[derive(Debug, Clone, Copy)]
struct Record {
    key: u64,
    previous: Address,
}

/// An index with a log that has only the key and the previous address of each record.
struct Indexed {
    index: Index,
    budget: Budget,
    /// A mutex of the standard library: the model checker must not switch threads here.
    records: std::sync::Mutex<Vec<Record>>,
}

/// The index entry and the record at which a key was found.
#[derive(Debug, Clone, Copy)]
struct Place {
    entry: Entry,
    address: Address,
    previous: Address,
}

/// Returns the low 20 bits of a key as its hash. Keys that differ only in higher bits have the same
/// hash, and therefore the same tag and bucket.
fn hash(key: u64) -> u64 {
    key & 0xF_FFFF
}

impl Indexed {
    /// Makes an index that has one bucket, and inserts `keys`.
    fn with(keys: impl IntoIterator<Item = u64>) -> Arc<Indexed> {
        Indexed::with_budget(SMALL.budget_bytes_min, keys)
    }

    /// Makes an index with this memory budget, as [`with`](Self::with) does.
    fn with_budget(budget_bytes: u64, keys: impl IntoIterator<Item = u64>) -> Arc<Indexed> {
        quietly(|| {
            let budget = Budget::new(budget_bytes, SMALL.page_bytes_min, SMALL).unwrap();
            let index = Index::new(&budget).unwrap();
            let indexed = Indexed { index, budget, records: Default::default() };
            for key in keys {
                assert!(indexed.insert(key));
            }
            Arc::new(indexed)
        })
    }

    fn append(&self, key: u64) -> Address {
        let mut records = self.records.lock().unwrap();
        records.push(Record { key, previous: Address::NONE });
        Address::new(records.len() as u64 * STRIDE)
    }

    fn record(&self, address: Address) -> Record {
        self.records.lock().unwrap()[(address.raw() / STRIDE) as usize - 1]
    }

    fn grow(&self) -> bool {
        self.index.grow(&self.budget, |address| {
            let Record { key, previous } = self.record(address);
            Look::Record(hash(key), previous)
        })
    }

    /// Splits buckets as if all records were on disk. The split then can't read the records.
    fn grow_blind(&self) -> bool {
        self.index.grow(&self.budget, |_| Look::Unseen)
    }

    fn link(&self, address: Address, previous: Address) {
        self.records.lock().unwrap()[(address.raw() / STRIDE) as usize - 1].previous = previous;
    }

    /// Returns all records of a key with their entries, and the entries that were searched.
    fn places(&self, key: u64) -> (Vec<Place>, Candidates) {
        self.places_in(&self.index, key)
    }

    /// Returns what [`places`](Self::places) returns, for another index of the same records.
    fn places_in(&self, index: &Index, key: u64) -> (Vec<Place>, Candidates) {
        let mut candidates = Candidates::default();
        index.candidates(hash(key), &mut candidates);
        let mut places = Vec::new();
        for entry in candidates.iter() {
            let mut address = entry.address();
            while !address.is_none() {
                let record = self.record(address);
                assert!(record.previous < address, "a chain goes back");
                if record.key == key {
                    places.push(Place { entry, address, previous: record.previous });
                }
                address = record.previous;
            }
        }
        (places, candidates)
    }

    fn has(&self, key: u64) -> bool {
        !self.places(key).0.is_empty()
    }

    /// Inserts a key as `Store::execute` does. Returns false if the key exists.
    fn insert(&self, key: u64) -> bool {
        loop {
            let (places, searched) = self.places(key);
            if !places.is_empty() {
                return false;
            }
            let new = self.append(key);
            let link = |previous| self.link(new, previous);
            match self.index.insert(&self.budget, hash(key), &searched, new, link, || true) {
                Inserted::Yes => return true,
                Inserted::Changed => {}
            }
        }
    }

    /// Appends a new record for the key, and makes the key's entry lead to it.
    fn move_to_tail(&self, key: u64) {
        // The loop ends: an attempt fails only if another thread has changed the entry meanwhile.
        loop {
            let place = self.places(key).0[0];
            assert_eq!(place.entry.address(), place.address, "the model moves heads only");
            let new = self.append(key);
            self.link(new, place.previous);
            if self.index.replace(hash(key), place.entry, new, place.previous.is_none()) {
                return;
            }
        }
    }

    /// Removes the key's entry. The entry's chain must have no other key.
    fn remove(&self, key: u64) {
        // The loop ends: an attempt fails only if another thread has changed the entry meanwhile.
        while !self.index.remove(hash(key), self.places(key).0[0].entry) {}
    }

    /// Asserts that the index has each of these keys exactly once.
    fn assert_holds(&self, keys: impl IntoIterator<Item = u64>) {
        quietly(|| {
            for key in keys {
                let places = self.places(key).0;
                let heads = places.iter().filter(|place| place.entry.address() == place.address);
                assert!(!places.is_empty(), "key {key:#x} was lost");
                // A key may occur twice in one chain: its old record can remain behind its new one.
                let same = places.iter().all(|place| place.entry == places[0].entry);
                assert!(same && heads.count() <= 1, "key {key:#x} is there twice: {places:?}");
            }
        });
    }
}

/// Two threads insert the same key into a bucket with free slots. A third thread inserts a key with
/// the same hash, moves another key to the tail, and inserts one more key.
fn inserting_into_a_bucket() {
    let indexed = Indexed::with([1, 2, 3]);
    let same = [0, 1].map(|_| {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || indexed.insert(9))
    });
    let other = {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || {
            assert!(indexed.insert(9 | 1 << 30));
            indexed.move_to_tail(2);
            assert!(indexed.insert(10));
        })
    };
    let inserted = same.map(|thread| thread.join().unwrap());
    other.join().unwrap();
    assert!(inserted[0] != inserted[1], "inserted once: {inserted:?}");
    indexed.assert_holds([1, 2, 3, 9, 10, 9 | 1 << 30]);
    assert_eq!(indexed.index.entry_count(), 5, "two keys share an entry");
}

/// Two threads insert the same key into a full bucket, which gets overflow buckets. A third thread
/// removes a key and inserts it again.
fn inserting_into_a_full_bucket() {
    let indexed = Indexed::with(1..=7);
    let same = [0, 1].map(|number| {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || {
            assert!(indexed.insert(20 + number));
            indexed.insert(9)
        })
    });
    let remover = {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || {
            indexed.remove(3);
            assert!(!indexed.has(3));
            assert!(indexed.insert(3));
        })
    };
    for key in [1, 7] {
        assert!(indexed.has(key), "key {key} was lost");
    }
    let inserted = same.map(|thread| thread.join().unwrap());
    remover.join().unwrap();
    assert!(inserted[0] != inserted[1], "inserted once: {inserted:?}");
    indexed.assert_holds((1..=7).chain([9, 20, 21]));
    assert_eq!(indexed.index.entry_count(), 10);
}

/// Buckets split while threads look up, insert and move keys.
fn growing() {
    let indexed = Indexed::with(1..=11);
    let growing = [30, 31].map(|key| {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || {
            indexed.grow();
            let inserted = indexed.insert(key & 1 | 12);
            indexed.insert(30);
            indexed.grow();
            inserted
        })
    });
    let mover = {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || {
            for key in [5, 6] {
                indexed.move_to_tail(key);
            }
        })
    };
    for key in [3, 8, 11] {
        assert!(indexed.has(key), "key {key} was lost");
    }
    growing.into_iter().for_each(|thread| assert!(thread.join().unwrap()));
    mover.join().unwrap();
    quietly(|| while indexed.grow() {});
    assert!(indexed.index.bucket_count() > 2);
    indexed.assert_holds((1..=13).chain([30]));
    assert_eq!(indexed.index.entry_count(), 14);
}

/// Splits copy entries that have no tag bits. Meanwhile threads move, remove and insert keys.
fn growing_with_blank_entries() {
    let indexed = Indexed::with(1..=11);
    quietly(|| indexed.index.forget_tags());
    let growing = {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || {
            for key in 12..=18 {
                assert!(indexed.insert(key));
                indexed.grow_blind();
            }
        })
    };
    indexed.move_to_tail(3);
    indexed.remove(5);
    growing.join().unwrap();
    quietly(|| while indexed.grow_blind() {});
    indexed.assert_holds((1..=4).chain(6..=18));
    quietly(|| assert_eq!(indexed.index.counts(), indexed.index.recount(), "miscounted"));
}

/// A split distributes entries without tag bits by the hashes of their records. The chain of the
/// first entry has records for both buckets of the split.
fn growing_by_records() {
    let indexed = Indexed::with(1..=7);
    quietly(|| {
        indexed.index.forget_tags();
        // Appends a record for each key and links it in front of the first entry's chain.
        for key in 8..=11 {
            let entry = indexed.places(key).1.iter().next().unwrap();
            let new = indexed.append(key);
            indexed.link(new, entry.address());
            assert!(indexed.index.replace(hash(key), entry, new, false));
        }
    });
    let growing = {
        let indexed = Arc::clone(&indexed);
        thread::spawn(move || {
            for key in 12..=18 {
                assert!(indexed.insert(key));
                indexed.grow();
            }
        })
    };
    for key in [9, 2, 10] {
        assert!(indexed.has(key), "key {key} was lost");
    }
    growing.join().unwrap();
    quietly(|| while indexed.grow() {});
    assert!(indexed.index.bucket_count() > 1);
    indexed.assert_holds(1..=18);
    quietly(|| assert_eq!(indexed.index.counts(), indexed.index.recount(), "miscounted"));
}

/// Images of an index that folds: a whole image, and images of the changes since the image before.
struct Album {
    dir: tempfile::TempDir,
    images: Vec<(FilePlace, CheckpointIdentity)>,
    written: u64,
    /// The keys that the newest image has.
    keys: Vec<u64>,
}

impl Album {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Album { dir: dir.unwrap(), images: Vec::new(), written: 0, keys: Vec::new() }
    }

    /// Writes an image as a checkpoint does. The index may have some of `keys`.
    fn add(&mut self, indexed: &Indexed, gate: &Gate, keys: impl Iterator<Item = u64>) {
        let index = &indexed.index;
        let numbers = index.keep_numbers();
        let is_whole = self.images.is_empty() || index.has_folded();
        let kind = if is_whole { ImageKind::Whole } else { ImageKind::Since(self.written) };
        if is_whole {
            self.images.clear();
            index.mark_all_changed();
        }
        self.written += 1;
        let of = CheckpointIdentity { bank: 7, checkpoint: self.written, id: 70 };
        let place = FilePlace::of_path(&self.dir.path().join(self.written.to_string())).unwrap();
        let pause = gate.pause();
        self.keys = quietly(|| keys.filter(|&key| indexed.has(key)).collect());
        let cut = index.cut();
        drop(pause);
        cut.write(&place, of, kind).unwrap();
        drop(numbers);
        self.images.push((place, of));
    }

    /// Loads the newest image, and asserts that it has the keys of its moment.
    fn check(self, indexed: &Indexed, keys: impl Iterator<Item = u64>) {
        let budget = Budget::new(FOLDING_BUDGET_BYTES, SMALL.page_bytes_min, SMALL).unwrap();
        let images = Images::new(self.images.into_iter(), 0, u64::MAX, SMALL);
        let loaded = Index::load(&images, &budget).unwrap();
        let has = |&key: &u64| !indexed.places_in(&loaded, key).0.is_empty();
        assert_eq!(keys.filter(has).collect::<Vec<_>>(), self.keys);
        assert_eq!(loaded.counts(), loaded.recount());
    }
}

/// Memory budget of [`folding`] in bytes.
const FOLDING_BUDGET_BYTES: u64 = 32 << 10;

/// Buckets are folded while threads look up, insert and move keys, and a checkpoint writes an image
/// of the index.
fn folding() {
    const KEPT: u64 = 12;
    const MOST: u64 = 100;
    let indexed = Indexed::with_budget(FOLDING_BUDGET_BYTES, 1..=MOST);
    let gate = Arc::new(Gate::default());
    let mut album = Album::new();
    let keys = || (1..=KEPT).chain(MOST + 1..=MOST + 3);
    quietly(|| {
        while indexed.grow() {}
        assert!(indexed.index.bucket_count() > 16);
        album.add(&indexed, &gate, keys());
        (KEPT + 1..=MOST).for_each(|key| indexed.remove(key));
    });
    let folding = {
        let (indexed, gate) = (Arc::clone(&indexed), Arc::clone(&gate));
        thread::spawn(move || _ = indexed.index.fold(&indexed.budget, &gate, 0))
    };
    let writing = {
        let (indexed, gate) = (Arc::clone(&indexed), Arc::clone(&gate));
        thread::spawn(move || {
            for key in MOST + 1..=MOST + 2 {
                let _pin = gate.enter();
                assert!(indexed.insert(key));
            }
            // The search and the insert may lie before and after a fold.
            let key = MOST + 3;
            let pin = gate.enter();
            let (places, searched) = indexed.places(key);
            assert!(places.is_empty());
            let new = indexed.append(key);
            drop(pin);
            let _pin = gate.enter();
            let link = |previous| indexed.link(new, previous);
            let hash = hash(key);
            match indexed.index.insert(&indexed.budget, hash, &searched, new, link, || true) {
                Inserted::Yes => {}
                Inserted::Changed => assert!(indexed.insert(key)),
            }
            indexed.move_to_tail(5);
        })
    };
    let checkpoint = {
        let (indexed, gate) = (Arc::clone(&indexed), Arc::clone(&gate));
        thread::spawn(move || {
            album.add(&indexed, &gate, keys());
            album
        })
    };
    for key in [3, 8, 11, 12] {
        let _pin = gate.enter();
        assert!(indexed.has(key), "key {key} was lost");
    }
    folding.join().unwrap();
    writing.join().unwrap();
    let album = checkpoint.join().unwrap();
    quietly(|| {
        album.check(&indexed, keys());
        while indexed.index.fold(&indexed.budget, &gate, 0).is_some() {}
        assert!(indexed.index.bucket_count() <= 8);
        indexed.assert_holds(keys());
        assert_eq!(indexed.index.entry_count(), KEPT + 3);
        assert_eq!(indexed.index.counts(), indexed.index.recount(), "miscounted");
        (MOST + 10..2 * MOST).for_each(|key| assert!(indexed.insert(key)));
        while indexed.grow() {}
        indexed.assert_holds(keys().chain(MOST + 10..2 * MOST));
    });
}

#[test]
fn no_key_is_inserted_twice() {
    explore("inserting into a bucket", inserting_into_a_bucket);
}

#[test]
fn no_key_is_lost_in_overflow_buckets() {
    explore("inserting into a full bucket", inserting_into_a_full_bucket);
}

#[test]
fn no_key_is_lost_by_growth() {
    explore("growing", growing);
}

#[test]
fn entries_without_tag_bits_are_counted_and_lead_to_their_keys() {
    explore("growing with blank entries", growing_with_blank_entries);
    explore("growing by records", growing_by_records);
}

#[test]
fn no_key_is_lost_by_folds() {
    explore("folding", folding);
}

#[test]
fn planted_a_fold_without_a_pause_is_found() {
    finds(Planted::FoldUnpaused, folding);
}

#[test]
fn planted_a_fold_that_images_do_not_know_of_is_found() {
    finds(Planted::FoldUntold, folding);
}

#[test]
fn planted_a_split_that_does_not_count_its_copies_is_found() {
    finds(Planted::SplitUncounted, growing_with_blank_entries);
}

#[test]
fn planted_a_split_that_goes_by_the_head_of_a_chain_is_found() {
    finds(Planted::SplitByHead, growing_by_records);
}

#[test]
fn planted_an_insert_that_does_not_look_again_is_found() {
    finds(Planted::InsertUnchecked, inserting_into_a_bucket);
    finds(Planted::InsertUnchecked, inserting_into_a_full_bucket);
}

#[test]
fn planted_a_bucket_lock_that_does_not_compare_is_found() {
    finds(Planted::ExchangeUncompared, inserting_into_a_full_bucket);
}

#[test]
fn planted_a_lookup_that_does_not_look_again_is_found() {
    finds(Planted::LookupOnce, growing);
}

#[test]
fn planted_a_split_that_does_not_tell_is_found() {
    finds(Planted::SplitUntold, growing);
}
