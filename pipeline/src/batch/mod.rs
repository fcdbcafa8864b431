//! The output of a pipeline: batches of matrices.

#[cfg(feature = "arrow")]
mod arrow;
mod buffer;
mod bytes;
mod pool;

use std::collections::TryReserveError;
use std::ops::Range;
use std::sync::Arc;

use crate::execute::FeedPlace;
use crate::spec::Dtype;

#[cfg(feature = "arrow")]
pub use arrow::{array_metadata, arrow_schema};
pub use buffer::MatrixBuffer;
use pool::Lent;
pub(crate) use pool::Pool;

/// An output's name and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatrixInfo {
    /// The output's name.
    pub name: String,
    /// Names of the matrix's columns, from left to right. An output of arrays has one.
    pub columns: Vec<String>,
    /// Type of the values.
    pub dtype: Dtype,
    /// Shape of a row: the number of columns, or the shape of an array.
    pub shape: Vec<usize>,
}

impl MatrixInfo {
    /// Number of values of a row.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{Pipeline, RunOptions, Spec};
    ///
    /// let pipeline = Pipeline::new(&Spec::criteo(5000), &RunOptions::default())?;
    /// assert_eq!(pipeline.outputs()[0].row_values(), 40);
    /// # Ok::<(), embank_pipeline::Error>(())
    /// ```
    #[must_use]
    pub fn row_values(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if a row is more than a value of each column: an array of one column.
    pub(crate) fn is_of_arrays(&self) -> bool {
        self.shape != [self.columns.len()]
    }
}

/// Some rows, with one matrix for each output.
///
/// A consumer gets a reference and may take the batch ([`take`](Self::take)). The pipeline reuses
/// the memory of a batch that is not taken. A [feed](crate::Feed) reuses the memory of a batch after
/// the batch is dropped. A clone has memory of its own.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) first_row: u64,
    pub(crate) input_bytes: u64,
    /// Number of the run's inputs up to the one that has the batch's last row.
    pub(crate) inputs: usize,
    /// The place from which a feed can make the row after this batch. `None` if the run records no
    /// places.
    pub(crate) place: Option<Arc<FeedPlace>>,
    pub(crate) rows: usize,
    pub(crate) infos: Arc<[MatrixInfo]>,
    pub(crate) matrices: Vec<Lent>,
}

/// An output's values, row by row, in a vector that the caller owns. A feed does not get the memory
/// of the vector back.
///
/// # Examples
/// ```
/// use embank_pipeline::Matrix;
///
/// let matrix = Matrix::F32(vec![0.5, 1.5]);
/// assert!(matches!(matrix, Matrix::F32(values) if values.len() == 2));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Matrix {
    /// An output of dtype [`F32`](Dtype::F32).
    F32(Vec<f32>),
    /// An output of dtype [`I32`](Dtype::I32).
    I32(Vec<i32>),
    /// An output of dtype [`I64`](Dtype::I64).
    I64(Vec<i64>),
    /// An output of dtype [`Bits32`](Dtype::Bits32).
    Bits32(Vec<u32>),
    /// An output of dtype [`U8`](Dtype::U8).
    U8(Vec<u8>),
}

/// A matrix's values, row by row. Values after the batch's last row are invalid.
///
/// A variant is added here, in [`Values::new`], in each function of `Values`, and where rows are
/// moved or written.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    Bytes(Vec<u8>),
    Words(Vec<u32>),
    Wides(Vec<u64>),
}

impl Batch {
    pub(crate) fn new(infos: Arc<[MatrixInfo]>) -> Self {
        let matrices = infos.iter().map(|info| Values::new(info.dtype).into()).collect();
        Self { first_row: 0, input_bytes: 0, inputs: 0, place: None, rows: 0, infos, matrices }
    }

    /// Makes an empty batch in memory of the pool, which is for these outputs.
    pub(crate) fn lent(infos: Arc<[MatrixInfo]>, pool: &Arc<Pool>) -> Self {
        let matrices = pool.lend(&infos);
        Self { first_row: 0, input_bytes: 0, inputs: 0, place: None, rows: 0, infos, matrices }
    }

