//! `Pipeline`: preprocessing, run as a whole or fed batch by batch.
//!
//! A Rust pipeline belongs to one run at a time. It lies in a [`Slot`]; a run takes it out and puts it back, and
//! whoever comes meanwhile is told so.

use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use embank_pipeline::{
    Batch, Dtype, FeedInput, FeedOptions, Format, Pipeline, RunOptions, RunReport, Spec,
};
use numpy::PyArray1;
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::feed::PyFeed;
use crate::{errors, scalars};

/// How often whoever waits looks whether Ctrl-C was pressed.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Where a pipeline lies while it does not run.
#[derive(Debug)]
pub(crate) struct Slot {
    process: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Here(Box<Pipeline>),
    Running,
    /// A thread panicked with it.
    Lost,
}

impl Slot {
    /// Whether this is the process that made the pipeline: its threads are not in a child.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.process == process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this pipeline was made in process {} and does not survive the fork into process {}: make it after \
             forking, or start processes with the \"spawn\" method",
            self.process,
            process::id()
        )))
    }

    fn refusal(state: &State) -> PyErr {
        PyRuntimeError::new_err(match state {
            State::Here(_) | State::Running => {
                "this pipeline has a run under way: take its feed to the end, or close() it"
            }
            State::Lost => "this pipeline was lost when a thread panicked: make a new one",
        })
    }

    fn take(&self) -> PyResult<Box<Pipeline>> {
        self.check_process()?;
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Running) {
            State::Here(pipeline) => Ok(pipeline),
            other => {
                *state = other;
                Err(Self::refusal(&state))
            }
        }
    }

    /// Puts the pipeline back after a run; none if it is lost.
    pub(crate) fn put_back(&self, pipeline: Option<Pipeline>) {
        *self.state.lock() = pipeline.map_or(State::Lost, |found| State::Here(Box::new(found)));
    }
}

/// Text to numbers in one pass: decodes, fills, scales, hashes and numbers categories, with all cores.
///
/// Args:
///     spec: What it does: a `Spec`, or the same as a dict or as JSON.
///     format: `"tsv"` (tabs, no header), `"csv"` (commas, a header, double quotes), or `"packed"` (rows of
///         32-bit numbers).
///     separator: The character between fields, where it is not the format's.
///     header: Whether the first line of each input has names, where it is not as the format says.
///     quote: What encloses fields that hold separators, where it is not the format's; `""` for none.
///     threads: Of each run. Default: as many as there are cores.
///     chunk_bytes: What a thread works on at a time. Default: 512 KiB.
///
/// Its vocabularies live in it: runs, one after the other, go on numbering where the last one stopped. One run at a
/// time.
///
/// Raises:
///     SpecError: The spec makes no sense; says which column, and the cure.
///
/// >>> from embank.pipeline import Column, Field, Output, Pipeline, Spec, fill_missing, modulus, vocabulary
/// >>> spec = Spec(
/// ...     fields=[Field("age", "int32"), Field("site", "hex32")],
/// ...     columns=[
/// ...         Column("age", fill_missing(0)),
/// ...         Column("site", fill_missing(0), modulus(5000), vocabulary("site")),
/// ...     ],
/// ...     outputs=[Output("dense", ["age"], "f32"), Output("sparse", ["site"], "i64")],
/// ... )
/// >>> pipeline = Pipeline(spec)
/// >>> for batch in pipeline.feed(b"31\t7f\n\t3\n18\t7f\n", batch_rows=2):
/// ...     batch["dense"].tolist(), batch["sparse"].tolist()
/// ([[31.0], [0.0]], [[0], [1]])
/// ([[18.0]], [[0]])
/// >>> pipeline.vocabularies()["site"].tolist()  # the values by their ids: 0x7f and 3
/// [127, 3]
#[pyclass(name = "Pipeline", module = "embank.pipeline", frozen)]
#[derive(Debug)]
pub(crate) struct PyPipeline {
    slot: Arc<Slot>,
    threads: usize,
    /// Names, columns and dtypes.
    outputs: Vec<(String, Vec<String>, &'static str)>,
}

fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "f32",
        Dtype::I32 => "i32",
        Dtype::I64 => "i64",
        _ => "bits32",
    }
}

