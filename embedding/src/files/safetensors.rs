//! safetensors: 8 bytes of length, a header in JSON, the tensors' bytes one after another.
//!
//! The crate `safetensors` wants all data in memory to write it, and all of a file mapped to read it. So only its
//! header is taken from there: its types check that the tensors' places are gapless and fit their shapes.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::batch::{LAST_USED, Part, USES, Wanted};
use super::element::Element;
use super::output::OutputFile;
use super::tensors::{Arrays, Place, Tensor, TensorRows, TensorWriter, UsesArrays};
use super::{invalid, io_error, open_to_read, unreadable};
use crate::error::Result;

/// Beyond that, a header is taken for damage; the reference implementation does so too.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Begins a file of so many rows.
pub(crate) fn create(
    path: &Path,
    rows: u64,
    parts: Vec<Part>,
    with_keys: bool,
    pairs: HashMap<String, String>,
) -> Result<TensorWriter> {
    let row_bytes = 8 + parts.iter().map(Part::row_bytes).sum::<usize>();
    if rows.checked_mul(row_bytes as u64).is_none_or(|bytes| bytes > i64::MAX as u64) {
        return Err(invalid(format!(
            "{rows} rows of {row_bytes} bytes are more than a file can hold"
        )));
    }
    let (mut tensors, mut places) = (Vec::new(), Vec::new());
    let mut offset = 0_usize;
    let keys = with_keys.then_some(("keys", Dtype::U64, vec![rows as usize], rows as usize * 8));
    let columns = parts.iter().map(|part| {
        let mut shape = vec![rows as usize];
        if !part.is_flat() {
            shape.push(part.columns);
        }
        (part.name, dtype_of(part.element), shape, rows as usize * part.row_bytes())
    });
    for (name, dtype, shape, bytes) in keys.into_iter().chain(columns) {
        let data_offsets = (offset, offset + bytes);
        places.push(offset as u64);
        offset += bytes;
        tensors.push((name.to_owned(), TensorInfo { dtype, shape, data_offsets }));
    }
    let header = Metadata::new(Some(pairs), tensors)
        .map_err(|error| unreadable(path, format!("its header can't be made: {error}")))?;
    let mut text = serde_json::to_vec(&header)
        .map_err(|error| unreadable(path, format!("its header can't be made: {error}")))?;
    // The format pads with spaces, so that the data is aligned.
    text.resize(text.len().next_multiple_of(8), b' ');
    let file = OutputFile::create(path)?;
    file.write_at(&(text.len() as u64).to_le_bytes(), 0)?;
    file.write_at(&text, 8)?;
    let data = 8 + text.len() as u64;
    let mut places = places.into_iter().map(|offset| Place { file: 0, offset: data + offset });
    let keys = if with_keys { places.next() } else { None };
    Ok(TensorWriter { files: vec![file], keys, parts: parts.into_iter().zip(places).collect() })
}

/// A file's header and its tensors.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) pairs: HashMap<String, String>,
    /// By name; those of other types and shapes are left out.
    tensors: Vec<Tensor>,
    /// The names of all tensors.
    names: Vec<String>,
    /// Names, types and shapes of all, for errors.
    listed: String,
}

/// Reads a file's header.
pub(crate) fn read(path: &Path) -> Result<Contents> {
    let (file, file_bytes) = open_to_read(path)?;
    let damaged = |what: String| unreadable(path, format!("it is no safetensors file: {what}"));
    let mut length = [0; 8];
    if file_bytes < 8 {
        return Err(damaged(format!("it has {file_bytes} bytes")));
    }
    file.read_exact_at(&mut length, 0).map_err(|error| io_error("read", path, error))?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_BYTES_MAX.min(file_bytes - 8) {
        return Err(damaged(format!(
            "its header is said to have {header_bytes} bytes, the file has {file_bytes}"
        )));
    }
    let mut text = vec![0; header_bytes as usize];
    file.read_exact_at(&mut text, 8).map_err(|error| io_error("read", path, error))?;
    let header: Metadata =
        serde_json::from_slice(&text).map_err(|error| damaged(format!("its header: {error}")))?;
    let (data, wanted) = (8 + header_bytes, header.data_len() as u64);
    if file_bytes - data != wanted {
        return Err(damaged(format!(
            "its tensors take {wanted} bytes, {} are there",
            file_bytes - data
        )));
    }
    let file = Arc::new(file);
    let (mut tensors, mut listed) = (Vec::new(), Vec::new());
    let names = header.offset_keys();
    for name in names.iter().cloned() {
        let Some(info) = header.info(&name) else { continue };
        listed.push(format!("{name:?} ({:?} {:?})", info.dtype, info.shape));
        let (rows, columns) = match info.shape[..] {
            [rows] => (rows, 1),
            [rows, columns] => (rows, columns),
            _ => continue,
        };
        let Some(element) = element_of(info.dtype) else { continue };
        tensors.push(Tensor {
            file: Arc::clone(&file),
            path: path.to_owned(),
            name,
            element,
            rows: rows as u64,
            columns,
            offset: data + info.data_offsets.0 as u64,
        });
    }
    let pairs = header.metadata().clone().unwrap_or_default();
    Ok(Contents { pairs, tensors, names, listed: listed.join(", ") })
}

