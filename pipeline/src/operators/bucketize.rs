//! `Bucketize`: the number of a value's bucket.

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::decode::Slot;
use crate::error::{Result, refused};

pub(super) struct Bucketize<'a>(pub(super) &'a [f32]);

impl Definition for Bucketize<'_> {
    fn name(&self) -> &'static str {
        "Bucketize"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let boundaries = self.0;
        let ascends = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
        if boundaries.is_empty() || !ascends || boundaries.iter().any(|b| !b.is_finite()) {
            return refused(format!(
                "column {:?}: boundaries must be finite and ascend",
                place.column
            ));
        }
        let below = Some(boundaries.len() as u64 + 1);
        let boundaries = boundaries.to_vec();
        match (place.flow.kind, place.flow.slot) {
            (Kind::I32, Slot::Word(column)) => program.push("Bucketize", move |_, block| {
                let number = |value: u32| value.cast_signed() as f32;
                bucketize(block.word_mut(column), number, &boundaries);
            }),
            (Kind::U32, Slot::Word(column)) => program.push("Bucketize", move |_, block| {
                bucketize(block.word_mut(column), |value| value as f32, &boundaries);
            }),
            (Kind::F32, Slot::Word(column)) => program.push("Bucketize", move |_, block| {
                bucketize(block.word_mut(column), f32::from_bits, &boundaries);
            }),
            _ => {
                let needs = "numbers of 32 bits; Float makes them of others";
                return place.wrong_kind("Bucketize", needs);
            }
        }
        Ok(Flow { kind: Kind::U32, signed: false, below, ..place.flow })
    }
}

/// Replaces each value by the number of its bucket: the number of `boundaries` that are at most the
/// value. `boundaries` are sorted.
fn bucketize(values: &mut [u32], as_float: impl Fn(u32) -> f32, boundaries: &[f32]) {
    for value in values {
        let number = as_float(*value);
        *value = boundaries.partition_point(|&boundary| boundary <= number) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boundary_belongs_to_the_bucket_above() {
        let mut values = [-1.0_f32, 0.0, 0.5, 10.0, 11.0].map(f32::to_bits);
        bucketize(&mut values, f32::from_bits, &[0.0, 10.0]);
        assert_eq!(values, [0, 1, 1, 2, 2]);
    }
}
