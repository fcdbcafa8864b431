//! `Pipeline`: preprocessing, run as a whole or fed batch by batch.
//!
//! A Rust pipeline belongs to one run at a time. [`slot`] explains how runs share the pipeline and
//! how it ends with its bank.

use std::sync::{Arc, Weak};

use arrow_schema::SchemaRef;
use embank_pipeline::{
    Batch, Decoders, Dtype, Error, FeedInput, FeedOptions, Input, KeptValues, MatrixInfo, Pipeline,
    RunOptions, RunReport, Spec, SpoolOptions, arrow_schema,
};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use self::arguments::{beginning, feed_inputs, spec_json, text_format, thread_count};
use self::decoders::{decoders_of, end_at_exit};
use self::feed::PyFeed;
use self::report::PyRunReport;
use self::running::run_interruptibly;
use self::slot::{Slot, SlotOwner};
use crate::bank::PyBank;
use crate::cell::EndsWithBank;
use crate::{errors, scalars};

mod arguments;
mod array_memory;
pub(crate) mod arrow;
pub(crate) mod decoders;
pub(crate) mod feed;
mod feed_cell;
pub(crate) mod parts;
pub(crate) mod report;
mod running;
mod slot;

/// Turns text into numbers in one pass, with all cores. It decodes fields, fills missing values,
/// scales, hashes, and gives each category a number.
///
/// Args:
///     spec: What the pipeline does: a `Spec`, or its content as a dict or as JSON.
///     bank: The bank whose vocabularies number the values. The pipeline creates vocabularies that
///         the bank does not have. The vocabularies of a bank take any whole numbers and text, and
///         the bank's checkpoints hold them together with the tables. Default: None, the
///         vocabularies live in the pipeline.
///     format: `"tsv"` (tabs, no header), `"csv"` (commas, a header, double quotes), `"packed"`
///         (rows of 32-bit numbers), or `"columns"` (Parquet, Arrow and tar). Default: None, the
///         format follows from the suffixes of the inputs' names in upper or lower case (`.csv`,
///         `.csv.gz`, `.parquet`, `.tar`, ...), and is `"tsv"` for other names and for bytes. A run
///         refuses inputs whose names stand for different formats.
///     separator: The text between fields, such as `";"` or `"::"`. Default: the format's.
///     header: The meaning of the first line of each input. `"names"`: the line names the columns;
///         fields are found by name, in any order, and other columns are not read. `"skip"`: the
///         line is ignored, and columns stand in the order of the fields. `"none"`: the line is a
///         row. Default: the format's.
///     quote: The character that encloses fields with separators in them; `""` for no such
///         character. Default: the format's.
///     threads: The number of threads of a run. Default: the number of cores.
///     chunk_bytes: Bytes of input that a thread works on at a time. Default: 512 KiB.
///     root: The folder below which the files of fields of kind `"file"` lie. Default: None, which
///         such fields refuse.
///     decoders: The callables of a spec that is a dict or JSON, by the names that its columns use
///         (`decode`). A `Spec` has its own. Default: None.
///     cache: Bytes of memory, such as `"8GiB"`, for arrays that `image` and `decode` have made.
///         Later feeds and runs of this pipeline take them from there. What came first stays.
///         Default: 0.
///     spool: A directory where arrays are kept for later feeds and later processes. A pipeline
///         finds the arrays that it would make itself: of the same bytes, by the same operator and
///         `version`. If the disk is full, the run goes on without it and warns once. Default:
///         None.
///     spool_bytes: The largest size of the directory's files. Default: `"64GiB"`.
///
/// Each run continues the numbering of the run before it. Only one run at a time can learn, that
/// is, give ids to new values. Runs with `learn=False` insert nothing, and any number of them can
/// go on at the same time. Closing the bank ends the pipeline and its feeds.
///
/// Raises:
///     SpecError: The spec can't be run. The text names the column and the cure.
///     VocabularyMismatch: The bank has a vocabulary of one of the names with other settings.
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
///
/// With a bank, all values of a batch are in the bank before the feed hands the batch out. So a
/// loop can take a checkpoint at any step, and go on from there after a crash:
///
/// >>> import embank, json
/// >>> words = Spec(
/// ...     fields=[Field("word", "bytes", required=True)],
/// ...     columns=[Column("word", vocabulary("word"))],
/// ...     outputs=[Output("ids", ["word"], "i64")],
/// ... )
/// >>> def train(steps):
/// ...     with embank.Bank("words.bank", memory_budget="16MiB") as bank:
/// ...         done = json.loads(bank.recovered.blob) if bank.recovered else 0
/// ...         with Pipeline(words, bank=bank).feed(b"red\ngreen\nred\nblue\n", batch_rows=1, skip_rows=done) as feed:
/// ...             for _, batch in zip(range(steps), feed):
/// ...                 print(batch["ids"].tolist())
/// ...                 number = bank.checkpoint(json.dumps(feed.state_dict()).encode())
/// >>> train(2)
/// [[0]]
/// [[1]]
/// >>> train(10)
/// [[0]]
/// [[2]]
#[pyclass(name = "Pipeline", module = "embank.pipeline", frozen)]
#[derive(Debug)]
pub(crate) struct PyPipeline {
    slot: Arc<SlotOwner>,
    bank: Option<Py<PyBank>>,
    schema: SchemaRef,
    threads: usize,
    /// Default of `learn`: whether runs insert new values. False on a bank that is open to read
    /// only.
    learns: bool,
    /// True if the threads of a run call Python.
    has_callables: bool,
    outputs: Vec<PipelineOutput>,
}

