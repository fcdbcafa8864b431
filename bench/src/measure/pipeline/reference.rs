//! The expected output of a pipeline for the generated rows, made field by field with a `HashMap`
//! for each column.

use std::collections::HashMap;

use anyhow::{Result, ensure};

use super::generate::{Fields, Generator};

/// Largest relative error of a logarithm, in addition to half a unit in the last place of f32.
const LOGARITHM_ERROR: f64 = 2.5e-7;

/// The expected rows, in order.
pub(super) struct Reference {
    generator: Generator,
    modulus: u32,
    ids: Vec<HashMap<u32, u32>>,
    next: u64,
}

impl Reference {
    pub(super) fn new(seed: u64, modulus: u32) -> Self {
        Self { generator: Generator::new(seed), modulus, ids: vec![HashMap::new(); 26], next: 0 }
    }

    /// Checks the next rows.
    pub(super) fn check(&mut self, rows: &[u32]) -> Result<()> {
        for row in rows.chunks_exact(40) {
            let fields = self.generator.row(self.next);
            self.check_row(&fields, row)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Number of checked rows.
    pub(super) fn checked(&self) -> u64 {
        self.next
    }

    fn check_row(&mut self, fields: &Fields, row: &[u32]) -> Result<()> {
        let number = self.next;
        ensure!(row[0] == fields[0].unwrap_or(0), "row {number}: label {}", row[0]);
        for i in 1..14 {
            let value = fields[i].unwrap_or(0).cast_signed().max(0);
            let exact = f64::from(value).ln_1p();
            let got = f64::from(f32::from_bits(row[i]));
            let close = (got - exact).abs() <= LOGARITHM_ERROR * exact;
            ensure!(close, "row {number}: log({value} + 1) is {exact}, not {got}");
        }
        for i in 14..40 {
            let value = fields[i].unwrap_or(0) % self.modulus;
            let ids = &mut self.ids[i - 14];
            let fresh = ids.len() as u32;
            let id = *ids.entry(value).or_insert(fresh);
            ensure!(
                row[i] == id,
                "row {number}: C{} is {value}, number {id}, not {}",
                i - 13,
                row[i]
            );
        }
        Ok(())
    }
}
