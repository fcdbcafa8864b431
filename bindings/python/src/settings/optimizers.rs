//! Optimizers: what a table makes of gradients.

use embank::{Adagrad, Adam, AdamW, Ftrl, Optimizer, RowWiseAdagrad, Sgd};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::scalars;

/// Stochastic gradient descent, `torch.optim.SGD`: `row -= lr * gradient`, with momentum if asked for.
///
/// With momentum, a buffer and a count of steps lie beside each row. Whether there is momentum is part of the
/// table's identity.
///
/// Args:
///     lr: The learning rate, finite and not negative. `Table.learning_rate` changes it later.
///     momentum: How much of the last step's buffer stays.
///     dampening: How much of the gradient the buffer leaves out.
///     nesterov: Whether steps look ahead by Nesterov's rule.
///     weight_decay: How much of the row is added to its gradient.
///
/// >>> SGD(lr=0.1, momentum=0.9)
/// SGD(lr=0.1, momentum=0.9, dampening=0.0, nesterov=False, weight_decay=0.0)
#[pyclass(name = "SGD", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PySgd {
    lr: f64,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
    weight_decay: f64,
}

#[pymethods]
impl PySgd {
    #[new]
    #[pyo3(signature = (lr, momentum = 0.0, dampening = 0.0, nesterov = false, weight_decay = 0.0))]
    fn new(lr: f64, momentum: f64, dampening: f64, nesterov: bool, weight_decay: f64) -> Self {
        Self { lr, momentum, dampening, nesterov, weight_decay }
    }

    fn __repr__(&self) -> String {
        format!(
            "SGD(lr={:?}, momentum={:?}, dampening={:?}, nesterov={}, weight_decay={:?})",
            self.lr,
            self.momentum,
            self.dampening,
            if self.nesterov { "True" } else { "False" },
            self.weight_decay
        )
    }
}

/// Adagrad, `torch.optim.Adagrad`.
///
/// `accumulator += gradient**2; row -= lr * gradient / (sqrt(accumulator) + eps)`, with one
/// accumulator a column, which lies beside the row in the store.
///
/// Args:
///     lr: The learning rate, finite and not negative. `Table.learning_rate` changes it later.
///     eps: Keeps the division finite.
///     initial_accumulator_value: What a new row's accumulators begin with. It is part of the
///         table's identity.
///     lr_decay: The rate is divided by `1 + (step - 1) * lr_decay` at each step of a row. Whether it
///         is 0 is part of the table's identity.
///     weight_decay: How much of the row is added to its gradient.
///
/// >>> Adagrad(lr=0.01)
/// Adagrad(lr=0.01, eps=1e-10, initial_accumulator_value=0.0, lr_decay=0.0, weight_decay=0.0)
#[pyclass(name = "Adagrad", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyAdagrad {
    lr: f64,
    eps: f64,
    initial_accumulator_value: f64,
    lr_decay: f64,
    weight_decay: f64,
}

#[pymethods]
impl PyAdagrad {
    #[new]
    #[pyo3(signature = (
        lr, eps = 1e-10, initial_accumulator_value = 0.0, lr_decay = 0.0, weight_decay = 0.0
    ))]
    fn new(
        lr: f64,
        eps: f64,
        initial_accumulator_value: f64,
        lr_decay: f64,
        weight_decay: f64,
    ) -> Self {
        Self { lr, eps, initial_accumulator_value, lr_decay, weight_decay }
    }

    fn __repr__(&self) -> String {
        format!(
            "Adagrad(lr={:?}, eps={:?}, initial_accumulator_value={:?}, lr_decay={:?}, \
             weight_decay={:?})",
            self.lr, self.eps, self.initial_accumulator_value, self.lr_decay, self.weight_decay
        )
    }
}

/// Adagrad with one accumulator a row, the mean of its squared gradients: FBGEMM's and TorchRec's
/// `EXACT_ROWWISE_ADAGRAD`. Four bytes of state a row.
///
/// Args:
///     lr: The learning rate, finite and not negative. `Table.learning_rate` changes it later.
///     eps: Keeps the division finite.
///     initial_accumulator_value: What a new row's accumulator begins with. It is part of the
///         table's identity.
///     weight_decay: How much of the row is added to its gradient.
///
/// >>> RowWiseAdagrad(lr=0.01)
/// RowWiseAdagrad(lr=0.01, eps=1e-8, initial_accumulator_value=0.0, weight_decay=0.0)
#[pyclass(name = "RowWiseAdagrad", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyRowWiseAdagrad {
    lr: f64,
    eps: f64,
    initial_accumulator_value: f64,
    weight_decay: f64,
}

