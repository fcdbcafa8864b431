//! Initializers: the values of new rows.

use embank::{Fans, Initializer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::scalars;

/// New rows are zeros.
///
/// >>> Zeros()
/// Zeros()
#[pyclass(name = "Zeros", module = "embank", frozen, eq)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyZeros {}

#[pymethods]
impl PyZeros {
    #[new]
    fn new() -> Self {
        Self {}
    }

    #[expect(clippy::unused_self, reason = "Python calls it on an object")]
    fn __repr__(&self) -> &'static str {
        "Zeros()"
    }
}

/// Every value of a new row is `value`.
///
/// >>> Constant(1.0)
/// Constant(1.0)
#[pyclass(name = "Constant", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyConstant {
    value: f64,
}

#[pymethods]
impl PyConstant {
    #[new]
    fn new(value: f64) -> Self {
        Self { value }
    }

    fn __repr__(&self) -> String {
        format!("Constant({:?})", self.value)
    }
}

/// Values of a new row are uniform between `low` and `high`.
///
/// >>> Uniform(-0.05, 0.05)
/// Uniform(-0.05, 0.05)
#[pyclass(name = "Uniform", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyUniform {
    low: f64,
    high: f64,
}

#[pymethods]
impl PyUniform {
    #[new]
    fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    fn __repr__(&self) -> String {
        format!("Uniform({:?}, {:?})", self.low, self.high)
    }
}

/// Values of a new row are normal (Gaussian) with this mean and standard deviation.
///
/// >>> Normal(mean=0.0, std=0.01)
/// Normal(0.0, 0.01)
#[pyclass(name = "Normal", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyNormal {
    mean: f64,
    std: f64,
}

#[pymethods]
impl PyNormal {
    #[new]
    fn new(mean: f64, std: f64) -> Self {
        Self { mean, std }
    }

    fn __repr__(&self) -> String {
        format!("Normal({:?}, {:?})", self.mean, self.std)
    }
}

/// Values of a new row are normal, drawn again until they are between `low` and `high`, as in
/// `torch.nn.init.trunc_normal_`.
///
/// Args:
///     mean, std: The mean and the standard deviation of the normal distribution before the cut.
///     low, high: The bounds. Default: two standard deviations below and above the mean.
///
/// >>> TruncatedNormal(mean=0.0, std=0.5)
/// TruncatedNormal(0.0, 0.5, low=-1.0, high=1.0)
#[pyclass(name = "TruncatedNormal", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyTruncatedNormal {
    mean: f64,
    std: f64,
    low: f64,
    high: f64,
}

#[pymethods]
impl PyTruncatedNormal {
    #[new]
    #[pyo3(signature = (mean = 0.0, std = 1.0, low = None, high = None))]
    fn new(mean: f64, std: f64, low: Option<f64>, high: Option<f64>) -> Self {
        let low = low.unwrap_or(mean - 2.0 * std);
        let high = high.unwrap_or(mean + 2.0 * std);
        Self { mean, std, low, high }
    }

    fn __repr__(&self) -> String {
        format!(
            "TruncatedNormal({:?}, {:?}, low={:?}, high={:?})",
            self.mean, self.std, self.low, self.high
        )
    }
}

/// Values of a new row are uniform between -a and a, a = gain * sqrt(6 / (fan_in + fan_out)), as in
/// `torch.nn.init.xavier_uniform_`.
///
/// For an `Embedding`'s weight, torch uses the number of rows as fan_out, and dim as fan_in. A
/// table has no fixed number of rows, so pass the number of rows as `fan_out`.
///
/// Args:
///     fan_out: The number of rows that you expect, which torch takes for an `Embedding`. Default:
///         None, which takes the table's dim.
///     fan_in: torch takes dim for an `Embedding`. Default: None, which takes the table's dim.
///     gain: Multiplies the bound a.
///
/// >>> XavierUniform(fan_out=10_000)
/// XavierUniform(fan_out=10000, fan_in=None, gain=1.0)
#[pyclass(name = "XavierUniform", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyXavierUniform {
    fan_out: Option<u64>,
    fan_in: Option<u64>,
    gain: f64,
}

