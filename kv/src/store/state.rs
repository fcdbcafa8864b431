//! Identifies the state of a store's rows, and the checkpoint that holds this state.
//!
//! **Problem.** A program writes a file of its own (for example a framework's checkpoint), and
//! calls `checkpoint` before or after that. A later process reads the file. It must know if the
//! store's checkpoint holds the same rows that the store had when the file was written.
//!
//! **Approach.** The state is two numbers: a random number of this opening, and the number of
//! changes since the opening. The id of a checkpoint is a function of its state and its number. The
//! program stores the state in its file. A later process computes the checkpoint's id from that
//! state. So it finds the checkpoint, whether the checkpoint was taken before or after the file was
//! written.
//!
//! **Invariants.**
//! 1. Two checkpoints have the same id only if one is a copy of the other. An opening completes
//!    only one checkpoint of each number. A second attempt at a number gets a random id, because
//!    files of the first attempt may be left.
//! 2. If rows changed while a checkpoint began, its id is random, because the program cannot have
//!    noted the state that the checkpoint holds. A batch is counted when it ends. So a batch of
//!    another thread that is half done at the pause is not noticed. Programs must note a state
//!    while no other thread changes rows.

use std::fmt;
use std::str::FromStr;

use super::Store;
use crate::error::{Error, Result};
use crate::process::new_id::new_id;

/// The state of an open store's rows. It changes if a row is made, changed or deleted, or if a
/// table is dropped. Two openings of a store never have the same state. Its text form has two
/// numbers: `0123456789abcdef-42`.
///
/// # Examples
/// ```
/// # fn main() -> embank_kv::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// use embank_kv::{StateId, Store, StoreOptions};
///
/// let store = Store::open(dir.path(), &StoreOptions::default())?;
/// let kept_in_a_file = store.state_id().to_string();
/// let number = store.checkpoint(b"")?;
/// let state: StateId = kept_in_a_file.parse()?;
/// let checkpoint = &embank_kv::inspect::summary(dir.path())?.checkpoints[0];
/// assert_eq!(checkpoint.id, state.checkpoint_id(number));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId {
    opening: u64,
    changes: u64,
}

impl StateId {
    /// Returns the id that checkpoint `number` has if it holds this state.
    #[must_use]
    pub fn checkpoint_id(self, number: u64) -> u64 {
        let mut id = 0_u64;
        for word in [self.opening, number, self.changes] {
            // Applies the finaliser of SplitMix64 to each word.
            id = (id ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
            id = (id ^ id >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            id = (id ^ id >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            id ^= id >> 31;
        }
        id.max(1)
    }

    /// Returns the number of rows made, changed and deleted since the store was opened, plus the
    /// number of tables dropped. A row that changed twice counts twice.
    #[must_use]
    pub fn changes(self) -> u64 {
        self.changes
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.opening, self.changes)
    }
}

impl FromStr for StateId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('-').and_then(|(opening, changes)| {
            let opening = u64::from_str_radix(opening, 16).ok()?;
            Some(Self { opening, changes: changes.parse().ok()? })
        });
        parsed.ok_or_else(|| Error::InvalidArgument(format!("{text:?} is no state of a store")))
    }
}

impl Store {
    /// Returns the id of the present state of the store's rows. A batch changes the id when it
    /// ends. So the id may lack changes that a running batch of another thread has already made.
    #[must_use]
    pub fn state_id(&self) -> StateId {
        let counters = &self.core().counters;
        StateId {
            opening: self.opening,
            changes: counters.changes() + counters.tables_dropped.get(),
        }
    }

    /// Returns the id for checkpoint `number`. `before` is the state before batches were paused.
    /// `is_retry` is true if an earlier attempt at this number has failed.
    pub(super) fn checkpoint_id(&self, number: u64, before: StateId, is_retry: bool) -> u64 {
        if is_retry || self.state_id() != before {
            return new_id();
        }
        before.checkpoint_id(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_back_from_its_text() {
        let state = StateId { opening: 7, changes: u64::MAX };
        assert_eq!(state.to_string().parse::<StateId>().unwrap(), state);
        for wrong in ["", "-", "7", "7-", "g-1", "7--1", "7-1-1", "11112222333344445-1"] {
            assert!(wrong.parse::<StateId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_checkpoint_has_the_id_of_the_state_that_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(dir.path(), &crate::options::StoreOptions::default()).unwrap();
        let id_of = |number: u64| {
            let kept = crate::inspect::summary(dir.path()).unwrap().checkpoints;
            kept.iter().find(|kept| kept.number == number).unwrap().id
        };
        let store = open();
        let table = store.create_table("rows", 8, b"").unwrap();
        let made = store.state_id();
        assert_eq!(store.checkpoint(b"").unwrap(), 1);
        assert_eq!((store.state_id(), id_of(1)), (made, made.checkpoint_id(1)));
        store.drop_table(table).unwrap();
        let dropped = store.state_id();
        assert_ne!(dropped, made);
        // Two checkpoints with the same state have different ids, because their numbers differ.
        assert_eq!((store.checkpoint(b"").unwrap(), store.checkpoint(b"").unwrap()), (2, 3));
        assert_eq!((id_of(2), id_of(3)), (dropped.checkpoint_id(2), dropped.checkpoint_id(3)));
        // A second attempt gets a random id. A checkpoint whose rows changed after `before` also
        // gets one.
        assert_ne!(store.checkpoint_id(4, dropped, true), dropped.checkpoint_id(4));
        assert_ne!(store.checkpoint_id(4, made, false), made.checkpoint_id(4));
        drop(store);
        assert_ne!(open().state_id().to_string(), dropped.to_string());
    }

    #[test]
    fn ids_of_states_and_numbers_differ() {
        let mut ids = std::collections::HashSet::new();
        for opening in 0..20 {
            for changes in 0..20 {
                let state = StateId { opening, changes };
                assert!((1..20).all(|number| ids.insert(state.checkpoint_id(number))));
            }
        }
    }
}