#[pymethods]
impl PyRowWiseAdagrad {
    #[new]
    #[pyo3(signature = (lr, eps = 1e-8, initial_accumulator_value = 0.0, weight_decay = 0.0))]
    fn new(lr: f64, eps: f64, initial_accumulator_value: f64, weight_decay: f64) -> Self {
        Self { lr, eps, initial_accumulator_value, weight_decay }
    }

    fn __repr__(&self) -> String {
        format!(
            "RowWiseAdagrad(lr={:?}, eps={:?}, initial_accumulator_value={:?}, weight_decay={:?})",
            self.lr, self.eps, self.initial_accumulator_value, self.weight_decay
        )
    }
}

/// Adam, `torch.optim.Adam`, with the steps of each row counted for itself.
///
/// A row without a gradient is left alone, and its bias corrections go by its own steps: each row behaves
/// as a torch parameter that has a gradient now and then. (`torch.optim.SparseAdam` counts the steps of the
/// whole table instead.) Two values of state a column lie beside the row, and the count.
///
/// Args:
///     lr: The learning rate, finite and not negative. `Table.learning_rate` changes it later.
///     betas: How much of the two moments stays at a step.
///     eps: Keeps the division finite.
///     weight_decay: How much of the row is added to its gradient.
///
/// >>> Adam(lr=0.001)
/// Adam(lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
#[pyclass(name = "Adam", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyAdam {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
}

#[pymethods]
impl PyAdam {
    #[new]
    #[pyo3(signature = (lr, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.0))]
    fn new(lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self { lr, betas, eps, weight_decay }
    }

    fn __repr__(&self) -> String {
        format!(
            "Adam(lr={:?}, betas={:?}, eps={:?}, weight_decay={:?})",
            self.lr, self.betas, self.eps, self.weight_decay
        )
    }
}

/// AdamW, `torch.optim.AdamW`: Adam whose weight decay works on the row itself, at the row's own steps.
///
/// Args:
///     lr: The learning rate, finite and not negative. `Table.learning_rate` changes it later.
///     betas: How much of the two moments stays at a step.
///     eps: Keeps the division finite.
///     weight_decay: What of the row goes at each step, times `lr`.
///
/// >>> AdamW(lr=0.001)
/// AdamW(lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
#[pyclass(name = "AdamW", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyAdamW {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
}

#[pymethods]
impl PyAdamW {
    #[new]
    #[pyo3(signature = (lr, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.01))]
    fn new(lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64) -> Self {
        Self { lr, betas, eps, weight_decay }
    }

    fn __repr__(&self) -> String {
        format!(
            "AdamW(lr={:?}, betas={:?}, eps={:?}, weight_decay={:?})",
            self.lr, self.betas, self.eps, self.weight_decay
        )
    }
}

/// FTRL-proximal (McMahan et al., 2013), which makes rows sparse with `l1`. Two values of state a column.
///
/// `tf.keras.optimizers.Ftrl` with `learning_rate_power=-0.5` is the same, where this `l2` is twice its
/// `l2_regularization_strength`. Start rows with `Zeros()`: the first step replaces what they hold.
///
/// Args:
///     lr: The learning rate, above 0; the paper's alpha. `Table.learning_rate` changes it later.
///     beta: Makes first steps smaller; the paper suggests 1.
///     l1: Penalty that keeps values at zero.
///     l2: Penalty on squares.
///     initial_accumulator_value: What a new row's sums of squares begin with. It is part of the
///         table's identity.
///
/// >>> FTRL(lr=0.1, l1=1.0)
/// FTRL(lr=0.1, beta=0.0, l1=1.0, l2=0.0, initial_accumulator_value=0.1)
#[pyclass(name = "FTRL", module = "embank", frozen, eq, get_all)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyFtrl {
    lr: f64,
    beta: f64,
    l1: f64,
    l2: f64,
    initial_accumulator_value: f64,
}

#[pymethods]
impl PyFtrl {
    #[new]
    #[pyo3(signature = (lr, beta = 0.0, l1 = 0.0, l2 = 0.0, initial_accumulator_value = 0.1))]
    fn new(lr: f64, beta: f64, l1: f64, l2: f64, initial_accumulator_value: f64) -> Self {
        Self { lr, beta, l1, l2, initial_accumulator_value }
    }

    fn __repr__(&self) -> String {
        format!(
            "FTRL(lr={:?}, beta={:?}, l1={:?}, l2={:?}, initial_accumulator_value={:?})",
            self.lr, self.beta, self.l1, self.l2, self.initial_accumulator_value
        )
    }
}