    /// Reserves space for `rows` rows and drops the present rows.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.rows = 0;
        for (info, values) in self.infos.iter().zip(&mut self.matrices) {
            values.grow(rows * info.row_values());
        }
    }

    /// Rows of the batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of the first row among all good rows of the run, from 0.
    #[must_use]
    pub fn first_row(&self) -> u64 {
        self.first_row
    }

    /// Bytes of the run's inputs that the run had read at the end of this batch. For a compressed
    /// input, compressed bytes count. The total of the run is
    /// [`RunReport::bytes`](crate::RunReport::bytes).
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    /// Names and shapes of the batch's matrices.
    #[must_use]
    pub fn infos(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// Returns the batch and leaves an empty one in its place.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = Self::new(Arc::clone(&self.infos));
        std::mem::replace(self, empty)
    }

    /// Returns the matrices, one for each output. No value is copied. The caller owns the vectors,
    /// so a feed needs new memory in their place. [`into_buffers`](Self::into_buffers) lets the
    /// feed reuse the memory.
    #[must_use]
    pub fn into_matrices(self) -> Vec<Matrix> {
        let Self { rows, infos, matrices, .. } = self;
        let matrix = |(info, lent): (&MatrixInfo, Lent)| {
            let count = rows * info.row_values();
            match (info.dtype, lent.into_values()) {
                (Dtype::F32, Values::Words(mut values)) => {
                    values.truncate(count);
                    Matrix::F32(bytemuck::cast_vec(values))
                }
                (Dtype::I32, Values::Words(mut values)) => {
                    values.truncate(count);
                    Matrix::I32(bytemuck::cast_vec(values))
                }
                (Dtype::Bits32, Values::Words(mut values)) => {
                    values.truncate(count);
                    Matrix::Bits32(values)
                }
                (Dtype::I64, Values::Wides(mut values)) => {
                    values.truncate(count);
                    Matrix::I64(bytemuck::cast_vec(values))
                }
                (Dtype::U8, Values::Bytes(mut values)) => {
                    values.truncate(count);
                    Matrix::U8(values)
                }
                _ => unreachable!("a matrix is as wide as its dtype"),
            }
        };
        infos.iter().zip(matrices).map(matrix).collect()
    }

    /// Returns the matrices, one for each output, as buffers whose memory a feed reuses. No value
    /// is copied.
    #[must_use]
    pub fn into_buffers(self) -> Vec<MatrixBuffer> {
        let Self { rows, infos, matrices, .. } = self;
        let buffer = |(info, lent): (&MatrixInfo, Lent)| {
            MatrixBuffer::new(lent, info.dtype, rows * info.row_values() * info.dtype.bytes())
        };
        infos.iter().zip(matrices).map(buffer).collect()
    }

    fn words(&self, output: usize) -> Option<&[u32]> {
        match &**self.matrices.get(output)? {
            Values::Words(values) => Some(&values[..self.rows * self.infos[output].row_values()]),
            Values::Bytes(_) | Values::Wides(_) => None,
        }
    }

    /// Returns the values of output number `output`, row by row. `None` unless its dtype is
    /// [`U8`](Dtype::U8).
    #[must_use]
    pub fn u8(&self, output: usize) -> Option<&[u8]> {
        match &**self.matrices.get(output)? {
            Values::Bytes(values) => Some(&values[..self.rows * self.infos[output].row_values()]),
            Values::Words(_) | Values::Wides(_) => None,
        }
    }

    /// Returns the matrix of output number `output`, row by row. `None` unless its dtype is
    /// [`F32`](Dtype::F32).
    #[must_use]
    pub fn f32(&self, output: usize) -> Option<&[f32]> {
        let of_dtype = self.infos.get(output)?.dtype == Dtype::F32;
        of_dtype.then(|| self.words(output)).flatten().map(bytemuck::cast_slice)
    }

    /// Returns the matrix of output number `output`, row by row. `None` unless its dtype is
    /// [`I32`](Dtype::I32).
    #[must_use]
    pub fn i32(&self, output: usize) -> Option<&[i32]> {
        let of_dtype = self.infos.get(output)?.dtype == Dtype::I32;
        of_dtype.then(|| self.words(output)).flatten().map(bytemuck::cast_slice)
    }

    /// Returns the matrix of output number `output`, row by row. `None` unless its dtype is
    /// [`Bits32`](Dtype::Bits32).
    #[must_use]
    pub fn bits32(&self, output: usize) -> Option<&[u32]> {
        let of_dtype = self.infos.get(output)?.dtype == Dtype::Bits32;
        of_dtype.then(|| self.words(output)).flatten()
    }

    /// Returns the matrix of output number `output`, row by row. `None` unless its dtype is
    /// [`I64`](Dtype::I64).
    #[must_use]
    pub fn i64(&self, output: usize) -> Option<&[i64]> {
        match &**self.matrices.get(output)? {
            Values::Bytes(_) | Values::Words(_) => None,
            Values::Wides(values) => {
                let values = &values[..self.rows * self.infos[output].row_values()];
                Some(bytemuck::cast_slice(values))
            }
        }
    }
}

