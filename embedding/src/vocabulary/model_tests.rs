//! Tests a vocabulary against a model: a list of values with counts. The memory budget holds only a
//! part of the vocabulary. After each step the vocabulary must agree with the model. After a reopen
//! it must agree with the model's copy at the checkpoint.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;

use super::hash::CLASHING_SEED;
use super::{ByteBuffer, OwnedValues, ValueKind, Vocabulary, VocabularyConfig};
use crate::bank::Bank;
use crate::error::Error;
use crate::options::BankOptions;
use crate::unknown_id::UNKNOWN_ID;

const FIRST_ID: u64 = 3;

#[derive(Debug, Clone)]
enum Step {
    Insert(Vec<u16>),
    /// Inserts a range: its first value and its number of values.
    InsertRange(u16, u16),
    Lookup(Vec<u16>),
    Count(Vec<u8>),
    KeepFrequent(u64),
    /// Merges a vocabulary with these values, each with a count of one.
    Merge(Vec<u16>),
    Freeze(bool),
    Checkpoint,
    Reopen,
    ReadOnly,
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let batch = || prop::collection::vec(0_u16..400, 0..40);
    let step = prop_oneof![
        6 => batch().prop_map(Step::Insert),
        2 => (0_u16..3000, 1_u16..700).prop_map(|(from, count)| Step::InsertRange(from, count)),
        4 => batch().prop_map(Step::Lookup),
        4 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Step::Count),
        1 => (0_u64..3).prop_map(Step::KeepFrequent),
        1 => batch().prop_map(Step::Merge),
        1 => any::<bool>().prop_map(Step::Freeze),
        2 => Just(Step::Checkpoint),
        2 => Just(Step::Reopen),
        1 => Just(Step::ReadOnly),
        1 => prop::bool::weighted(0.3).prop_map(|drop| if drop { Step::Drop } else { Step::Checkpoint }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Returns the string of a value. Some strings are long, and one is empty.
fn word(value: u16) -> Vec<u8> {
    match value % 50 {
        7 => format!("{value} ").repeat(40).into_bytes(),
        8 if value == 8 => Vec::new(),
        _ => format!("word {value}").into_bytes(),
    }
}

fn number(value: u16) -> u64 {
    // The model's value 5 becomes the number 0. Values 0 to 4 become numbers above 2^63.
    u64::from(value).wrapping_sub(5).wrapping_mul(0x1234_5678_9ABC_DEF1)
}

enum Batch {
    Numbers(Vec<u64>),
    Words(ByteBuffer),
}

fn batch(kind: ValueKind, values: &[u16]) -> Batch {
    match kind {
        ValueKind::U64 => Batch::Numbers(values.iter().copied().map(number).collect()),
        ValueKind::Bytes => Batch::Words(values.iter().copied().map(word).collect()),
    }
}

impl Batch {
    fn values(&self) -> super::Values<'_> {
        match self {
            Self::Numbers(numbers) => numbers.into(),
            Self::Words(words) => words.into(),
        }
    }

    fn owned(self) -> OwnedValues {
        match self {
            Self::Numbers(numbers) => OwnedValues::U64(numbers),
            Self::Words(words) => OwnedValues::Bytes(words),
        }
    }
}

/// The model: values in the order of their ids, and their counts.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    values: Vec<u16>,
    places: HashMap<u16, u64>,
    counts: Vec<u64>,
    frozen: bool,
}

impl Model {
    fn insert(&mut self, value: u16) -> u64 {
        let next = self.values.len() as u64;
        *self.places.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.counts.push(0);
            next
        })
    }

    fn id(&self, value: u16) -> u64 {
        self.places.get(&value).map_or(UNKNOWN_ID, |place| FIRST_ID + place)
    }

    fn keep_frequent(&mut self, min_count: u64) {
        let kept = self.values.iter().zip(&self.counts).filter(|of| *of.1 >= min_count);
        let kept: Vec<(u16, u64)> = kept.map(|(&value, &count)| (value, count)).collect();
        (self.places, self.values, self.counts) = Default::default();
        for (value, count) in kept {
            let place = self.insert(value);
            self.counts[place as usize] = count;
        }
    }
}

