//! Copies and pickles of objects that belong to an open bank.
//!
//! A model may keep such an object as an attribute. A copy of the model shares the object, because
//! what the object stands for is in the bank. Another process has no open bank, so the object can't
//! be pickled.

/// Gives a class `__copy__` and `__deepcopy__`, which return the object, and a `__reduce__`, which
/// raises `TypeError`.
///
/// `$what` is a function from `&self` to the subject of the error's text. `$cure` is the end of the
/// text.
macro_rules! shared_by_copies {
    ($class:ty, $what:expr, $cure:expr) => {
        #[pyo3::pymethods]
        impl $class {
            /// Returns the object itself: a copy of a model shares what is in the bank.
            fn __copy__(slf: pyo3::Bound<'_, Self>) -> pyo3::Bound<'_, Self> {
                slf
            }

            /// Returns the object itself, as `__copy__` does.
            fn __deepcopy__<'py>(
                slf: pyo3::Bound<'py, Self>,
                _memo: &pyo3::Bound<'py, pyo3::PyAny>,
            ) -> pyo3::Bound<'py, Self> {
                slf
            }

            /// Raises `TypeError`: the object belongs to a bank that this process has open.
            fn __reduce__(&self) -> pyo3::PyResult<()> {
                let what: fn(&Self) -> String = $what;
                Err(pyo3::exceptions::PyTypeError::new_err(format!(
                    "{} can't be pickled: {}",
                    what(self),
                    $cure
                )))
            }
        }
    };
}

pub(crate) use shared_by_copies;
