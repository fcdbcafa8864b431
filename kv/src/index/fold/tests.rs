//! Tests of folds, beside a log that stores only each record's key and previous address. The log
//! has a beginning: a record below it counts as absent.

use std::collections::{BTreeSet, HashMap};

use super::super::tests::{Album, Indexed, STRIDE, TABLE, budget, entries, hash};
use super::super::{Candidates, INITIAL_LEVEL, Inserted, Look, Probe, low_bits};
use super::*;
use crate::record::address::Address;

const BUDGET_BYTES: u64 = 64 << 20;

/// An index, and the rows that it must have.
struct Model {
    indexed: Indexed,
    gate: Gate,
    /// The address of each row's newest record.
    rows: HashMap<u64, Address>,
    /// Keys whose rows have gone.
    gone: BTreeSet<u64>,
    next_key: u64,
    begin: u64,
    /// Splits can't read records below this address.
    in_memory: u64,
    folded_buckets: u64,
    copies: u64,
}

impl Model {
    fn new(budget_bytes: u64, records: usize) -> Self {
        Model {
            indexed: Indexed::new(budget_bytes, records),
            gate: Gate::default(),
            rows: HashMap::new(),
            gone: BTreeSet::new(),
            next_key: 0,
            begin: 0,
            in_memory: 0,
            folded_buckets: 0,
            copies: 0,
        }
    }

    /// Makes a model with this number of rows.
    fn with_rows(rows: u64) -> Self {
        let mut model = Model::new(BUDGET_BYTES, rows as usize * 8);
        (0..rows).for_each(|_| model.insert());
        model
    }

    fn index(&self) -> &Index {
        &self.indexed.index
    }

    fn tail(&self) -> u64 {
        (self.indexed.records.taken.load(Ordering::Relaxed) + 1) * STRIDE
    }

    /// Returns the records of an entry's chain, newest first.
    fn chain(&self, entry: Entry) -> impl Iterator<Item = Address> {
        let there = |address: &Address| address.raw() >= self.begin.max(1);
        let next = |address: &Address| Some(self.indexed.records.previous(*address));
        std::iter::successors(Some(entry.address()), next).take_while(move |next| there(next))
    }

    /// Returns the key's entry and the address of its newest record, and the searched entries.
    fn find(&self, key: u64) -> (Option<(Entry, Address)>, Candidates) {
        let mut searched = Candidates::default();
        self.index().candidates(hash(TABLE, key), &mut searched);
        let found = searched.iter().find_map(|entry| {
            let mut chain = self.chain(entry);
            chain.find(|&at| self.indexed.records.key(at) == key).map(|at| (entry, at))
        });
        (found, searched)
    }

    fn insert(&mut self) {
        let key = self.next_key;
        self.next_key += 1;
        self.put(key);
    }

    /// Writes a record for a row, which may be there.
    fn put(&mut self, key: u64) {
        let Indexed { index, budget, records } = &self.indexed;
        let hash = hash(TABLE, key);
        let new = records.append(key);
        let (found, searched) = self.find(key);
        assert_eq!(found.map(|(_, at)| at), self.rows.get(&key).copied(), "key {key}");
        match found {
            Some((entry, old)) => {
                let is_head = entry.address() == old;
                let previous = if is_head { records.previous(old) } else { entry.address() };
                records.link(new, previous);
                assert!(index.replace(hash, entry, new, previous.is_none()));
            }
            None => {
                let link = |previous| records.link(new, previous);
                let done = index.insert(budget, hash, &searched, new, link, || true);
                assert_eq!(done, Inserted::Yes);
            }
        }
        self.rows.insert(key, new);
        self.gone.remove(&key);
        let copies_end = index.growth.lock().copies_end;
        index.grow(budget, |address| match address.raw() {
            below if below < self.begin => Look::Nowhere,
            on_disk if on_disk < self.in_memory => Look::Unseen,
            _ => Look::Record(
                super::super::tests::hash(TABLE, records.key(address)),
                records.previous(address),
            ),
        });
        self.copies += u64::from(index.growth.lock().copies_end != copies_end);
    }

    /// Removes a row whose entry has no other record.
    fn remove(&mut self, key: u64) {
        let Some((entry, _)) = self.find(key).0 else { return };
        if entry.stands_alone() {
            assert!(self.index().remove(hash(TABLE, key), entry));
            self.rows.remove(&key);
            self.gone.insert(key);
        }
    }

