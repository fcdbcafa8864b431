//! Gradients on their way to the optimizer.
//!
//! A batch has a gradient for each of its places, or for each of its bags. A row takes one step with the sum of those
//! that are its own. The sum is made when the row takes its step, so no matrix of all rows' sums exists.
//!
//! All gradients are found to be finite before the first row changes, and that of sums as well: a bound on each sum
//! follows from the largest magnitude and the most gradients that a row has. Where the bound is too large to tell,
//! the sums are made at once and looked at one by one.

use std::borrow::Cow;

use crate::dtype::{Dtype, largest_magnitude_bits};
use crate::error::{Error, Result};
use crate::keys::UniqueKeys;
use crate::optimizer::sum_of_squares;
use crate::table::bags::Bags;

/// Which gradients of a batch each distinct key has.
#[derive(Debug)]
pub(crate) struct Occurrences {
    /// Where each distinct key's begin in `sources`, and the end of the last key's.
    starts: Vec<u32>,
    /// Places among the gradients, those of a key in the order of the batch.
    sources: Vec<u32>,
    /// What each of them is multiplied by; `None`: 1.
    scales: Option<Vec<f32>>,
}

impl Occurrences {
    /// Those of a batch with a gradient for each place, or for each of `bags`.
    pub(crate) fn of(unique: &UniqueKeys, bags: Option<&Bags<'_>>) -> Self {
        let inverse = unique.inverse();
        let mut starts = vec![0_u32; unique.len() + 1];
        for &number in inverse {
            starts[number as usize + 1] += 1;
        }
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let mut next = starts.clone();
        let mut sources = vec![0_u32; inverse.len()];
        let mut scales = bags.filter(|bags| bags.scales()).map(|_| vec![0.0; inverse.len()]);
        let mut put = |place: usize, source: usize, scale: Option<f32>| {
            let at = &mut next[inverse[place] as usize];
            sources[*at as usize] = source as u32;
            if let (Some(scales), Some(scale)) = (&mut scales, scale) {
                scales[*at as usize] = scale;
            }
            *at += 1;
        };
        match bags {
            None => (0..inverse.len()).for_each(|place| put(place, place, None)),
            Some(bags) => {
                for bag in 0..bags.len() {
                    for place in bags.places(bag) {
                        put(place, bag, bags.scale(bag, place));
                    }
                }
            }
        }
        Self { starts, sources, scales }
    }

    /// The sum for distinct key number `number` of `values`, which are `room.len()` long each: in `room`, or a value
    /// itself if it is the only one.
    #[inline]
    fn sum<'r>(&self, number: usize, values: &'r [f32], room: &'r mut [f32]) -> &'r [f32] {
        let dim = room.len();
        let range = self.starts[number] as usize..self.starts[number + 1] as usize;
        let sources = &self.sources[range.clone()];
        let value = |source: u32| &values[source as usize * dim..][..dim];
        let Some(scales) = &self.scales else {
            if let [only] = sources {
                return value(*only);
            }
            for (i, &source) in sources.iter().enumerate() {
                if i == 0 {
                    room.copy_from_slice(value(source));
                } else {
                    room.iter_mut().zip(value(source)).for_each(|(sum, &value)| *sum += value);
                }
            }
            return room;
        };
        for (i, (&source, &scale)) in sources.iter().zip(&scales[range]).enumerate() {
            let scaled = value(source).iter().map(|&value| scale * value);
            if i == 0 {
                room.iter_mut().zip(scaled).for_each(|(sum, value)| *sum = value);
            } else {
                room.iter_mut().zip(scaled).for_each(|(sum, value)| *sum += value);
            }
        }
        room
    }

    /// All sums, row after row.
    pub(crate) fn sums(&self, values: &[f32], dim: usize) -> Vec<f32> {
        let mut room = vec![0.0; dim];
        let numbers = 0..self.starts.len() - 1;
        numbers.flat_map(|number| self.sum(number, values, &mut room).to_vec()).collect()
    }

