//! Dtypes: how values are stored, and how updates are rounded.

use embank::{Dtype, Rounding};

use crate::refusals::{beyond_this_header, no_such_number, same_variants};
use crate::status::Failure;

/// How a table's values are stored. With every dtype, functions take and return rows as float.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_dtype {
    /// IEEE 754 single precision.
    F32 = 0,
    /// IEEE 754 half precision: 11 significant bits. Magnitudes above 65,504 become infinite.
    F16 = 1,
    /// The upper half of an F32: 8 significant bits, and the range of an F32.
    Bf16 = 2,
    /// Whole numbers from -127 to 127. Each row has a scale, an F32, by which its numbers are
    /// multiplied.
    Int8 = 3,
}

same_variants!(embank_dtype, Dtype { F32, F16, Bf16, Int8 });

/// How an update rounds a row to a dtype smaller than F32. Initial values and rows of a put are
/// always rounded to the nearest value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_rounding {
    /// Stochastic for INT8, to the nearest for the other dtypes.
    ByDtype = 0,
    /// To the nearest value, ties to even. An update smaller than half the distance to the next
    /// value is lost.
    Nearest = 1,
    /// Up or down at random, with the exact value as the mean. A repeated run rounds in the same
    /// way. Takes 4 bytes a row.
    Stochastic = 2,
}

impl embank_rounding {
    pub(crate) fn from_rust(rounding: Option<Rounding>) -> Result<u32, Failure> {
        let rounding = match rounding {
            None => Self::ByDtype,
            Some(Rounding::Nearest) => Self::Nearest,
            Some(Rounding::Stochastic) => Self::Stochastic,
            Some(other) => return Err(beyond_this_header("rounding", &other)),
        };
        Ok(rounding as u32)
    }

    pub(crate) fn to_rust(number: u32) -> Result<Option<Rounding>, Failure> {
        const BY_DTYPE: u32 = embank_rounding::ByDtype as u32;
        const NEAREST: u32 = embank_rounding::Nearest as u32;
        const STOCHASTIC: u32 = embank_rounding::Stochastic as u32;
        match number {
            BY_DTYPE => Ok(None),
            NEAREST => Ok(Some(Rounding::Nearest)),
            STOCHASTIC => Ok(Some(Rounding::Stochastic)),
            other => Err(no_such_number("embank_rounding", other)),
        }
    }
}
