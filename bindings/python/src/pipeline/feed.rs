//! `Feed`: a pipeline's batches, made in the background.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use embank::Home;
use embank_pipeline::{Error, PARTS_MAX, Waited};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use super::array_memory::batch_of_arrays;
use super::feed_cell::{FeedCell, FeedState};
use super::report::{self, PyRunReport};
use super::slot::SlotOwner;
use super::{arguments, arrow};
use crate::cell::{detached, ended};
use crate::signals::SIGNAL_INTERVAL;
use crate::{errors, scalars};

/// Batches of a pipeline, made in the background. Made by `Pipeline.feed`.
///
/// An iterator of `Batch`: dicts of fresh arrays by output name. The feed closes itself at its end,
/// at the end of a `with` block, and when the last reference to it is gone. After that the pipeline
/// can run again. Threads may share a feed: each batch goes to one thread.
///
/// >>> from embank.pipeline import Pipeline, criteo
/// >>> row = b"1" + b"\t7" * 13 + b"\t68fd1e64" * 26 + b"\n"
/// >>> pipeline = Pipeline(criteo(5000))
/// >>> with pipeline.feed(row * 10, batch_rows=4) as feed:
/// ...     for batch in feed:
/// ...         break  # ... and train on it
/// >>> batch["dense"].shape, batch["sparse"].shape, feed.position
/// ((4, 13), (4, 26), 4)
/// >>> with pipeline.feed(row * 10, batch_rows=4, skip_rows=feed.position) as feed:
/// ...     [len(batch["label"]) for batch in feed]  # goes on with the fifth row
/// [4, 2]
#[pyclass(name = "Feed", module = "embank.pipeline", frozen)]
#[derive(Debug)]
pub(crate) struct PyFeed {
    home: Home,
    slot: Arc<SlotOwner>,
    schema: SchemaRef,
    cell: Arc<FeedCell>,
}

impl PyFeed {
    pub(crate) fn new(slot: Arc<SlotOwner>, cell: Arc<FeedCell>, schema: SchemaRef) -> Self {
        Self { home: Home::here(), slot, schema, cell }
    }

    /// Calls `look` on the feed's state with the GIL released, because a thread that waits for a
    /// batch holds the feed's lock. Fails in a forked child: a thread of the parent may have held
    /// the lock at the fork, and does not exist in the child.
    fn look<R: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&FeedState) -> R + Send,
    ) -> PyResult<R> {
        self.slot.check_process()?;
        Ok(py.detach(|| look(&self.cell.lock())))
    }

    /// Ends the run and puts the pipeline back into its slot.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.end_now());
    }

    /// Warns if the spool of the run takes no more arrays.
    fn warn(&self, py: Python<'_>) -> PyResult<()> {
        let failure = py.detach(|| self.cell.take_spool_failure());
        report::warn(py, failure.as_deref())
    }

    fn end_now(&self) {
        self.slot.end_feed(&self.cell, false);
    }

    /// Waits for a batch for up to one signal interval.
    fn wait(&self) -> Result<Result<Waited, Arc<Error>>, Gone> {
        match &mut *self.cell.lock() {
            FeedState::Open(feed) => Ok(feed.wait(SIGNAL_INTERVAL)),
            FeedState::Closed { by_bank: false, .. } => Ok(Ok(Waited::End)),
            FeedState::Closed { by_bank: true, .. } => Err(Gone::WithBank),
            FeedState::Split { .. } => Err(Gone::Split),
        }
    }
}

/// Why a feed has no batches, although it is not at its end.
enum Gone {
    /// The bank was closed, or taken back to a checkpoint.
    WithBank,
    Split,
}

/// The text of [`Gone::Split`].
const SPLIT: &str = "this feed was split: take the batches of its parts";

