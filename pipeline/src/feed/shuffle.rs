//! A shuffle buffer: each new row takes the place of a random row of the buffer, and the buffer
//! hands out the row that was there.
//!
//! The draws depend only on the seed and the number of rows. A feed that skips rows therefore makes
//! the draws of a feed that returns them. It can also find by draws alone which rows the buffer
//! holds at a place, and take only these in ([`Holder`]). A row's delay has a geometric
//! distribution, whose mean is the buffer's length. A buffer of a hundredth of the rows mixes
//! neighbours well, but it does not mix the beginning of the input with the end.

use std::collections::{TryReserveError, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use embank::locks::Mutex;

use super::feeder::{BatchCutter, Stopped};
use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result};
use crate::execute::Holder;

#[derive(Debug)]
pub(super) struct Shuffle {
    rows: usize,
    held: Batch,
    draws: Draws,
    /// Scratch space for the draws of some rows.
    places: Vec<u32>,
    /// The places of rows that are to be [refilled](Holder::refill), in the order of the rows.
    to_refill: VecDeque<u32>,
}

/// Pseudo-random numbers (SplitMix64). A feed of any version, on any machine, must be able to
/// continue another feed. So the numbers of a seed must never change.
#[derive(Debug)]
struct Draws(u64);

impl Draws {
    /// Returns a number from 0 to below `bound`. Some numbers are more likely than others by a
    /// fraction of at most `bound` / 2^64, which is too small to matter.
    fn below(&mut self, bound: usize) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let bits = bits ^ (bits >> 31);
        ((u128::from(bits) * bound as u128) >> 64) as u32
    }
}

impl Shuffle {
    /// # Errors
    /// [`Error::Spec`] if there is no memory for the buffer.
    pub(super) fn new(infos: Arc<[MatrixInfo]>, rows: usize, seed: u64) -> Result<Self> {
        let mut held = Batch::new(infos);
        for (values, width) in held.matrices_mut() {
            values.try_reserve(rows.saturating_mul(width)).map_err(no_memory(rows))?;
        }
        // Spreads the seed's bits. Otherwise two seeds whose difference is SplitMix64's increment
        // would make the same draws, shifted by one.
        let spread = Draws(seed).0.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ seed.rotate_left(32);
        let (draws, to_refill) = (Draws(spread), VecDeque::new());
        Ok(Self { rows, held, draws, places: Vec::new(), to_refill })
    }

    /// Takes a batch in. Once the buffer is full, each row that comes in sends one row out.
    pub(super) fn push(
        &mut self,
        batch: &Batch,
        cut: &mut BatchCutter,
    ) -> std::result::Result<(), Stopped> {
        let mut row = batch.rows.min(self.rows - self.held.rows);
        self.held.append(batch, 0..row);
        // Both loops end: each round takes at least one row.
        let skipped = row + cut.skipped(batch.rows - row);
        while row < skipped {
            let rows = (skipped - row).min(DRAWN);
            self.draw(rows);
            self.held.replace(&self.places, batch, row);
            row += rows;
        }
        while row < batch.rows {
            let rows = cut.room().min(batch.rows - row).min(DRAWN);
            self.draw(rows);
            cut.batch.exchange(&mut self.held, &self.places, batch, row);
            row += rows;
            cut.send_if_full()?;
        }
        Ok(())
    }

    /// The rows that the buffer has given back once it has taken `taken` rows in.
    pub(super) fn given_back(&self, taken: u64) -> u64 {
        taken.saturating_sub(self.rows as u64)
    }

    fn draw(&mut self, rows: usize) {
        let draws = &mut self.draws;
        let held = self.rows;
        self.places.clear();
        self.places.extend((0..rows).map(|_| draws.below(held)));
    }

    /// Sends the remaining rows in random order.
    pub(super) fn finish(&mut self, cut: &mut BatchCutter) -> std::result::Result<(), Stopped> {
        let mut order: Vec<u32> = (0..self.held.rows as u32).collect();
        // Fisher-Yates shuffle, from the end.
        for last in (1..order.len()).rev() {
            order.swap(last, self.draws.below(last + 1) as usize);
        }
        let mut rest = &order[cut.skipped(order.len())..];
        // The loop ends: each round takes at least one row.
        while !rest.is_empty() {
            let (some, others) = rest.split_at(cut.room().min(rest.len()));
            cut.batch.gather(&self.held, some);
            rest = others;
            cut.send_if_full()?;
        }
        Ok(())
    }
}

/// The error if there is no memory for a shuffle buffer.
fn no_memory(rows: usize) -> impl Fn(TryReserveError) -> Error {
    move |source| Error::Spec(format!("no memory for a shuffle buffer of {rows} rows: {source}"))
}

impl Holder for Mutex<Shuffle> {
    fn holds(&self, rows: u64) -> bool {
        rows <= self.lock().rows as u64
    }

    fn held_after(&self, rows: u64, stop: &AtomicBool) -> Result<Vec<u64>> {
        let mut shuffle = self.lock();
        let shuffle = &mut *shuffle;
        let full = shuffle.rows as u64;
        let held = rows.min(full) as usize;
        // The number of the row at each place, with the place.
        let mut numbers: Vec<(u64, u32)> = Vec::new();
        numbers.try_reserve_exact(held).map_err(no_memory(shuffle.rows))?;
        numbers.extend((0..held as u64).zip(0..));
        let mut next = full;
        while next < rows {
            // Relaxed: it does not matter which check is the first to see the flag.
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let end = rows.min(next + DRAWN_UNTIL_CHECK);
            for row in next..end {
                numbers[shuffle.draws.below(shuffle.rows) as usize].0 = row;
            }
            next = end;
        }
        numbers.sort_unstable();
        shuffle.held.reserve(held);
        shuffle.held.rows = held;
        shuffle.to_refill = numbers.iter().map(|&(_, place)| place).collect();
        Ok(numbers.into_iter().map(|(row, _)| row).collect())
    }

    fn refill(&self, batch: &Batch) {
        let mut shuffle = self.lock();
        let Shuffle { held, places, to_refill, .. } = &mut *shuffle;
        places.clear();
        // A run that gives more rows than were asked for fails at its end.
        places.extend(to_refill.drain(..batch.rows.min(to_refill.len())));
        held.replace(places, batch, 0);
    }
}

/// Number of rows whose draws are made together. It is small, so the draws stay in the first-level
/// cache.
const DRAWN: usize = 1024;

/// Number of rows whose draws are made before the next look at a stop flag.
const DRAWN_UNTIL_CHECK: u64 = 1 << 20;
