//! Decoders of costly columns that are Python callables.
//!
//! The threads of a run call them with the GIL. So no thread waits for a run while it holds the GIL
//! ([`slot`](super::slot)), and all feeds with callables end before the interpreter does: a thread
//! can't have the GIL afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use embank::locks::Mutex;
use embank_pipeline::{DecodeChannel, DecodeFailure, DecodeUnit, Decoder, Decoders, Dtype};
use numpy::{
    PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict};

use super::feed_cell::FeedCell;
use super::slot::SlotOwner;
use crate::cell::{decoding, detached};
use crate::errors::SpecError;

/// The feeds whose threads call Python.
static FEEDS: Mutex<Vec<(Weak<SlotOwner>, Weak<FeedCell>)>> = Mutex::new(Vec::new());

/// Returns the decoders of a spec's columns, and those that the caller gives.
pub(super) fn decoders_of(
    spec: &Bound<'_, PyAny>,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<Decoders> {
    let mut all: BTreeMap<String, Py<PyAny>> = BTreeMap::new();
    if spec.hasattr("decoders")? {
        all.extend(spec.call_method0("decoders")?.extract::<BTreeMap<String, Py<PyAny>>>()?);
    }
    for (name, callable) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        if !callable.is_callable() {
            return Err(PyTypeError::new_err(format!("decoder {name:?} is not callable")));
        }
        if all.insert(name.clone(), callable.unbind()).is_some() {
            return Err(SpecError::new_err(format!("the spec has a decoder {name:?} already")));
        }
    }
    let add = |decoders: Decoders, (name, callable)| {
        decoders.with(name, Arc::new(CallableDecoder { callable: Arc::new(callable) }))
    };
    Ok(all.into_iter().fold(Decoders::default(), add))
}

/// Ends a feed before the interpreter ends.
pub(super) fn end_at_exit(slot: &Arc<SlotOwner>, feed: &Arc<FeedCell>) {
    let mut feeds = FEEDS.lock();
    feeds.retain(|(_, feed)| feed.strong_count() > 0);
    feeds.push((Arc::downgrade(slot), Arc::downgrade(feed)));
}

/// Ends all feeds whose threads call Python. Registered with `atexit`.
#[pyfunction]
pub(crate) fn end_feeds_with_callables() {
    let feeds = std::mem::take(&mut *FEEDS.lock());
    detached(|| {
        for (slot, feed) in feeds {
            if let (Some(slot), Some(feed)) = (slot.upgrade(), feed.upgrade())
                && slot.check_process().is_ok()
            {
                slot.end_feed(&feed, false);
            }
        }
    });
}

#[derive(Debug)]
struct CallableDecoder {
    callable: Arc<Py<PyAny>>,
}

impl Decoder for CallableDecoder {
    fn open(&self, shape: &[usize], dtype: Dtype) -> Result<Box<dyn DecodeChannel>, DecodeFailure> {
        Ok(Box::new(CallableChannel {
            callable: Arc::clone(&self.callable),
            shape: shape.to_vec(),
            dtype,
            finished: Vec::new(),
        }))
    }
}

/// Calls in the thread that submits.
struct CallableChannel {
    callable: Arc<Py<PyAny>>,
    shape: Vec<usize>,
    dtype: Dtype,
    finished: Vec<DecodeUnit>,
}

impl DecodeChannel for CallableChannel {
    fn submit(&mut self, mut unit: DecodeUnit) -> Result<(), DecodeFailure> {
        let decoded = Python::try_attach(|py| decoding(|| self.decode(py, &mut unit)));
        decoded.unwrap_or_else(|| Err("can't be called: the interpreter is ending".into()))?;
        self.finished.push(unit);
        Ok(())
    }

    fn drain(&mut self, _: Duration) -> Result<Vec<DecodeUnit>, DecodeFailure> {
        Ok(std::mem::take(&mut self.finished))
    }
}

impl CallableChannel {
    fn decode(&self, py: Python<'_>, unit: &mut DecodeUnit) -> Result<(), DecodeFailure> {
        for row in 0..unit.rows() {
            if !unit.is_waiting(row) {
                continue;
            }
            let (value, array) = unit.value_and_array(row);
            match self.call(py, value, array) {
                Ok(()) => unit.finish(row),
                Err(raised) if raised.is_instance_of::<PyException>(py) => {
                    unit.fail(row, format!("can't be decoded: {raised}"));
                }
                // An exit or an interrupt is no fault of the row.
                Err(raised) => return Err(raised.to_string().into()),
            }
        }
        Ok(())
    }

    fn call(&self, py: Python<'_>, value: &[u8], array: &mut [u8]) -> PyResult<()> {
        let made = self.callable.bind(py).call1((PyBytes::new(py, value),))?;
        if let Ok(made) = made.cast::<PyUntypedArray>()
            && made.shape() == self.shape
            && made.is_c_contiguous()
            && made.dtype().is_equiv_to(&self.descr(py))
        {
            return self.copy(made.as_any(), array);
        }
        static ARRAY_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let array_of = ARRAY_OF.import(py, "embank._decode", "array_of")?;
        let made = array_of.call1((made, self.shape.clone(), self.descr(py)))?;
        self.copy(&made, array)
    }

    fn descr<'py>(&self, py: Python<'py>) -> Bound<'py, numpy::PyArrayDescr> {
        match self.dtype {
            Dtype::U8 => numpy::dtype::<u8>(py),
            Dtype::I32 => numpy::dtype::<i32>(py),
            Dtype::I64 => numpy::dtype::<i64>(py),
            _ => numpy::dtype::<f32>(py),
        }
    }

    /// Copies an array of the column's shape and dtype.
    fn copy(&self, made: &Bound<'_, PyAny>, array: &mut [u8]) -> PyResult<()> {
        fn values<T: numpy::Element + bytemuck::NoUninit>(
            made: &Bound<'_, PyAny>,
            array: &mut [u8],
        ) -> PyResult<()> {
            let made = made.cast::<PyArrayDyn<T>>()?.readonly();
            array.copy_from_slice(bytemuck::cast_slice(made.as_slice()?));
            Ok(())
        }
        match self.dtype {
            Dtype::U8 => values::<u8>(made, array),
            Dtype::I32 => values::<i32>(made, array),
            Dtype::I64 => values::<i64>(made, array),
            _ => values::<f32>(made, array),
        }
    }
}
