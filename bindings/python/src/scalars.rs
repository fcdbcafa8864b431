//! Numbers and sizes that Python passes in.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

/// An unsigned integer argument. The sign is checked here, because Python's own error for -1 is an
/// `OverflowError` about C types.
///
/// # Errors
/// `ValueError` if the value is not in `0..=max`, `TypeError` if it is no integer.
pub(crate) fn unsigned(what: &str, value: &Bound<'_, PyAny>, max: u64) -> PyResult<u64> {
    let refuse = || PyValueError::new_err(format!("{what} must be from 0 to {max}, not {value}"));
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("{what} must be an integer, not a bool")));
    }
    match value.extract::<u64>() {
        Ok(number) if number <= max => Ok(number),
        Ok(_) => Err(refuse()),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Err(refuse()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "{what} must be an integer, not {}",
            value.get_type().name()?
        ))),
    }
}

/// An unsigned 32-bit argument. The errors are those of [`unsigned`].
pub(crate) fn unsigned_32(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    let number = unsigned(what, value, u64::from(u32::MAX))?;
    Ok(u32::try_from(number).expect("at most u32::MAX was let through"))
}

/// One key: an integer from -2^63 to 2^64 - 1. A negative integer stands for the key with the same
/// 64 bits.
///
/// # Errors
/// `ValueError` if the value is not in this range, `TypeError` if it is no integer.
pub(crate) fn key(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let is_bool = value.is_instance_of::<PyBool>();
    if !is_bool && let Ok(signed) = value.extract::<i64>() {
        return Ok(signed as u64);
    }
    unsigned("key", value, u64::MAX).map_err(|error| {
        if error.is_instance_of::<PyValueError>(value.py()) {
            PyValueError::new_err(format!("key must be from -2^63 to 2^64 - 1, not {value}"))
        } else {
            error
        }
    })
}

/// A time span in seconds.
pub(crate) fn seconds(what: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        PyValueError::new_err(format!("{what} must be a number of seconds, 0 or more, not {value}"))
    })
}

/// Size suffixes and their bytes. The binary suffixes come first, because messages suggest them.
const UNITS: [(&str, u64); 11] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1000),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
    ("", 1),
];

/// A size in bytes: an integer, or text such as "64MiB" or "1.5 GiB".
///
/// # Errors
/// `ValueError` for a negative number or for text that is no size, `TypeError` for other objects.
pub(crate) fn size_bytes(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let Ok(text) = value.cast::<PyString>() else {
        return unsigned(what, value, u64::MAX).map_err(|error| {
            if error.is_instance_of::<PyTypeError>(value.py()) {
                PyTypeError::new_err(format!(
                    "{what} must be a number of bytes or text such as \"64MiB\", not {value}"
                ))
            } else {
                error
            }
        });
    };
    let text = text.to_cow()?;
    parse_size(&text).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{what} {text:?} is no size: write a number and one of KiB, MiB, GiB, TiB (powers of \
             1024) or kB, MB, GB, TB (powers of 1000), such as \"64MiB\""
        ))
    })
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let unit = UNITS.iter().find(|(name, _)| *name == suffix.trim_start())?.1;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// Returns the f64 that has the shortest decimal text of `value`. A setting of 0.1 that is stored
/// as an f32 therefore reads as 0.1.
pub(crate) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