/// Values of a new row are normal with mean 0 and standard deviation gain * sqrt(2 / (fan_in +
/// fan_out)), as in `torch.nn.init.xavier_normal_`.
///
/// Args:
///     fan_out: The number of rows that you expect, which torch takes for an `Embedding`. Default:
///         None, which takes the table's dim.
///     fan_in: torch takes dim for an `Embedding`. Default: None, which takes the table's dim.
///     gain: Multiplies the standard deviation.
///
/// >>> XavierNormal(fan_out=10_000, gain=0.5)
/// XavierNormal(fan_out=10000, fan_in=None, gain=0.5)
#[pyclass(name = "XavierNormal", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyXavierNormal {
    fan_out: Option<u64>,
    fan_in: Option<u64>,
    gain: f64,
}

fn fan(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    value.map(|fan| scalars::unsigned(name, fan, u64::MAX)).transpose()
}

fn fan_text(fan: Option<u64>) -> String {
    fan.map_or_else(|| "None".to_owned(), |fan| fan.to_string())
}

macro_rules! xavier {
    ($class:ident, $name:literal) => {
        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = (fan_out = None, fan_in = None, gain = 1.0))]
            fn new(
                fan_out: Option<&Bound<'_, PyAny>>,
                fan_in: Option<&Bound<'_, PyAny>>,
                gain: f64,
            ) -> PyResult<Self> {
                Ok(Self { fan_out: fan("fan_out", fan_out)?, fan_in: fan("fan_in", fan_in)?, gain })
            }

            fn __repr__(&self) -> String {
                let fan_out = fan_text(self.fan_out);
                let fan_in = fan_text(self.fan_in);
                format!(
                    concat!($name, "(fan_out={}, fan_in={}, gain={:?})"),
                    fan_out, fan_in, self.gain
                )
            }
        }
    };
}

xavier!(PyXavierUniform, "XavierUniform");
xavier!(PyXavierNormal, "XavierNormal");

/// The initializer that Python passed for a table.
pub(crate) fn initializer(object: Option<&Bound<'_, PyAny>>) -> PyResult<Initializer> {
    let Some(object) = object else { return Ok(Initializer::default()) };
    if object.is_instance_of::<PyZeros>() {
        return Ok(Initializer::Zeros);
    }
    if let Ok(constant) = object.cast::<PyConstant>() {
        return Ok(Initializer::Constant(constant.get().value as f32));
    }
    if let Ok(uniform) = object.cast::<PyUniform>() {
        let uniform = uniform.get();
        return Ok(Initializer::Uniform { low: uniform.low as f32, high: uniform.high as f32 });
    }
    if let Ok(normal) = object.cast::<PyNormal>() {
        let normal = normal.get();
        return Ok(Initializer::Normal { mean: normal.mean as f32, std: normal.std as f32 });
    }
    if let Ok(normal) = object.cast::<PyTruncatedNormal>() {
        let normal = normal.get();
        return Ok(Initializer::TruncatedNormal {
            mean: normal.mean as f32,
            std: normal.std as f32,
            low: normal.low as f32,
            high: normal.high as f32,
        });
    }
    if let Ok(xavier) = object.cast::<PyXavierUniform>() {
        let xavier = xavier.get();
        let fans = Fans { fan_in: xavier.fan_in, fan_out: xavier.fan_out };
        return Ok(Initializer::XavierUniform { gain: xavier.gain as f32, fans });
    }
    if let Ok(xavier) = object.cast::<PyXavierNormal>() {
        let xavier = xavier.get();
        let fans = Fans { fan_in: xavier.fan_in, fan_out: xavier.fan_out };
        return Ok(Initializer::XavierNormal { gain: xavier.gain as f32, fans });
    }
    Err(PyTypeError::new_err(format!(
        "initializer must be embank.Uniform, Normal, TruncatedNormal, XavierUniform, XavierNormal, \
         Constant, Zeros or None, not {object}"
    )))
}
