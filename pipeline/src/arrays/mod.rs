//! Decoders of *costly columns*: each value is some bytes, and becomes an array of one shape.
//!
//! A picture takes a millisecond, where a number takes nanoseconds. So the array of a row is
//! written into the batch at once, and the rows of a chunk are few ([`chunk_bytes`]). Arrays are
//! made before all operators, because a value that can't be decoded makes its row bad.
//!
//! `file` finds the bytes that a field of paths names, and `picture` decodes JPEG and PNG.

mod file;
#[cfg(feature = "images")]
mod picture;

use std::path::Path;
use std::sync::Arc;

use crate::error::{Result, refused};
use crate::spec::Dtype;

pub(crate) use file::Root;

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
    pub(crate) image: Image,
    /// The index of the output that shows the arrays.
    pub(crate) output: usize,
}

impl ArrayPlan {
    pub(crate) fn shape(&self) -> Vec<usize> {
        self.image.shape().to_vec()
    }

    /// Bytes of a row's array.
    pub(crate) fn bytes(&self) -> usize {
        self.image.shape().iter().product::<usize>() * Dtype::U8.bytes()
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

/// Returns the rows of a chunk with values to decode, of columns or members, that has
/// `chunk_bytes` bytes.
#[cfg(feature = "parquet")]
pub(crate) fn chunk_rows(chunk_bytes: usize) -> usize {
    (chunk_bytes / ROW_BYTES).max(1)
}

/// Decodes values, one after the other, in one thread.
pub(crate) struct ArrayDecoder {
    #[cfg(feature = "images")]
    picture: picture::PictureDecoder,
    /// The bytes of a file.
    bytes: Vec<u8>,
}

/// The reason why a value has no array.
pub(crate) enum NoArray {
    /// The row is bad. The text follows the field's name.
    Bad(String),
    /// The run can't go on.
    Failed(crate::Error),
}

impl std::fmt::Debug for ArrayDecoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ArrayDecoder").finish_non_exhaustive()
    }
}

impl ArrayDecoder {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(feature = "images")]
            picture: picture::PictureDecoder::default(),
            bytes: Vec::new(),
        }
    }

    /// Decodes `value`, or the file of this path below `root`, into `array`.
    pub(crate) fn decode(
        &mut self,
        plan: &ArrayPlan,
        value: &[u8],
        root: Option<&Root>,
        array: &mut [u8],
    ) -> std::result::Result<(), NoArray> {
        let mut file = std::mem::take(&mut self.bytes);
        let bytes = match (plan.place, root) {
            (Place::Bytes(_), _) => Ok(value),
            (Place::File(_), Some(root)) => root.read(value, &mut file).map(|()| &*file),
            (Place::File(_), None) => unreachable!("such a pipeline is refused"),
        };
        let decoded =
            bytes.and_then(|bytes| self.decode_bytes(plan, bytes, array).map_err(NoArray::Bad));
        self.bytes = file;
        decoded
    }

    #[cfg(feature = "images")]
    fn decode_bytes(
        &mut self,
        plan: &ArrayPlan,
        bytes: &[u8],
        array: &mut [u8],
    ) -> std::result::Result<(), String> {
        self.picture.decode(&plan.image, bytes, array)
    }

    #[cfg(not(feature = "images"))]
    fn decode_bytes(
        &mut self,
        _: &ArrayPlan,
        _: &[u8],
        _: &mut [u8],
    ) -> std::result::Result<(), String> {
        unreachable!("the operator is refused")
    }
}