#[pymethods]
impl PyFeed {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.slot.check_process()?;
        // The loop ends when the run sends a batch or ends, or when a signal handler raises.
        loop {
            let waited = py.detach(|| self.wait()).map_err(|gone| match gone {
                Gone::WithBank => self.slot.ended(),
                Gone::Split => PyRuntimeError::new_err(SPLIT),
            })?;
            match waited {
                Ok(Waited::Batch(batch)) => return batch_of_arrays(py, batch).map(Some),
                Ok(Waited::Late) => py.check_signals()?,
                Ok(Waited::End) => {
                    self.end(py);
                    self.warn(py)?;
                    return Ok(None);
                }
                Err(error) => {
                    self.end(py);
                    return Err(errors::pipeline_to_python(py, &error));
                }
            }
        }
    }

    /// The number of rows that were skipped or handed out. Another feed with this number as
    /// `skip_rows` continues with the next row, if it has the same inputs. `state_dict` also names
    /// the inputs, so that the other feed can check them.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, |state| match state {
            FeedState::Open(feed) => feed.next_row(),
            FeedState::Split { position, .. } | FeedState::Closed { position, .. } => position.rows,
        })
    }

    /// The place after the rows that were skipped or handed out, as plain data: their number
    /// (`rows`), the shuffle (`shuffle_rows`, `seed`), name and bytes of each input that the rows
    /// came from (`inputs`), and where another feed may begin (`place`). Save it with the
    /// model, and pass it to another feed as `skip_rows` to continue there.
    ///
    /// Args:
    ///     rows: The number of rows that the loop has used, for a loop that takes batches from the
    ///         feed ahead of their use. Default: `position`. For a part, the rows of all parts: n
    ///         batches of each part are `n * parts * batch_rows` rows.
    ///
    /// >>> from embank.pipeline import Pipeline, criteo
    /// >>> row = b"1" + b"\t7" * 13 + b"\t68fd1e64" * 26 + b"\n"
    /// >>> with Pipeline(criteo(5000)).feed(row * 10, batch_rows=4) as feed:
    /// ...     batch = next(feed)
    /// ...     state = feed.state_dict()
    /// >>> list(state), state["rows"], state["inputs"]
    /// (['rows', 'shuffle_rows', 'seed', 'inputs', 'place'], 4, [['bytes', 2620]])
    /// >>> len(next(Pipeline(criteo(5000)).feed(row * 10, skip_rows=state))["label"])
    /// 6
    #[pyo3(signature = (rows=None))]
    fn state_dict<'py>(
        &self,
        py: Python<'py>,
        rows: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let most = self.position(py)?;
        let rows = rows.map_or(Ok(most), |rows| scalars::unsigned("rows", rows, most))?;
        let position = self.look(py, |state| match state {
            FeedState::Open(feed) => feed.position_at(rows),
            FeedState::Split { position, .. } | FeedState::Closed { position, .. } => {
                Ok(position.clone().back_to(rows))
            }
        })?;
        let position = position.map_err(|error| errors::pipeline_to_python(py, &error))?;
        arguments::state_of(py, &position)
    }

    /// The `RunReport` of the run after its last batch. None before that, and if the feed was
    /// closed earlier.
    #[getter]
    fn report(&self, py: Python<'_>) -> PyResult<Option<PyRunReport>> {
        let report = self.look(py, |state| match state {
            FeedState::Open(_) | FeedState::Split { .. } => None,
            FeedState::Closed { report, .. } => report.clone(),
        })?;
        Ok(report.as_deref().map(PyRunReport::new))
    }

    /// Divides the feed among trainers: batch k from here on goes to part k modulo `parts`. Returns
    /// the parts. Each is used like a feed, also in a thread of its own. Together they hand out the
    /// batches that the feed would have handed out.
    ///
    /// All parts must be used: each keeps up to `batches_ahead` batches ready, and then waits for
    /// the slowest. Closing a part frees the others from it: its batches are discarded, and
    /// `discarded_rows` counts their rows. The pipeline can run again when all parts are closed or
    /// at their ends. An error in the inputs is raised by each part, after its whole batches.
    ///
    /// `position` and `state_dict` of a part are the place after the rounds that the part has
    /// finished. A round has one batch for each part. So all parts have the same place after
    /// equally many batches, as after a step of data-parallel training. To go on there, pass it to
    /// another feed as `skip_rows`, and split that feed into equally many parts.
    ///
    /// Args:
    ///     parts: The number of parts, from 1 to 4,096.
    ///
    /// Raises:
    ///     RuntimeError: The feed is closed or at its end, is a part itself, or was split before.
    ///
    /// >>> from embank.pipeline import Pipeline, criteo
    /// >>> row = b"1" + b"\t7" * 13 + b"\t68fd1e64" * 26 + b"\n"
    /// >>> first, second = Pipeline(criteo(5000)).feed(row * 10, batch_rows=4).split(2)
    /// >>> [(len(a["label"]), len(b["label"])) for a, b in zip(first, second)]
    /// [(4, 4)]
    /// >>> first.position, second.position
    /// (10, 10)
    fn split(slf: Bound<'_, Self>, parts: &Bound<'_, PyAny>) -> PyResult<Vec<Self>> {
        let feed = slf.get();
        feed.slot.check_process()?;
        let count = scalars::unsigned("parts", parts, PARTS_MAX as u64)? as usize;
        if count == 0 {
            return Err(PyValueError::new_err(format!(
                "parts must be from 1 to {PARTS_MAX}, not 0"
            )));
        }
        let split = slf.py().detach(|| feed.cell.split(count));
        let cells = split.ok_or_else(|| {
            PyRuntimeError::new_err(
                "only a feed that has not ended can be split, once, and a part can not be split",
            )
        })?;
        let part = |cell| Self::new(Arc::clone(&feed.slot), cell, SchemaRef::clone(&feed.schema));
        Ok(cells.into_iter().map(part).collect())
    }

    /// The rows that no trainer got: those of parts that were closed early, as of this part's end.
    /// 0 for a feed that was not split.
    #[getter]
    fn discarded_rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, |state| match state {
            FeedState::Open(feed) => feed.discarded_rows(),
            FeedState::Split { .. } => 0,
            FeedState::Closed { discarded_rows, .. } => *discarded_rows,
        })
    }

    /// Ends the run. The feed then yields no batch any more. A second call does nothing. A feed
    /// that was split leaves its parts open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.check_process()?;
        self.end(py);
        self.warn(py)?;
        Ok(())
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema(py, &self.schema)
    }

    /// The remaining batches for libraries of Arrow, without a copy. `requested_schema` is ignored,
    /// as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        slf: &Bound<'py, Self>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        slf.get().slot.check_process()?;
        arrow::stream(slf.py(), Box::new(Reader(slf.clone().unbind())))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.position(py) {
            Ok(row) => format!("<embank.pipeline.Feed at row {row}>"),
            Err(_) => "<embank.pipeline.Feed of another process>".to_owned(),
        }
    }
}

