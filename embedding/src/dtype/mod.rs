//! The stored types of values, and conversion between them and f32.
//!
//! Callers pass and receive rows as f32. The store keeps f32 unchanged, and rounds to f16 and bf16.
//! An int8 is a whole number from -127 to 127. Its value is that number times the row's scale. The
//! scale is an f32: the row's largest magnitude divided by 127.
//!
//! **Rounding.** Rounding to nearest (ties to even) loses updates smaller than half a step: a bf16
//! that changes by less than 0.2% never moves. Stochastic rounding goes up with a probability equal
//! to the value's distance from the step below, measured in steps. The mean of the results
//! therefore equals the exact value (Gupta et al., "Deep learning with limited numerical
//! precision", 2015). The draws are a pure function of seed, table, key, the row's update count and
//! the place in the row. A run with the same updates gives the same bits on any thread. The update
//! count is needed: without it, a row that rounds back to its old value would get the same draw
//! each time and never move.
//!
//! Conversions are loops without branches. The compiler turns them into vector instructions for the
//! caller's processor. The results equal those of the crate `half` for every value.
//!
//! **A new dtype** needs its conversion in a file in this folder, a variant of [`Dtype`], its form
//! in exports in `files/batch.rs`, and a row of `bindings/c/src/dtype.rs`. A new type in files
//! needs a row of `files/element.rs`, and its column in `files/parquet.rs`.

mod draws;
mod float16;
mod int8;

pub(crate) use draws::Draws;
use float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub(crate) use int8::{decode as decode_int8, encode as encode_int8};

/// The stored type of a table's values. Callers pass and receive rows as f32 for every dtype.
/// Default: [`Dtype::F32`].
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
    /// IEEE 754 half precision: 11 bits of precision, magnitudes from 6e-8 to 65,504. A put of a
    /// larger value fails.
    F16 = 1,
    /// The upper half of an f32: 8 bits of precision, and the range of f32.
    Bf16 = 2,
    /// Whole numbers from -127 to 127, times one f32 scale per row.
    Int8 = 3,
}

impl Dtype {
    /// Every dtype.
    // A table can't be opened if its descriptor has a dtype that is missing here.
    pub const ALL: &'static [Self] = &[Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// The dtype's number in a table's descriptor (docs/format.md). It never changes.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// Returns the dtype with this number.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.number() == number)
    }

    /// Number of bytes in a value. An int8 row needs 4 more bytes for its scale.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::Int8 => 1,
        }
    }

    /// The dtype's name in NumPy and PyTorch.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::Int8 => "int8",
        }
    }

    /// Returns the range of values that stay finite in this dtype.
    pub(crate) fn range(self) -> Range {
        match self {
            Dtype::F32 | Dtype::Int8 => {
                Range { largest: f32::MAX, too_large_bits: f32::INFINITY.to_bits() }
            }
            // A value half a step above the largest one rounds up to infinity.
            Dtype::F16 => Range { largest: 65_504.0, too_large_bits: 65_520.0_f32.to_bits() },
            Dtype::Bf16 => {
                Range { largest: f32::from_bits(0x7F7F_0000), too_large_bits: 0x7F7F_8000 }
            }
        }
    }

    /// Number of bytes in `count` values, without a scale.
    pub(crate) fn bytes_of(self, count: usize) -> usize {
        count * self.bytes()
    }
}

/// The range of values that a [`Dtype`] can hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// The largest finite value.
    pub(crate) largest: f32,
    /// The f32 bits of the smallest magnitude that the dtype turns into infinity. The bits of
    /// infinity and NaN are at least as large, so one comparison finds them too.
    too_large_bits: u32,
}

impl Range {
    /// True if all values stay finite in the dtype.
    #[inline(always)]
    pub(crate) fn holds(self, values: &[f32]) -> bool {
        largest_magnitude_bits(values) < self.too_large_bits
    }

    /// Returns the index of the first value that does not stay finite.
    pub(crate) fn first_beyond(self, values: &[f32]) -> Option<usize> {
        values.iter().position(|value| value.to_bits() & MAGNITUDE >= self.too_large_bits)
    }

    /// Replaces values beyond the largest finite value by that value. NaN stays NaN. Returns true
    /// if some value's magnitude is at least the largest finite value.
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

/// Returns the bits of the largest magnitude. As whole numbers, the bits of magnitudes have the
/// same order as the floats. Infinity lies above all finite values, and NaN above infinity.
#[inline(always)]
pub(crate) fn largest_magnitude_bits(values: &[f32]) -> u32 {
    // Compared as i32, because every processor has a vector maximum of i32. The sign bit is 0, so
    // the order is the same.
    let largest = values
        .iter()
        .fold(0, |most: i32, value| most.max((value.to_bits() & MAGNITUDE).cast_signed()));
    largest.cast_unsigned()
}

/// How updates are rounded to a [`Dtype`] other than f32. Initial values and
/// [`Table::put`](crate::Table::put) always round to nearest. Default: stochastic for int8, nearest
/// for other dtypes.
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
    /// To nearest, ties to even. Updates smaller than half a step are lost.
    Nearest,
    /// Up or down at random. Right on average, and reproducible.
    Stochastic,
}

/// Converts bytes of `dtype` to f32 values. `dtype` must not be int8.
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

/// Converts f32 values to bytes of `dtype`, which must not be int8. Rounds stochastically with
/// `draws`, and to nearest without them.
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