struct Tested {
    kind: ValueKind,
    seed: u64,
    bank: Option<Bank>,
    vocabulary: Option<Vocabulary>,
    model: Model,
    saved: Option<Model>,
}

fn options() -> BankOptions {
    BankOptions { memory_budget_bytes: 400 << 10, ..Default::default() }
}

impl Tested {
    fn config(&self) -> VocabularyConfig {
        let config = match self.kind {
            ValueKind::U64 => VocabularyConfig::u64(),
            ValueKind::Bytes => VocabularyConfig::bytes(),
        };
        config.first_id(FIRST_ID).unknown_id(1).counts(true)
    }

    fn open(&mut self, dir: &Path) {
        self.vocabulary = None;
        self.bank = None;
        let bank = Bank::open(dir, options()).unwrap();
        let made = bank.vocabulary_with_seed("v", self.config(), self.seed).unwrap();
        self.bank = Some(bank);
        self.vocabulary = Some(made);
    }

    fn bank(&self) -> &Bank {
        self.bank.as_ref().unwrap()
    }

    fn vocabulary(&self) -> &Vocabulary {
        self.vocabulary.as_ref().unwrap()
    }

    fn insert(&mut self, values: &[u16]) {
        let mut ids = vec![0; values.len()];
        let before = self.model.values.len() as u64;
        let given = batch(self.kind, values);
        let inserted = self.vocabulary().ids_or_insert(given.values(), &mut ids).unwrap();
        for (&value, id) in values.iter().zip(ids) {
            let expected = if self.model.frozen {
                self.model.places.get(&value).map_or(1, |place| FIRST_ID + place)
            } else {
                FIRST_ID + self.model.insert(value)
            };
            assert_eq!(id, expected);
        }
        assert_eq!(inserted, self.model.values.len() as u64 - before);
    }

    fn step(&mut self, dir: &Path, step: &Step) {
        match step {
            Step::Insert(values) => self.insert(values),
            Step::InsertRange(from, count) => {
                self.insert(&(*from..from + count).collect::<Vec<_>>());
            }
            Step::Lookup(values) => {
                let given = batch(self.kind, values);
                let mut ids = vec![0; values.len()];
                let unknown = self.vocabulary().ids(given.values(), &mut ids).unwrap();
                let expected: Vec<u64> = values.iter().map(|&value| self.model.id(value)).collect();
                assert_eq!(ids, expected);
                let places = (0..).zip(&ids).filter(|of| *of.1 == UNKNOWN_ID).map(|of| of.0);
                assert_eq!(unknown, places.collect::<Vec<u32>>());
                self.vocabulary().lookup(given.values(), &mut ids).unwrap();
                assert!(ids.iter().zip(expected).all(|(&id, expected)| id == expected.min(id)));
                assert!(unknown.iter().all(|&place| ids[place as usize] == 1));
            }
            Step::Count(picks) => {
                let len = self.model.values.len() as u64;
                let ids: Vec<u64> =
                    picks.iter().map(|&pick| u64::from(pick) % (FIRST_ID + len)).collect();
                self.vocabulary().count(&ids).unwrap();
                for id in ids.iter().filter(|&&id| id >= FIRST_ID) {
                    self.model.counts[(id - FIRST_ID) as usize] += 1;
                }
            }
            Step::KeepFrequent(min_count) => {
                let kept = self.vocabulary().keep_frequent(*min_count);
                if self.model.frozen {
                    assert!(matches!(kept, Err(Error::VocabularyFrozen { .. })));
                } else {
                    let before = self.model.values.len() as u64;
                    self.model.keep_frequent(*min_count);
                    let kept = kept.unwrap();
                    let len = self.model.values.len() as u64;
                    assert_eq!((kept.kept, kept.removed), (len, before - len));
                }
            }
            Step::Merge(values) => self.merge(values),
            Step::Freeze(frozen) => {
                self.vocabulary().set_frozen(*frozen).unwrap();
                self.model.frozen = *frozen;
            }
            Step::Checkpoint => {
                self.bank().checkpoint(b"").unwrap();
                self.saved = Some(self.model.clone());
            }
            Step::Reopen => {
                self.open(dir);
                self.model = self.saved.clone().unwrap_or_default();
                self.check();
            }
            Step::ReadOnly => {
                let Some(saved) = &self.saved else { return };
                let bank = Bank::open_read_only(dir, options(), None).unwrap();
                let vocabulary = bank.open_vocabulary("v").unwrap();
                check(&vocabulary, self.kind, saved);
                if !saved.frozen {
                    let new = batch(self.kind, &[9999]);
                    assert!(vocabulary.ids_or_insert(new.values(), &mut [0]).is_err());
                }
            }
            Step::Drop => {
                self.bank().drop_vocabulary("v").unwrap();
                let old = self.vocabulary.take().unwrap();
                let gone = old.ids(batch(self.kind, &[1]).values(), &mut [0]);
                assert!(matches!(gone, Err(Error::VocabularyDropped { .. })));
                let new = self.bank().vocabulary_with_seed("v", self.config(), self.seed);
                self.vocabulary = Some(new.unwrap());
                self.model = Model::default();
            }
        }
    }

