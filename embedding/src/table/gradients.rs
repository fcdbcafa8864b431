//! Gradients on their way to the optimizer: one row per distinct key, every value finite.

use std::borrow::Cow;

use crate::dtype::{Dtype, largest_magnitude_bits};
use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::optimizer::sum_of_squares;

/// Sums the gradients of equal keys, in batch order. `gradients` holds one row of `dim` per key of the
/// batch; the result one per distinct key.
pub(crate) fn sum_duplicates<'g>(
    unique: &UniqueKeys,
    gradients: &'g [f32],
    dim: usize,
) -> Cow<'g, [f32]> {
    if unique.all_distinct() {
        return Cow::Borrowed(gradients);
    }
    let mut sums: Vec<f32> = Vec::with_capacity(unique.len() * dim);
    for (gradient, &number) in gradients.chunks_exact(dim).zip(unique.inverse()) {
        let start = number as usize * dim;
        if start == sums.len() {
            sums.extend_from_slice(gradient);
        } else {
            for (sum, &value) in sums[start..start + dim].iter_mut().zip(gradient) {
                *sum += value;
            }
        }
    }
    Cow::Owned(sums)
}

/// How large the gradients of a batch are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Magnitudes {
    /// Every magnitude is below [`ORDINARY_MAX`].
    Ordinary,
    /// Some magnitude is not.
    Large,
}

/// 2^50. Half the distance from the largest f32 to the one below it is 2^103. A step of an optimizer whose numbers
/// are ordinary ([`Optimizer::is_ordinary`](crate::Optimizer)) moves a value by less than that, so no finite value
/// becomes infinite.
const ORDINARY_MAX: f32 = (1_u64 << 50) as f32;

/// Refuses NaN and infinite gradients: one bad batch must not destroy rows that took days to train.
///
/// # Errors
/// [`Error::NonFiniteGradient`] names the first one.
pub(crate) fn check_finite(
    table: &str,
    keys: &[u64],
    gradients: &[f32],
    dim: usize,
) -> Result<Magnitudes> {
    let largest = largest_magnitude_bits(gradients);
    if largest < ORDINARY_MAX.to_bits() {
        return Ok(Magnitudes::Ordinary);
    }
    match Dtype::F32.range().first_beyond(gradients) {
        None => Ok(Magnitudes::Large),
        Some(at) => Err(Error::NonFiniteGradient {
            table: table.to_owned(),
            key: keys[at / dim],
            column: at % dim,
            value: gradients[at],
        }),
    }
}

/// Scales each row of `gradients` whose L2 norm is above `norm_max` down to it; the others keep their bits.
pub(crate) fn clip_rows(
    mut gradients: Cow<'_, [f32]>,
    dim: usize,
    norm_max: f32,
) -> Cow<'_, [f32]> {
    let norm_max = f64::from(norm_max);
    for start in (0..gradients.len()).step_by(dim) {
        let norm = sum_of_squares(&gradients[start..start + dim]).sqrt();
        if norm > norm_max {
            let scale = norm_max / norm;
            for value in &mut gradients.to_mut()[start..start + dim] {
                *value = (f64::from(*value) * scale) as f32;
            }
        }
    }
    gradients
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_equal_keys_are_summed_in_order() {
        let unique = UniqueKeys::new(&[5, 6, 5, 5]);
        let gradients = [1e8, 1.0, 2.0, 2.0, 1.0, 3.0, -1e8, 4.0];
        let sums = sum_duplicates(&unique, &gradients, 2);
        assert_eq!(sums.as_ref(), [(1e8_f32 + 1.0) - 1e8, 8.0, 2.0, 2.0]);
    }

    #[test]
    fn only_rows_that_are_too_long_are_clipped() {
        let gradients = [3.0, 4.0, 0.3, 0.4, f32::MAX, f32::MAX];
        let clipped = clip_rows(Cow::Borrowed(&gradients), 2, 1.0);
        let diagonal = 0.5_f32.sqrt();
        assert_eq!(clipped.as_ref(), [0.6, 0.8, 0.3, 0.4, diagonal, diagonal]);
        let short = clip_rows(Cow::Borrowed(&gradients[..4]), 2, 5.0);
        assert!(matches!(short, Cow::Borrowed(_)));
    }

    #[test]
    fn distinct_keys_are_not_copied() {
        let unique = UniqueKeys::new(&[9, 6]);
        assert!(matches!(sum_duplicates(&unique, &[1.0, 2.0], 1), Cow::Borrowed(_)));
    }

    #[test]
    fn the_first_non_finite_gradient_is_named() {
        let largest = check_finite("t", &[1, 2], &[f32::MAX, f32::MIN, 0.0, -0.0], 2).unwrap();
        assert_eq!(largest, Magnitudes::Large);
        assert_eq!(check_finite("t", &[1], &[-1e15, 0.0], 2).unwrap(), Magnitudes::Ordinary);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            match check_finite("t", &[10, 20], &[0.0, 1.0, 2.0, bad], 2) {
                Err(Error::NonFiniteGradient { key: 20, column: 1, value, .. }) => {
                    assert_eq!(value.to_bits(), bad.to_bits());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
