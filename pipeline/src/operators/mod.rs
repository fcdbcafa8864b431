//! What is done to a column: one file for each operator.
//!
//! A file says all of its operator: which columns it takes, with which errors it refuses others,
//! what comes out, and the loops that do it ([`definition::Definition`]). Planning turns a column's
//! operators into a [`program::Program`], whose kernels run over each block of rows. The JSON form
//! of an operator is that of its variant.
//!
//! **A new operator** is a file here, a variant of [`Operator`] with its row in
//! [`Operator::definition`], and, for Python, a function in `embank/pipeline.py`.
//!
//! Each loop is written once, as the reference would be, and compiled once more for each
//! [`Level`](crate::Level): the compiler makes vectors of it. Results are the same bit for bit with
//! each level (a fused multiply-add is asked for by name).

mod bucketize;
mod clip;
mod definition;
mod fill_missing;
mod float;
mod hash;
mod hex2int;
mod logarithm;
mod modulus;
mod program;
mod vocabulary;

use serde::{Deserialize, Serialize};

pub use fill_missing::Value;

pub(crate) use definition::{Definition, Flow, Kind, Place};
pub(crate) use float::float_copy;
pub(crate) use hash::cross;
pub(crate) use modulus::MODULUS_MAX;
pub(crate) use program::{Kernel, LookUp, NamedVocabulary, Program, Shown, ValueSpace};

/// One step of a column's way. The names are those of PIPER's Table 1 where it has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Operator {
    /// A value for empty fields. Without it, other operators refuse a column that may have some.
    FillMissing(Value),
    /// Converts hexadecimal text of up to eight digits to a number. It is the first operator of its
    /// column, except that `FillMissing` may precede it. A field of kind [`FieldKind::Hex32`] is
    /// read so without it.
    Hex2Int,
    /// The remainder from 0 to below the number, for negative values too. From 1 to 2^31.
    Modulus(u32),
    /// A 64-bit hash of the value under the seed; well spread, the same on every machine.
    Hash {
        /// Different seeds are different hashes.
        seed: u64,
    },
    /// The value's number in the vocabulary of that name: in order of first appearance. Generates
    /// and applies (PIPER's GenVocab and ApplyVocab) in one pass. Values whose range is not
    /// known, as it is after `Modulus`, need a bank
    /// ([`Pipeline::with_bank`](crate::Pipeline::with_bank)).
    Vocabulary(String),
    /// Negative numbers become 0.
    Neg2Zero,
    /// log(x + 1), in f32.
    Logarithm,
    /// Values below `low` become that, above `high` that.
    Clip {
        /// The least value.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// The number of the boundaries that are at most the value. Boundaries ascend; compared as f32.
    Bucketize(Vec<f32>),
    /// The number as f32.
    Float,
}

impl Operator {
    /// All that is said of the operator: the one table of operators.
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
        }
    }
}
