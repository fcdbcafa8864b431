//! What comes out of a pipeline: batches of matrices.

use std::sync::Arc;

use crate::spec::Dtype;

/// An output's name and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatrixInfo {
    /// The output's name.
    pub name: String,
    /// Its columns' names, from left to right.
    pub columns: Vec<String>,
    /// What its values are.
    pub dtype: Dtype,
}

/// Some rows, as a matrix for each output.
///
/// A consumer gets it by reference and may take it away ([`take`](Self::take)); what it leaves is used again.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) first_row: u64,
    pub(crate) input_bytes: u64,
    pub(crate) rows: usize,
    pub(crate) infos: Arc<[MatrixInfo]>,
    pub(crate) matrices: Vec<Values>,
}

/// A matrix's values, row by row; only the first `rows` rows count.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    Words(Vec<u32>),
    Wides(Vec<u64>),
}

impl Batch {
    pub(crate) fn new(infos: Arc<[MatrixInfo]>) -> Self {
        let values = |info: &MatrixInfo| match info.dtype {
            Dtype::I64 => Values::Wides(Vec::new()),
            Dtype::F32 | Dtype::I32 | Dtype::Bits32 => Values::Words(Vec::new()),
        };
        let matrices = infos.iter().map(values).collect();
        Self { first_row: 0, input_bytes: 0, rows: 0, infos, matrices }
    }

    /// Room for so many rows; what is there is no longer of use.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.rows = 0;
        for (info, values) in self.infos.iter().zip(&mut self.matrices) {
            let wanted = rows * info.columns.len();
            match values {
                Values::Words(values) if values.len() < wanted => values.resize(wanted, 0),
                Values::Wides(values) if values.len() < wanted => values.resize(wanted, 0),
                Values::Words(_) | Values::Wides(_) => {}
            }
        }
    }

    /// Rows of the batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of the first row among all rows of the run that are no bad ones, from 0.
    #[must_use]
    pub fn first_row(&self) -> u64 {
        self.first_row
    }

    /// Bytes of the run's inputs that have been read up to the batch's end, compressed ones as they are: of
    /// [`RunReport::bytes`](crate::RunReport::bytes) in all.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    /// Names and shapes of its matrices.
    #[must_use]
    pub fn infos(&self) -> &[MatrixInfo] {
        &self.infos
    }

    /// The batch itself; an empty one stays behind.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = Self::new(Arc::clone(&self.infos));
        std::mem::replace(self, empty)
    }

    fn words(&self, output: usize) -> Option<&[u32]> {
        match self.matrices.get(output)? {
            Values::Words(values) => Some(&values[..self.rows * self.infos[output].columns.len()]),
            Values::Wides(_) => None,
        }
    }

    /// The matrix of an output of dtype [`F32`](Dtype::F32), row by row, by the output's place; none if it has another.
    #[must_use]
    pub fn f32(&self, output: usize) -> Option<&[f32]> {
        let of_dtype = self.infos.get(output)?.dtype == Dtype::F32;
        of_dtype.then(|| self.words(output)).flatten().map(bytemuck::cast_slice)
    }

    /// The same for dtype [`I32`](Dtype::I32).
    #[must_use]
    pub fn i32(&self, output: usize) -> Option<&[i32]> {
        let of_dtype = self.infos.get(output)?.dtype == Dtype::I32;
        of_dtype.then(|| self.words(output)).flatten().map(bytemuck::cast_slice)
    }

    /// The same for dtype [`Bits32`](Dtype::Bits32).
    #[must_use]
    pub fn bits32(&self, output: usize) -> Option<&[u32]> {
        let of_dtype = self.infos.get(output)?.dtype == Dtype::Bits32;
        of_dtype.then(|| self.words(output)).flatten()
    }

    /// The same for dtype [`I64`](Dtype::I64).
    #[must_use]
    pub fn i64(&self, output: usize) -> Option<&[i64]> {
        match self.matrices.get(output)? {
            Values::Words(_) => None,
            Values::Wides(values) => {
                let values = &values[..self.rows * self.infos[output].columns.len()];
                Some(bytemuck::cast_slice(values))
            }
        }
    }
}