#[derive(Debug)]
struct PipelineOutput {
    name: String,
    columns: Vec<String>,
    /// Shape of a row.
    shape: Vec<usize>,
    dtype: &'static str,
}

impl PipelineOutput {
    fn of(info: &MatrixInfo) -> Self {
        let dtype = match info.dtype {
            Dtype::F32 => "f32",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            Dtype::U8 => "u8",
            _ => "bits32",
        };
        let MatrixInfo { name, columns, shape, .. } = info.clone();
        Self { name, columns, shape, dtype }
    }
}

#[pymethods]
impl PyPipeline {
    #[new]
    #[pyo3(signature = (
        spec, *, bank=None, format=None, separator=None, header=None, quote=None, threads=None,
        chunk_bytes=None, root=None, decoders=None, cache=None, spool=None, spool_bytes=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
    fn new(
        spec: &Bound<'_, PyAny>,
        bank: Option<Py<PyBank>>,
        format: Option<&str>,
        separator: Option<&str>,
        header: Option<&Bound<'_, PyAny>>,
        quote: Option<&str>,
        threads: Option<&Bound<'_, PyAny>>,
        chunk_bytes: Option<&Bound<'_, PyAny>>,
        root: Option<std::path::PathBuf>,
        decoders: Option<&Bound<'_, PyDict>>,
        cache: Option<&Bound<'_, PyAny>>,
        spool: Option<std::path::PathBuf>,
        spool_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = spec.py();
        let json = spec_json(spec)?;
        if spool.is_some() && spec.hasattr("_check_spool")? {
            spec.call_method0("_check_spool")?;
        }
        let mut options = RunOptions {
            format: text_format(format, separator, header, quote)?,
            root,
            decoders: decoders_of(spec, decoders)?,
            cache_bytes: cache.map_or(Ok(0), |bytes| scalars::size_bytes("cache", bytes))?,
            spool: spool_options(spool, spool_bytes)?,
            ..Default::default()
        };
        options.threads = thread_count(threads)?.unwrap_or(options.threads);
        if let Some(bytes) = chunk_bytes {
            options.chunk_bytes = scalars::unsigned_32("chunk_bytes", bytes)?.max(1) as usize;
        }
        let failed = |error: Error| errors::pipeline_to_python(py, &error);
        let spec = Spec::from_json(&json).map_err(failed)?;
        let slot = if let Some(bank) = &bank {
            let cell = &bank.get().cell;
            let ended_by = Arc::downgrade(cell);
            let make =
                |bank: &_| Ok(Slot::new(Pipeline::with_bank(&spec, &options, bank)?, ended_by));
            SlotOwner::attached(cell, cell.attach(py, make)?.map_err(failed)?)
        } else {
            let pipeline = py.detach(|| Pipeline::new(&spec, &options)).map_err(failed)?;
            SlotOwner::alone(Slot::new(pipeline, Weak::new()))
        };
        let outputs = slot.look(|pipeline| pipeline.outputs().to_vec())?;
        Ok(Self {
            schema: arrow_schema(&outputs),
            outputs: outputs.iter().map(PipelineOutput::of).collect(),
            learns: slot.look(Pipeline::learns)?,
            has_callables: options.decoders != Decoders::default(),
            threads: options.threads,
            slot,
            bank,
        })
    }

