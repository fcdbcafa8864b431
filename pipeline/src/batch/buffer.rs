//! One matrix of a batch, apart from the batch.

use super::pool::Lent;
use crate::spec::Dtype;

/// An output's values, row by row, as bytes. A feed reuses the memory after the buffer is dropped.
///
/// A program that shows a matrix to another library in place keeps the buffer until that library
/// has finished. The bytes are values of the output's dtype in the machine's byte order, and are
/// aligned for it. [`Batch::into_buffers`](crate::Batch::into_buffers) makes buffers.
///
/// # Examples
/// ```
/// use embank_pipeline::{Dtype, FeedInput, FeedOptions, Pipeline, Spec};
///
/// let pipeline = Pipeline::new(&Spec::criteo(5000), &Default::default())?;
/// let row = format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26));
/// let inputs = vec![FeedInput::memory("a row", row.into_bytes())];
/// for batch in pipeline.feed(inputs, &FeedOptions::default())? {
///     let buffers = batch?.into_buffers();
///     assert_eq!((buffers[0].dtype(), buffers[0].as_bytes().len()), (Dtype::Bits32, 160));
/// } // the drop of `buffers` gives the memory back to the feed
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug)]
pub struct MatrixBuffer {
    lent: Lent,
    dtype: Dtype,
    /// Number of bytes that are values of the batch's rows.
    bytes: usize,
}

impl MatrixBuffer {
    pub(super) fn new(lent: Lent, dtype: Dtype, bytes: usize) -> Self {
        Self { lent, dtype, bytes }
    }

    /// Type of the values.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the values as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.lent.bytes()[..self.bytes]
    }

    /// Returns the values as bytes that the caller may change.
    #[must_use]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.lent.bytes_mut()[..self.bytes]
    }
}

impl AsRef<[u8]> for MatrixBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}
