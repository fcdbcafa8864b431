//! Gradients of a batch, prepared for the optimizer.
//!
//! A batch has one gradient per place or per bag. A row takes one optimizer step with the sum of
//! its gradients. The sum is computed just before the step, so no matrix of all sums is stored.
//!
//! All gradients and all sums must be finite before the first row changes. The largest magnitude of
//! a gradient, times the number of places, is an upper bound of every sum. Only if this bound is
//! too large does the code compute all sums first and check each of them.

use std::borrow::Cow;

use crate::dtype::{Dtype, largest_magnitude_bits};
use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::optimizer::sum_of_squares;
use crate::table::bags::{Bags, Pooling};

/// Marks the end of a key's list of places.
const NO_PLACE: u32 = u32::MAX;

/// The places of each distinct key in a batch, as a linked list in ascending order.
#[derive(Debug)]
pub(crate) struct Occurrences<'b> {
    /// First place of each distinct key.
    first: Vec<u32>,
    /// For each place, the next place of the same key; `NO_PLACE` at the end.
    next: Vec<u32>,
    /// `None` if each place has its own gradient.
    bags: Option<BagsOfPlaces<'b>>,
}

/// The bag of each place, and the factor for its gradient.
#[derive(Debug)]
struct BagsOfPlaces<'b> {
    bag_of: Vec<u32>,
    scales: Scales<'b>,
}

#[derive(Debug)]
enum Scales<'b> {
    One,
    /// One factor per place.
    Weights(&'b [f32]),
    /// One factor per bag: 1 divided by its number of keys.
    Means(Vec<f32>),
}

impl<'b> Occurrences<'b> {
    /// Lists the places of a batch that has one gradient per place, or per bag if `bags` are given.
    pub(crate) fn of(unique: &UniqueKeys, bags: Option<&Bags<'b>>) -> Self {
        let inverse = unique.inverse();
        let mut first = vec![NO_PLACE; unique.len()];
        let mut next = vec![NO_PLACE; inverse.len()];
        for (place, &number) in inverse.iter().enumerate().rev() {
            next[place] = std::mem::replace(&mut first[number as usize], place as u32);
        }
        let bags = bags.map(|bags| {
            let mut bag_of = Vec::with_capacity(inverse.len());
            for bag in 0..bags.len() {
                bag_of.resize(bags.places(bag).end, bag as u32);
            }
            let scales = match (bags.weights, bags.pooling) {
                (Some(weights), _) => Scales::Weights(weights),
                (None, Pooling::Sum) => Scales::One,
                (None, Pooling::Mean) => {
                    let mean = |bag| 1.0 / bags.places(bag).len() as f32;
                    Scales::Means((0..bags.len()).map(mean).collect())
                }
            };
            BagsOfPlaces { bag_of, scales }
        });
        Self { first, next, bags }
    }

    /// Returns the gradient for a place and the factor for it. `values` holds all gradients, `dim`
    /// values each.
    #[inline]
    fn at<'r>(&self, place: u32, values: &'r [f32], dim: usize) -> (&'r [f32], f32) {
        let place = place as usize;
        let (source, scale) = match &self.bags {
            None => (place, 1.0),
            Some(bags) => {
                let bag = bags.bag_of[place] as usize;
                let scale = match &bags.scales {
                    Scales::One => 1.0,
                    Scales::Weights(weights) => weights[place],
                    Scales::Means(means) => means[bag],
                };
                (bag, scale)
            }
        };
        (&values[source * dim..][..dim], scale)
    }

    /// Returns the sum of the gradients of distinct key `number`. If the key has only one gradient,
    /// with factor 1, returns this gradient without a copy. Otherwise writes the sum to `room`.
    #[inline]
    fn sum<'r>(&self, number: usize, values: &'r [f32], room: &'r mut [f32]) -> &'r [f32] {
        let dim = room.len();
        let mut place = self.first[number];
        let (value, scale) = self.at(place, values, dim);
        place = self.next[place as usize];
        if place == NO_PLACE && scale == 1.0 {
            return value;
        }
        room.iter_mut().zip(value).for_each(|(sum, &value)| *sum = scale * value);
        // The loop ends, because the places in a list ascend.
        while place != NO_PLACE {
            let (value, scale) = self.at(place, values, dim);
            room.iter_mut().zip(value).for_each(|(sum, &value)| *sum += scale * value);
            place = self.next[place as usize];
        }
        room
    }

    /// Returns the sums of all distinct keys, row after row.
    pub(crate) fn sums(&self, values: &[f32], dim: usize) -> Vec<f32> {
        let mut room = vec![0.0; dim];
        let mut sums = Vec::with_capacity(self.first.len() * dim);
        for number in 0..self.first.len() {
            sums.extend_from_slice(self.sum(number, values, &mut room));
        }
        sums
    }

    /// Returns an upper bound of every sum, if no gradient's magnitude exceeds `largest`.
    fn largest_sum(&self, largest: f32) -> f64 {
        let scale = match self.bags.as_ref().map(|bags| &bags.scales) {
            None | Some(Scales::One | Scales::Means(_)) => 1.0,
            Some(Scales::Weights(weights)) => largest_magnitude(weights),
        };
        // The largest sum would arise if all places had one key.
        f64::from(largest) * f64::from(scale) * self.next.len() as f64
    }
}

