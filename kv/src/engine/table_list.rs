//! The list of a store's tables, with what finds a table by its name and a dropped table by its
//! number.
//!
//! A bank may have 65,535 table numbers, and most of them may be those of dropped tables. So the
//! store must not look at all numbers to make or drop a table.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};

use super::tables::TableState;
use crate::checkpoint::manifest::TableEntry;
use crate::record::address::{TableId, TableNumber};

/// The state of each table number that was given out. The state of number `n` has the place
/// `n - 1`.
#[derive(Debug, Default)]
pub(crate) struct TableList {
    states: Vec<TableState>,
    /// The numbers of the tables that were not dropped.
    by_name: HashMap<String, TableNumber>,
    /// The places of the dropped tables.
    dropped: BTreeSet<u16>,
}

impl TableList {
    pub(crate) fn new(states: Vec<TableState>) -> Self {
        let mut list = Self { states, ..Self::default() };
        for state in &list.states {
            if state.entry.dropped {
                list.dropped.insert(place_of(state.id().number));
            } else {
                list.by_name.insert(state.entry.name.clone(), state.id().number);
            }
        }
        list
    }

    /// Returns the state of the table `name`. `None` if no table has this name.
    pub(crate) fn named(&self, name: &str) -> Option<&TableState> {
        let number = self.by_name.get(name)?;
        self.states.get(usize::from(place_of(*number)))
    }

    /// Returns the states of the dropped tables, in the order of their numbers from place `first`
    /// on, and then the others.
    pub(crate) fn dropped_from(&self, first: u16) -> impl Iterator<Item = &TableState> {
        let places = self.dropped.range(first..).chain(self.dropped.range(..first));
        places.map(|&place| &self.states[usize::from(place)])
    }

    /// Number of dropped tables.
    pub(crate) fn dropped_count(&self) -> usize {
        self.dropped.len()
    }

    /// Adds a table. Its number is new, or is the number of a dropped table.
    pub(crate) fn add(&mut self, state: TableState) {
        let number = state.id().number;
        let place = place_of(number);
        self.by_name.insert(state.entry.name.clone(), number);
        self.dropped.remove(&place);
        match self.states.get_mut(usize::from(place)) {
            Some(before) => *before = state,
            None => self.states.push(state),
        }
    }

    /// Marks a table as dropped, and forgets its name, its descriptor and its counts.
    pub(crate) fn mark_dropped(&mut self, table: TableId) {
        let place = place_of(table.number);
        let state = &mut self.states[usize::from(place)];
        let name = std::mem::take(&mut state.entry.name);
        state.entry = TableEntry {
            name: String::new(),
            descriptor: Vec::new(),
            dropped: true,
            ..state.entry
        };
        state.rows = 0.into();
        state.record_bytes = 0.into();
        self.by_name.remove(&name);
        self.dropped.insert(place);
    }
}

impl Deref for TableList {
    type Target = [TableState];

    fn deref(&self) -> &[TableState] {
        &self.states
    }
}

/// For changes of states that drop no table and change no name.
impl DerefMut for TableList {
    fn deref_mut(&mut self) -> &mut [TableState] {
        &mut self.states
    }
}

/// Table numbers begin at 1.
fn place_of(number: TableNumber) -> u16 {
    number.0 - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(number: u16, name: String) -> TableEntry {
        TableEntry {
            number,
            name,
            value_bytes: 8,
            variable: false,
            descriptor: vec![1],
            rows: 5,
            record_bytes: 0,
            dropped: false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_search_of_all_states(steps in prop::collection::vec(0_u16..12, 0..80)) {
            let mut list = TableList::default();
            for step in steps {
                let name = format!("table {step}");
                match list.named(&name).map(TableState::id) {
                    Some(id) => list.mark_dropped(id),
                    None if step % 2 == 1 && list.dropped_count() > 0 => {
                        let next = list.dropped_from(step).next().and_then(TableState::next_id);
                        let id = next.expect("a number is used few times");
                        list.add(TableState::new(entry(id.number.0, name), id.incarnation));
                    }
                    None => {
                        let number = list.len() as u16 + 1;
                        list.add(TableState::new(entry(number, name), 0));
                    }
                }
                for list in [&list, &TableList::new(copies(&list))] {
                    for step in 0..12 {
                        let name = format!("table {step}");
                        let there = |of: &&TableState| !of.entry.dropped && of.entry.name == name;
                        let found = list.named(&name).map(|of| of.entry.number);
                        prop_assert_eq!(found, list.iter().find(there).map(|of| of.entry.number));
                    }
                    let mut dropped: Vec<u16> =
                        list.dropped_from(3).map(|of| of.entry.number).collect();
                    prop_assert_eq!(dropped.len(), list.dropped_count());
                    dropped.sort_unstable();
                    let gone = list.iter().filter(|of| of.entry.dropped);
                    prop_assert_eq!(dropped, gone.map(|of| of.entry.number).collect::<Vec<_>>());
                }
            }
        }
    }

    fn copies(list: &TableList) -> Vec<TableState> {
        let copy = |of: &TableState| TableState::new(of.entry.clone(), of.id().incarnation);
        list.iter().map(copy).collect()
    }
}