    /// The outputs' names, and for each output the names of its columns from left to right.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let outputs = PyDict::new(py);
        for output in &self.outputs {
            outputs.set_item(&output.name, &output.columns)?;
        }
        Ok(outputs)
    }

    /// Batches of exactly `batch_rows` rows. The pipeline makes the next ones in the background
    /// while the caller uses one.
    ///
    /// Args:
    ///     inputs: A path, or `bytes` that are rows themselves, or several of them, read one after
    ///         another. A directory means its files and those of directories in it, in sorted
    ///         order, without names that begin with `_` or `.`.
    ///     batch_rows: The number of rows of a batch. The last batch is shorter; with `drop_last`
    ///         it is left out.
    ///     shuffle_rows: The number of rows in the shuffle buffer. Each new row takes the place of
    ///         a random row in the buffer, and the feed hands the replaced row out. Default: 0, no
    ///         shuffle.
    ///     seed: The seed of the shuffle. Default: 0.
    ///     threads: The number of threads of this run. Default: the pipeline's.
    ///     skip_rows: The rows at the beginning that are not handed out. To go on where an earlier
    ///         feed stopped, pass its `state_dict()`, with its inputs, shuffle and seed. The feed
    ///         raises `SpecError` if the inputs do not begin with those of the state, because its
    ///         rows would be other rows: a file may have appeared between them. A number of rows
    ///         skips without this check. Default: 0.
    ///     batches_ahead: The largest number of finished batches that wait for the caller.
    ///     drop_last: Whether the last batch is left out if it has fewer than `batch_rows` rows.
    ///         Default: False.
    ///     save_each_batch: With a bank: whether the feed puts all values of a batch into the bank
    ///         before it hands the batch out, so that `bank.checkpoint` in the loop has them. False
    ///         makes each chunk some microseconds faster for each vocabulary of a known range; then
    ///         take checkpoints with `Pipeline.checkpoint` after closing the feed. Default: True.
    ///     learn: Whether new values get ids. False is for evaluation and serving: the feed inserts
    ///         and counts nothing. A value that has no id when `feed` is called gets the
    ///         vocabulary's `unknown_id`; without one the feed raises `UnknownValue`. Feeds with
    ///         `learn=False` can run beside each other and beside one that learns. Default: True,
    ///         but False on a bank that was opened with `read_only`.
    ///
    /// The batches do not depend on the number of threads. If the inputs have an error, the feed
    /// first hands out the whole batches before the error, and then raises it.
    ///
    /// Raises:
    ///     RuntimeError: An earlier feed that learns is neither closed nor at its end.
    ///     ReadOnly: `learn=True` on a bank that was opened with `read_only`.
    ///
    /// >>> from embank.pipeline import Column, Field, Output, Pipeline, Spec, VocabularySpec, modulus, vocabulary
    /// >>> pipeline = Pipeline(Spec(
    /// ...     fields=[Field("site", "int32", required=True)],
    /// ...     columns=[Column("site", modulus(100), vocabulary("site"))],
    /// ...     outputs=[Output("ids", ["site"], "i64")],
    /// ...     vocabularies=[VocabularySpec("site", first_id=1, unknown_id=0)],
    /// ... ))
    /// >>> report = pipeline.run(b"7\n9\n")
    /// >>> next(pipeline.feed(b"9\n8\n7\n", learn=False))["ids"].ravel().tolist()
    /// [2, 0, 1]
    /// >>> pipeline.vocabularies()["site"].tolist()
    /// [7, 9]
    #[pyo3(signature = (
        inputs, *, batch_rows=None, shuffle_rows=None, seed=None, threads=None, skip_rows=None, batches_ahead=None,
        drop_last=false, save_each_batch=true, learn=None
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
        save_each_batch: bool,
        learn: Option<bool>,
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
        let (skip_rows, position) = beginning(skip_rows)?;
        let mut options = FeedOptions {
            batch_rows: rows("batch_rows", batch_rows, default.batch_rows)?,
            shuffle_rows: rows("shuffle_rows", shuffle_rows, default.shuffle_rows)?,
            batches_ahead: rows("batches_ahead", batches_ahead, default.batches_ahead)?,
            seed: number("seed", seed)?,
            skip_rows,
            drop_last,
            skipped_inputs: Vec::new(),
            skipped_place: None,
        };
        let wrong = |error: Error| PyValueError::new_err(error.to_string());
        if let Some(position) = position {
            options = options.resume(&position).map_err(wrong)?;
        }
        options.check().map_err(wrong)?;
        let inputs = feed_inputs(inputs)?;
        let threads = thread_count(threads)?.unwrap_or(self.threads);
        let slot = self.slot_to(py, learn)?;
        let mut taken = slot.take()?;
        taken.pipeline().set_threads(threads);
        taken.pipeline().save_each_batch(save_each_batch);
        // The GIL is released, because making the feed waits for the vocabularies' locks, which a
        // run of another thread may hold.
        let feed =
            py.detach(|| taken.feed(save_each_batch, |pipeline| pipeline.feed(inputs, &options)))?;
        let feed = feed.map_err(|error| errors::pipeline_to_python(py, &error))?;
        if self.has_callables {
            end_at_exit(&slot, &feed);
        }
        Ok(PyFeed::new(slot, feed, Arc::clone(&self.schema)))
    }

    /// Runs over the inputs without handing out batches: fills the vocabularies, and counts rows
    /// and bad rows. With a bank, the new values are in the bank afterwards. The bank's next
    /// checkpoint makes them durable.
    ///
    /// Args:
    ///     inputs: See `feed`.
    ///     threads: The number of threads of this run. Default: the pipeline's.
    ///     learn: See `feed`. A run with `learn=False` only checks the inputs.
    #[pyo3(signature = (inputs, *, threads=None, learn=None))]
    fn run(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
        learn: Option<bool>,
    ) -> PyResult<PyRunReport> {
        let slot = self.slot_to(py, learn)?;
        self.run_with(py, &slot, inputs, threads, |pipeline, inputs| {
            pipeline.run(inputs, &mut |_: &mut Batch| Ok(()))
        })
    }

    /// Gives ids to the values of the inputs. In vocabularies that count (`VocabularySpec`), it
    /// also counts how often each value occurs. It runs no operator after a vocabulary and makes no
    /// matrices.
    ///
    /// If a vocabulary has a `min_count`, `feed` and `run` themselves call this function and
    /// `keep_frequent` for their own inputs. Call this function yourself in two cases: to build a
    /// vocabulary from several parts, with one call for each part, or to build it before you make
    /// its tables. After an error some of the rows are counted: go back to a checkpoint.
    ///
    /// Args:
    ///     inputs: See `feed`.
    ///     threads: The number of threads of this run. Default: the pipeline's.
    ///
    /// >>> from embank.pipeline import Column, Field, Output, Pipeline, Spec, VocabularySpec, modulus, vocabulary
    /// >>> spec = Spec(
    /// ...     fields=[Field("site", "int32", required=True)],
    /// ...     columns=[Column("site", modulus(100), vocabulary("site"))],
    /// ...     outputs=[Output("ids", ["site"], "i64")],
    /// ...     vocabularies=[VocabularySpec("site", counts=True, first_id=1, unknown_id=0)],
    /// ... )
    /// >>> pipeline = Pipeline(spec)
    /// >>> for part in (b"7\n9\n", b"8\n9\n7\n"):
    /// ...     report = pipeline.generate(part)
    /// >>> pipeline.keep_frequent(2)
    /// [('site', 2, 1)]
    /// >>> next(pipeline.feed(b"7\n8\n9\n"))["ids"].ravel().tolist()
    /// [1, 0, 2]
    #[pyo3(signature = (inputs, *, threads=None))]
    fn generate(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRunReport> {
        self.run_with(py, &self.slot, inputs, threads, Pipeline::generate)
    }

    /// Keeps the values that came at least `min_count` times, gives them new dense ids in their old
    /// order, and freezes the vocabulary. It does so in every vocabulary that counts and is not
    /// frozen yet. Earlier ids are invalid afterwards.
    ///
    /// Returns:
    ///     For each such vocabulary: its name, the number of values that stayed, and the number of
    ///     values that were removed.
    fn keep_frequent(
        &self,
        py: Python<'_>,
        min_count: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(String, u64, u64)>> {
        let min_count = scalars::unsigned("min_count", min_count, u64::MAX)?;
        let mut taken = self.slot.take()?;
        let kept = py
            .detach(|| {
                let kept = taken.pipeline().keep_frequent(min_count);
                drop(taken);
                kept
            })
            .map_err(|error| errors::pipeline_to_python(py, &error))?;
        let told = |of: KeptValues| (of.vocabulary, of.kept, of.removed);
        Ok(kept.into_iter().map(told).collect())
    }

    /// Saves the pipeline's new values in the bank. They are durable with the bank's next
    /// checkpoint. `run`, `generate`, and feeds that save each batch have done so already.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.save(py)
    }

    /// Saves, and takes a checkpoint of the bank. The checkpoint holds the vocabularies and the
    /// rows of their ids.
    ///
    /// In the loop over a feed it works as `bank.checkpoint`, and raises `RuntimeError` if the feed
    /// does not save each batch.
    ///
    /// Args:
    ///     blob: The caller's own bytes, as for `Bank.checkpoint`; it should hold
    ///         `feed.state_dict()`.
    ///
    /// Returns:
    ///     The checkpoint's number.
    ///
    /// Raises:
    ///     ValueError: The pipeline has no bank.
    ///     ShardMismatch: The bank is a shard of a fleet: see `Bank.checkpoint`.
    #[pyo3(signature = (blob=None))]
    fn checkpoint(&self, py: Python<'_>, blob: Option<&[u8]>) -> PyResult<u64> {
        let bank = self.bank.as_ref().ok_or_else(|| {
            PyValueError::new_err(
                "this pipeline has no bank to take a checkpoint of: make it with Pipeline(spec, bank=bank)",
            )
        })?;
        self.save(py)?;
        bank.get().checkpoint(py, blob)
    }

    /// The names of the vocabularies whose values have a known range (`modulus`), and for each its
    /// values in the order of their ids, as a uint32 array. For a vocabulary of a bank without a
    /// known range, use `Bank.open_vocabulary`.
    fn vocabularies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = self.slot.look(|pipeline| {
            let copied = |(name, values): (&str, Vec<u32>)| (name.to_owned(), values);
            pipeline.vocabularies().map(copied).collect::<Vec<_>>()
        })?;
        let found = PyDict::new(py);
        for (name, values) in all {
            found.set_item(name, PyArray1::from_vec(py, values))?;
        }
        Ok(found)
    }

    fn __repr__(&self) -> String {
        let name = |output: &PipelineOutput| format!("{} {}", output.name, output.dtype);
        let names: Vec<_> = self.outputs.iter().map(name).collect();
        format!("<embank.pipeline.Pipeline, outputs {}>", names.join(", "))
    }
}

