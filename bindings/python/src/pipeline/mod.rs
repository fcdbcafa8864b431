//! `Pipeline`: preprocessing, run as a whole or fed batch by batch.
//!
//! A Rust pipeline belongs to one run at a time: see [`slot`], which says also how it ends with its bank.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use embank_pipeline::{
    Batch, Dtype, Error, FeedInput, FeedOptions, Input, KeptValues, MatrixInfo, Pipeline,
    RunOptions, RunReport, Spec, arrow_schema,
};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use self::arguments::{feed_inputs, spec_json, text_format, thread_count};
use self::feed::PyFeed;
use self::report::PyRunReport;
use self::running::run_interruptibly;
use self::slot::{Slot, SlotOwner};
use crate::bank::PyBank;
use crate::cell::EndsWithBank;
use crate::{errors, scalars};

mod arguments;
pub(crate) mod arrow;
pub(crate) mod feed;
mod feed_cell;
pub(crate) mod report;
mod running;
mod slot;

/// Text to numbers in one pass: decodes, fills, scales, hashes and numbers categories, with all cores.
///
/// Args:
///     spec: What it does: a `Spec`, or the same as a dict or as JSON.
///     bank: The bank whose vocabularies it numbers in; those that are missing are made. They take any whole numbers
///         and text, in checkpoints together with the tables. None: the vocabularies live in the pipeline.
///     format: `"tsv"` (tabs, no header), `"csv"` (commas, a header, double quotes), `"packed"` (rows of 32-bit
///         numbers), or `"columns"` (Parquet and Arrow). None: what the names of the inputs say, in either case (`.csv`,
///         `.csv.gz`, `.parquet`, ...), and `"tsv"` for names that say nothing and for bytes; names that say different
///         formats are refused.
///     separator: What stands between fields, where it is not the format's: `";"`, `"::"`.
///     header: What the first line of each input is, where it is not as the format says. `"names"`: fields are the
///         columns of their names, in any order, and other columns are not read. `"skip"`: it is passed over, and columns
///         stand in the order of the fields. `"none"`: it is a row.
///     quote: What encloses fields that hold separators, where it is not the format's; `""` for none.
///     threads: Of each run. Default: as many as there are cores.
///     chunk_bytes: What a thread works on at a time. Default: 512 KiB.
///
/// Runs, one after the other, go on numbering where the last one stopped. One run at a time, and beside it any number
/// with `learn=False`, which insert nothing. Closing the bank ends the pipeline and its feeds.
///
/// Raises:
///     SpecError: The spec makes no sense; says which column, and the cure.
///     VocabularyMismatch: The bank has a vocabulary of that name with other settings.
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
/// With a bank, what a feed has handed out is in the bank, so a loop takes checkpoints whenever it likes, and goes on
/// after a crash where the checkpoint was:
///
/// >>> import embank
/// >>> words = Spec(
/// ...     fields=[Field("word", "bytes", required=True)],
/// ...     columns=[Column("word", vocabulary("word"))],
/// ...     outputs=[Output("ids", ["word"], "i64")],
/// ... )
/// >>> def train(steps):
/// ...     with embank.Bank("words.bank", memory_budget="16MiB") as bank:
/// ...         done = int(bank.recovered.blob) if bank.recovered else 0
/// ...         with Pipeline(words, bank=bank).feed(b"red\ngreen\nred\nblue\n", batch_rows=1, skip_rows=done) as feed:
/// ...             for _, batch in zip(range(steps), feed):
/// ...                 print(batch["ids"].tolist())
/// ...                 number = bank.checkpoint(b"%d" % feed.position)
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
    /// Whether runs give ids to new values unless told otherwise: not on a bank that is open to read only.
    learns: bool,
    outputs: Vec<PipelineOutput>,
}

#[derive(Debug)]
struct PipelineOutput {
    name: String,
    columns: Vec<String>,
    dtype: &'static str,
}

impl PipelineOutput {
    fn of(info: &MatrixInfo) -> Self {
        let dtype = match info.dtype {
            Dtype::F32 => "f32",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            _ => "bits32",
        };
        Self { name: info.name.clone(), columns: info.columns.clone(), dtype }
    }
}