#[pymethods]
impl PyPipeline {
    #[new]
    #[pyo3(signature = (
        spec, *, format="tsv", separator=None, header=None, quote=None, threads=None, chunk_bytes=None
    ))]
    fn new(
        spec: &Bound<'_, PyAny>,
        format: &str,
        separator: Option<&str>,
        header: Option<bool>,
        quote: Option<&str>,
        threads: Option<&Bound<'_, PyAny>>,
        chunk_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = spec.py();
        let json = spec_json(spec)?;
        let mut options = RunOptions {
            format: text_format(format, separator, header, quote)?,
            ..Default::default()
        };
        options.threads = thread_count(threads)?.unwrap_or(options.threads);
        if let Some(bytes) = chunk_bytes {
            options.chunk_bytes = scalars::unsigned_32("chunk_bytes", bytes)?.max(1) as usize;
        }
        let made = Spec::from_json(&json).and_then(|spec| Pipeline::new(&spec, &options));
        let pipeline = made.map_err(|error| errors::pipeline_to_python(py, &error))?;
        let output = |info: &embank_pipeline::MatrixInfo| {
            (info.name.clone(), info.columns.clone(), dtype_name(info.dtype))
        };
        let outputs = pipeline.outputs().iter().map(output).collect();
        let state = Mutex::new(State::Here(Box::new(pipeline)));
        let slot = Arc::new(Slot { process: process::id(), state });
        Ok(Self { slot, threads: options.threads, outputs })
    }

    /// Names of the outputs, and for each the columns' names from left to right.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let outputs = PyDict::new(py);
        for (name, columns, _) in &self.outputs {
            outputs.set_item(name, columns)?;
        }
        Ok(outputs)
    }

    /// Batches of exactly `batch_rows` rows, made in the background while the last one is in use.
    ///
    /// Args:
    ///     inputs: A path, or `bytes` that are rows themselves, or several of them, one after the other.
    ///     batch_rows: Rows of a batch. The last one is shorter, or left out with `drop_last`.
    ///     shuffle_rows: Rows that wait in the shuffle buffer, each to be sent out by a later one. 0: no shuffle.
    ///     seed: Of the shuffle.
    ///     threads: Default: the pipeline's.
    ///     skip_rows: Rows at the beginning that are made but not handed out: `feed.position` of an earlier feed with
    ///         the same inputs, shuffle and seed, to go on where it stopped.
    ///     batches_ahead: Batches that may be ready beside the one in hand.
    ///     drop_last: Whether rows that make no whole batch at the end are dropped.
    ///
    /// The batches are the same with any number of threads. What is wrong with the inputs is raised by the feed, after
    /// the whole batches before it.
    ///
    /// Raises:
    ///     RuntimeError: An earlier feed is neither at its end nor closed.
    #[pyo3(signature = (
        inputs, *, batch_rows=None, shuffle_rows=None, seed=None, threads=None, skip_rows=None, batches_ahead=None,
        drop_last=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
    fn feed(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        batch_rows: Option<&Bound<'_, PyAny>>,
        shuffle_rows: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        threads: Option<&Bound<'_, PyAny>>,
        skip_rows: Option<&Bound<'_, PyAny>>,
        batches_ahead: Option<&Bound<'_, PyAny>>,
        drop_last: bool,
    ) -> PyResult<PyFeed> {
        let rows = |what: &str, value: Option<&Bound<'_, PyAny>>, default: usize| {
            let given = value.map(|value| scalars::unsigned_32(what, value)).transpose()?;
            PyResult::Ok(given.map_or(default, |given| given as usize))
        };
        let number = |what: &str, value: Option<&Bound<'_, PyAny>>| {
            let given = value.map(|value| scalars::unsigned(what, value, u64::MAX)).transpose()?;
            PyResult::Ok(given.unwrap_or(0))
        };
        let default = FeedOptions::default();
        let options = FeedOptions {
            batch_rows: rows("batch_rows", batch_rows, default.batch_rows)?,
            shuffle_rows: rows("shuffle_rows", shuffle_rows, default.shuffle_rows)?,
            batches_ahead: rows("batches_ahead", batches_ahead, default.batches_ahead)?,
            seed: number("seed", seed)?,
            skip_rows: number("skip_rows", skip_rows)?,
            drop_last,
        };
        options.check().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let inputs = feed_inputs(inputs)?;
        let threads = thread_count(threads)?.unwrap_or(self.threads);
        let mut pipeline = self.slot.take()?;
        pipeline.set_threads(threads);
        match pipeline.feed(inputs, &options) {
            Ok(feed) => Ok(PyFeed::new(Arc::clone(&self.slot), feed)),
            Err(error) => {
                self.slot.put_back(None);
                Err(errors::pipeline_to_python(py, &error))
            }
        }
    }

    /// Runs over the inputs without handing anything out: fills the vocabularies, and counts rows and bad ones.
    ///
    /// Args:
    ///     inputs: As of `feed`.
    ///     threads: Default: the pipeline's.
    #[pyo3(signature = (inputs, *, threads=None))]
    fn run(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRunReport> {
        let inputs = feed_inputs(inputs)?;
        let threads = thread_count(threads)?.unwrap_or(self.threads);
        let mut pipeline = self.slot.take()?;
        pipeline.set_threads(threads);
        let (back, outcome, interrupted) = run_interruptibly(py, *pipeline, &inputs);
        self.slot.put_back(back);
        if let Some(signal) = interrupted {
            return Err(signal);
        }
        match outcome {
            Some(Ok(report)) => Ok(PyRunReport::new(&report)),
            Some(Err(error)) => Err(errors::pipeline_to_python(py, &error)),
            None => Err(Slot::refusal(&State::Lost)),
        }
    }

    /// The vocabularies' names, and for each its values by their ids, as uint32 arrays (copies).
    fn vocabularies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.slot.check_process()?;
        let state = self.slot.state.lock();
        let State::Here(pipeline) = &*state else { return Err(Slot::refusal(&state)) };
        let found = PyDict::new(py);
        for (name, values) in pipeline.vocabularies() {
            found.set_item(name, PyArray1::from_slice(py, values))?;
        }
        Ok(found)
    }

    fn __repr__(&self) -> String {
        let name = |(name, _, kind): &(String, Vec<String>, &str)| format!("{name} {kind}");
        let names: Vec<_> = self.outputs.iter().map(name).collect();
        format!("<embank.pipeline.Pipeline, outputs {}>", names.join(", "))
    }
}

