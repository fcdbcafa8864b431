//! A shuffle buffer: each new row takes the place of a random row of the buffer, and the buffer
//! hands out the row that was there.
//!
//! The draws depend only on the seed and the number of rows. A feed that skips rows therefore makes
//! the draws of a feed that returns them. A row's delay has a geometric distribution, whose mean is
//! the buffer's length. A buffer of a hundredth of the rows mixes neighbours well, but it does not
//! mix the beginning of the input with the end.

use std::sync::Arc;

use super::feeder::{BatchCutter, Stopped};
use crate::batch::{Batch, MatrixInfo};
use crate::error::{Error, Result};

pub(super) struct Shuffle {
    rows: usize,
    held: Batch,
    draws: Draws,
    /// Scratch space for the draws of some rows.
    places: Vec<u32>,
}

/// Pseudo-random numbers (SplitMix64). A feed of any version, on any machine, must be able to
/// continue another feed. So the numbers of a seed must never change.
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
            values.try_reserve(rows.saturating_mul(width)).map_err(|source| {
                Error::Spec(format!("no memory for a shuffle buffer of {rows} rows: {source}"))
            })?;
        }
        // Spreads the seed's bits. Otherwise two seeds whose difference is SplitMix64's increment
        // would make the same draws, shifted by one.
        let spread = Draws(seed).0.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ seed.rotate_left(32);
        Ok(Self { rows, held, draws: Draws(spread), places: Vec::new() })
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

    fn draw(&mut self, rows: usize) {
        let draws = &mut self.draws;
        let held = self.rows;
        self.places.clear();
        self.places.extend((0..rows).map(|_| draws.below(held)));
    }

    /// Sends the remaining rows in random order.
    pub(super) fn finish(mut self, cut: &mut BatchCutter) -> std::result::Result<(), Stopped> {
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

/// Number of rows whose draws are made together. It is small, so the draws stay in the first-level
/// cache.
const DRAWN: usize = 1024;
