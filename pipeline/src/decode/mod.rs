//! Decodes text into columns.
//!
//! `structure` finds the ends of fields. `narrow` plans how neighbouring fields are converted
//! together to 32-bit numbers. `avx2` and `avx512` have the kernels for both tasks. `field` reads
//! one field without vector instructions. [`Decoder`] combines these modules. Its level (the
//! instruction set) decides which kernels run; the columns are equal at each level.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bad;
mod block;
mod decoder;
mod field;
mod layout;
mod level;
mod narrow;
mod packed;
mod quoted;
mod spelling;
mod structure;
#[cfg(test)]
mod tests;

#[cfg(feature = "parquet")]
pub(crate) use bad::SNIPPET_BYTES;
pub(crate) use bad::{BadList, BadRow, Fault, REPORTED_BAD_ROWS};
pub(crate) use block::{
    BLOCK_ROWS, Block, ByteColumn, COLUMN_STRIDE, ColumnCounts, MissingBit, Slot,
};
pub(crate) use decoder::Decoder;
pub use field::{BadField, FieldKind};
pub(crate) use field::{float32, hex32, int32, int64, uint64};
pub(crate) use layout::{FIELD_BYTES_MAX, FieldLayout, Layout};
pub use level::Level;
pub(crate) use level::vectorised;
pub(crate) use packed::{row_bytes, unpack};
pub(crate) use quoted::{Syntax, Unquoted, header_fields};
pub(crate) use spelling::{Spelling, is_whole_float};
