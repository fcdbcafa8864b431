//! The state of a store's rows, and the id of the checkpoint that holds it.
//!
//! **Problem.** A program writes a file of its own (a framework's checkpoint) and calls `checkpoint` before or after.
//! When it reads the file in a later process, it must know whether the store's checkpoint holds the rows of that moment.
//!
//! **Approach.** The state is two numbers: a random one of this opening, and the changes since. The id of a checkpoint is
//! a function of the state that it holds and of its number. So a program that keeps the state in its file recognises
//! the checkpoint by its id, whether it was taken before or after the file.
//!
//! **Invariants.**
//! 1. Two checkpoints have one id only if one is a copy of the other. Within an opening each number is completed once;
//!    a second attempt at a number has a random id, because a file of the first one may be left.
//! 2. If rows changed while a checkpoint began, its id is random: no state that the program could know is in it. A batch
//!    counts when it ends, so a batch of another thread that is half done at the cut is not seen: programs note a state
//!    where no other thread changes rows.

use std::fmt;
use std::str::FromStr;

use super::Store;
use crate::error::{Error, Result};
use crate::process::new_id::new_id;

/// The state of an open store's rows: the same as long as no row is made, changed or deleted and no table dropped,
/// and never the same in two openings. As a text, two numbers: `0123456789abcdef-42`.
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
    /// The id of the checkpoint of this number, if it holds this state.
    #[must_use]
    pub fn checkpoint_id(self, number: u64) -> u64 {
        let mut id = 0_u64;
        for word in [self.opening, number, self.changes] {
            // SplitMix64's finaliser over each word.
            id = (id ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
            id = (id ^ id >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            id = (id ^ id >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            id ^= id >> 31;
        }
        id.max(1)
    }

    /// Rows made, changed and deleted since the store was opened, and tables dropped. A row that changed twice counts
    /// twice.
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
    /// The state of the store's rows now. A batch of another thread counts when it ends.
    #[must_use]
    pub fn state_id(&self) -> StateId {
        let counters = &self.core().counters;
        StateId {
            opening: self.opening,
            changes: counters.changes() + counters.tables_dropped.get(),
        }
    }

    /// The id of the checkpoint of this number. `before`: the state before the log was cut.
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
        // Two checkpoints of one state have two ids.
        assert_eq!((store.checkpoint(b"").unwrap(), store.checkpoint(b"").unwrap()), (2, 3));
        assert_eq!((id_of(2), id_of(3)), (dropped.checkpoint_id(2), dropped.checkpoint_id(3)));
        // Neither a second attempt nor rows that change meanwhile have the id of the state.
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
