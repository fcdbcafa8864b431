//! Operators on columns, one file for each.
//!
//! A file defines all of its operator: the columns that it accepts, the errors for other columns,
//! the resulting column, and the loops. Each file implements the trait [`definition::Definition`].
//! Planning turns a column's operators into a [`program::Program`], whose kernels run over each
//! block of rows. The JSON form of an operator is that of its variant of [`Operator`].
//!
//! **A new operator** is a file here, a variant of [`Operator`] with its row in
//! [`Operator::definition`], and, for Python, a function in `embank/pipeline.py`.
//!
//! Each loop is written once, as plain scalar code. It is compiled once for each
//! [`Level`](crate::Level), and the compiler vectorises it. At every level the results are equal
//! bit for bit. For this, the code calls a fused multiply-add explicitly wherever it uses one.

mod bucketize;
mod clip;
mod decode;
mod definition;
mod fill_missing;
mod float;
mod hash;
mod hex2int;
mod image;
mod logarithm;
mod modulus;
mod program;
mod vocabulary;

use serde::{Deserialize, Serialize};

pub use crate::arrays::{Crop, Decode, Image};
pub use fill_missing::Value;

pub(crate) use definition::{Definition, Flow, Kind, Place};
pub(crate) use float::float_copy;
pub(crate) use hash::cross;
pub(crate) use modulus::MODULUS_MAX;
pub(crate) use program::{Kernel, LookUp, NamedVocabulary, Program, Shown, ValueSpace};

/// An operation on a column. Operators of PIPER's Table 1 have the names of that table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Operator {
    /// Replaces each missing value by this value. All other operators refuse a column that may have
    /// missing values.
    FillMissing(Value),
    /// Converts hexadecimal text of up to eight digits to a number. Must be the column's first
    /// operator; only `FillMissing` may come before it. A field of kind
    /// [`Hex32`](crate::FieldKind::Hex32) is a number already and needs no `Hex2Int`.
    Hex2Int,
    /// The remainder of a division by this number. It is from 0 to below the divisor, for negative
    /// values too. The divisor is from 1 to 2^31.
    Modulus(u32),
    /// A 64-bit hash of the value, the same on every machine.
    Hash {
        /// Seed of the hash.
        seed: u64,
    },
    /// Replaces a value by its id in the vocabulary of this name. Ids are given in order of first
    /// appearance. One pass both makes the vocabulary and applies it (PIPER's GenVocab and
    /// ApplyVocab). `Modulus` gives values a known range. If the range of the values is not known,
    /// the vocabulary needs a bank ([`Pipeline::with_bank`](crate::Pipeline::with_bank)).
    Vocabulary(String),
    /// Replaces negative numbers by 0.
    Neg2Zero,
    /// Computes log(x + 1) in f32.
    Logarithm,
    /// Raises values below `low` to `low`, and lowers values above `high` to `high`.
    Clip {
        /// Smallest value of the result.
        low: f64,
        /// Largest value of the result.
        high: f64,
    },
    /// Replaces a value by the number of boundaries that are at most the value. Boundaries must
    /// ascend. They are compared as f32.
    Bucketize(Vec<f32>),
    /// Converts the number to f32.
    Float,
    /// Decodes a JPEG or PNG to an array of height x width x 3 bytes: red, green and blue. For a
    /// required field of kind [`Blob`](crate::FieldKind::Blob) or
    /// [`File`](crate::FieldKind::File), as the column's only operator. An output of dtype
    /// [`U8`](crate::Dtype::U8) shows the column. A picture that can't be decoded makes its row
    /// bad.
    Image(Image),
    /// Turns bytes into an array by a [`Decoder`](crate::Decoder) that the caller gives
    /// ([`RunOptions::decoders`](crate::RunOptions::decoders)). For a field of kind
    /// [`Bytes`](crate::FieldKind::Bytes), [`Blob`](crate::FieldKind::Blob) or
    /// [`File`](crate::FieldKind::File), as the column's only operator. A missing value is decoded
    /// as no bytes. An output of the decoder's dtype shows the column. A value that can't be
    /// decoded makes its row bad.
    Decode(Decode),
}

impl Operator {
    /// Returns the definition of the operator. This table lists all operators.
    pub(crate) fn definition(&self) -> Box<dyn Definition + '_> {
        match self {
            Self::FillMissing(value) => Box::new(fill_missing::FillMissing(value)),
            Self::Hex2Int => Box::new(hex2int::Hex2Int),
            Self::Modulus(divisor) => Box::new(modulus::Modulus(*divisor)),
            Self::Hash { seed } => Box::new(hash::Hash { seed: *seed }),
            Self::Vocabulary(name) => Box::new(vocabulary::Vocabulary(name)),
            Self::Neg2Zero => Box::new(clip::Neg2Zero),
            Self::Logarithm => Box::new(logarithm::Logarithm),
            Self::Clip { low, high } => Box::new(clip::Clip { low: *low, high: *high }),
            Self::Bucketize(boundaries) => Box::new(bucketize::Bucketize(boundaries)),
            Self::Float => Box::new(float::Float),
            Self::Image(image) => Box::new(image::DecodeImage(*image)),
            Self::Decode(decode) => Box::new(decode.clone()),
        }
    }
}