/// Moves rows from one batch to another, for feeds.
impl Batch {
    /// Returns the values of each matrix, with the number of values of a row.
    pub(crate) fn matrices_mut(&mut self) -> impl Iterator<Item = (&mut Values, usize)> {
        let widths = self.infos.iter().map(MatrixInfo::row_values);
        self.matrices.iter_mut().map(|lent| &mut **lent).zip(widths)
    }

    /// Appends rows of another batch with the same outputs. The vectors of `self` must hold no
    /// values after its last row.
    pub(crate) fn append(&mut self, from: &Self, rows: Range<usize>) {
        self.rows += rows.len();
        for ((into, width), from) in self.matrices_mut().zip(&from.matrices) {
            let range = rows.start * width..rows.end * width;
            match (into, &**from) {
                (Values::Bytes(into), Values::Bytes(from)) => into.extend_from_slice(&from[range]),
                (Values::Words(into), Values::Words(from)) => into.extend_from_slice(&from[range]),
                (Values::Wides(into), Values::Wides(from)) => into.extend_from_slice(&from[range]),
                _ => unreachable!("both have the same outputs"),
            }
        }
    }

    /// Appends the rows of `from` that are at `places`, in the order of `places`.
    pub(crate) fn gather(&mut self, from: &Self, places: &[u32]) {
        fn gather<T: Copy>(into: &mut Vec<T>, from: &[T], places: &[u32], width: usize) {
            for &place in places {
                into.extend_from_slice(&from[place as usize * width..][..width]);
            }
        }
        self.rows += places.len();
        for ((into, width), from) in self.matrices_mut().zip(&from.matrices) {
            match (into, &**from) {
                (Values::Bytes(into), Values::Bytes(from)) => gather(into, from, places, width),
                (Values::Words(into), Values::Words(from)) => gather(into, from, places, width),
                (Values::Wides(into), Values::Wides(from)) => gather(into, from, places, width),
                _ => unreachable!("both have the same outputs"),
            }
        }
    }

    /// Replaces the rows at `places` by successive rows of `with`, from its row `first` on.
    pub(crate) fn replace(&mut self, places: &[u32], with: &Self, first: usize) {
        fn replace<T: Copy>(held: &mut [T], places: &[u32], with: &[T], width: usize) {
            for (i, &place) in places.iter().enumerate() {
                held[place as usize * width..][..width]
                    .copy_from_slice(&with[i * width..][..width]);
            }
        }
        for ((held, width), with) in self.matrices_mut().zip(&with.matrices) {
            match (held, &**with) {
                (Values::Bytes(held), Values::Bytes(with)) => {
                    replace(held, places, &with[first * width..], width);
                }
                (Values::Words(held), Values::Words(with)) => {
                    replace(held, places, &with[first * width..], width);
                }
                (Values::Wides(held), Values::Wides(with)) => {
                    replace(held, places, &with[first * width..], width);
                }
                _ => unreachable!("both have the same outputs"),
            }
        }
    }

