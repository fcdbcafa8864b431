//! Optimizers: how a table turns gradients into new values.
//!
//! The list in the macro call `optimizers!` below holds all facts of an optimizer that the Python
//! package states. tests/test_typing.py makes the type stub's lines from the classes.

use embank::{Adagrad, Adam, AdamW, Ftrl, Optimizer, RowWiseAdagrad, Sgd};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::one_of;
use crate::scalars;

/// A setting of an optimizer in its Python type. `R` is its type in the library.
trait Setting<R> {
    fn to_rust(self) -> R;
    fn from_rust(value: R) -> Self;
}

impl<T> Setting<T> for T {
    fn to_rust(self) -> T {
        self
    }

    fn from_rust(value: T) -> T {
        value
    }
}

impl Setting<f32> for f64 {
    fn to_rust(self) -> f32 {
        self as f32
    }

    fn from_rust(value: f32) -> f64 {
        scalars::shortest(value)
    }
}

/// Text that Python evaluates to an equal value.
trait Repr {
    fn repr(&self) -> String;
}

impl Repr for f64 {
    fn repr(&self) -> String {
        format!("{self:?}")
    }
}

impl Repr for (f64, f64) {
    fn repr(&self) -> String {
        format!("{self:?}")
    }
}

impl Repr for bool {
    fn repr(&self) -> String {
        if *self { "True" } else { "False" }.to_owned()
    }
}

/// Makes the classes and their conversions. An entry has the class, its name in Python, the
/// library's struct (which has the name of its `Optimizer` variant), and the settings in Python's
/// order. Each setting has a name, a type, a default, and a field of the struct.
macro_rules! optimizers {
    ($(
        $(#[$docs:meta])*
        class $class:ident, $name:literal, of $of:ident {
            $($field:ident: $type:ty $(= $default:tt)? => $rust:ident,)*
        }
    )*) => {
        $(
            $(#[$docs])*
            #[pyclass(name = $name, module = "embank", frozen, eq, get_all)]
            #[derive(Debug, Clone, PartialEq)]
            pub(crate) struct $class {
                $($field: $type,)*
            }

            #[pymethods]
            impl $class {
                #[new]
                #[pyo3(signature = ($($field $(= $default)?),*))]
                fn new($($field: $type),*) -> Self {
                    Self { $($field),* }
                }

                fn __repr__(&self) -> String {
                    let settings =
                        [$(format!("{}={}", stringify!($field), self.$field.repr())),*];
                    format!("{}({})", $name, settings.join(", "))
                }
            }

            impl $class {
                fn to_rust(&self) -> Optimizer {
                    Optimizer::$of($of { $($rust: Setting::to_rust(self.$field)),* })
                }

                fn from_rust(settings: $of) -> Self {
                    let $of { $($rust),* } = settings;
                    Self { $($field: Setting::from_rust($rust)),* }
                }
            }
        )*

        const NAMES: &[&str] = &[$($name),*];

        /// Adds the classes to the package's module.
        pub(crate) fn add_optimizers(module: &Bound<'_, PyModule>) -> PyResult<()> {
            $(module.add_class::<$class>()?;)*
            Ok(())
        }

        /// The optimizer that Python passed for a table.
        pub(crate) fn optimizer(object: Option<&Bound<'_, PyAny>>) -> PyResult<Optimizer> {
            let Some(object) = object else { return Ok(Optimizer::None) };
            $(
                if let Ok(found) = object.cast::<$class>() {
                    return Ok(found.get().to_rust());
                }
            )*
            Err(no_optimizer(object))
        }

        /// A table's optimizer as a Python object.
        pub(crate) fn optimizer_object(
            py: Python<'_>,
            optimizer: Optimizer,
        ) -> PyResult<Py<PyAny>> {
            let object = match optimizer {
                $(Optimizer::$of(settings) => {
                    Py::new(py, $class::from_rust(settings))?.into_any()
                })*
                // `Optimizer::None`, and kinds that this version does not know.
                _ => py.None(),
            };
            Ok(object)
        }
    };
}

fn no_optimizer(object: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "optimizer must be embank.{} with its settings, or None, not {object}",
        one_of(NAMES)
    ))
}