    fn merge(&mut self, values: &[u16]) {
        let config = self.config().first_id(50);
        let other = self.bank().vocabulary_with_seed("other", config, self.seed + 1).unwrap();
        let mut ids = vec![0; values.len()];
        let given = batch(self.kind, values);
        other.ids_or_insert(given.values(), &mut ids).unwrap();
        other.count(&ids).unwrap();
        let mut translation = HashMap::new();
        let merged = self.vocabulary().merge(&other, |chunk| {
            translation.extend((chunk.first_id..).zip(chunk.ids.iter().copied()));
            ControlFlow::Continue(())
        });
        if self.model.frozen && !values.is_empty() {
            assert!(matches!(merged, Err(Error::VocabularyFrozen { .. })));
        } else {
            let before = self.model.values.len();
            for &value in values {
                let place = self.model.insert(value);
                self.model.counts[place as usize] += 1;
            }
            let merged = merged.unwrap();
            assert_eq!(merged.values, other.len());
            assert_eq!(merged.inserted, (self.model.values.len() - before) as u64);
            for (&value, id) in values.iter().zip(ids) {
                assert_eq!(translation[&id], self.model.id(value));
            }
        }
        self.bank().drop_vocabulary("other").unwrap();
    }

    fn check(&self) {
        check(self.vocabulary(), self.kind, &self.model);
    }
}

fn check(vocabulary: &Vocabulary, kind: ValueKind, model: &Model) {
    let len = model.values.len() as u64;
    assert_eq!((vocabulary.len(), vocabulary.is_frozen()), (len, model.frozen));
    let whole = vocabulary.verify().unwrap();
    assert_eq!(whole.values, len);
    assert_eq!(whole.counted, Some(model.counts.iter().sum()));
    let ids: Vec<u64> = (FIRST_ID..FIRST_ID + len).collect();
    assert_eq!(vocabulary.values(&ids).unwrap(), batch(kind, &model.values).owned());
    assert_eq!(vocabulary.counts(&ids).unwrap(), model.counts);
    for id in [0, FIRST_ID - 1, FIRST_ID + len, UNKNOWN_ID] {
        assert!(matches!(vocabulary.values(&[id]), Err(Error::UnknownId { .. })));
    }
}

fn run(kind: ValueKind, clash: bool, steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("bank");
    let seed = if clash { CLASHING_SEED } else { 7 };
    let bank = None;
    let vocabulary = None;
    let saved = None;
    let mut tested = Tested { kind, seed, bank, vocabulary, model: Model::default(), saved };
    tested.open(&dir);
    for step in steps {
        tested.step(&dir, step);
    }
    tested.check();
}

fn without_ranges(steps: Vec<Step>) -> Vec<Step> {
    let small = |step: &Step| !matches!(step, Step::InsertRange(..));
    steps.into_iter().filter(small).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn numbers_agree_with_the_model(steps in steps()) {
        run(ValueKind::U64, false, &steps);
    }

    #[test]
    fn strings_agree_with_the_model(steps in steps()) {
        run(ValueKind::Bytes, false, &steps);
    }

    /// 400 strings share only 64 hashes here, so a record of ids holds several strings.
    #[test]
    fn strings_of_equal_hash_agree_with_the_model(steps in steps()) {
        run(ValueKind::Bytes, true, &without_ranges(steps));
    }
}