/// The gradients of a batch, checked to be finite.
#[derive(Debug)]
pub(crate) struct BatchGradients<'g> {
    values: Cow<'g, [f32]>,
    /// `None` if `values` already has one gradient per distinct key.
    occurrences: Option<Occurrences<'g>>,
    pub(crate) magnitudes: Magnitudes,
}

impl<'g> BatchGradients<'g> {
    /// Checks `values`, which holds one gradient per distinct key in `keys`. `largest` is their
    /// largest magnitude.
    ///
    /// # Errors
    /// [`Error::NonFiniteGradient`] with the first value that is not finite.
    pub(crate) fn of_distinct(
        table: &str,
        keys: &[u64],
        values: Cow<'g, [f32]>,
        dim: usize,
        largest: f32,
    ) -> Result<Self> {
        let magnitudes = check_finite(table, keys, &values, dim, largest)?;
        Ok(Self { values, occurrences: None, magnitudes })
    }

    /// Checks `values`, which holds one gradient per place of the batch, or per bag if `bags` are
    /// given. `largest` is their largest magnitude.
    ///
    /// # Errors
    /// The errors of [`of_distinct`](Self::of_distinct).
    pub(crate) fn of_batch(
        table: &str,
        unique: &UniqueKeys,
        bags: Option<&Bags<'g>>,
        values: &'g [f32],
        dim: usize,
        largest: f32,
    ) -> Result<Self> {
        if bags.is_none() && unique.all_distinct() {
            return Self::of_distinct(table, unique.keys(), Cow::Borrowed(values), dim, largest);
        }
        let occurrences = Occurrences::of(unique, bags);
        // A NaN makes this comparison false.
        if occurrences.largest_sum(largest) < f64::from(ORDINARY_MAX) {
            let values = Cow::Borrowed(values);
            let magnitudes = Magnitudes::Ordinary;
            return Ok(Self { values, occurrences: Some(occurrences), magnitudes });
        }
        let sums = occurrences.sums(values, dim);
        let largest = largest_magnitude(&sums);
        Self::of_distinct(table, unique.keys(), Cow::Owned(sums), dim, largest)
    }

    /// Returns the gradients of the distinct keys whose indices are `numbers`, or of all distinct
    /// keys if `numbers` is `None`.
    pub(crate) fn rows<'a>(&'a self, numbers: Option<&'a [u32]>) -> RowGradients<'a> {
        let occurrences = self.occurrences.as_ref();
        RowGradients { values: &self.values, occurrences, numbers, first: 0 }
    }
}

/// The gradients of some distinct keys, one per key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowGradients<'g> {
    values: &'g [f32],
    occurrences: Option<&'g Occurrences<'g>>,
    /// Indices of the keys among the distinct keys. `None` means all distinct keys from index
    /// `first` on.
    numbers: Option<&'g [u32]>,
    first: usize,
}

impl<'g> RowGradients<'g> {
    /// Returns the gradients from index `start` on.
    pub(crate) fn from(self, start: usize) -> Self {
        match self.numbers {
            Some(numbers) => Self { numbers: Some(&numbers[start..]), ..self },
            None => Self { first: self.first + start, ..self },
        }
    }

    /// Returns the gradient at index `i`. `room` is scratch memory for one gradient.
    #[inline]
    pub(crate) fn at<'r>(self, i: usize, room: &'r mut [f32]) -> &'r [f32]
    where
        'g: 'r,
    {
        let number = self.numbers.map_or(self.first + i, |numbers| numbers[i] as usize);
        match self.occurrences {
            Some(occurrences) => occurrences.sum(number, self.values, room),
            None => &self.values[number * room.len()..][..room.len()],
        }
    }
}

/// Returns the largest magnitude among `values`; NaN if a value is NaN.
pub(crate) fn largest_magnitude(values: &[f32]) -> f32 {
    f32::from_bits(largest_magnitude_bits(values))
}

/// The size class of a batch's gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Magnitudes {
    /// Every magnitude is below [`ORDINARY_MAX`].
    Ordinary,
    /// Some magnitude is [`ORDINARY_MAX`] or larger.
    Large,
}

/// A gradient below this limit, 2^50, can't make a finite value infinite. A value becomes infinite
/// only if a step moves it by at least 2^103, half the distance between the two largest f32. With a
/// gradient below the limit, a step moves a value by less than 2^103, if the optimizer's numbers
/// are ordinary ([`Optimizer::is_ordinary`](crate::Optimizer)).
const ORDINARY_MAX: f32 = (1_u64 << 50) as f32;