#[pymethods]
impl PyPipeline {
    #[new]
    #[pyo3(signature = (
        spec, *, bank=None, format=None, separator=None, header=None, quote=None, threads=None,
        chunk_bytes=None
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
        let failed = |error: Error| errors::pipeline_to_python(py, &error);
        let spec = Spec::from_json(&json).map_err(failed)?;
        let slot = if let Some(bank) = &bank {
            let cell = &bank.get().cell;
            let make = |bank: &_| Ok(Slot::new(Pipeline::with_bank(&spec, &options, bank)?));
            SlotOwner::attached(cell, cell.attach(py, make)?.map_err(failed)?)
        } else {
            SlotOwner::alone(Slot::new(Pipeline::new(&spec, &options).map_err(failed)?))
        };
        let outputs = slot.look(|pipeline| pipeline.outputs().to_vec())?;
        Ok(Self {
            schema: arrow_schema(&outputs),
            outputs: outputs.iter().map(PipelineOutput::of).collect(),
            learns: slot.look(Pipeline::learns)?,
            threads: options.threads,
            slot,
            bank,
        })
    }

    /// Names of the outputs, and for each the columns' names from left to right.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let outputs = PyDict::new(py);
        for output in &self.outputs {
            outputs.set_item(&output.name, &output.columns)?;
        }
        Ok(outputs)
    }

    /// Batches of exactly `batch_rows` rows, made in the background while the last one is in use.
    ///
    /// Args:
    ///     inputs: A path, or `bytes` that are rows themselves, or several of them, one after the other. A directory
    ///         means its files in sorted order, without those whose names begin with `_` or `.`.
    ///     batch_rows: Rows of a batch. The last one is shorter, or left out with `drop_last`.
    ///     shuffle_rows: Rows that wait in the shuffle buffer, each to be sent out by a later one. 0: no shuffle.
    ///     seed: Of the shuffle.
    ///     threads: Default: the pipeline's.
    ///     skip_rows: Rows at the beginning that are made but not handed out: `feed.position` of an earlier feed with
    ///         the same inputs, shuffle and seed, to go on where it stopped.
    ///     batches_ahead: Batches that may be ready beside the one in hand.
    ///     drop_last: Whether rows that make no whole batch at the end are dropped.
    ///     save_each_batch: With a bank: whether all values of a batch are in the bank before it is handed out, so
    ///         that `bank.checkpoint` in the loop has them. False saves some microseconds a chunk for each vocabulary
    ///         of a known range; then take checkpoints with `Pipeline.checkpoint` when the feed is closed.
    ///     learn: Whether new values get ids. False is for evaluation and serving: nothing is inserted or counted, and a
    ///         value without an id at the time of the call gets the vocabulary's `unknown_id`, or, without one,
    ///         raises `UnknownValue`. Such feeds run beside each other and beside one that learns. Default: True; False on
    ///         a bank that was opened with `read_only`.
    ///
    /// The batches are the same with any number of threads. What is wrong with the inputs is raised by the feed, after
    /// the whole batches before it.
    ///
    /// Raises:
    ///     RuntimeError: An earlier feed that learns is neither at its end nor closed.
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
        let slot = self.slot_to(py, learn)?;
        let mut taken = slot.take()?;
        taken.pipeline().set_threads(threads);
        taken.pipeline().save_each_batch(save_each_batch);
        // Without the GIL: it waits for the vocabularies, which a run of another thread may hold.
        let feed =
            py.detach(|| taken.feed(save_each_batch, |pipeline| pipeline.feed(inputs, &options)))?;
        let feed = feed.map_err(|error| errors::pipeline_to_python(py, &error))?;
        Ok(PyFeed::new(slot, feed, Arc::clone(&self.schema)))
    }

    /// Runs over the inputs without handing anything out: fills the vocabularies, and counts rows and bad ones. With a
    /// bank, the new values are in it afterwards, and durable with its next checkpoint.
    ///
    /// Args:
    ///     inputs: As of `feed`.
    ///     threads: Default: the pipeline's.
    ///     learn: As of `feed`. A run that learns nothing says whether the inputs can be used.
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

    /// Numbers the values of the inputs, and counts how often they come in vocabularies that count
    /// (`VocabularySpec`). Nothing else: no operators behind the vocabularies, no matrices.
    ///
    /// Where a vocabulary has a `min_count`, `feed` and `run` do this and `keep_frequent` by themselves, over their own
    /// inputs. Call it, for each part, where the vocabulary is to be made of several, or before tables of it are made.
    /// After an error some of the rows are counted: go back to a checkpoint.
    ///
    /// Args:
    ///     inputs: As of `feed`.
    ///     threads: Default: the pipeline's.
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

    /// Keeps the values that came so often, numbered anew in their old order, and freezes: in all vocabularies that
    /// count and are not frozen yet. Ids from before are worth nothing afterwards.
    ///
    /// Returns:
    ///     For each: its name, how many values stayed, and how many did not.
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

    /// Gives the bank the values that it lacks; durable with its next checkpoint. `run`, `generate`, and feeds that
    /// save each batch have done it already.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.save(py)
    }

    /// Saves, and takes a checkpoint of the bank: vocabularies and the rows that their ids lead to, together.
    ///
    /// In the loop over a feed it does what `bank.checkpoint` does, and refuses where the feed doesn't save each batch.
    ///
    /// Args:
    ///     blob: The caller's own bytes, as of `Bank.checkpoint`; `feed.position` is what belongs in it.
    ///
    /// Returns:
    ///     The checkpoint's number.
    ///
    /// Raises:
    ///     ValueError: The pipeline has no bank.
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

    /// The names of the vocabularies whose values have a known range (`modulus`), and for each its values by their ids,
    /// the first id's first, as uint32 arrays. Others are to be seen in the bank: `Bank.open_vocabulary`.
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

impl PyPipeline {
    /// Where the pipeline lies for a run that learns or not: its own slot, or a new one with an evaluation.
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
        let make = || Ok(Slot::new(self.slot.evaluation()?));
        let Some(bank) = &self.bank else { return Ok(SlotOwner::alone(make()?)) };
        let cell = &bank.get().cell;
        Ok(SlotOwner::attached(cell, cell.attach::<Slot, PyErr>(py, |_| make())??))
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
            // After an error too: what was numbered stays so.
            let saved = pipeline.save();
            let report = report?;
            saved.map(|()| report)
        };
        match slot.refusing_close(|| run_interruptibly(py, taken, call))? {
            Some(Ok(report)) => Ok(PyRunReport::new(&report)),
            // Nobody else stops it.
            Some(Err(Error::Stopped)) => Err(errors::bank_closed()),
            Some(Err(error)) => Err(errors::pipeline_to_python(py, &error)),
            None => Err(slot.take().err().unwrap_or_else(errors::bank_closed)),
        }
    }
}