    /// For each of `places`, appends the row of `held` at that place to `self`. Then overwrites
    /// that row of `held` with the next row of `with`, beginning with row `first`.
    pub(crate) fn exchange(&mut self, held: &mut Self, places: &[u32], with: &Self, first: usize) {
        fn exchange<T: Copy>(
            into: &mut Vec<T>,
            held: &mut [T],
            places: &[u32],
            with: &[T],
            width: usize,
        ) {
            for (i, &place) in places.iter().enumerate() {
                let held = &mut held[place as usize * width..][..width];
                into.extend_from_slice(held);
                held.copy_from_slice(&with[i * width..][..width]);
            }
        }
        self.rows += places.len();
        let held = held.matrices.iter_mut();
        for (((into, width), held), with) in self.matrices_mut().zip(held).zip(&with.matrices) {
            match (into, &mut **held, &**with) {
                (Values::Bytes(into), Values::Bytes(held), Values::Bytes(with)) => {
                    exchange(into, held, places, &with[first * width..], width);
                }
                (Values::Words(into), Values::Words(held), Values::Words(with)) => {
                    exchange(into, held, places, &with[first * width..], width);
                }
                (Values::Wides(into), Values::Wides(held), Values::Wides(with)) => {
                    exchange(into, held, places, &with[first * width..], width);
                }
                _ => unreachable!("both have the same outputs"),
            }
        }
    }
}

impl Values {
    fn new(dtype: Dtype) -> Self {
        match dtype {
            Dtype::U8 => Self::Bytes(Vec::new()),
            Dtype::I64 => Self::Wides(Vec::new()),
            Dtype::F32 | Dtype::I32 | Dtype::Bits32 => Self::Words(Vec::new()),
        }
    }

    /// Removes all values and keeps the memory.
    fn clear(&mut self) {
        match self {
            Self::Bytes(own) => own.clear(),
            Self::Words(own) => own.clear(),
            Self::Wides(own) => own.clear(),
        }
    }

    /// Makes room for `count` values at least. New values are 0.
    pub(crate) fn grow(&mut self, count: usize) {
        match self {
            Self::Bytes(values) if values.len() < count => values.resize(count, 0),
            Self::Words(values) if values.len() < count => values.resize(count, 0),
            Self::Wides(values) if values.len() < count => values.resize(count, 0),
            Self::Bytes(_) | Self::Words(_) | Self::Wides(_) => {}
        }
    }

    /// Returns the values and leaves none in their place.
    pub(crate) fn take(&mut self) -> Self {
        let none = match self {
            Self::Bytes(_) => Self::Bytes(Vec::new()),
            Self::Words(_) => Self::Words(Vec::new()),
            Self::Wides(_) => Self::Wides(Vec::new()),
        };
        std::mem::replace(self, none)
    }

    /// The values as bytes, in the machine's byte order.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(values) => values,
            Self::Words(values) => bytemuck::cast_slice(values),
            Self::Wides(values) => bytemuck::cast_slice(values),
        }
    }

    /// The values as bytes, in the machine's byte order.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Bytes(values) => values,
            Self::Words(values) => bytemuck::cast_slice_mut(values),
            Self::Wides(values) => bytemuck::cast_slice_mut(values),
        }
    }

    pub(crate) fn reserve(&mut self, values: usize) {
        match self {
            Self::Bytes(own) => own.reserve_exact(values),
            Self::Words(own) => own.reserve_exact(values),
            Self::Wides(own) => own.reserve_exact(values),
        }
    }

    pub(crate) fn try_reserve(&mut self, values: usize) -> Result<(), TryReserveError> {
        match self {
            Self::Bytes(own) => own.try_reserve_exact(values),
            Self::Words(own) => own.try_reserve_exact(values),
            Self::Wides(own) => own.try_reserve_exact(values),
        }
    }
}