/// Runs in a thread, and looks for Ctrl-C meanwhile. The pipeline is gone if the thread panicked.
fn run_interruptibly(
    py: Python<'_>,
    mut pipeline: Pipeline,
    inputs: &[FeedInput],
) -> (Option<Pipeline>, Option<embank_pipeline::Result<RunReport>>, Option<PyErr>) {
    let stop = AtomicBool::new(false);
    let (sender, ended) = sync_channel::<()>(1);
    let ended = Mutex::new(ended);
    let run = || {
        // Its drop is what the loop below waits for.
        let _ended = sender;
        let inputs: Vec<_> = inputs.iter().map(FeedInput::input).collect();
        // Relaxed: it is only to be seen some time.
        let outcome = pipeline.run(&inputs, &mut |_: &mut Batch| {
            if stop.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
        });
        (pipeline, outcome)
    };
    let mut interrupted = None;
    let joined = std::thread::scope(|scope| {
        let thread = scope.spawn(run);
        // Ends: the run does, and sooner when it is interrupted.
        while py.detach(|| ended.lock().recv_timeout(SIGNAL_INTERVAL))
            == Err(RecvTimeoutError::Timeout)
        {
            if let Err(signal) = py.check_signals() {
                stop.store(true, Ordering::Relaxed);
                interrupted = Some(signal);
            }
        }
        thread.join()
    });
    match joined {
        Ok((pipeline, outcome)) => (Some(pipeline), Some(outcome), interrupted),
        Err(_) => (None, None, interrupted),
    }
}

