//! The expected state of the store: a word with the version of every key.
//!
//! Each key belongs to one worker, and only that worker changes its row. The owner therefore knows
//! exactly which row a read must return. Other workers peek at the row too. They must see a row of
//! that key. If the key's word was equal before and after the peek and no change was in progress,
//! they must see exactly the version in the word. A deletion does not reset the version, so
//! versions only grow. This detects an old row that comes back.
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | the row is there |
//! | 1 | its worker is about to change it |
//! | 2 to 31 | version; 0 for a key that never had a row |

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Result, ensure};

const PRESENT: u32 = 1;
const CHANGING: u32 = 2;
const VERSION_SHIFT: u32 = 2;

/// Words of a row: its key, its version, and words that follow from both.
pub(super) const ROW_WORDS: usize = 8;
/// Bytes of a row.
pub(super) const ROW_BYTES: usize = ROW_WORDS * 8;

/// A copy of a key's word at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u32);

impl Word {
    pub(super) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    fn is_changing(self) -> bool {
        self.0 & CHANGING != 0
    }

    pub(super) fn version(self) -> u32 {
        self.0 >> VERSION_SHIFT
    }
}

/// The word of each key, which holds the version of its row.
#[derive(Debug)]
pub(super) struct Model {
    words: Vec<AtomicU32>,
    present: AtomicU64,
}

impl Model {
    /// A model in which no key has a row. It writes to all of its memory, so that the memory is
    /// resident from the beginning.
    pub(super) fn new(keys: u64) -> Self {
        Self { words: (0..keys).map(|_| AtomicU32::new(0)).collect(), present: AtomicU64::new(0) }
    }

    pub(super) fn keys(&self) -> u64 {
        self.words.len() as u64
    }

    /// Number of rows that are there.
    pub(super) fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    pub(super) fn word(&self, key: u64) -> Word {
        // Acquire pairs with the Release stores of `begin_change` and `end_change`. A peek that
        // follows this load therefore finds a row that is not older than this word.
        Word(self.words[key as usize].load(Ordering::Acquire))
    }

    /// Called by the key's worker before it changes the row.
    pub(super) fn begin_change(&self, key: u64) {
        let word = &self.words[key as usize];
        word.store(word.load(Ordering::Relaxed) | CHANGING, Ordering::Release);
        // Orders the mark before the change: a thread that sees the changed row also sees the mark.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Called by the key's worker when the row has its next version, or is deleted.
    pub(super) fn end_change(&self, key: u64, present: bool) {
        let word = &self.words[key as usize];
        let before = Word(word.load(Ordering::Relaxed));
        let version = before.version() + 1;
        word.store(version << VERSION_SHIFT | u32::from(present), Ordering::Release);
        match (before.is_present(), present) {
            (false, true) => self.present.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.present.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Called by the key's worker if it changed nothing, because the row was not there.
    pub(super) fn cancel_change(&self, key: u64) {
        let word = &self.words[key as usize];
        word.store(word.load(Ordering::Relaxed) & !CHANGING, Ordering::Release);
    }

    /// Compares the row that the key's own worker read with the model. `None` means that the row is
    /// missing.
    ///
    /// # Errors
    /// Fails if the answer is wrong.
    pub(super) fn check_own(&self, key: u64, found: Option<&[u64]>) -> Result<()> {
        let word = self.word(key);
        match found {
            None => ensure!(!word.is_present(), "wrong answer: the row of key {key} is lost"),
            Some(row) => {
                let version = check_row(key, row)?;
                ensure!(word.is_present(), "wrong answer: the deleted row of key {key} is there");
                ensure!(
                    version == word.version(),
                    "wrong answer: key {key} has version {version}, not {}",
                    word.version()
                );
            }
        }
        Ok(())
    }

    /// Compares the row that another worker peeked at with the key's words before and after the
    /// peek.
    ///
    /// # Errors
    /// Fails if the answer is wrong.
    pub(super) fn check_foreign(
        &self,
        key: u64,
        before: Word,
        found: Option<&[u64]>,
    ) -> Result<()> {
        let version = found.map(|row| check_row(key, row)).transpose()?;
        std::sync::atomic::fence(Ordering::SeqCst);
        if before.is_changing() || self.word(key) != before {
            return Ok(());
        }
        let expected = before.is_present().then(|| before.version());
        ensure!(
            version == expected,
            "wrong answer: another thread finds version {version:?} of key {key}, not {expected:?}"
        );
        Ok(())
    }
}

/// Fills the row of a key and version.
pub(super) fn fill(key: u64, version: u32, row: &mut [u64]) {
    for (place, word) in row.iter_mut().enumerate() {
        *word = expected_word(key, version, place);
    }
}

fn expected_word(key: u64, version: u32, place: usize) -> u64 {
    match place {
        0 => key,
        1 => u64::from(version),
        _ => {
            let mixed = (key << 24 ^ u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ place as u64
        }
    }
}

/// Returns the version of a row. Checks that the row belongs to the key and has one version.
///
/// # Errors
/// Fails if the row belongs to another key or mixes two versions.
pub(super) fn check_row(key: u64, row: &[u64]) -> Result<u32> {
    ensure!(row[0] == key, "wrong answer: the row of key {key} is that of key {}", row[0]);
    let version = row[1] as u32;
    for (place, &word) in row.iter().enumerate() {
        ensure!(
            word == expected_word(key, version, place),
            "wrong answer: the row of key {key} is torn at word {place} (version {version})"
        );
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: u64, version: u32) -> Vec<u64> {
        let mut row = vec![0; ROW_WORDS];
        fill(key, version, &mut row);
        row
    }

    #[test]
    fn wrong_answers_of_every_kind_are_found() {
        let model = Model::new(10);
        for present in [true, true, false, true] {
            model.begin_change(3);
            model.end_change(3, present);
        }
        assert_eq!((model.word(3).version(), model.present()), (4, 1));
        assert!(model.check_own(3, Some(&row(3, 4))).is_ok());
        assert!(model.check_own(3, Some(&row(3, 2))).is_err(), "an old version");
        assert!(model.check_own(3, Some(&row(4, 4))).is_err(), "another key's row");
        assert!(model.check_own(3, None).is_err(), "a lost row");
        assert!(model.check_own(4, Some(&row(4, 1))).is_err(), "a row that never was");
        assert!(model.check_own(4, None).is_ok());
        let mut torn = row(3, 4);
        torn[ROW_WORDS - 1] ^= 1;
        assert!(model.check_own(3, Some(&torn)).is_err(), "a torn row");
    }

    #[test]
    fn a_foreign_peek_is_held_to_a_version_only_at_rest() {
        let model = Model::new(10);
        model.begin_change(1);
        model.end_change(1, true);
        let before = model.word(1);
        assert!(model.check_foreign(1, before, Some(&row(1, 1))).is_ok());
        assert!(model.check_foreign(1, before, Some(&row(1, 2))).is_err());
        assert!(model.check_foreign(1, before, None).is_err());
        model.begin_change(1);
        assert!(model.check_foreign(1, before, Some(&row(1, 2))).is_ok());
        assert!(model.check_foreign(1, before, Some(&row(2, 2))).is_err(), "another key's row");
        model.cancel_change(1);
        assert_eq!(model.word(1), before);
    }
}
