//! `Vocabulary`: raw values to dense ids, and back.

use std::sync::Arc;

use embank::{Bank, ByteBuffer, OwnedValues, ValueKind, Values, VocabularyConfig};
use numpy::PyArray1;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::arrays::Keys;
use crate::bank::PyBank;
use crate::cell::{BankCell, VocabularyId};
use crate::{errors, scalars};

/// A vocabulary of a bank. It maps values to dense ids, in order of first appearance, and ids back
/// to values. Made by `Bank.vocabulary`.
///
/// Values are a 1-D array of integers, or for kind "bytes" a list of `bytes` and `str` (UTF-8). Ids
/// are uint64 arrays. What a call writes is durable with the bank's next checkpoint. Threads may
/// share a vocabulary; one thread at a time inserts.
///
/// >>> import embank
/// >>> bank = embank.Bank("vocabulary.bank", memory_budget="16MiB")
/// >>> words = bank.vocabulary("word", "bytes", first_id=1, unknown_id=0)
/// >>> words.ids_or_insert(["red", "green", "red"]).tolist()
/// [1, 2, 1]
/// >>> words.lookup(["green", "blue"]).tolist(), words.values([2, 1]), len(words)
/// ([2, 0], [b'green', b'red'], 2)
/// >>> words.frozen = True  # keeps new values out
/// >>> words.ids_or_insert([b"blue"]).tolist()
/// [0]
/// >>> rows = bank.table("word", dim=4, vocabulary="word")
/// >>> bank.close()
#[pyclass(name = "Vocabulary", module = "embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyVocabulary {
    cell: Arc<BankCell>,
    id: VocabularyId,
    name: String,
    config: VocabularyConfig,
}

/// The default settings of a vocabulary with values of this kind.
pub(crate) fn config(kind: &str) -> PyResult<VocabularyConfig> {
    match kind {
        "u64" => Ok(VocabularyConfig::u64()),
        "bytes" => Ok(VocabularyConfig::bytes()),
        _ => Err(PyValueError::new_err(format!("kind must be \"u64\" or \"bytes\", not {kind:?}"))),
    }
}

/// A batch of values as Python passed them.
enum GivenValues<'py> {
    Numbers(Keys<'py>),
    Strings(ByteBuffer),
}

impl GivenValues<'_> {
    fn values(&self) -> PyResult<Values<'_>> {
        Ok(match self {
            Self::Numbers(keys) => Values::U64(keys.as_slice()?),
            Self::Strings(strings) => Values::Bytes(strings.values()),
        })
    }
}

impl PyVocabulary {
    pub(crate) fn open(
        bank: &Bound<'_, PyBank>,
        open: impl FnOnce(&Bank) -> embank::Result<embank::Vocabulary> + Send,
    ) -> PyResult<Self> {
        let cell = &bank.get().cell;
        let mut name = String::new();
        let mut config = VocabularyConfig::u64();
        let id = cell.keep_of_bank(bank.py(), |bank| {
            let vocabulary = open(bank)?;
            vocabulary.name().clone_into(&mut name);
            config = vocabulary.config().clone();
            Ok(vocabulary)
        })?;
        Ok(Self { cell: Arc::clone(cell), id, name, config })
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&embank::Vocabulary) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        self.cell.with_shared(py, self.id, call)?.ok_or_else(errors::not_in_checkpoint)
    }

    fn given<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<GivenValues<'py>> {
        if self.config.kind == ValueKind::U64 {
            return Keys::named("values", values).map(GivenValues::Numbers).map_err(|error| {
                let py = values.py();
                if !error.is_instance_of::<PyTypeError>(py) {
                    return error;
                }
                PyTypeError::new_err(format!(
                    "{}; vocabulary {:?} is of kind \"u64\". For text, make one of kind \"bytes\": \
                     bank.vocabulary(name, \"bytes\"), after bank.drop_vocabulary({:?}) if it is to have this name",
                    error.value(py),
                    self.name,
                    self.name
                ))
            });
        }
        let alone = values.is_instance_of::<PyBytes>() || values.is_instance_of::<PyString>();
        if alone {
            return Err(PyTypeError::new_err(
                "values must be a list of bytes or str, not a single one",
            ));
        }
        let mut strings = ByteBuffer::default();
        for value in values.try_iter()? {
            let value = value?;
            if let Ok(bytes) = value.cast::<PyBytes>() {
                strings.push(bytes.as_bytes());
            } else if let Ok(text) = value.cast::<PyString>() {
                strings.push(text.to_cow()?.as_bytes());
            } else {
                let of_arrow = if value.hasattr("as_py")? {
                    ": give array.to_pylist() of a pyarrow array"
                } else {
                    ""
                };
                return Err(PyTypeError::new_err(format!(
                    "values of vocabulary {:?} must be bytes or str, not {}{of_arrow}",
                    self.name,
                    value.get_type().name()?
                )));
            }
        }
        Ok(GivenValues::Strings(strings))
    }

    /// Returns an id for each value. `call` writes the ids.
    fn ids_by<'py, R: Send>(
        &self,
        values: &Bound<'py, PyAny>,
        call: impl FnOnce(&embank::Vocabulary, Values<'_>, &mut [u64]) -> embank::Result<R> + Send,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let py = values.py();
        let given = self.given(values)?;
        let values = given.values()?;
        let mut ids = vec![0; values.len()];
        self.with(py, |vocabulary| call(vocabulary, values, &mut ids))?;
        Ok(PyArray1::from_vec(py, ids))
    }
}

