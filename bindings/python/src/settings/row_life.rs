//! Settings of admission and tracking: which keys get a row, and whether rows record their uses.

use embank::{Admission, Tracking};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::scalars;

pub(crate) fn tracking(name: Option<&str>) -> PyResult<Tracking> {
    match name {
        None => Ok(Tracking::None),
        Some("minutes") => Ok(Tracking::Minutes),
        Some("set_time") => Ok(Tracking::SetTime),
        Some(other) => Err(PyValueError::new_err(format!(
            "tracking must be \"minutes\", \"set_time\" or None, not {other:?}"
        ))),
    }
}

pub(crate) fn admission(
    after_gets: Option<&Bound<'_, PyAny>>,
    probability: Option<f64>,
) -> PyResult<Admission> {
    match (after_gets, probability) {
        (None, None) => Ok(Admission::Always),
        (Some(gets), None) => {
            Ok(Admission::AfterGets(scalars::unsigned_32("admit_after_gets", gets)?))
        }
        (None, Some(probability)) => Ok(Admission::Probability(probability as f32)),
        (Some(_), Some(_)) => Err(PyValueError::new_err(
            "give one of admit_after_gets and admit_probability, not both",
        )),
    }
}
