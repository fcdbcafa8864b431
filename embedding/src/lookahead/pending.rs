//! The set of pending rows: a lookahead has requested them, and they are not in memory yet.
//!
//! The set is a hash table with open addressing and linear probing. The number of slots is fixed,
//! so the set's memory is known when the bank opens. Removing an entry shifts later entries back,
//! so the table needs no marks for removed entries. At most half of the slots are in use, so every
//! probe ends at an empty slot.
//!
//! A row can be *overtaken*: a Get has read it itself. The row stays in the set, because it is
//! still in the queue. A mark tells the worker not to read it. A new request for the row removes
//! the mark.
//!
//! The hash has a secret of the process ([`Scatter`]), so that no caller can choose keys that share
//! a slot.

use std::num::NonZeroU16;

use crate::scatter::Scatter;

/// A set of (table number, key) with a fixed capacity.
#[derive(Debug)]
pub(crate) struct PendingSet {
    keys: Vec<u64>,
    /// Table number of each slot; 0 marks an empty slot.
    tables: Vec<u16>,
    /// One bit per slot: set if the slot's row is overtaken. Meaningless in an empty slot.
    overtaken: Vec<u64>,
    len: usize,
    scatter: Scatter,
}

impl PendingSet {
    /// Memory per key of the set's capacity, in bytes.
    pub(crate) const BYTES_PER_KEY: u64 = 2 * (8 + 2) + 1;

    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let slots = 2 * capacity;
        let overtaken = vec![0; slots.div_ceil(64)];
        let scatter = Scatter::of_process();
        Self { keys: vec![0; slots], tables: vec![0; slots], overtaken, len: 0, scatter }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.keys.len() / 2
    }

    /// Adds a row. If the set already has it, removes its overtaken mark.
    pub(crate) fn insert(&mut self, table: NonZeroU16, key: u64) -> Insertion {
        match self.slot_of(table, key) {
            Some(slot) if self.tables[slot] != 0 => {
                self.mark(slot, false);
                Insertion::Present
            }
            Some(slot) if self.len < self.capacity() => {
                self.keys[slot] = key;
                self.tables[slot] = table.get();
                self.mark(slot, false);
                self.len += 1;
                Insertion::Added
            }
            _ => Insertion::Full,
        }
    }

    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.tables.fill(0);
        self.len = 0;
    }

    /// Marks a row as overtaken. Returns false if the set does not have the row.
    pub(crate) fn overtake(&mut self, table: NonZeroU16, key: u64) -> bool {
        let Some(slot) = self.occupied(table, key) else { return false };
        self.mark(slot, true);
        true
    }

    /// True if the set has the row and the row is overtaken.
    pub(crate) fn is_overtaken(&self, table: NonZeroU16, key: u64) -> bool {
        self.occupied(table, key).is_some_and(|slot| self.marked(slot))
    }

    fn marked(&self, slot: usize) -> bool {
        self.overtaken[slot / 64] >> (slot % 64) & 1 == 1
    }

    fn mark(&mut self, slot: usize, overtaken: bool) {
        let word = &mut self.overtaken[slot / 64];
        *word = *word & !(1 << (slot % 64)) | u64::from(overtaken) << (slot % 64);
    }

    /// Returns the row's slot; `None` if the set does not have the row.
    fn occupied(&self, table: NonZeroU16, key: u64) -> Option<usize> {
        self.slot_of(table, key).filter(|&slot| self.tables[slot] != 0)
    }

    /// Removes a row, if the set has it.
    pub(crate) fn remove(&mut self, table: NonZeroU16, key: u64) {
        let Some(mut hole) = self.occupied(table, key) else { return };
        let slots = self.keys.len();
        let mut slot = hole;
        loop {
            slot = (slot + 1) % slots;
            if self.tables[slot] == 0 {
                break;
            }
            // An entry may move to the hole, unless its home slot comes after the hole in probe
            // order.
            let home = self.home(self.tables[slot], self.keys[slot]);
            if (slot + slots - home) % slots >= (slot + slots - hole) % slots {
                self.keys[hole] = self.keys[slot];
                self.tables[hole] = self.tables[slot];
                self.mark(hole, self.marked(slot));
                hole = slot;
            }
        }
        self.tables[hole] = 0;
        self.len -= 1;
    }

    /// Returns the row's slot, or an empty slot for it. `None` if the set has no slots.
    fn slot_of(&self, table: NonZeroU16, key: u64) -> Option<usize> {
        let slots = self.keys.len();
        if slots == 0 {
            return None;
        }
        let table = table.get();
        let mut slot = self.home(table, key);
        while self.tables[slot] != 0 && (self.tables[slot], self.keys[slot]) != (table, key) {
            slot = if slot + 1 == slots { 0 } else { slot + 1 };
        }
        Some(slot)
    }

    fn home(&self, table: u16, key: u64) -> usize {
        self.scatter.slot(key ^ u64::from(table) << 48, self.keys.len())
    }
}

/// The result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Insertion {
    Added,
    Present,
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn agrees_with_a_hash_map(
            capacity in 0_usize..12,
            steps in prop::collection::vec((0..3, 1_u16..3, 0_u64..12), 0..300),
        ) {
            let mut set = PendingSet::with_capacity(capacity);
            // Maps each row to true if it is overtaken.
            let mut model = HashMap::new();
            for (step, table, key) in steps {
                let table = NonZeroU16::new(table).unwrap();
                let row = (table, key);
                let in_it = model.contains_key(&(table, key));
                match step {
                    0 => {
                        let expected = if in_it {
                            Insertion::Present
                        } else if model.len() == capacity {
                            Insertion::Full
                        } else {
                            Insertion::Added
                        };
                        if expected != Insertion::Full {
                            model.insert(row, false);
                        }
                        prop_assert_eq!(set.insert(table, key), expected);
                    }
                    1 => {
                        model.remove(&row);
                        set.remove(table, key);
                    }
                    _ => {
                        model.entry(row).and_modify(|overtaken| *overtaken = true);
                        prop_assert_eq!(set.overtake(table, key), in_it);
                    }
                }
                prop_assert_eq!(set.len(), model.len());
            }
            for table in [1, 2].map(|table| NonZeroU16::new(table).unwrap()) {
                for key in 0..12 {
                    let expected = model.get(&(table, key)).copied().unwrap_or(false);
                    prop_assert_eq!(set.is_overtaken(table, key), expected);
                }
            }
            for &(table, key) in model.keys() {
                prop_assert_eq!(set.insert(table, key), Insertion::Present);
            }
        }
    }
}