/// Default of `spool_bytes`.
const SPOOL_BYTES: u64 = 64 << 30;

fn spool_options(
    folder: Option<std::path::PathBuf>,
    bytes: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<SpoolOptions>> {
    let bytes = bytes.map(|bytes| scalars::size_bytes("spool_bytes", bytes)).transpose()?;
    match folder {
        Some(folder) => Ok(Some(SpoolOptions::new(folder, bytes.unwrap_or(SPOOL_BYTES)))),
        None if bytes.is_some() => Err(PyValueError::new_err("spool_bytes needs a spool")),
        None => Ok(None),
    }
}

impl PyPipeline {
    /// Returns the slot for a run: the pipeline's own slot for a run that learns, otherwise a new
    /// slot with an evaluation pipeline.
    fn slot_to(&self, py: Python<'_>, learn: Option<bool>) -> PyResult<Arc<SlotOwner>> {
        if learn == Some(true) && !self.learns {
            return Err(errors::ReadOnly::new_err(
                "this pipeline's bank was opened with read_only=True, and learn=True would insert into it: leave learn \
                 out, or open the bank for writing",
            ));
        }
        if learn.unwrap_or(self.learns) {
            return Ok(Arc::clone(&self.slot));
        }
        let make = |bank| Ok(Slot::new(self.slot.evaluation()?, bank));
        let Some(bank) = &self.bank else { return Ok(SlotOwner::alone(make(Weak::new())?)) };
        let cell = &bank.get().cell;
        let make = |_: &_| make(Arc::downgrade(cell));
        Ok(SlotOwner::attached(cell, cell.attach::<Slot, PyErr>(py, make)??))
    }

    fn run_with(
        &self,
        py: Python<'_>,
        slot: &SlotOwner,
        inputs: &Bound<'_, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
        run: impl FnOnce(&mut Pipeline, &[Input<'_>]) -> embank_pipeline::Result<RunReport> + Send,
    ) -> PyResult<PyRunReport> {
        let inputs = feed_inputs(inputs)?;
        let threads = thread_count(threads)?.unwrap_or(self.threads);
        let mut taken = slot.take()?;
        taken.pipeline().set_threads(threads);
        let call = |pipeline: &mut Pipeline| {
            let inputs: Vec<_> = inputs.iter().map(FeedInput::input).collect();
            let report = run(pipeline, &inputs);
            // The pipeline saves also after an error, so that values that got ids before the error
            // keep them.
            let saved = pipeline.save();
            let report = report?;
            saved.map(|()| report)
        };
        match slot.refusing_close(|| run_interruptibly(py, taken, call))? {
            Some(Ok(report)) => {
                report::warn(py, report.arrays.spool_failure.as_deref())?;
                Ok(PyRunReport::new(&report))
            }
            // Only a bank that closes stops a run.
            Some(Err(Error::Stopped)) => Err(slot.ended()),
            Some(Err(error)) => Err(errors::pipeline_to_python(py, &error)),
            None => Err(slot.take().err().unwrap_or_else(|| slot.ended())),
        }
    }
}

crate::copies::shared_by_copies!(
    PyPipeline,
    |pipeline| if pipeline.bank.is_some() {
        "a pipeline of a bank".to_owned()
    } else {
        "a pipeline".to_owned()
    },
    "its vocabularies are in this process. Make it anew from its spec in the other process"
);
