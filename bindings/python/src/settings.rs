//! Optimizers and initializers: values that say what a table is to do.

use embank::{Initializer, Optimizer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Stochastic gradient descent, `torch.optim.SGD` without momentum: `row -= lr * gradient`.
///
/// Args:
///     lr: The learning rate, finite and not negative. `Table.learning_rate` changes it later.
///
/// >>> SGD(lr=0.1)
/// SGD(lr=0.1)
#[pyclass(name = "SGD", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PySgd {
    lr: f64,
}

#[pymethods]
impl PySgd {
    #[new]
    fn new(lr: f64) -> Self {
        Self { lr }
    }

    fn __repr__(&self) -> String {
        format!("SGD(lr={:?})", self.lr)
    }
}

/// Adagrad, `torch.optim.Adagrad` without decay of rate or weights.
///
/// `accumulator += gradient**2; row -= lr * gradient / (sqrt(accumulator) + eps)`, with one
/// accumulator a column, which lies beside the row in the store.
///
/// Args:
///     lr: The learning rate, finite and not negative. `Table.learning_rate` changes it later.
///     eps: Keeps the division finite.
///     initial_accumulator_value: What a new row's accumulators begin with. It is part of the
///         table's identity.
///
/// >>> Adagrad(lr=0.01)
/// Adagrad(lr=0.01, eps=1e-10, initial_accumulator_value=0.0)
#[pyclass(name = "Adagrad", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyAdagrad {
    lr: f64,
    eps: f64,
    initial_accumulator_value: f64,
}

#[pymethods]
impl PyAdagrad {
    #[new]
    #[pyo3(signature = (lr, eps = 1e-10, initial_accumulator_value = 0.0))]
    fn new(lr: f64, eps: f64, initial_accumulator_value: f64) -> Self {
        Self { lr, eps, initial_accumulator_value }
    }

    fn __repr__(&self) -> String {
        format!(
            "Adagrad(lr={:?}, eps={:?}, initial_accumulator_value={:?})",
            self.lr, self.eps, self.initial_accumulator_value
        )
    }
}

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

/// The optimizer that a table is asked to have.
pub(crate) fn optimizer(object: Option<&Bound<'_, PyAny>>) -> PyResult<Optimizer> {
    let Some(object) = object else { return Ok(Optimizer::None) };
    if let Ok(sgd) = object.cast::<PySgd>() {
        return Ok(Optimizer::Sgd { lr: sgd.get().lr as f32 });
    }
    if let Ok(adagrad) = object.cast::<PyAdagrad>() {
        let adagrad = adagrad.get();
        return Ok(Optimizer::Adagrad {
            lr: adagrad.lr as f32,
            eps: adagrad.eps as f32,
            initial_accumulator: adagrad.initial_accumulator_value as f32,
        });
    }
    Err(PyTypeError::new_err(format!(
        "optimizer must be embank.SGD(...), embank.Adagrad(...) or None, not {object}"
    )))
}

/// The initializer that a table is asked to have.
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
    Err(PyTypeError::new_err(format!(
        "initializer must be embank.Uniform, Normal, Constant, Zeros or None, not {object}"
    )))
}