/// A feed as a reader of Arrow's batches. The library may read with or without the GIL.
struct Reader(Py<PyFeed>);

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let feed = self.0.get();
        let external = |text: String| Some(Err(ArrowError::ExternalError(text.into())));
        if !feed.home.is_here() {
            return external("a feed does not survive a fork".to_owned());
        }
        // The loop ends when the run sends a batch or ends, or when a signal handler raises.
        loop {
            // Releases the GIL if this thread holds it, because the thread that writes the input
            // may need the GIL.
            let mut waited = Ok(Ok(Waited::Late));
            detached(|| waited = feed.wait());
            let waited = match waited {
                Ok(waited) => waited,
                Err(Gone::WithBank) => {
                    return external(
                        "the bank of this feed was closed, or taken back to a checkpoint"
                            .to_owned(),
                    );
                }
                Err(Gone::Split) => return external(SPLIT.to_owned()),
            };
            match waited {
                Ok(Waited::Batch(batch)) => return Some(Ok(batch.into_record_batch())),
                Ok(Waited::Late) => {
                    if let Err(raised) = Python::attach(|py| py.check_signals()) {
                        return external(told_again(raised));
                    }
                }
                Ok(Waited::End) => {
                    detached(|| feed.end_now());
                    Python::attach(|py| {
                        if let Err(raised) = feed.warn(py) {
                            raised.write_unraisable(py, None);
                        }
                    });
                    return None;
                }
                Err(error) => {
                    detached(|| feed.end_now());
                    return external(error.to_string());
                }
            }
        }
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.0.get().schema)
    }
}

impl Drop for PyFeed {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // Leaks the cell in a forked child. The pipeline's threads do not exist there, so a
            // drop would wait for ever.
            std::mem::forget(Arc::clone(&self.cell));
            return;
        }
        let (slot, cell) = (Arc::clone(&self.slot), Arc::clone(&self.cell));
        // Releases the GIL: the run may wait for another Python thread.
        ended(move || slot.end_feed(&cell, false));
    }
}

/// Returns the text of what a signal handler raised while a library of Arrow waited. The Arrow
/// stream carries only text, and a library may treat the text as bad input and go on. So this
/// function makes Python raise a `KeyboardInterrupt` again after the library's call. It prints any
/// other exception.
fn told_again(raised: PyErr) -> String {
    let text = raised.to_string();
    Python::attach(|py| {
        let interrupt = || py.import("_thread")?.call_method0("interrupt_main").map(drop);
        if !raised.is_instance_of::<PyKeyboardInterrupt>(py) || interrupt().is_err() {
            raised.write_unraisable(py, None);
        }
    });
    text
}
