//! A table's operations as [`Contender`]s: get, get + put, peek, gradients.
//!
//! The store's operations below the tables are in [`crate::ground::kv_contenders`]. The bare loops
//! are in [`crate::ground::gather`] and [`crate::ground::index_loop`].

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embank::{Missing, Table};

use crate::ground::content;
use crate::ground::rounds::Contender;

/// Calls `Table::get`, then releases the lease without an update. The store runs the release as a
/// separate batch. `release` says whether the release is timed.
pub(crate) struct Get<'a> {
    pub(crate) table: &'a Table,
    pub(crate) release: bool,
}

impl Contender for Get<'_> {
    fn name(&self) -> &str {
        if self.release { "table get + release" } else { "table get" }
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        let lease = self.table.get(keys, rows)?;
        let got = started.elapsed();
        drop(lease);
        Ok(if self.release { started.elapsed() } else { got })
    }
}

/// Calls `Table::get`, then puts the negated rows through the lease. The check compares the sign of
/// the row, so it detects a put that does nothing. Negating the rows is not timed.
pub(crate) struct GetPut<'a> {
    pub(crate) table: &'a Table,
    pub(crate) flips: Mutex<Flips>,
}

impl Contender for GetPut<'_> {
    fn name(&self) -> &str {
        "table get + put"
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        let lease = self.table.get(keys, rows)?;
        let getting = started.elapsed();
        rows.iter_mut().for_each(|cell| *cell = -*cell);
        let started = Instant::now();
        lease.put(rows)?;
        Ok(getting + started.elapsed())
    }

    fn after_pass(&self, keys: &[Vec<u64>], batch: usize) {
        let mut flips = self.flips.lock().expect("a thread that panicked has ended the run");
        keys.iter().flat_map(|keys| keys.chunks_exact(batch)).for_each(|keys| flips.note(keys));
    }
}

/// Calls `Table::peek`, which moves no clock and takes no lease.
pub(crate) struct Peek<'a> {
    pub(crate) table: &'a Table,
}

impl Contender for Peek<'_> {
    fn name(&self) -> &str {
        "table peek"
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        self.table.peek(keys, rows, Missing::Error)?;
        Ok(started.elapsed())
    }
}

/// `Table::apply_gradients` on a table with SGD and learning rate 1, for one calling thread.
///
/// The gradient of a row is twice the row, so one step negates the row exactly. The check detects a
/// gradient that is lost or applied twice. If a key occurs several times in a batch, only its first
/// gradient is not zero. The gradients are computed from the keys and `flips` instead of the rows,
/// so the rows are not yet in the processor's cache when the timed call begins.
pub(crate) struct Gradients<'a> {
    pub(crate) table: &'a Table,
    pub(crate) flips: &'a Mutex<Flips>,
}

impl Contender for Gradients<'_> {
    fn name(&self) -> &str {
        "table gradients"
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let mut flips = self.flips.lock().expect("a thread that panicked has ended the run");
        let dim = self.table.dim();
        content::fill(keys, dim, rows);
        flips.begin();
        for (&key, gradient) in keys.iter().zip(rows.chunks_exact_mut(dim)) {
            let factor = match (flips.flip(key), flips.negated(key)) {
                (false, _) => 0.0,
                // `flips` already counts this step, but the row itself is not negated yet.
                (true, true) => 2.0,
                (true, false) => -2.0,
            };
            gradient.iter_mut().for_each(|cell| *cell *= factor);
        }
        let started = Instant::now();
        self.table.apply_gradients(keys, rows)?;
        let took = started.elapsed();
        self.table.peek(keys, rows, Missing::Error)?;
        Ok(took)
    }
}

/// Records for each row whether the puts and gradients have left it negated.
#[derive(Debug)]
pub(crate) struct Flips {
    /// For each key: twice the number of the last batch with the key, plus one if the row is
    /// negated.
    marks: Vec<u32>,
    batches: u32,
}

impl Flips {
    /// Makes the record of `rows` rows. At the start no row is negated.
    pub(crate) fn new(rows: u64) -> Self {
        Self { marks: vec![0; rows as usize], batches: 0 }
    }

    /// Notes that a batch negated each of its distinct keys once.
    pub(crate) fn note(&mut self, keys: &[u64]) {
        self.begin();
        for &key in keys {
            self.flip(key);
        }
    }

    /// Begins a batch: the next `flip` of each key is the key's first in this batch.
    fn begin(&mut self) {
        self.batches += 1;
    }

    /// Counts a key of the batch. The first call for a key in a batch marks its row as changed in
    /// sign and returns true. Further calls for that key change nothing and return false.
    fn flip(&mut self, key: u64) -> bool {
        let mark = &mut self.marks[key as usize];
        let first = *mark >> 1 != self.batches;
        if first {
            *mark = (self.batches << 1) | ((*mark & 1) ^ 1);
        }
        first
    }

    /// True if the puts and gradients so far leave this key's row negated.
    fn negated(&self, key: u64) -> bool {
        self.marks[key as usize] & 1 == 1
    }

    /// # Errors
    /// Fails if the sign of the row is not the one that the puts and gradients left.
    pub(crate) fn check(&self, key: u64, found_negated: bool) -> Result<()> {
        ensure!(
            found_negated == self.negated(key),
            "wrong answer: key {key} is {}negated, {} put lost",
            if found_negated { "" } else { "not " },
            if found_negated { "a later" } else { "its last" }
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_twice_in_a_batch_is_negated_once() {
        let mut flips = Flips::new(4);
        flips.note(&[1, 2, 1]);
        flips.note(&[2, 3]);
        let negated: Vec<bool> = (0..4).map(|key| flips.negated(key)).collect();
        assert_eq!(negated, [false, true, false, true]);
    }
}