/// What came of a run.
#[pyclass(name = "RunReport", module = "embank.pipeline", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct PyRunReport {
    /// Rows that came out.
    rows: u64,
    /// Rows that were left out as bad ones.
    bad_rows: u64,
    /// The first ten of those: file, line, column and what is wrong.
    first_bad_rows: Vec<String>,
    /// Bytes of input.
    bytes: u64,
    /// How long it took.
    seconds: f64,
}

impl PyRunReport {
    pub(crate) fn new(report: &RunReport) -> Self {
        Self {
            rows: report.rows,
            bad_rows: report.bad_rows,
            first_bad_rows: report.first_bad_rows.iter().map(ToString::to_string).collect(),
            bytes: report.bytes,
            seconds: report.elapsed.as_secs_f64(),
        }
    }
}

#[pymethods]
impl PyRunReport {
    fn __repr__(&self) -> String {
        format!("<embank.pipeline.RunReport, {} rows, {} bad ones>", self.rows, self.bad_rows)
    }
}

/// A spec as JSON: text as it is, what has `to_json` by that, all else by the module `json`.
fn spec_json(spec: &Bound<'_, PyAny>) -> PyResult<String> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Ok(text) = spec.cast::<PyString>() {
        return text.extract();
    }
    if spec.hasattr("to_json")? {
        return spec.call_method0("to_json")?.extract();
    }
    if !spec.is_instance_of::<PyDict>() {
        return Err(PyTypeError::new_err(format!(
            "a spec is a Spec, a dict or JSON text, not {}",
            spec.get_type()
        )));
    }
    DUMPS.import(spec.py(), "json", "dumps")?.call1((spec,))?.extract()
}

fn text_format(
    name: &str,
    separator: Option<&str>,
    header: Option<bool>,
    quote: Option<&str>,
) -> PyResult<Format> {
    let format = match name {
        "tsv" => Format::TSV,
        "csv" => Format::CSV,
        "packed" => Format::Packed,
        _ => {
            return Err(PyValueError::new_err(format!(
                "format must be \"tsv\", \"csv\" or \"packed\", not {name:?}"
            )));
        }
    };
    let Format::Text { separator: own, header: has, quote: quotes } = format else {
        if separator.is_some() || header.is_some() || quote.is_some() {
            return Err(PyValueError::new_err(
                "packed rows have no separator, no header and no quotes",
            ));
        }
        return Ok(format);
    };
    let character = |what: &str, text: &str| match text.as_bytes() {
        &[byte] if byte.is_ascii() => Ok(byte),
        _ => Err(PyValueError::new_err(format!("{what} must be one ASCII character"))),
    };
    let quote = match quote {
        None => quotes,
        Some("") => None,
        Some(text) => Some(character("quote", text)?),
    };
    let separator = separator.map(|text| character("separator", text)).transpose()?;
    Ok(Format::Text { separator: separator.unwrap_or(own), header: header.unwrap_or(has), quote })
}

fn thread_count(threads: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let Some(threads) = threads else { return Ok(None) };
    match scalars::unsigned("threads", threads, 1024)? {
        0 => Err(PyValueError::new_err("threads must be from 1 to 1024, not 0")),
        count => Ok(Some(count as usize)),
    }
}

/// Paths and bytes, one or several.
fn feed_inputs(given: &Bound<'_, PyAny>) -> PyResult<Vec<FeedInput>> {
    let one = |input: &Bound<'_, PyAny>| {
        if let Ok(bytes) = input.cast::<PyBytes>() {
            return Ok(FeedInput::memory("bytes", bytes.as_bytes()));
        }
        let path: PathBuf = input.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "an input is a path, or bytes that are rows, not {}",
                input.get_type()
            ))
        })?;
        Ok(FeedInput::file(path))
    };
    let several = given.is_instance_of::<PyList>() || given.hasattr("__iter__")?;
    let alone = given.is_instance_of::<PyBytes>() || given.is_instance_of::<PyString>();
    if several && !alone {
        return given.try_iter()?.map(|input| one(&input?)).collect();
    }
    Ok(vec![one(given)?])
}