    /// No sum of gradients up to `largest` is larger than this.
    fn largest_sum(&self, largest: f32) -> f64 {
        let most = self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let scale = match &self.scales {
            None => 1.0,
            Some(scales) => scales.iter().fold(0.0_f32, |most, scale| most.max(scale.abs())),
        };
        f64::from(largest) * f64::from(most) * f64::from(scale)
    }
}

/// The gradients of a batch, which were found finite.
#[derive(Debug)]
pub(crate) struct BatchGradients<'g> {
    values: Cow<'g, [f32]>,
    /// `None`: the values are one for each distinct key.
    occurrences: Option<Occurrences>,
    pub(crate) magnitudes: Magnitudes,
}

impl<'g> BatchGradients<'g> {
    /// `values` are one for each of the distinct keys `keys`.
    ///
    /// # Errors
    /// [`Error::NonFiniteGradient`] names the first one.
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

    /// `values` are one for each place of the batch of `unique`, or for each of `bags`; the largest of their magnitudes
    /// is `largest`.
    ///
    /// # Errors
    /// As [`of_distinct`](Self::of_distinct).
    pub(crate) fn of_batch(
        table: &str,
        unique: &UniqueKeys,
        bags: Option<&Bags<'_>>,
        values: &'g [f32],
        dim: usize,
        largest: f32,
    ) -> Result<Self> {
        if bags.is_none() && unique.all_distinct() {
            return Self::of_distinct(table, unique.keys(), Cow::Borrowed(values), dim, largest);
        }
        let occurrences = Occurrences::of(unique, bags);
        // False for a NaN.
        if occurrences.largest_sum(largest) < f64::from(ORDINARY_MAX) {
            let values = Cow::Borrowed(values);
            let magnitudes = Magnitudes::Ordinary;
            return Ok(Self { values, occurrences: Some(occurrences), magnitudes });
        }
        let sums = occurrences.sums(values, dim);
        let largest = largest_magnitude(&sums);
        Self::of_distinct(table, unique.keys(), Cow::Owned(sums), dim, largest)
    }

    /// Those of the distinct keys with these numbers; of all if it is `None`.
    pub(crate) fn rows<'a>(&'a self, numbers: Option<&'a [u32]>) -> RowGradients<'a> {
        let occurrences = self.occurrences.as_ref();
        RowGradients { values: &self.values, occurrences, numbers, first: 0 }
    }
}

/// One gradient for each of some distinct keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowGradients<'g> {
    values: &'g [f32],
    occurrences: Option<&'g Occurrences>,
    /// The numbers of the keys; `None`: those from `first` on.
    numbers: Option<&'g [u32]>,
    first: usize,
}

impl<'g> RowGradients<'g> {
    /// Those from place `start` on.
    pub(crate) fn from(self, start: usize) -> Self {
        match self.numbers {
            Some(numbers) => Self { numbers: Some(&numbers[start..]), ..self },
            None => Self { first: self.first + start, ..self },
        }
    }

    /// The gradient at place `i`. `room` is as long as a gradient; what it holds before and after plays no part.
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

/// The largest magnitude among `values`; a NaN if there is one.
pub(crate) fn largest_magnitude(values: &[f32]) -> f32 {
    f32::from_bits(largest_magnitude_bits(values))
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
fn check_finite(
    table: &str,
    keys: &[u64],
    gradients: &[f32],
    dim: usize,
    largest: f32,
) -> Result<Magnitudes> {
    // False for a NaN.
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

/// The factor that shortens `gradient` to the L2 norm `norm_max`; `None` if it is no longer than that.
#[inline]
pub(crate) fn clipping(gradient: &[f32], norm_max: f32) -> Option<f64> {
    let norm_max = f64::from(norm_max);
    let norm = sum_of_squares(gradient).sqrt();
    (norm > norm_max).then(|| norm_max / norm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::bags::Pooling;

    fn sums(keys: &[u64], bags: Option<&Bags<'_>>, values: &[f32], dim: usize) -> Vec<f32> {
        Occurrences::of(&UniqueKeys::new(keys), bags).sums(values, dim)
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
        BatchGradients::of_batch("t", &UniqueKeys::new(keys), None, values, dim, largest)
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
