//! Settings of dtypes and rounding.

use embank::{Dtype, Rounding};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::one_of;

/// A dtype by its name, or as NumPy's or PyTorch's object: `"int8"`, `numpy.float16`,
/// `numpy.dtype("int8")`, `torch.bfloat16`. None is float32.
pub(crate) fn dtype(what: &str, object: Option<&Bound<'_, PyAny>>) -> PyResult<Dtype> {
    let Some(object) = object else { return Ok(Dtype::F32) };
    // NumPy's scalar types have a `__name__`, its dtypes a `name`; torch's print as
    // "torch.bfloat16".
    let name = match object.getattr("__name__").or_else(|_| object.getattr("name")) {
        Ok(name) => name.to_string(),
        Err(_) => object.to_string(),
    };
    let asked = name.rsplit('.').next().unwrap_or_default();
    Dtype::ALL.iter().copied().find(|dtype| dtype.name() == asked).ok_or_else(|| {
        let names: Vec<_> = Dtype::ALL.iter().map(|dtype| format!("{:?}", dtype.name())).collect();
        PyValueError::new_err(format!("{what} must be {}, not {object}", one_of(&names)))
    })
}

pub(crate) fn rounding(name: Option<&str>) -> PyResult<Option<Rounding>> {
    match name {
        None => Ok(None),
        Some("nearest") => Ok(Some(Rounding::Nearest)),
        Some("stochastic") => Ok(Some(Rounding::Stochastic)),
        Some(other) => Err(PyValueError::new_err(format!(
            "rounding must be \"nearest\", \"stochastic\" or None, not {other:?}"
        ))),
    }
}
