//! Admission: decides which keys get a row. Either every key gets a row at its first Get (read for
//! training), or each key after a number of Gets, or each key by chance.
//!
//! **Problem.** In click logs, most keys come only once or twice. A row for such a key takes memory
//! and disk and learns nothing.
//!
//! **Approach.** A Get first acquires the rows that exist. Then it decides about each key without a
//! row: it admits or refuses the key. An admitted key gets a row. For a refused key, the Get
//! returns the initial values and inserts no row. The lease does not hold a refused key, and drops
//! its gradient. Evaluation sees the initial values. A decision holds for the whole Get, even if
//! the Get waits and tries again.
//!
//! *After a number of Gets*: separate tables hold the counts of Gets of keys without a row (module
//! `counts`).
//!
//! *By chance*: each Get of a key without a row draws a number, as in Paddle and Monolith. On
//! average, a key gets its row after 1 / probability Gets. A draw depends only on the table's seed,
//! the key, and the number of Gets since the table was made. A separate table stores this number of
//! Gets as its only row, so every checkpoint contains it. A resumed run therefore admits exactly
//! the keys that an uninterrupted run admits.
//!
//! **Several threads.** A Get first acquires existing rows, then the rows of admitted keys. It
//! never waits while it holds rows. If an admitted row is blocked, the Get gives all rows back and
//! waits (`lease::waiting`). If two Gets count a key at the same time, both count. A Get may find
//! that a key has no row, and count the key only after a second Get has admitted it. The first Get
//! then returns the initial values, as if it had come before the second. It may leave a count of 1
//! for a key that has a row. If that row is evicted, the key's next admission needs one Get less.

use std::collections::HashSet;
use std::sync::OnceLock;

use embank_kv::{Access, Clock, Operation, RowHints, TableId};

use crate::error::Result;
use crate::stats::seen::SeenClocks;
use crate::table::Table;
use crate::table::count_tables::{COUNT_BYTES, create_generation};
use crate::table::gate::{Decision, Gate};
use crate::table::operations::{GetRows, GotRows};

impl Table {
    /// Returns the decisions for `keys` in a step that has already called Get for the keys
    /// `earlier`. If a key of both lists has no row, the earlier Get refused it, and it stays
    /// refused. `None` if the table admits every key.
    pub(crate) fn decided_earlier(&self, keys: &[u64], earlier: &[u64]) -> Option<Vec<Decision>> {
        self.shared.gate.as_ref()?;
        let mut decisions = vec![Decision::Open; keys.len()];
        if !earlier.is_empty() {
            let earlier: HashSet<u64> = earlier.iter().copied().collect();
            for (decision, key) in decisions.iter_mut().zip(keys) {
                if earlier.contains(key) {
                    *decision = Decision::Refused;
                }
            }
        }
        Some(decisions)
    }

    /// Admits or refuses the keys of `get` at the places `missing`, which have no rows. The
    /// existing rows were acquired before. Acquires the rows of admitted keys, and fills the places
    /// of refused keys with initial values. Returns `Some(key)` if the row of that key is blocked.
    /// In that case, and after an error, the clocks that `get` has raised stay raised, and the
    /// caller lowers them.
    pub(crate) fn admit(&self, get: &mut GetRows<'_>, missing: &[u32]) -> Result<Option<u64>> {
        let (Some(gate), Some(decisions)) = (&self.shared.gate, &mut get.decisions) else {
            return Ok(None);
        };
        let layout = self.shared.layout();
        let open: Vec<u32> = missing
            .iter()
            .copied()
            .filter(|&place| decisions[place as usize] == Decision::Open)
            .collect();
        let keys: Vec<u64> = open.iter().map(|&place| get.keys[place as usize]).collect();
        for (&place, admitted) in open.iter().zip(self.decide(gate, &keys)?) {
            let decision = if admitted { Decision::Admitted } else { Decision::Refused };
            decisions[place as usize] = decision;
        }
        let (admitted, refused): (Vec<u32>, Vec<u32>) = missing
            .iter()
            .copied()
            .partition(|&place| decisions[place as usize] == Decision::Admitted);
        for &place in &refused {
            if let Some(to) = get.rows.at(place as usize, layout.dim) {
                layout.fill_initial(get.keys[place as usize], to);
            }
        }
        get.refused = refused;
        get.refused.sort_unstable();
        if admitted.is_empty() {
            return Ok(None);
        }
        let keys: Vec<u64> = admitted.iter().map(|&place| get.keys[place as usize]).collect();
        let mut places = admitted.clone();
        let rows = match &mut get.rows {
            GotRows::Nowhere => GotRows::Nowhere,
            GotRows::InOrder(rows) => GotRows::To { places: &places, first: 0, rows },
            GotRows::To { places: all, first, rows } => {
                places.iter_mut().for_each(|place| *place = all[*place as usize]);
                GotRows::To { places: &places, first: *first, rows }
            }
        };
        let mut more = GetRows {
            layout,
            keys: &keys,
            rows,
            reached: RowHints::none_of(keys.len()),
            seen: SeenClocks::default(),
            decisions: None,
            refused: Vec::new(),
        };
        let clock = Clock::Acquire { bound: self.staleness_bound() };
        let executed = self.execute(&keys, clock, &mut more);
        let seen = std::mem::take(&mut more.seen);
        let reached = more.reached;
        // Adds the rows of the admitted keys, which `execute` has just acquired, to the rows of
        // `get`. If the Get fails later, it lowers the clocks of all its rows.
        let blocked = executed.as_ref().map_or(&[][..], |outcome| &outcome.blocked);
        for (i, &place) in admitted.iter().enumerate() {
            if let Some(hint) = reached.get(i)
                && !blocked.contains(&(i as u32))
            {
                get.reached.note(place as usize, hint);
            }
        }
        get.seen.merge(&seen);
        let outcome = executed?;
        if let Some(&first) = outcome.blocked.iter().min() {
            return Ok(Some(keys[first as usize]));
        }
        self.delete_counts(&keys)?;
        Ok(None)
    }