/// Fails if a gradient is NaN or infinite, because one bad batch must not destroy rows that took
/// days to train.
///
/// # Errors
/// [`Error::NonFiniteGradient`] with the first value that is not finite.
fn check_finite(
    table: &str,
    keys: &[u64],
    gradients: &[f32],
    dim: usize,
    largest: f32,
) -> Result<Magnitudes> {
    // A NaN makes this comparison false.
    if largest < ORDINARY_MAX {
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

/// Returns the factor that shortens `gradient` to the L2 norm `norm_max`. `None` if the gradient is
/// not longer than `norm_max`.
#[inline]
pub(crate) fn clipping(gradient: &[f32], norm_max: f32) -> Option<f64> {
    let norm_max = f64::from(norm_max);
    let norm = sum_of_squares(gradient).sqrt();
    (norm > norm_max).then(|| norm_max / norm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(keys: &[u64], bags: Option<&Bags<'_>>, values: &[f32], dim: usize) -> Vec<f32> {
        Occurrences::of(&UniqueKeys::new(keys).unwrap(), bags).sums(values, dim)
    }

    #[test]
    fn gradients_of_equal_keys_are_summed_in_order() {
        let gradients = [1e8, 1.0, 2.0, 2.0, 1.0, 3.0, -1e8, 4.0];
        let sums = sums(&[5, 6, 5, 5], None, &gradients, 2);
        assert_eq!(sums, [(1e8_f32 + 1.0) - 1e8, 8.0, 2.0, 2.0]);
    }

    #[test]
    fn a_row_gets_the_gradients_of_its_bags() {
        let keys = [5, 6, 5, 7, 5];
        let bags = Bags { offsets: &[0, 3, 3, 5], pooling: Pooling::Sum, weights: None };
        let values = [1.0, 10.0, 100.0];
        assert_eq!(sums(&keys, Some(&bags), &values, 1), [102.0, 1.0, 100.0]);
        let mean = Bags { pooling: Pooling::Mean, ..bags };
        let third = 1.0_f32 / 3.0;
        assert_eq!(sums(&keys, Some(&mean), &values, 1), [third + third + 50.0, third, 50.0]);
        let weighted = Bags { weights: Some(&[1.0, 2.0, 3.0, 4.0, 5.0]), ..bags };
        assert_eq!(sums(&keys, Some(&weighted), &values, 1), [504.0, 2.0, 400.0]);
    }

    #[test]
    fn only_rows_that_are_too_long_are_clipped() {
        assert_eq!(clipping(&[3.0, 4.0], 1.0), Some(0.2));
        assert_eq!(clipping(&[0.3, 0.4], 1.0), None);
        assert!(clipping(&[f32::MAX, f32::MAX], 1.0).unwrap() > 0.0);
    }

    fn of_batch<'g>(keys: &[u64], values: &'g [f32], dim: usize) -> Result<BatchGradients<'g>> {
        let largest = largest_magnitude(values);
        BatchGradients::of_batch("t", &UniqueKeys::new(keys).unwrap(), None, values, dim, largest)
    }

    #[test]
    fn ordinary_gradients_are_not_copied() {
        for keys in [[9, 6], [9, 9]] {
            let gradients = of_batch(&keys, &[1.0, 2.0], 1).unwrap();
            assert!(matches!(gradients.values, Cow::Borrowed(_)));
            assert_eq!(gradients.magnitudes, Magnitudes::Ordinary);
        }
    }

    #[test]
    fn parts_and_picked_rows_have_their_own_gradients() {
        let gradients = of_batch(&[1, 2, 1, 3], &[1.0, 2.0, 4.0, 8.0], 1).unwrap();
        let room = &mut [0.0][..];
        assert_eq!(gradients.rows(None).at(0, room), [5.0]);
        assert_eq!(gradients.rows(None).from(1).from(1).at(0, room), [8.0]);
        let numbers = [0, 2];
        assert_eq!(gradients.rows(Some(&numbers)).from(1).at(0, room), [8.0]);
    }

    #[test]
    fn the_first_non_finite_gradient_is_named() {
        let large = of_batch(&[1, 2], &[f32::MAX, f32::MIN, 0.0, -0.0], 2).unwrap();
        assert_eq!(large.magnitudes, Magnitudes::Large);
        let ordinary = of_batch(&[1], &[-1e15, 0.0], 2).unwrap();
        assert_eq!(ordinary.magnitudes, Magnitudes::Ordinary);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for keys in [[10, 20, 30], [10, 20, 10]] {
                match of_batch(&keys, &[0.0, 1.0, 2.0, bad, 0.0, 0.0], 2) {
                    Err(Error::NonFiniteGradient { key: 20, column: 1, value, .. }) => {
                        assert_eq!(value.to_bits(), bad.to_bits());
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_sum_that_is_not_finite_is_named_though_its_parts_are() {
        match of_batch(&[4, 5, 5], &[1.0, f32::MAX, f32::MAX], 1) {
            Err(Error::NonFiniteGradient { key: 5, column: 0, value: f32::INFINITY, .. }) => {}
            other => panic!("{other:?}"),
        }
        let large = of_batch(&[5, 5], &[f32::MAX, -f32::MAX], 1).unwrap();
        assert_eq!(large.magnitudes, Magnitudes::Ordinary);
    }
}
