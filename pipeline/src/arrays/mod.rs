//! Decoders of *costly columns*: each value is some bytes, and becomes an array of one shape.
//!
//! A picture takes a millisecond, where a number takes nanoseconds. So a decoder writes the arrays
//! of a chunk into the memory of its batch ([`DecodeUnit`]), and the rows of a chunk are few
//! ([`chunk_bytes`]). Arrays are made before all operators, because a value that can't be decoded
//! makes its row bad.
//!
//! `file` finds the bytes that a field of paths names, and `picture` decodes JPEG and PNG.
//! `decoder` is what a decoder has to do, and `unit` what it gets. `cache` and `spool` keep arrays
//! for later epochs and later processes.

mod cache;
mod decoder;
mod file;
#[cfg(feature = "images")]
mod picture;
mod segment;
mod spool;
mod unit;

use std::path::Path;
use std::sync::Arc;

use crate::error::{Result, refused};
use crate::spec::Dtype;

pub use decoder::{DecodeChannel, DecodeFailure, Decoder, Decoders, decode_with};
pub use unit::DecodeUnit;

pub(crate) use cache::{ArrayCache, ArrayCounts};
pub(crate) use file::Root;
pub(crate) use spool::SpoolReader;
pub(crate) use unit::Outcome;

/// Largest number of bytes of a value that is decoded.
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 20;
/// Bytes of the arrays of a chunk, if one row has fewer.
const CHUNK_ARRAY_BYTES: usize = 1 << 20;
/// Smallest usual number of bytes of a row of text with a path.
const ROW_BYTES: usize = 16;

/// How a picture becomes an array of height x width x 3 values, red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Rows of pixels of the array.
    pub height: u32,
    /// Pixels of a row.
    pub width: u32,
    /// The picture's shorter side in pixels before the crop. It must be `height` and `width` at
    /// least. Default: none. Without `resize` and `crop`, the picture is stretched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
    /// The part of the picture that is kept. Default: none. `resize` needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crop: Option<Crop>,
}

/// The part of a picture that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Crop {
    /// The centre. Without `resize`, the largest rectangle that has the array's proportions.
    Center,
}

impl Image {
    /// A picture that is stretched to these numbers of pixels.
    #[must_use]
    pub fn new(height: u32, width: u32) -> Self {
        Self { height, width, resize: None, crop: None }
    }

    pub(crate) fn shape(&self) -> [usize; 3] {
        [self.height as usize, self.width as usize, 3]
    }
}

/// How a decoder that the caller gives turns values into arrays.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// The decoder's name in [`RunOptions::decoders`](crate::RunOptions::decoders).
    pub decoder: String,
    /// Shape of an array: 1 to 8 numbers, each 1 at least.
    pub shape: Vec<usize>,
    /// Type of an array's values: [`U8`](Dtype::U8), [`I32`](Dtype::I32), [`I64`](Dtype::I64) or
    /// [`F32`](Dtype::F32).
    pub dtype: Dtype,
    /// What tells this decoder from earlier ones of its name. Default: empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
}

/// How a column makes its arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArrayMaker {
    Image(Image),
    Named { decoder: String, version: String },
}

/// Where the bytes of a costly column's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this column of byte strings of the block.
    Bytes(usize),
    /// In files whose paths are in this column of byte strings.
    File(usize),
}

/// A column of arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArrayPlan {
    /// The column's name.
    pub(crate) column: String,
    /// The index of the field that has the bytes, or their path.
    pub(crate) field: usize,
    pub(crate) place: Place,
    pub(crate) maker: ArrayMaker,
    pub(crate) dtype: Dtype,
    /// Shape of a row's array.
    pub(crate) shape: Vec<usize>,
    /// The index of the output that shows the arrays.
    pub(crate) output: usize,
}

impl ArrayPlan {
    /// Bytes of a row's array.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

/// Returns the bytes of a chunk of a pipeline with these columns of arrays, if chunks of other
/// pipelines have `given` bytes.
pub(crate) fn chunk_bytes(arrays: &[ArrayPlan], given: usize) -> usize {
    match arrays.iter().map(ArrayPlan::bytes).sum::<usize>() {
        0 => given,
        row => given.min((CHUNK_ARRAY_BYTES / row).max(1) * ROW_BYTES),
    }
}

/// The reason why a value has no array.
pub(crate) enum NoArray {
    /// The row is bad. The text follows the field's name.
    Bad(String),
    /// The run can't go on.
    Failed(crate::Error),
}

/// Opens the folder of the files that fields of these columns name. `None` if there is no such
/// field.
///
/// # Errors
/// [`Error::Spec`](crate::Error::Spec) without a folder. [`Error::Io`](crate::Error::Io) if it can't
/// be opened.
pub(crate) fn root(arrays: &[ArrayPlan], folder: Option<&Path>) -> Result<Option<Arc<Root>>> {
    let Some(array) = arrays.iter().find(|array| matches!(array.place, Place::File(_))) else {
        return Ok(None);
    };
    let Some(folder) = folder else {
        return refused(format!(
            "column {:?} reads files: give the folder below which they lie, `root`",
            array.column
        ));
    };
    Root::open(folder).map(|root| Some(Arc::new(root)))
}

/// Returns the decoder of each column.
///
/// # Errors
/// [`Error::Spec`](crate::Error::Spec) if `given` lacks a decoder, or has one that no column names.
pub(crate) fn decoders(arrays: &[ArrayPlan], given: &Decoders) -> Result<Vec<Arc<dyn Decoder>>> {
    let is_used = |name: &str| {
        let mut makers = arrays.iter().map(|array| &array.maker);
        makers.any(|maker| matches!(maker, ArrayMaker::Named { decoder, .. } if decoder == name))
    };
    if let Some(unused) = given.names().find(|name| !is_used(name)) {
        return refused(format!("it was given a decoder {unused:?}, which no column names"));
    }
    let of = |array: &ArrayPlan| -> Result<Arc<dyn Decoder>> {
        match &array.maker {
            #[cfg(feature = "images")]
            ArrayMaker::Image(image) => Ok(Arc::new(picture::ImageDecoder(*image))),
            #[cfg(not(feature = "images"))]
            ArrayMaker::Image(_) => unreachable!("the operator is refused"),
            ArrayMaker::Named { decoder: name, .. } => given.get(name).map(Arc::clone).map_or_else(
                || {
                    refused(format!(
                        "column {:?} decodes with {name:?}, and it was given no decoder of this name; \
                         decoders are given in Rust and Python",
                        array.column
                    ))
                },
                Ok,
            ),
        }
    };
    arrays.iter().map(of).collect()
}

/// Returns the rows of a chunk with values to decode, of columns or members, that has
/// `chunk_bytes` bytes.
#[cfg(feature = "parquet")]
pub(crate) fn chunk_rows(chunk_bytes: usize) -> usize {
    (chunk_bytes / ROW_BYTES).max(1)
}
