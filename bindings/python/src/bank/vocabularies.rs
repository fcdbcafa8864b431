//! Methods that make, open and drop the bank's vocabularies.

use pyo3::prelude::*;

use super::PyBank;
use crate::scalars;
use crate::vocabulary::{self, PyVocabulary};

#[pymethods]
impl PyBank {
    /// Opens a vocabulary, or creates it if the bank has no vocabulary of this name. A vocabulary
    /// maps values to dense ids, in order of first appearance. A new one is durable with the next
    /// checkpoint.
    ///
    /// Args:
    ///     name: The vocabulary's name. A table may have the same name.
    ///     kind: The kind of its values: "u64" (int64 and uint64, as keys of tables) or "bytes"
    ///         (text is taken as UTF-8). Default: "u64".
    ///     first_id: The first value's id. Smaller ids are the caller's, for padding or unknown
    ///         values. Default: 0.
    ///     unknown_id: The id that `lookup` gives values without an id; below `first_id`. Default:
    ///         None, `lookup` raises `UnknownValue`.
    ///     counts: Whether the vocabulary counts how often values come. Default: False.
    ///     value_bytes_max: The largest length of a value in bytes. Default: 1,024.
    ///
    /// Raises:
    ///     VocabularyMismatch: The vocabulary exists with other settings; the text names both.
    ///     ValueError, TypeError: An argument is wrong.
    #[pyo3(signature = (
        name, kind = "u64", *, first_id = None, unknown_id = None, counts = false, value_bytes_max = None
    ))]
    fn vocabulary(
        slf: &Bound<'_, Self>,
        name: &str,
        kind: &str,
        first_id: Option<&Bound<'_, PyAny>>,
        unknown_id: Option<&Bound<'_, PyAny>>,
        counts: bool,
        value_bytes_max: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyVocabulary> {
        let mut config = vocabulary::config(kind)?.counts(counts);
        if let Some(id) = first_id {
            config = config.first_id(scalars::unsigned("first_id", id, u64::MAX)?);
        }
        if let Some(id) = unknown_id {
            config = config.unknown_id(scalars::unsigned("unknown_id", id, u64::MAX)?);
        }
        if let Some(bytes) = value_bytes_max {
            config = config.value_bytes_max(scalars::unsigned_32("value_bytes_max", bytes)?);
        }
        PyVocabulary::open(slf, |bank| bank.vocabulary(name, config))
    }

    /// Opens a vocabulary that exists, with the settings that it has.
    ///
    /// Raises:
    ///     NoSuchVocabulary: The bank has no vocabulary of this name.
    fn open_vocabulary(slf: &Bound<'_, Self>, name: &str) -> PyResult<PyVocabulary> {
        PyVocabulary::open(slf, |bank| bank.open_vocabulary(name))
    }

    /// The names of the bank's vocabularies.
    fn vocabularies(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let names =
            |bank: &embank::Bank| bank.vocabularies().into_iter().map(|of| of.name).collect();
        self.cell.with_bank(py, |bank| Ok(names(bank)))
    }

    /// Drops a vocabulary. Its values are gone at once, and durably with the next checkpoint.
    /// Tables whose keys are ids of this vocabulary stay, but can't be opened.
    ///
    /// Raises:
    ///     NoSuchVocabulary: The bank has no vocabulary of this name.
    fn drop_vocabulary(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.cell.with_bank(py, |bank| bank.drop_vocabulary(name))?;
        Ok(())
    }
}