/// The optimizer that a table is asked to have.
pub(crate) fn optimizer(object: Option<&Bound<'_, PyAny>>) -> PyResult<Optimizer> {
    let Some(object) = object else { return Ok(Optimizer::None) };
    if let Ok(sgd) = object.cast::<PySgd>() {
        let &PySgd { lr, momentum, dampening, nesterov, weight_decay } = sgd.get();
        return Ok(Optimizer::Sgd(Sgd { lr, momentum, dampening, nesterov, weight_decay }));
    }
    if let Ok(adagrad) = object.cast::<PyAdagrad>() {
        let &PyAdagrad { lr, eps, initial_accumulator_value, lr_decay, weight_decay } =
            adagrad.get();
        let initial_accumulator = initial_accumulator_value as f32;
        return Ok(Optimizer::Adagrad(Adagrad {
            lr,
            lr_decay,
            weight_decay,
            initial_accumulator,
            eps,
        }));
    }
    if let Ok(adagrad) = object.cast::<PyRowWiseAdagrad>() {
        let &PyRowWiseAdagrad { lr, eps, initial_accumulator_value, weight_decay } = adagrad.get();
        let initial_accumulator = initial_accumulator_value as f32;
        return Ok(Optimizer::RowWiseAdagrad(RowWiseAdagrad {
            lr,
            weight_decay,
            initial_accumulator,
            eps,
        }));
    }
    if let Ok(adam) = object.cast::<PyAdam>() {
        let &PyAdam { lr, betas, eps, weight_decay } = adam.get();
        return Ok(Optimizer::Adam(Adam { lr, betas, eps, weight_decay }));
    }
    if let Ok(adam) = object.cast::<PyAdamW>() {
        let &PyAdamW { lr, betas, eps, weight_decay } = adam.get();
        return Ok(Optimizer::AdamW(AdamW { lr, betas, eps, weight_decay }));
    }
    if let Ok(ftrl) = object.cast::<PyFtrl>() {
        let &PyFtrl { lr, beta, l1, l2, initial_accumulator_value } = ftrl.get();
        let initial_accumulator = initial_accumulator_value as f32;
        return Ok(Optimizer::Ftrl(Ftrl { lr, beta, l1, l2, initial_accumulator }));
    }
    Err(PyTypeError::new_err(format!(
        "optimizer must be embank.SGD, Adagrad, RowWiseAdagrad, Adam, AdamW or FTRL with its settings, or \
         None, not {object}"
    )))
}

/// A table's optimizer as Python sees it.
pub(crate) fn optimizer_object(py: Python<'_>, optimizer: Optimizer) -> PyResult<Py<PyAny>> {
    let accumulator = scalars::shortest;
    let object = match optimizer {
        Optimizer::Sgd(Sgd { lr, momentum, dampening, nesterov, weight_decay }) => {
            Py::new(py, PySgd { lr, momentum, dampening, nesterov, weight_decay })?.into_any()
        }
        Optimizer::Adagrad(Adagrad { lr, lr_decay, weight_decay, initial_accumulator, eps }) => {
            let initial_accumulator_value = accumulator(initial_accumulator);
            Py::new(py, PyAdagrad { lr, eps, initial_accumulator_value, lr_decay, weight_decay })?
                .into_any()
        }
        Optimizer::RowWiseAdagrad(RowWiseAdagrad {
            lr,
            weight_decay,
            initial_accumulator,
            eps,
        }) => {
            let initial_accumulator_value = accumulator(initial_accumulator);
            Py::new(py, PyRowWiseAdagrad { lr, eps, initial_accumulator_value, weight_decay })?
                .into_any()
        }
        Optimizer::Adam(Adam { lr, betas, eps, weight_decay }) => {
            Py::new(py, PyAdam { lr, betas, eps, weight_decay })?.into_any()
        }
        Optimizer::AdamW(AdamW { lr, betas, eps, weight_decay }) => {
            Py::new(py, PyAdamW { lr, betas, eps, weight_decay })?.into_any()
        }
        Optimizer::Ftrl(Ftrl { lr, beta, l1, l2, initial_accumulator }) => {
            let initial_accumulator_value = accumulator(initial_accumulator);
            Py::new(py, PyFtrl { lr, beta, l1, l2, initial_accumulator_value })?.into_any()
        }
        // `None`, and what a later Embank may have.
        _ => py.None(),
    };
    Ok(object)
}
