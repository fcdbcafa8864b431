//! How values are stored, and their conversion in both directions.
//!
//! Rows go in and out as f32. The store keeps an f32 as it is, and rounds f16 and bf16. An int8 is
//! a whole number from -127 to 127. Its value is that number times the row's scale, an f32 that is
//! the row's largest magnitude divided by 127.
//!
//! **Rounding.** Rounding to the nearest (ties to even) loses updates smaller than half a step: a
//! bf16 that changes by less than 0.2% never moves. Stochastic rounding goes up with a probability
//! equal to the value's distance from the step below it, in steps. So it is right on average (Gupta
//! et al., "Deep learning with limited numerical precision", 2015). Its draws are a pure function
//! of seed, table, key, count of the row's updates and place in the row. So a run with the same
//! updates gives the same bits on any thread. The count must be part of it: otherwise a row that
//! rounds back to its old value would get the same draw each time, and never move.
//!
//! Conversions are loops without branches, which the compiler turns into vector instructions for
//! the caller's processor; they agree with the crate `half` for every value.
//!
//! **A new dtype** needs its conversion in a file beside this one, a variant of [`Dtype`] here, its
//! form in exports in `files/batch.rs`, and a row of `bindings/c/src/dtype.rs`. A new type in files
//! needs a row of `files/element.rs`, and its column in `files/parquet.rs`.

mod draws;
mod float16;
mod int8;

pub(crate) use draws::Draws;
use float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub(crate) use int8::{decode as decode_int8, encode as encode_int8};

/// How a table's values are stored. Rows go in and out as f32 for every dtype. Default:
/// [`Dtype::F32`].
///
/// # Examples
/// ```
/// use embank::{Dtype, TableConfig};
///
/// let config = TableConfig::new(64).dtype(Dtype::Int8);
/// // 64 values, the scale, and the count that stochastic rounding needs.
/// assert_eq!(config.value_bytes(), 64 + 4 + 4);
/// assert_eq!((Dtype::Bf16.bytes(), Dtype::Bf16.name()), (2, "bfloat16"));
/// assert!(Dtype::ALL.contains(&Dtype::Bf16));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 single precision.
    #[default]
    F32 = 0,
    /// IEEE 754 half precision: 11 bits, magnitudes from 6e-8 to 65,504. Larger values are refused.
    F16 = 1,
    /// The upper half of an f32: 8 bits of precision, and f32's range.
    Bf16 = 2,
    /// Whole numbers from -127 to 127, times a scale of the row, which is an f32.
    Int8 = 3,
}

impl Dtype {
    /// Every dtype.
    // All dtypes. A descriptor whose dtype is missing here is refused.
    pub const ALL: &'static [Self] = &[Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// Its number in a table's descriptor (docs/format.md), which never changes.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// The dtype with this number.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.number() == number)
    }

    /// Bytes of a value. An int8 row takes 4 more for its scale.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::Int8 => 1,
        }
    }

    /// Its name in NumPy and PyTorch.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::Int8 => "int8",
        }
    }

    /// The largest finite value, and the magnitude from which values become infinite as they are
    /// stored.
    pub(crate) fn range(self) -> Range {
        match self {
            Dtype::F32 | Dtype::Int8 => {
                Range { largest: f32::MAX, too_large_bits: f32::INFINITY.to_bits() }
            }
            // Half a step above the largest value rounds up to infinity.
            Dtype::F16 => Range { largest: 65_504.0, too_large_bits: 65_520.0_f32.to_bits() },
            Dtype::Bf16 => {
                Range { largest: f32::from_bits(0x7F7F_0000), too_large_bits: 0x7F7F_8000 }
            }
        }
    }

    /// Bytes of `count` values without a scale.
    pub(crate) fn bytes_of(self, count: usize) -> usize {
        count * self.bytes()
    }
}

/// Which values a [`Dtype`] can hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// The largest finite value.
    pub(crate) largest: f32,
    /// Bits of the smallest magnitude that becomes infinite. NaN and infinity lie above it.
    too_large_bits: u32,
}