    /// Moves the log's beginning. The rows below it go. If `clears`, their entries go, too.
    fn begin_at(&mut self, begin: u64, clears: bool) {
        let going = self.rows.iter().filter(|(_, at)| at.raw() < begin).map(|(&key, _)| key);
        let going: Vec<u64> = going.collect();
        for key in going {
            // The entry may have gone with another row of its chain.
            if let (Some((entry, _)), _) = self.find(key)
                && clears
                && entry.address().raw() < begin
            {
                self.index().remove(hash(TABLE, key), entry);
            }
            self.rows.remove(&key);
            self.gone.insert(key);
        }
        self.begin = begin;
        self.in_memory = self.in_memory.max(begin);
    }

    /// Folds portions until there is nothing to fold.
    fn fold(&mut self) {
        let before = self.index().bucket_count();
        let fold = || self.index().fold(&self.indexed.budget, &self.gate, self.begin);
        while let Some(folded) = fold() {
            self.assert_charges();
            let _ = folded.rest();
        }
        let after = self.index().bucket_count();
        self.folded_buckets += before - after;
        if after < before {
            self.assert_exact();
        }
    }

    /// Asserts that no overflow bucket is in two chains or in none. Returns the pool's size.
    fn assert_pool(&self) -> u32 {
        let mut in_use = BTreeSet::new();
        let mut numbers = Vec::new();
        for number in 0..self.index().bucket_count() {
            let meta = Meta(self.index().bucket(number).meta().load(Ordering::Relaxed));
            numbers.clear();
            self.index().overflow_numbers(meta.overflow(), &mut numbers);
            assert!(numbers.iter().all(|&number| in_use.insert(number)));
        }
        self.index().pool.lock().assert_whole(&in_use)
    }

    fn assert_charges(&self) {
        let growth = self.index().growth.lock();
        let pool = self.index().pool.lock();
        let charged = growth.charged_bytes + pool.charged_bytes();
        assert_eq!(charged, self.indexed.budget.index_bytes());
        assert!(growth.charged_bytes >= self.index().bucket_count() * BUCKET_BYTES as u64);
    }

    /// Asserts that each record of a chain belongs to the bucket and matches the tag, and that no
    /// two entries of a bucket have one head.
    fn assert_exact(&self) {
        for number in 0..self.index().bucket_count() {
            let bucket = self.index().bucket(number);
            let meta = Meta(bucket.meta().load(Ordering::Relaxed));
            let mut heads = BTreeSet::new();
            for slot in self.index().chain(bucket, meta).flat_map(Bucket::slots) {
                let entry = Entry(slot.load(Ordering::Relaxed));
                if entry.is_empty() || entry.address().raw() < self.begin {
                    continue;
                }
                assert!(heads.insert(entry.address()), "two entries have one head");
                for at in self.chain(entry) {
                    let hash = hash(TABLE, self.indexed.records.key(at));
                    assert_eq!(low_bits(hash, meta.depth()), number);
                    assert!(entry.matches(Probe::new(hash, meta.depth())));
                }
            }
        }
    }

    /// Asserts that the images are those of the present index.
    fn assert_shown_by(&self, album: &Album) {
        let budget = budget(BUDGET_BYTES);
        let loaded = Index::load(&album.open(self.begin, self.tail()), &budget).unwrap();
        assert_eq!(loaded.state(), self.index().state());
        assert_eq!(loaded.counts(), loaded.recount());
        assert!(budget.index_bytes() <= self.indexed.budget.index_bytes());
        let mut there = entries(self.index());
        there.retain(|&entry| Entry(entry).address().raw() >= self.begin);
        assert_eq!(entries(&loaded), there);
    }

    fn check(&self) {
        self.indexed.assert_counts();
        self.assert_charges();
        self.assert_pool();
        for (&key, &address) in &self.rows {
            assert_eq!(self.find(key).0.map(|(_, at)| at), Some(address), "key {key}");
        }
        for &key in self.gone.iter().rev().take(5000) {
            assert_eq!(self.find(key).0, None, "key {key} has gone");
        }
    }
}

/// Compares an index with a map, in rounds: rows come, change and go, splits read records or not,
/// entries lose their tag bits, and the index folds.
fn compare_with_a_map(seed: u64, budget_bytes: u64, rows: usize) -> Model {
    let mut random = fastrand::Rng::with_seed(seed);
    let rounds = 10;
    let mut model = Model::new(budget_bytes, rows * rounds * 2);
    for round in 0..rounds {
        for _ in 0..random.usize(rows / 4..rows) {
            let old = random.u64(0..=model.next_key);
            match random.u8(0..10) {
                0..6 => model.insert(),
                6..9 if old < model.next_key => model.put(old),
                _ => model.remove(old),
            }
        }
        model.in_memory = random.u64(model.begin..=model.tail());
        if random.u8(0..3) == 0 {
            model.index().forget_tags();
        }
        model.fold();
        model.check();
        let passed = model.tail() - model.begin;
        let kept = passed / [1000, 20, 4, 1][random.usize(0..4)];
        model.begin_at(model.tail() - kept.max(STRIDE), random.bool());
        if random.bool() {
            model.index().purge(model.begin, 0, model.index().bucket_count());
        }
        model.fold();
        model.check();
        println!("seed {seed}, round {round}: {} buckets", model.index().bucket_count());
    }
    model
}