impl Contents {
    fn named(&self, path: &Path, name: &str) -> Result<Tensor> {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.cloned().ok_or_else(|| {
            unreadable(
                path,
                format!(
                    "there is no tensor {name:?} of one or two dimensions; there are {}",
                    self.listed
                ),
            )
        })
    }

    fn find(&self, name: &str) -> Option<Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name).cloned()
    }

    /// The rows that the file holds. Without names: `keys` and `rows`, or the one matrix that is there.
    pub(crate) fn rows(
        &self,
        path: &Path,
        keys: Option<&str>,
        rows: Option<&str>,
        wanted: Wanted,
    ) -> Result<TensorRows> {
        let vectors = match rows {
            Some(name) => self.named(path, name)?,
            None => match self.find("rows") {
                Some(rows) => rows,
                None => self.the_matrix(path)?,
            },
        };
        let keys = match keys {
            Some(name) => Some(self.named(path, name)?),
            None => self.find("keys"),
        };
        let scales = self.find("scales");
        // State and uses in the file belong to the tensor `rows`, not to another one that the caller names.
        let wanted = if vectors.name == "rows" { wanted } else { Wanted::NOTHING };
        let state = self.find("state").filter(|_| wanted.state);
        let uses = if wanted.uses { self.uses(path)? } else { None };
        TensorRows::new(Arrays { keys, vectors, scales, state, uses })
    }

    /// The tensors of the rows' uses; an error if the file has only one of them, or has one of another shape.
    fn uses(&self, path: &Path) -> Result<Option<UsesArrays>> {
        if ![LAST_USED, USES].iter().any(|&name| self.names.iter().any(|found| found == name)) {
            return Ok(None);
        }
        let (last_used, uses) = (self.named(path, LAST_USED)?, self.named(path, USES)?);
        Ok(Some(UsesArrays { last_used, uses }))
    }

    fn the_matrix(&self, path: &Path) -> Result<Tensor> {
        let mut matrices =
            self.tensors.iter().filter(|tensor| tensor.columns > 1 && tensor.element.is_float());
        match (matrices.next(), matrices.next()) {
            (Some(matrix), None) => Ok(matrix.clone()),
            _ => Err(unreadable(
                path,
                format!(
                    "it has no tensor \"rows\", and which of its tensors is meant does not show; name one of {}",
                    self.listed
                ),
            )),
        }
    }
}

fn dtype_of(element: Element) -> Dtype {
    match element {
        Element::F64 => Dtype::F64,
        Element::F32 => Dtype::F32,
        Element::F16 => Dtype::F16,
        Element::Bf16 => Dtype::BF16,
        Element::I8 => Dtype::I8,
        Element::U64 => Dtype::U64,
        Element::I64 => Dtype::I64,
        Element::U32 => Dtype::U32,
        Element::I32 => Dtype::I32,
    }
}

fn element_of(dtype: Dtype) -> Option<Element> {
    Some(match dtype {
        Dtype::F64 => Element::F64,
        Dtype::F32 => Element::F32,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        Dtype::I8 => Element::I8,
        Dtype::U64 => Element::U64,
        Dtype::I64 => Element::I64,
        Dtype::U32 => Element::U32,
        Dtype::I32 => Element::I32,
        _ => return None,
    })
}
