//! The list of a store's tables, with what finds a table by its name and a dropped table by its
//! number.
//!
//! A bank may have 65,535 table numbers, and most of them may be those of dropped tables. So the
//! store must not look at all numbers to make or drop a table.

use std::collections::{BTreeSet, HashMap};

use super::numbers::{NUMBERS_MAX, Reach};
use super::state::TableState;
use crate::record::address::{TableId, TableNumber};

/// The state of each table number that was given out. The state of number `n` has the place
/// `n - 1`.
#[derive(Debug)]
pub(super) struct TableList {
    /// Only `add` and `mark_dropped` drop a table or change a name.
    pub(super) states: Vec<TableState>,
    /// The numbers of the tables that were not dropped.
    by_name: HashMap<String, TableNumber>,
    /// The places of the dropped tables.
    dropped: BTreeSet<u16>,
    /// The largest table number: [`NUMBERS_MAX`], or less in tests.
    pub(super) number_max: u16,
    /// The place at which the search for a free number continues, so all numbers are reused equally
    /// often.
    next_place: u16,
}

impl TableList {
    pub(super) fn new(states: Vec<TableState>) -> Self {
        let (dropped, there): (Vec<_>, Vec<_>) =
            states.iter().partition(|state| state.entry.dropped);
        let named = |state: &&TableState| (state.entry.name.clone(), state.id().number);
        Self {
            by_name: there.iter().map(named).collect(),
            dropped: dropped.iter().map(|state| place_of(state.id().number)).collect(),
            number_max: NUMBERS_MAX,
            next_place: 0,
            states,
        }
    }

    /// Returns the state of a table that exists or was dropped. `None` if its number belongs to
    /// another table now.
    pub(super) fn state(&self, table: TableId) -> Option<&TableState> {
        let state = self.states.get(usize::from(table.number.0).wrapping_sub(1));
        state.filter(|state| state.id() == table)
    }

    /// Returns the state of a table. `None` if there is no such table.
    pub(super) fn find(&self, table: TableId) -> Option<&TableState> {
        self.state(table).filter(|state| !state.entry.dropped)
    }

    /// Returns the states of the tables that were not dropped, in the order of their numbers.
    pub(super) fn there(&self) -> impl Iterator<Item = &TableState> {
        self.states.iter().filter(|state| !state.entry.dropped)
    }

    /// Returns the state of the table `name`. `None` if no table has this name.
    pub(super) fn named(&self, name: &str) -> Option<&TableState> {
        let number = self.by_name.get(name)?;
        self.states.get(usize::from(place_of(*number)))
    }

    /// Returns the states of the dropped tables, in the order of their numbers from place `first`
    /// on, and then the others.
    pub(super) fn dropped_from(&self, first: u16) -> impl Iterator<Item = &TableState> {
        let places = self.dropped.range(first..).chain(self.dropped.range(..first));
        places.map(|&place| &self.states[usize::from(place)])
    }

    /// Number of dropped tables.
    pub(super) fn dropped_count(&self) -> usize {
        self.dropped.len()
    }

    /// Returns the ids for the next `count` tables. `None` if fewer table numbers are free; then
    /// nothing has changed.
    pub(super) fn next_ids(
        &mut self,
        count: usize,
        begin: Reach,
        checkpoints: &[u64],
    ) -> Option<Vec<TableId>> {
        let unused = (self.states.len() + 1..=usize::from(self.number_max)).take(count);
        let new = |number| TableId { number: TableNumber(number as u16), incarnation: 0 };
        let mut ids: Vec<TableId> = unused.map(new).collect();
        let lacking = count - ids.len();
        if lacking == 0 {
            return Some(ids);
        }
        let dropped = self.dropped_from(self.next_place);
        let free = dropped.filter(|state| state.is_free(begin, checkpoints));
        ids.extend(free.filter_map(TableState::next_id).take(lacking));
        if ids.len() < count {
            return None;
        }
        // The place that follows: the place of number `n` is `n - 1`.
        self.next_place = ids.last()?.number.0;
        Some(ids)
    }

    /// Adds a table. Its number is new, or is the number of a dropped table.
    pub(super) fn add(&mut self, state: TableState) {
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
    pub(super) fn mark_dropped(&mut self, table: TableId) {
        let place = place_of(table.number);
        let state = &mut self.states[usize::from(place)];
        let name = std::mem::take(&mut state.entry.name);
        state.entry.descriptor = Vec::new();
        state.entry.dropped = true;
        state.rows = 0.into();
        state.record_bytes = 0.into();
        self.by_name.remove(&name);
        self.dropped.insert(place);
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
    use crate::checkpoint::manifest::TableEntry;

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
            let mut list = TableList::new(Vec::new());
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
                        let number = list.states.len() as u16 + 1;
                        list.add(TableState::new(entry(number, name), 0));
                    }
                }
                for list in [&list, &TableList::new(copies(&list))] {
                    for step in 0..12 {
                        let name = format!("table {step}");
                        let there = |of: &&TableState| !of.entry.dropped && of.entry.name == name;
                        let found = list.named(&name).map(|of| of.entry.number);
                        let there = list.states.iter().find(there);
                        prop_assert_eq!(found, there.map(|of| of.entry.number));
                    }
                    let mut dropped: Vec<u16> =
                        list.dropped_from(3).map(|of| of.entry.number).collect();
                    prop_assert_eq!(dropped.len(), list.dropped_count());
                    dropped.sort_unstable();
                    let gone = list.states.iter().filter(|of| of.entry.dropped);
                    prop_assert_eq!(dropped, gone.map(|of| of.entry.number).collect::<Vec<_>>());
                }
            }
        }
    }

    fn copies(list: &TableList) -> Vec<TableState> {
        let copy = |of: &TableState| TableState::new(of.entry.clone(), of.id().incarnation);
        list.states.iter().map(copy).collect()
    }
}