impl Range {
    /// Whether all values stay finite.
    #[inline(always)]
    pub(crate) fn holds(self, values: &[f32]) -> bool {
        largest_magnitude_bits(values) < self.too_large_bits
    }

    /// The first value that does not stay finite.
    pub(crate) fn first_beyond(self, values: &[f32]) -> Option<usize> {
        values.iter().position(|value| value.to_bits() & MAGNITUDE >= self.too_large_bits)
    }

    /// Replaces values beyond the largest one by the largest one. NaN stays. Returns true if a
    /// value is at the largest one.
    #[inline(always)]
    pub(crate) fn saturate(self, values: &mut [f32]) -> bool {
        let saturates = largest_magnitude_bits(values) >= self.largest.to_bits();
        if saturates {
            for value in values {
                if value.abs() > self.largest {
                    *value = self.largest.copysign(*value);
                }
            }
        }
        saturates
    }
}

const MAGNITUDE: u32 = u32::MAX >> 1;

/// The bits of the largest magnitude. As whole numbers, magnitudes of floats compare as floats do,
/// infinity lies above all finite ones, and NaN above infinity.
#[inline(always)]
pub(crate) fn largest_magnitude_bits(values: &[f32]) -> u32 {
    // As i32, because every processor has a vector instruction for its maximum. The sign bit is 0.
    let largest = values
        .iter()
        .fold(0, |most: i32, value| most.max((value.to_bits() & MAGNITUDE).cast_signed()));
    largest.cast_unsigned()
}

/// How updates are rounded to a [`Dtype`] below f32. Initial values and
/// [`Table::put`](crate::Table::put) always round to the nearest. Default: stochastic for int8,
/// else to the nearest.
///
/// # Examples
/// ```
/// use embank::{Dtype, Rounding, TableConfig};
///
/// let config = TableConfig::new(64).dtype(Dtype::Bf16).rounding(Some(Rounding::Stochastic));
/// assert_eq!(config.value_bytes(), 2 * 64 + 8); // and the count of updates
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearest, ties to even. Updates of less than half a step are lost.
    Nearest,
    /// Up or down at random, right on average, and reproducible.
    Stochastic,
}

/// Converts the bytes of `dtype`, which is not int8, to values.
#[inline(always)]
pub(crate) fn decode_float(dtype: Dtype, bytes: &[u8], to: &mut [f32]) {
    let pairs = bytes.as_chunks::<2>().0;
    match dtype {
        Dtype::F32 | Dtype::Int8 => {
            for (value, bytes) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Dtype::F16 => {
            for (value, &bytes) in to.iter_mut().zip(pairs) {
                *value = f16_to_f32(u16::from_le_bytes(bytes));
            }
        }
        Dtype::Bf16 => {
            for (value, &bytes) in to.iter_mut().zip(pairs) {
                *value = bf16_to_f32(u16::from_le_bytes(bytes));
            }
        }
    }
}

/// Converts values to the bytes of `dtype`, which is not int8. Rounds by the draws, or to the
/// nearest without draws.
#[inline(always)]
pub(crate) fn encode_float(dtype: Dtype, from: &[f32], bytes: &mut [u8], draws: Option<&Draws>) {
    match (dtype, draws) {
        (Dtype::F32 | Dtype::Int8, _) => {
            for (value, bytes) in from.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *bytes = value.to_le_bytes();
            }
        }
        (Dtype::F16, None) => each_16(from, bytes, |_, value| f32_to_f16(value, None)),
        (Dtype::F16, Some(draws)) => {
            each_16(from, bytes, |i, value| f32_to_f16(value, Some(draws.at(i))));
        }
        (Dtype::Bf16, None) => each_16(from, bytes, |_, value| f32_to_bf16(value, None)),
        (Dtype::Bf16, Some(draws)) => {
            each_16(from, bytes, |i, value| f32_to_bf16(value, Some(draws.at(i))));
        }
    }
}

#[inline(always)]
fn each_16(from: &[f32], bytes: &mut [u8], convert: impl Fn(u32, f32) -> u16) {
    for ((i, &value), bytes) in (0_u32..).zip(from).zip(bytes.as_chunks_mut::<2>().0) {
        *bytes = convert(i, value).to_le_bytes();
    }
}
