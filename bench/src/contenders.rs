//! What is measured in memory, from the bare loop to a table's get + put.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embank::{Missing, Table};
use embank_kv::{Access, Clock, Operation, Store, TableId};

use crate::gather::RowTable;
use crate::rounds::Contender;

/// The gather loop at one prefetch distance.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    /// What the report calls it.
    pub(crate) name: &'static str,
    /// The rows.
    pub(crate) table: &'a RowTable,
    /// Rows between a prefetch and its use.
    pub(crate) distance: usize,
}

impl Contender for Gather<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        self.table.gather(keys, self.distance, rows);
        Ok(started.elapsed())
    }
}

/// A store below the tables: one batch of reads, no duplicates removed, no clocks moved.
#[derive(Debug)]
pub(crate) struct KvGet {
    pub(crate) store: Store,
    pub(crate) table: TableId,
}

impl Contender for KvGet {
    fn name(&self) -> &'static str {
        "kv get"
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let dim = rows.len() / keys.len();
        let started = Instant::now();
        let outcome =
            self.store.execute(self.table, keys, Clock::Keep, &mut ReadRows { rows, dim })?;
        let spent = started.elapsed();
        ensure!(outcome.missing.is_empty(), "{} rows are missing", outcome.missing.len());
        Ok(spent)
    }
}

/// Copies rows out of the store.
struct ReadRows<'a> {
    rows: &'a mut [f32],
    dim: usize,
}

impl Operation for ReadRows<'_> {
    const ACCESS: Access = Access::Get;

    fn read(&mut self, i: usize, value: &[u8]) {
        let row: &mut [u8] = bytemuck::cast_slice_mut(&mut self.rows[i * self.dim..][..self.dim]);
        // A length that the compiler knows makes the common row a few wide moves, as in the bare loop.
        match (<&mut [u8; 64]>::try_from(&mut *row), <&[u8; 64]>::try_from(value)) {
            (Ok(row), Ok(value)) => *row = *value,
            _ => row.copy_from_slice(value),
        }
    }
}

/// Copies rows into the store.
pub(crate) struct WriteRows<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) dim: usize,
}

impl Operation for WriteRows<'_> {
    const ACCESS: Access = Access::Put;

    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(bytemuck::cast_slice(&self.rows[i * self.dim..][..self.dim]));
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

/// `Table::get`. Its lease is given back without an update, which is a batch of its own, timed or not.
pub(crate) struct Get<'a> {
    pub(crate) table: &'a Table,
    pub(crate) release: bool,
}

impl Contender for Get<'_> {
    fn name(&self) -> &'static str {
        if self.release { "get + release" } else { "get" }
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        let lease = self.table.get(keys, rows)?;
        let got = started.elapsed();
        drop(lease);
        Ok(if self.release { started.elapsed() } else { got })
    }
}

/// `Table::get`, then a put of the same rows through the lease. What is put is the negated row, so that
/// a put that does nothing is found out; negating them is not timed.
pub(crate) struct GetPut<'a> {
    pub(crate) table: &'a Table,
    pub(crate) flips: Mutex<Flips>,
}

impl Contender for GetPut<'_> {
    fn name(&self) -> &'static str {
        "get + put"
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

/// `Table::peek`: no clocks, no lease.
pub(crate) struct Peek<'a> {
    pub(crate) table: &'a Table,
}

impl Contender for Peek<'_> {
    fn name(&self) -> &'static str {
        "peek"
    }

    fn batch(&self, keys: &[u64], rows: &mut [f32]) -> Result<Duration> {
        let started = Instant::now();
        self.table.peek(keys, rows, Missing::Error)?;
        Ok(started.elapsed())
    }
}

/// Which rows the puts have left negated.
#[derive(Debug)]
pub(crate) struct Flips {
    /// For each key: the number of the batch that touched it last, times two, plus one if negated.
    marks: Vec<u32>,
    batches: u32,
}

impl Flips {
    /// No row of `rows` is negated.
    pub(crate) fn new(rows: u64) -> Self {
        Self { marks: vec![0; rows as usize], batches: 0 }
    }

    /// A batch negates each of its distinct keys once.
    fn note(&mut self, keys: &[u64]) {
        self.batches += 1;
        for &key in keys {
            let mark = &mut self.marks[key as usize];
            if *mark >> 1 != self.batches {
                *mark = (self.batches << 1) | ((*mark & 1) ^ 1);
            }
        }
    }

    /// Whether the puts have left this key's row negated.
    pub(crate) fn negated(&self, key: u64) -> bool {
        self.marks[key as usize] & 1 == 1
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