#[pymethods]
impl PyVocabulary {
    /// The vocabulary's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The kind of its values: "u64" or "bytes".
    #[getter]
    fn kind(&self) -> &'static str {
        if self.config.kind == ValueKind::U64 { "u64" } else { "bytes" }
    }

    /// The first value's id.
    #[getter]
    fn first_id(&self) -> u64 {
        self.config.first_id
    }

    /// The id that the next new value gets. A dense matrix with a row for each id needs this many
    /// rows.
    #[getter]
    fn next_id(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |vocabulary| Ok(vocabulary.next_id()))
    }

    /// Whether the vocabulary refuses new values. Set it to True for serving, and when a model's
    /// tables have their final size. Durable with the next checkpoint.
    #[getter]
    fn frozen(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |vocabulary| Ok(vocabulary.is_frozen()))
    }

    #[setter]
    fn set_frozen(&self, py: Python<'_>, frozen: bool) -> PyResult<()> {
        self.with(py, |vocabulary| vocabulary.set_frozen(frozen))
    }

    /// A hash of all values and their order. Equal vocabularies have equal fingerprints, in any
    /// bank.
    #[getter]
    fn fingerprint(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |vocabulary| Ok(vocabulary.fingerprint()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |vocabulary| Ok(vocabulary.len() as usize))
    }

    /// The ids of the values; `embank.UNKNOWN_ID` (2**64 - 1) for a value without an id. Writes
    /// nothing.
    fn ids<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        self.ids_by(values, |vocabulary, values, ids| vocabulary.ids(values, ids))
    }

    /// The ids of the values; the vocabulary's `unknown_id` for a value without an id. Writes
    /// nothing.
    ///
    /// Raises:
    ///     UnknownValue: A value has no id, and the vocabulary was made without `unknown_id`.
    fn lookup<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        self.ids_by(values, |vocabulary, values, ids| vocabulary.lookup(values, ids))
    }

    /// The ids of the values. New values get the next ids, in the order of the batch. A frozen
    /// vocabulary inserts nothing and works as `lookup`.
    ///
    /// Raises:
    ///     ValueError: A byte string is longer than `value_bytes_max`; nothing was inserted.
    ///     UnknownValue: The vocabulary is frozen, was made without `unknown_id`, and does not have
    ///         one of the values.
    fn ids_or_insert<'py>(
        &self,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        self.ids_by(values, |vocabulary, values, ids| vocabulary.ids_or_insert(values, ids))
    }

    /// The values of the ids: a uint64 array, or a list of `bytes`.
    ///
    /// Raises:
    ///     UnknownValue: An id was never given out.
    fn values<'py>(&self, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = ids.py();
        let ids = Keys::named("ids", ids)?;
        let slice = ids.as_slice()?;
        match self.with(py, |vocabulary| vocabulary.values(slice))? {
            OwnedValues::U64(values) => Ok(PyArray1::from_vec(py, values).into_any()),
            OwnedValues::Bytes(values) => {
                let each = (0..values.len()).map(|i| PyBytes::new(py, values.get(i)));
                Ok(PyList::new(py, each)?.into_any())
            }
        }
    }

    /// Adds 1 to the count of each id, or the number at the id's place in `counts`. Ids below
    /// `first_id` are not counted.
    ///
    /// Raises:
    ///     ValueError: A number in `counts` is negative; nothing was counted.
    ///     UnknownValue: An id was never given out; nothing was counted.
    #[pyo3(signature = (ids, counts=None))]
    fn count(&self, ids: &Bound<'_, PyAny>, counts: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let py = ids.py();
        let ids = Keys::named("ids", ids)?;
        let counts = counts.map(|counts| Keys::numbers("counts", counts)).transpose()?;
        let ids = ids.as_slice()?;
        let counts = counts.as_ref().map(Keys::as_slice).transpose()?;
        self.with(py, |vocabulary| match counts {
            None => vocabulary.count(ids),
            Some(counts) => vocabulary.add_counts(ids, counts),
        })
    }

    /// The count of each id.
    ///
    /// Raises:
    ///     UnknownValue: An id was never given out.
    fn counts<'py>(&self, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let py = ids.py();
        let ids = Keys::named("ids", ids)?;
        let slice = ids.as_slice()?;
        let counts = self.with(py, |vocabulary| vocabulary.counts(slice))?;
        Ok(PyArray1::from_vec(py, counts))
    }

    /// Keeps the values that were counted at least `min_count` times, and gives them new dense ids
    /// in their old order. Earlier ids are invalid afterwards, and tables of the vocabulary can't
    /// be opened any more.
    ///
    /// Returns:
    ///     The number of values that stayed, and the number of values that were removed.
    fn keep_frequent(&self, py: Python<'_>, min_count: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
        let min_count = scalars::unsigned("min_count", min_count, u64::MAX)?;
        let kept = self.with(py, |vocabulary| vocabulary.keep_frequent(min_count))?;
        Ok((kept.kept, kept.removed))
    }

    fn __repr__(&self) -> String {
        format!("<embank.Vocabulary {:?} of {} values>", self.name, self.config.kind.name())
    }
}

impl Drop for PyVocabulary {
    fn drop(&mut self) {
        self.cell.forget(self.id);
    }
}

crate::copies::shared_by_copies!(
    PyVocabulary,
    |vocabulary| format!("vocabulary {:?}", vocabulary.name),
    "its values are in the bank. Another process opens the bank with read_only=True, and the vocabulary with \
     open_vocabulary"
);