optimizers! {
    /// Stochastic gradient descent, `torch.optim.SGD`: `row -= lr * gradient`, optionally with
    /// momentum.
    ///
    /// With momentum, the store keeps a buffer and a count of steps beside each row. A table that
    /// was made without momentum can't get it later, and one with momentum keeps it.
    ///
    /// Args:
    ///     lr: The learning rate, finite and not negative. Default: 0.001, as in torch.
    ///         `Table.learning_rate` changes it later.
    ///     momentum: The part of the buffer that stays at a step.
    ///     dampening: The part of the gradient that is not added to the buffer.
    ///     nesterov: Whether steps follow Nesterov's rule.
    ///     weight_decay: A step first adds `weight_decay * row` to the row's gradient.
    ///
    /// >>> SGD(lr=0.1, momentum=0.9)
    /// SGD(lr=0.1, momentum=0.9, dampening=0.0, nesterov=False, weight_decay=0.0)
    class PySgd, "SGD", of Sgd {
        lr: f64 = 0.001 => lr,
        momentum: f64 = 0.0 => momentum,
        dampening: f64 = 0.0 => dampening,
        nesterov: bool = false => nesterov,
        weight_decay: f64 = 0.0 => weight_decay,
    }

    /// Adagrad, `torch.optim.Adagrad`.
    ///
    /// `accumulator += gradient**2; row -= lr * gradient / (sqrt(accumulator) + eps)`. The store
    /// keeps one accumulator for each column beside the row.
    ///
    /// Args:
    ///     lr: The learning rate, finite and not negative. Default: 0.01, as in torch.
    ///         `Table.learning_rate` changes it later.
    ///     eps: A number, not negative, that keeps the division finite.
    ///     initial_accumulator_value: The first value of a new row's accumulators. It can't be
    ///         changed after the table is made.
    ///     lr_decay: The rate is divided by `1 + (step - 1) * lr_decay` at each step of a row.
    ///         After the table is made, 0 can't be changed to another value, nor another value to
    ///         0.
    ///     weight_decay: A step first adds `weight_decay * row` to the row's gradient.
    ///
    /// >>> Adagrad(lr=0.01)
    /// Adagrad(lr=0.01, eps=1e-10, initial_accumulator_value=0.0, lr_decay=0.0, weight_decay=0.0)
    class PyAdagrad, "Adagrad", of Adagrad {
        lr: f64 = 0.01 => lr,
        eps: f64 = 1e-10 => eps,
        initial_accumulator_value: f64 = 0.0 => initial_accumulator,
        lr_decay: f64 = 0.0 => lr_decay,
        weight_decay: f64 = 0.0 => weight_decay,
    }

    /// Adagrad with one accumulator for each row, the mean of its squared gradients:
    /// `EXACT_ROWWISE_ADAGRAD` of FBGEMM and TorchRec. The state takes 4 bytes a row.
    ///
    /// Args:
    ///     lr: The learning rate, finite and not negative. Default: 0.01, as in FBGEMM.
    ///         `Table.learning_rate` changes it later.
    ///     eps: A number, not negative, that keeps the division finite.
    ///     initial_accumulator_value: The first value of a new row's accumulator. It can't be
    ///         changed after the table is made.
    ///     weight_decay: A step first adds `weight_decay * row` to the row's gradient.
    ///
    /// >>> RowWiseAdagrad(lr=0.01)
    /// RowWiseAdagrad(lr=0.01, eps=1e-8, initial_accumulator_value=0.0, weight_decay=0.0)
    class PyRowWiseAdagrad, "RowWiseAdagrad", of RowWiseAdagrad {
        lr: f64 = 0.01 => lr,
        eps: f64 = 1e-8 => eps,
        initial_accumulator_value: f64 = 0.0 => initial_accumulator,
        weight_decay: f64 = 0.0 => weight_decay,
    }

    /// Adam, `torch.optim.Adam`, with a count of steps for each row.
    ///
    /// A row without a gradient does not change, and its bias corrections depend on its own steps.
    /// So each row behaves as a torch parameter that has no gradient in some steps.
    /// (`torch.optim.SparseAdam` counts the steps of the whole table instead.) The store keeps two
    /// values for each column and the count beside the row.
    ///
    /// Args:
    ///     lr: The learning rate, finite and not negative. Default: 0.001, as in torch.
    ///         `Table.learning_rate` changes it later.
    ///     betas: The parts of the first and the second moment that stay at a step.
    ///     eps: A number, not negative, that keeps the division finite.
    ///     weight_decay: A step first adds `weight_decay * row` to the row's gradient.
    ///
    /// >>> Adam()
    /// Adam(lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    class PyAdam, "Adam", of Adam {
        lr: f64 = 0.001 => lr,
        betas: (f64, f64) = (0.9, 0.999) => betas,
        eps: f64 = 1e-8 => eps,
        weight_decay: f64 = 0.0 => weight_decay,
    }

    /// AdamW, `torch.optim.AdamW`: Adam whose weight decay changes the row itself, at the row's own
    /// steps.
    ///
    /// Args:
    ///     lr: The learning rate, finite and not negative. Default: 0.001, as in torch.
    ///         `Table.learning_rate` changes it later.
    ///     betas: The parts of the first and the second moment that stay at a step.
    ///     eps: A number, not negative, that keeps the division finite.
    ///     weight_decay: Each step subtracts `lr * weight_decay * row` from the row.
    ///
    /// >>> AdamW(lr=0.001)
    /// AdamW(lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    class PyAdamW, "AdamW", of AdamW {
        lr: f64 = 0.001 => lr,
        betas: (f64, f64) = (0.9, 0.999) => betas,
        eps: f64 = 1e-8 => eps,
        weight_decay: f64 = 0.01 => weight_decay,
    }

    /// FTRL-proximal (McMahan et al., 2013), which makes rows sparse with `l1`. The state has two
    /// values for each column.
    ///
    /// Equals `tf.keras.optimizers.Ftrl` with `learning_rate_power=-0.5` if `l2` is twice its
    /// `l2_regularization_strength`. Start rows with `Zeros()`, because the first step replaces
    /// their values.
    ///
    /// Args:
    ///     lr: The learning rate, 0 or at least 3e-39; the paper's alpha. Default: 0.001, as in
    ///         Keras. `Table.learning_rate` changes it later.
    ///     beta: A larger value makes the first steps smaller; the paper suggests 1.
    ///     l1: The factor of the L1 penalty, which keeps values at zero.
    ///     l2: The factor of the L2 penalty.
    ///     initial_accumulator_value: The first value of a new row's sums of squares. It can't be
    ///         changed after the table is made.
    ///
    /// >>> FTRL(lr=0.1, l1=1.0)
    /// FTRL(lr=0.1, beta=0.0, l1=1.0, l2=0.0, initial_accumulator_value=0.1)
    class PyFtrl, "FTRL", of Ftrl {
        lr: f64 = 0.001 => lr,
        beta: f64 = 0.0 => beta,
        l1: f64 = 0.0 => l1,
        l2: f64 = 0.0 => l2,
        initial_accumulator_value: f64 = 0.1 => initial_accumulator,
    }
}
