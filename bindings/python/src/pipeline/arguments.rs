//! Arguments of a pipeline's methods: specs, formats, inputs.

use std::path::PathBuf;

use embank_pipeline::{
    Error, FeedInput, FeedPlace, FeedPosition, Format, Header, InputId, Separator, TextSettings,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::scalars;

/// Returns a spec as JSON. Text is returned unchanged. An object with `to_json` is converted by
/// that method, and a dict by the module `json`.
pub(super) fn spec_json(spec: &Bound<'_, PyAny>) -> PyResult<String> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Ok(text) = spec.cast::<PyString>() {
        return text.extract();
    }
    if spec.hasattr("to_json")? {
        return spec.call_method0("to_json")?.extract();
    }
    if !spec.is_instance_of::<PyDict>() {
        return Err(PyTypeError::new_err(format!(
            "a spec is a Spec, a dict or JSON text, not {}",
            spec.get_type()
        )));
    }
    DUMPS.import(spec.py(), "json", "dumps")?.call1((spec,))?.extract()
}

pub(super) fn text_format(
    name: Option<&str>,
    separator: Option<&str>,
    header: Option<&Bound<'_, PyAny>>,
    quote: Option<&str>,
) -> PyResult<Format> {
    let wrong = |error: Error| PyValueError::new_err(error.to_string());
    let format = match name {
        None => Format::ByName(TextSettings::default()),
        Some("tsv") => Format::TSV,
        Some("csv") => Format::CSV,
        Some("packed") => Format::Packed,
        Some("columns") => Format::Columns,
        Some(name) => {
            return Err(PyValueError::new_err(format!(
                "format must be \"tsv\", \"csv\", \"packed\", \"columns\" or None, not {name:?}"
            )));
        }
    };
    let separator = separator.map(str::parse::<Separator>).transpose().map_err(wrong)?;
    let quote = match quote.map(str::as_bytes) {
        None => None,
        Some([]) => Some(None),
        Some(&[byte]) if byte.is_ascii() => Some(Some(byte)),
        Some(_) => return Err(PyValueError::new_err("quote must be one ASCII character")),
    };
    let header = header.map(header_of).transpose()?;
    format.with(TextSettings { separator, header, quote }).map_err(wrong)
}

/// Returns the `Header` of a name. True stands for "names", and False for "none".
fn header_of(header: &Bound<'_, PyAny>) -> PyResult<Header> {
    if let Ok(header) = header.extract::<bool>() {
        return Ok(if header { Header::Names } else { Header::None });
    }
    match header.extract::<String>().as_deref() {
        Ok("names") => Ok(Header::Names),
        Ok("skip") => Ok(Header::Skip),
        Ok("none") => Ok(Header::None),
        _ => Err(PyValueError::new_err(format!(
            "header must be \"names\", \"skip\" or \"none\", not {header}"
        ))),
    }
}

pub(super) fn thread_count(threads: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let Some(threads) = threads else { return Ok(None) };
    match scalars::unsigned("threads", threads, 1024)? {
        0 => Err(PyValueError::new_err("threads must be from 1 to 1024, not 0")),
        count => Ok(Some(count as usize)),
    }
}

/// Returns a feed's position as plain data of Python.
pub(super) fn state_of<'py>(
    py: Python<'py>,
    position: &FeedPosition,
) -> PyResult<Bound<'py, PyDict>> {
    let state = PyDict::new(py);
    state.set_item("rows", position.rows)?;
    state.set_item("shuffle_rows", position.shuffle_rows)?;
    state.set_item("seed", position.seed)?;
    let inputs = PyList::empty(py);
    for InputId { name, bytes } in &position.inputs {
        let id = PyList::empty(py);
        id.append(name)?;
        id.append(bytes)?;
        inputs.append(id)?;
    }
    state.set_item("inputs", inputs)?;
    if let Some(place) = &position.place {
        let place = json(py, "loads")?.call1((place.to_json(),))?;
        state.set_item("place", place)?;
    }
    Ok(state)
}

/// A function of Python's module `json`.
fn json<'py>(py: Python<'py>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.getattr(function)
}

/// Reads what [`state_of`] made.
fn position_of(state: &Bound<'_, PyDict>) -> PyResult<FeedPosition> {
    let item = |name: &str| {
        state.get_item(name)?.ok_or_else(|| {
            PyValueError::new_err(format!(
                "skip_rows is a dict without {name:?}: pass what a feed's state_dict() returned, or a number of rows"
            ))
        })
    };
    let inputs = item("inputs")?.try_iter()?.map(|id| {
        let id = id?;
        Ok(InputId { name: id.get_item(0)?.extract()?, bytes: id.get_item(1)?.extract()? })
    });
    let place = state.get_item("place")?.filter(|place| !place.is_none());
    let place = place.map(|place| {
        let text: String = json(state.py(), "dumps")?.call1((place,))?.extract()?;
        let wrong = |error: Error| PyValueError::new_err(error.to_string());
        FeedPlace::from_json(&text).map_err(wrong)
    });
    Ok(FeedPosition {
        place: place.transpose()?,
        rows: item("rows")?.extract()?,
        shuffle_rows: item("shuffle_rows")?.extract()?,
        seed: item("seed")?.extract()?,
        inputs: inputs.collect::<PyResult<_>>()?,
    })
}

/// The place at which a feed begins, given as a number of rows, or as the state of another feed.
pub(super) fn beginning(
    skip_rows: Option<&Bound<'_, PyAny>>,
) -> PyResult<(u64, Option<FeedPosition>)> {
    let Some(given) = skip_rows else { return Ok((0, None)) };
    match given.cast::<PyDict>() {
        Ok(state) => Ok((0, Some(position_of(state)?))),
        Err(_) => Ok((scalars::unsigned("skip_rows", given, u64::MAX)?, None)),
    }
}

/// The inputs, given as one path or bytes object or as several of them.
pub(super) fn feed_inputs(given: &Bound<'_, PyAny>) -> PyResult<Vec<FeedInput>> {
    let one = |input: &Bound<'_, PyAny>| {
        if let Ok(bytes) = input.cast::<PyBytes>() {
            return Ok(FeedInput::memory("bytes", bytes.as_bytes()));
        }
        let path: PathBuf = input.extract().map_err(|error: PyErr| {
            if !error.is_instance_of::<PyTypeError>(input.py()) {
                // The input's `__fspath__` raised this error.
                return error;
            }
            PyTypeError::new_err(format!(
                "an input is a path, or bytes that are rows, not {}",
                input.get_type()
            ))
        })?;
        Ok(FeedInput::file(path))
    };
    if given.hasattr("read")? {
        return Err(PyTypeError::new_err(format!(
            "an input is a path, or bytes that are rows, not {}, an open file: pass its path, or what its read() returns",
            given.get_type()
        )));
    }
    let several = given.is_instance_of::<PyList>() || given.hasattr("__iter__")?;
    let alone = given.is_instance_of::<PyBytes>() || given.is_instance_of::<PyString>();
    if several && !alone {
        return given.try_iter()?.map(|input| one(&input?)).collect();
    }
    Ok(vec![one(given)?])
}
