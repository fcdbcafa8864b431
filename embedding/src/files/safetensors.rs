//! The safetensors format: 8 bytes of length, a header in JSON, and the tensors' bytes one after
//! another.
//!
//! To write a file, the crate `safetensors` needs all data in memory, and to read a file, it maps
//! the whole file. This module therefore uses only the crate's header types. These types check that
//! the tensors leave no gaps, and that the length of each tensor fits its shape.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::batch::{LAST_USED, Part, USES, Wanted};
use super::element::Element;
use super::output::OutputFile;
use super::selection::{
    KEY_CURE, KEYS, ROWS, SCALES, STATE, Selection, one_of, refuse_by_position, refuse_state,
};
use super::tensors::{Arrays, Keys, Place, Tensor, TensorRows, TensorWriter, UsesArrays};
use super::{io_error, open_to_read, unreadable};
use crate::error::{Result, StoreError};

/// Longest header that is read, in bytes, as in the reference implementation. A longer header
/// counts as damage.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Begins a safetensors file for `rows` rows.
pub(crate) fn create(
    path: &Path,
    rows: u64,
    parts: Vec<Part>,
    with_keys: bool,
    pairs: HashMap<String, String>,
) -> Result<TensorWriter> {
    let row_bytes = 8 + parts.iter().map(Part::row_bytes).sum::<usize>();
    if rows.checked_mul(row_bytes as u64).is_none_or(|bytes| bytes > i64::MAX as u64) {
        let what = format!("{rows} rows of {row_bytes} bytes are more than a file can hold");
        return Err(StoreError::InvalidArgument(what).into());
    }
    let mut tensors = Vec::new();
    let mut places = Vec::new();
    let mut offset = 0_usize;
    let keys = with_keys.then_some(("keys", Dtype::U64, vec![rows as usize], rows as usize * 8));
    let columns = parts.iter().map(|part| {
        let mut shape = vec![rows as usize];
        if !part.is_flat() {
            shape.push(part.columns);
        }
        (part.name, part.element.safetensors(), shape, rows as usize * part.row_bytes())
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
    // The format pads the header with spaces to align the data.
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
    /// Sorted by position in the file.
    tensors: Vec<Found>,
}

/// A tensor that a file's header describes.
#[derive(Debug)]
struct Found {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    /// `None` if an import can't read the tensor's type, or if it has more than two dimensions.
    tensor: Option<Tensor>,
}

impl Found {
    fn described(&self) -> String {
        format!("{:?} ({:?} {:?})", self.name, self.dtype, self.shape)
    }

    fn is_matrix(&self) -> bool {
        self.shape.len() > 1 && self.shape[1..].iter().product::<usize>() != 1
    }
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
    if let Ok(Some(twice)) = serde_json::from_slice(&text).map(|Names(twice)| twice) {
        return Err(damaged(format!(
            "its header has two tensors {twice:?}; name one of them otherwise"
        )));
    }
    let data = 8 + header_bytes;
    let wanted = header.data_len() as u64;
    if file_bytes - data != wanted {
        return Err(damaged(format!(
            "its tensors take {wanted} bytes, {} are there",
            file_bytes - data
        )));
    }
    let file = Arc::new(file);
    let mut tensors = Vec::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        let dimensions = match info.shape[..] {
            [rows] => Some((rows, 1)),
            [rows, columns] => Some((rows, columns)),
            _ => None,
        };
        let tensor = dimensions.zip(Element::of_safetensors(info.dtype)).map(
            |((rows, columns), element)| Tensor {
                file: Arc::clone(&file),
                path: path.to_owned(),
                name: name.clone(),
                element,
                rows: rows as u64,
                columns,
                offset: data + info.data_offsets.0 as u64,
                is_column_major: false,
            },
        );
        tensors.push(Found { name, dtype: info.dtype, shape: info.shape.clone(), tensor });
    }
    let pairs = header.metadata().clone().unwrap_or_default();
    Ok(Contents { pairs, tensors })
}

/// The first name that occurs twice in a JSON object, if any. The crate's header types would
/// silently keep only the last entry of that name.
struct Names(Option<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Names;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Names, A::Error> {
                let mut seen = HashSet::new();
                let mut twice = None;
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    if let Some(name) = seen.replace(name) {
                        twice = twice.or(Some(name));
                    }
                }
                Ok(Names(twice))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Contents {
    fn listed(&self) -> String {
        self.tensors.iter().map(Found::described).collect::<Vec<_>>().join(", ")
    }

    fn find(&self, name: &str) -> Option<&Found> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Returns the tensor `name`. Fails if it does not exist or can't be read. `cure` tells the
    /// user what to do.
    fn named(&self, path: &Path, name: &str, cure: &str) -> Result<Tensor> {
        let Some(found) = self.find(name) else {
            let what = format!("there is no tensor {name:?}; there are {}", self.listed());
            return Err(unreadable(path, what));
        };
        found.tensor.clone().ok_or_else(|| {
            let found = found.described();
            unreadable(path, format!("tensor {found} is none of one or two dimensions and a type that is read; {cure}"))
        })
    }

    /// Returns the tensor that has one of `names`. `None` if no tensor has one of these names.
    fn part(
        &self,
        path: &Path,
        option: &str,
        names: &[&'static str],
        cure: &str,
    ) -> Result<Option<Tensor>> {
        let name = one_of(path, option, names, |name| self.find(name).is_some())?;
        name.map(|name| self.named(path, name, cure)).transpose()
    }

    /// Opens the rows of the file. If the caller gives no names, keys are `keys` or `key`, and
    /// vectors are `rows` or `vector` or the only matrix.
    pub(crate) fn rows(&self, path: &Path, selection: Selection<'_>) -> Result<TensorRows> {
        const VECTORS: &str = "vectors are f64, f32, f16, bf16, or i8 beside a tensor `scales`";
        let vectors = match selection.rows {
            Some(name) => self.named(path, name, VECTORS)?,
            None => match self.part(path, "rows", &ROWS, VECTORS)? {
                Some(rows) => rows,
                None => self.the_matrix(path)?,
            },
        };
        let keys = self.keys(path, selection, &vectors)?;
        // If the caller names a tensor of floats as the vectors, the file's scales belong to other
        // vectors.
        let has_scales = vectors.element == Element::I8 || selection.rows.is_none();
        let cure = "scales are one column of floats; write them so";
        let scales = if has_scales { self.part(path, "rows", &[SCALES], cure)? } else { None };
        let wanted = self.wanted_for(path, &vectors, selection.wanted)?;
        let cure = "state is of floats; import without the state";
        let state = if wanted.state { self.part(path, "state", &[STATE], cure)? } else { None };
        let uses = if wanted.uses { self.uses(path)? } else { None };
        TensorRows::new(Arrays { keys, vectors, scales, state, uses })
    }

    /// Returns the parts to read in addition to the vectors. State and uses in a file belong to
    /// vectors of the usual names. If the caller names other vectors, the import does not read
    /// state and uses.
    fn wanted_for(&self, path: &Path, vectors: &Tensor, wanted: Wanted) -> Result<Wanted> {
        if ROWS.contains(&vectors.name.as_str()) {
            return Ok(wanted);
        }
        let has_own = ROWS.iter().any(|name| self.find(name).is_some());
        if wanted.state && !has_own && self.find(STATE).is_some() {
            return refuse_state(path, &vectors.name);
        }
        Ok(Wanted::NOTHING)
    }

    fn keys(&self, path: &Path, selection: Selection<'_>, vectors: &Tensor) -> Result<Keys> {
        let cure = format!("keys are one column of {KEY_CURE}");
        if let Some(name) = selection.keys {
            return Ok(Keys::Array(self.named(path, name, &cure)?));
        }
        if let Some(first) = selection.first_key {
            return Ok(Keys::From(first));
        }
        if let Some(keys) = self.part(path, "keys", &KEYS, &cure)? {
            return Ok(Keys::Array(keys));
        }
        let may_be = |found: &&Found| {
            let is_part = found.name == vectors.name
                || [STATE, SCALES, LAST_USED, USES].contains(&found.name.as_str());
            !is_part
                && !found.is_matrix()
                && found.shape.first().copied() == Some(vectors.rows as usize)
        };
        match self.tensors.iter().find(may_be) {
            Some(found) => refuse_by_position(path, &format!("a tensor {}", found.described())),
            None => Ok(Keys::From(0)),
        }
    }

    /// Finds the tensors of the last use and of the number of uses. Fails if only one of them
    /// exists, or if one can't be read.
    fn uses(&self, path: &Path) -> Result<Option<UsesArrays>> {
        if [LAST_USED, USES].iter().all(|name| self.find(name).is_none()) {
            return Ok(None);
        }
        let cure = "times of last use and numbers of uses are one column of u32";
        let named = |name| self.named(path, name, cure);
        Ok(Some(UsesArrays { last_used: named(LAST_USED)?, uses: named(USES)? }))
    }

    fn the_matrix(&self, path: &Path) -> Result<Tensor> {
        let has_role = |name: &str| KEYS.contains(&name) || [STATE, SCALES].contains(&name);
        let mut matrices =
            self.tensors.iter().filter(|found| found.is_matrix() && !has_role(&found.name));
        match (matrices.next(), matrices.next()) {
            (Some(Found { tensor: Some(matrix), .. }), None) => Ok(matrix.clone()),
            _ => Err(unreadable(
                path,
                format!(
                    "it has no tensor \"rows\", and which of its tensors is meant does not show; name one of {}",
                    self.listed()
                ),
            )),
        }
    }
}