    /// Returns the separate table whose only row is the number of this table's Gets. Makes the
    /// separate table if an older version of Embank made the bank without one.
    fn numbered_gets(&self, gets: &OnceLock<TableId>) -> Result<TableId> {
        if let Some(&known) = gets.get() {
            return Ok(known);
        }
        // The lock prevents two things: that two threads both make the table, and that a thread
        // drops this table before its Gets are numbered.
        let _side_tables = self.context().side_tables.lock();
        if let Some(&known) = gets.get() {
            return Ok(known);
        }
        let store = &self.context().store;
        store.rows(self.shared.id).map_err(|error| self.in_terms_of_the_table(error))?;
        let made = create_generation(store, self.name(), 0)?;
        Ok(*gets.get_or_init(|| made))
    }

    /// Decides for each of `keys`, which have no row. An element of the result is true if the key
    /// gets a row now.
    fn decide(&self, gate: &Gate, keys: &[u64]) -> Result<Vec<bool>> {
        match gate {
            Gate::Counts { needed, counts } => {
                if keys.is_empty() {
                    return Ok(Vec::new());
                }
                let now = self.count_gets(counts, keys)?;
                Ok(now.iter().map(|now| now >= needed).collect())
            }
            Gate::Chance { probability, seed, gets } => {
                if keys.is_empty() {
                    return Ok(Vec::new());
                }
                let mut number = NumberGet { before: 0 };
                let gets = self.numbered_gets(gets)?;
                let numbered = self.context().store.execute(gets, &[0], Clock::Keep, &mut number);
                numbered.map_err(|error| self.in_terms_of_the_table(error))?;
                let get = number.before;
                Ok(keys
                    .iter()
                    .map(|&key| draw(*seed, key, get) < f64::from(*probability))
                    .collect())
            }
        }
    }
}

/// Reads the number of Gets so far (0 before the first Get), and increments it.
#[derive(Debug)]
struct NumberGet {
    before: u64,
}

impl Operation for NumberGet {
    const ACCESS: Access = Access::Update;

    fn update(&mut self, _: usize, value: &mut [u8]) {
        let mut number = [0; COUNT_BYTES as usize];
        number.copy_from_slice(value);
        self.before = u64::from_le_bytes(number);
        value.copy_from_slice(&(self.before + 1).to_le_bytes());
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// Returns a pseudo-random number in [0, 1).
fn draw(seed: u64, key: u64, get: u64) -> f64 {
    let mut mixed = seed;
    for word in [key, get] {
        // Mixes in each word with the finaliser of SplitMix64.
        mixed = (mixed ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
    }
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_repeatable() {
        let below = |probability: f64, seed| -> usize {
            (0..100_000_u64).filter(|&key| draw(seed, key % 100, key / 100) < probability).count()
        };
        for seed in [0, 1, u64::MAX] {
            for probability in [0.01_f64, 0.25, 0.9] {
                let expected = 100_000.0 * probability;
                let spread = 5.0 * (expected * (1.0 - probability)).sqrt();
                let found = below(probability, seed) as f64;
                assert!((found - expected).abs() < spread, "seed {seed}: {found}, not {expected}");
            }
        }
        assert_eq!(draw(3, 4, 5).to_bits(), draw(3, 4, 5).to_bits());
        assert_ne!(draw(3, 4, 5).to_bits(), draw(3, 4, 6).to_bits());
    }
}