#[test]
fn an_index_that_grows_and_folds_has_each_row_and_no_other() {
    let (seeds, rows) = if cfg!(miri) { (1, 300) } else { (6, 20_000) };
    let mut folded = 0;
    let mut copies = 0;
    for seed in 0..seeds {
        let model = compare_with_a_map(seed, BUDGET_BYTES, rows);
        folded += model.folded_buckets;
        copies += model.copies;
    }
    assert!(cfg!(miri) || folded > 1000 && copies > 0, "{folded} buckets, {copies} copies");
}

/// The budget refuses memory, so keys share slots, and entries lose tag bits.
#[test]
fn an_index_whose_rows_share_slots_folds_too() {
    let (seeds, rows) = if cfg!(miri) { (1, 300) } else { (6, 12_000) };
    let mut folded = 0;
    for seed in 100..100 + seeds {
        folded += compare_with_a_map(seed, 256 << 10, rows).folded_buckets;
    }
    assert!(cfg!(miri) || folded > 100, "{folded} buckets");
}

/// Splits restore the index that folds have changed, except for the length of tags.
#[test]
fn splits_undo_folds() {
    let rows = if cfg!(miri) { 2500 } else { 20_000 };
    let mut model = Model::with_rows(rows);
    let most = model.index().bucket_count();
    assert!(cfg!(miri) || model.assert_pool() > 100);
    let last = model.tail() - 20 * STRIDE;
    model.begin_at(last, true);
    model.fold();
    assert_eq!(model.index().bucket_count(), 1 << INITIAL_LEVEL);
    // Nothing is left but what a new index has, and free memory for overflow buckets.
    assert_eq!(model.assert_pool(), 0);
    let headroom = model.indexed.budget.page_bytes() / 16 + 2 * model.index().granule_bytes;
    let least = (1 << INITIAL_LEVEL) * BUCKET_BYTES as u64 + headroom;
    assert!(model.indexed.budget.index_bytes() <= least);
    // The memory of the upper buckets is as new.
    for number in 1 << INITIAL_LEVEL..most {
        let bucket = model.index().bucket(number);
        assert!(bucket.slots().iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
        assert_eq!(bucket.meta().load(Ordering::Relaxed), 0);
    }
    model.check();
    (0..rows).for_each(|_| model.insert());
    model.check();
    assert!(model.index().bucket_count() >= most);
}

#[test]
fn an_index_folds_only_far_below_its_load_and_only_for_a_unit_of_memory() {
    let rows = if cfg!(miri) { 2500 } else { 20_000 };
    let mut model = Model::with_rows(rows);
    let buckets = model.index().bucket_count();
    let folds = |model: &mut Model, rows: u64| {
        model.begin_at(model.tail() - rows * STRIDE, true);
        model.fold();
        model.index().bucket_count()
    };
    let limit = buckets * LOAD * FOLDS_BELOW_QUARTERS / 4;
    assert_eq!(folds(&mut model, limit + 50), buckets);
    let folded = folds(&mut model, limit - 50);
    let entries = model.index().entry_count();
    assert!(entries <= limit - 50 && entries > (limit - 50) * 9 / 10, "few rows share a slot");
    assert_eq!(folded, (entries * 4).div_ceil(FOLDED_QUARTERS * LOAD));
    // An index that has grown by a few buckets has no unit of memory to give back.
    let mut model = Model::with_rows(1300);
    let buckets = model.index().bucket_count();
    assert!(buckets > 1 << INITIAL_LEVEL);
    let unit = model.index().granule_bytes;
    let charged = model.index().growth.lock().charged_bytes;
    if charged == (BUCKET_BYTES as u64 * (1 << INITIAL_LEVEL)).next_multiple_of(unit) {
        assert_eq!(folds(&mut model, 10), buckets);
    }
}

/// A blank entry that a split has copied leads to a record of the other bucket. In a merged bucket,
/// it would stand alone with a wrong head, and could match the record's key once more.
#[test]
fn an_index_does_not_fold_before_the_log_has_passed_copies() {
    let rows = if cfg!(miri) { 2500 } else { 20_000 };
    let mut model = Model::with_rows(rows);
    model.index().forget_tags();
    model.in_memory = model.tail();
    (0..2 * rows).for_each(|_| model.insert());
    assert!(model.copies > 0, "splits have copied blank entries");
    model.indexed.assert_counts();
    let copies_end = model.index().growth.lock().copies_end;
    assert!(copies_end <= rows * STRIDE + 1, "only old records have lost their tags");
    // Rows with copies change: the new entry has one key, and the other copy a superseded record.
    (0..rows).step_by(7).for_each(|key| model.put(key));
    (0..rows).step_by(21).for_each(|key| model.remove(key));
    // Most rows go, but not the last one with copies.
    (rows..3 * rows).for_each(|key| model.remove(key));
    model.begin_at(copies_end - 1, true);
    model.index().purge(model.begin, 0, model.index().bucket_count());
    let buckets = model.index().bucket_count();
    model.index().growth.lock().is_folding = true;
    model.fold();
    assert_eq!(model.index().bucket_count(), buckets, "one copy is above the beginning");
    model.begin_at(copies_end, false);
    model.fold();
    assert!(model.index().bucket_count() < buckets);
    model.check();
}

#[test]
fn no_bucket_is_folded_while_their_numbers_must_stay() {
    let mut model = Model::with_rows(if cfg!(miri) { 2500 } else { 20_000 });
    model.begin_at(model.tail() - STRIDE, true);
    let fold = |model: &Model| {
        model.index().fold(&model.indexed.budget, &model.gate, model.begin).is_some()
    };
    let numbers = model.index().keep_numbers();
    assert!(!fold(&model), "a checkpoint writes the index");
    drop(numbers);
    let pin = model.gate.enter();
    assert!(!fold(&model), "the pause would wait for this thread");
    drop(pin);
    let growth = model.index().growth.lock();
    assert!(!fold(&model), "a batch splits buckets");
    drop(growth);
    assert!(fold(&model));
}

/// Images before folds, after folds, and after changes that follow.
#[test]
fn the_first_image_after_a_fold_is_whole_and_others_are_not() {
    let rows = if cfg!(miri) { 2500 } else { 20_000 };
    let mut model = Model::with_rows(rows);
    let mut album = Album::new();
    model.index().mark_all_changed();
    album.add(true, || model.index().cut());
    for round in 0..3 {
        // Changes before the fold, as the last image does not have them.
        (0..rows / 2).for_each(|_| model.insert());
        album.add(model.index().has_folded(), || model.index().cut());
        (0..rows / 2).for_each(|_| model.insert());
        model.begin_at(model.tail() - (100 + 400 * round) * STRIDE, true);
        model.fold();
        assert!(model.index().has_folded());
        for _ in 0..10 {
            model.insert();
        }
        model.index().mark_all_changed();
        album.add(true, || model.index().cut());
        assert!(!model.index().has_folded());
        model.assert_shown_by(&album);
        // Changes after the whole image are an image of changes.
        let newest = model.next_key - 1;
        model.put(newest);
        let file_bytes = album.add(false, || model.index().cut());
        assert!(file_bytes < 1000, "{file_bytes} bytes");
        model.assert_shown_by(&album);
    }
    model.check();
}

#[test]
#[should_panic(expected = "an image after a fold is whole")]
fn an_image_of_changes_after_a_fold_is_a_bug() {
    let mut model = Model::with_rows(if cfg!(miri) { 2500 } else { 20_000 });
    let mut album = Album::new();
    model.index().mark_all_changed();
    album.add(true, || model.index().cut());
    model.begin_at(model.tail() - STRIDE, true);
    model.fold();
    album.add(false, || model.index().cut());
}

/// An index does not know the copies of the opening before, so it waits until the log has passed
/// all of that opening's records.
#[test]
fn a_loaded_index_folds_once_the_log_has_passed_the_records_of_its_image() {
    let mut model = Model::with_rows(if cfg!(miri) { 2500 } else { 20_000 });
    let mut album = Album::new();
    model.begin_at(model.tail() - 50 * STRIDE, true);
    model.index().mark_all_changed();
    album.add(true, || model.index().cut());
    let budget = budget(BUDGET_BYTES);
    let loaded = Index::load(&album.open(model.begin, model.tail()), &budget).unwrap();
    assert!(loaded.fold(&budget, &model.gate, model.tail() - 1).is_none());
    let before = budget.index_bytes();
    let folded = loaded.fold(&budget, &model.gate, model.tail()).unwrap();
    assert_eq!(before - budget.index_bytes(), folded.freed_bytes);
    assert_eq!(loaded.counts(), loaded.recount());
}
