//! Parts of files on several machines: what the Python modules `_parts`, `_merge` and `_frozen`
//! need of the crate `embank-pipeline`.
//!
//! Arrow data crosses this border as NumPy arrays, which these modules make of pyarrow's arrays
//! without a copy.

use std::sync::{Arc, Weak};

use arrow_schema::SchemaRef;
use embank::{ByteValues, OwnedValues, Values};
use embank_pipeline::{
    Error, FeedInput, FeedOptions, Format, Part, Pipeline, RunOptions, RunReport, Spec, Split,
    VocabularyValues, arrow_schema,
};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::PipelineOutput;
use super::arguments::{feed_inputs, spec_json, text_format};
use super::feed::PyFeed;
use super::report::PyRunReport;
use super::running::run_interruptibly;
use super::slot::{Slot, SlotOwner};
use crate::bank::PyBank;
use crate::{errors, scalars};

/// A part as Python passes it: number, path, begin, end, and bytes and time of change of the file.
type PartRow = (u64, String, u64, u64, u64, i64);

/// The values of a vocabulary: its name, numbers, or offsets and bytes of texts, and counts.
type ValuesRow<'py> = (
    String,
    Option<Bound<'py, PyArray1<u64>>>,
    Option<Bound<'py, PyArray1<u64>>>,
    Option<Bound<'py, PyArray1<u8>>>,
    Option<Bound<'py, PyArray1<u64>>>,
);

fn part((number, path, begin, end, file_bytes, modified_ns): PartRow) -> Part {
    Part { number, path, begin, end, file_bytes, modified_ns }
}

/// Divides files into parts. Returns the split as JSON, and the parts.
#[pyfunction]
#[pyo3(signature = (spec, inputs, part_bytes, format, separator, header, quote))]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
pub(crate) fn split_files(
    py: Python<'_>,
    spec: &Bound<'_, PyAny>,
    inputs: &Bound<'_, PyAny>,
    part_bytes: &Bound<'_, PyAny>,
    format: Option<&str>,
    separator: Option<&str>,
    header: Option<&Bound<'_, PyAny>>,
    quote: Option<&str>,
) -> PyResult<(String, Vec<PartRow>)> {
    let failed = |error: Error| errors::pipeline_to_python(py, &error);
    let spec = Spec::from_json(&spec_json(spec)?).map_err(failed)?;
    let part_bytes = scalars::size_bytes("part_bytes", part_bytes)?;
    if part_bytes == 0 {
        return Err(PyValueError::new_err("part_bytes must be 1 at least, not 0"));
    }
    let format = text_format(format, separator, header, quote)?;
    let inputs = feed_inputs(inputs)?;
    let split = py.detach(|| {
        let inputs: Vec<_> = inputs.iter().map(FeedInput::input).collect();
        embank_pipeline::split_files(&spec, &inputs, format, part_bytes)
    });
    let (split, parts) = split.map_err(failed)?;
    let row = |part: Part| {
        (part.number, part.path, part.begin, part.end, part.file_bytes, part.modified_ns)
    };
    Ok((split.to_json(), parts.into_iter().map(row).collect()))
}

/// A pipeline whose vocabularies are in memory, for the parts of a split.
#[pyclass(name = "PartPipeline", module = "embank._embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyPartPipeline {
    spec: Spec,
    slot: Arc<SlotOwner>,
    schema: SchemaRef,
    outputs: Vec<PipelineOutput>,
}

#[pymethods]
impl PyPartPipeline {
    #[new]
    fn new(spec: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = spec.py();
        let failed = |error: Error| errors::pipeline_to_python(py, &error);
        let spec = Spec::from_json(&spec_json(spec)?).map_err(failed)?;
        // Parts have the format of their split. Other rows come as Arrow data.
        let format = if cfg!(feature = "parquet") { Format::Columns } else { Format::TSV };
        let options = RunOptions { threads: 1, format, ..RunOptions::default() };
        let pipeline = py.detach(|| Pipeline::for_parts(&spec, &options)).map_err(failed)?;
        let outputs = pipeline.outputs();
        Ok(Self {
            schema: arrow_schema(outputs),
            outputs: outputs.iter().map(PipelineOutput::of).collect(),
            slot: SlotOwner::alone(Slot::new(pipeline, Weak::new())),
            spec,
        })
    }

    /// The spec as JSON. Equal specs have equal JSON.
    #[getter]
    fn spec(&self) -> String {
        self.spec.to_json()
    }

    /// Name, shape of a row and dtype of each output.
    #[getter]
    fn outputs(&self) -> Vec<(String, Vec<usize>, &'static str)> {
        let one =
            |output: &PipelineOutput| (output.name.clone(), output.shape.clone(), output.dtype);
        self.outputs.iter().map(one).collect()
    }

    /// Fails if the split was made for another spec.
    fn check_split(&self, py: Python<'_>, split: &str) -> PyResult<()> {
        let checked = Split::from_json(split).and_then(|split| split.check_spec(&self.spec));
        checked.map_err(|error| errors::pipeline_to_python(py, &error))
    }

    /// Gives ids to the values of a part. Returns the report as JSON.
    fn generate(&self, py: Python<'_>, split: &str, row: PartRow) -> PyResult<String> {
        let input = self.input(split, row);
        self.generate_of(py, &input.map_err(|error| errors::pipeline_to_python(py, &error))?)
    }

    /// Gives ids to the values of rows that are an Arrow stream. Returns the report as JSON.
    fn generate_rows(&self, py: Python<'_>, stream: &[u8]) -> PyResult<String> {
        self.generate_of(py, &FeedInput::memory("rows", stream))
    }

    /// The values of all vocabularies.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<ValuesRow<'py>>> {
        let mut taken = self.slot.take()?;
        let values = py.detach(|| {
            let values = taken.pipeline().vocabulary_values();
            drop(taken);
            values
        });
        let values = values.map_err(|error| errors::pipeline_to_python(py, &error))?;
        let row = |VocabularyValues { vocabulary, values, counts, .. }| {
            let counts = counts.map(|counts| PyArray1::from_vec(py, counts));
            match values {
                OwnedValues::U64(numbers) => {
                    (vocabulary, Some(PyArray1::from_vec(py, numbers)), None, None, counts)
                }
                OwnedValues::Bytes(texts) => {
                    let (offsets, bytes) = texts.into_parts();
                    let offsets = Some(PyArray1::from_vec(py, offsets));
                    (vocabulary, None, offsets, Some(PyArray1::from_vec(py, bytes)), counts)
                }
            }
        };
        Ok(values.into_iter().map(row).collect())
    }

    /// Gives ids to new ones among these values, in their order, and adds the counts. The values
    /// are `numbers`, or texts as `offsets` and `bytes`.
    fn absorb(
        &self,
        py: Python<'_>,
        vocabulary: &str,
        numbers: Option<PyReadonlyArray1<'_, u64>>,
        offsets: Option<PyReadonlyArray1<'_, u64>>,
        bytes: Option<PyReadonlyArray1<'_, u8>>,
        counts: Option<PyReadonlyArray1<'_, u64>>,
    ) -> PyResult<()> {
        let values = match (&numbers, &offsets, &bytes) {
            (Some(numbers), None, None) => Values::U64(numbers.as_slice()?),
            (None, Some(offsets), Some(bytes)) => Values::Bytes(
                ByteValues::with_long_offsets(offsets.as_slice()?, bytes.as_slice()?)
                    .map_err(|error| errors::to_python(py, &error))?,
            ),
            _ => return Err(PyValueError::new_err("values are numbers, or offsets with bytes")),
        };
        let counts = counts.as_ref().map(PyReadonlyArray1::as_slice).transpose()?;
        self.change(py, |pipeline| pipeline.absorb(vocabulary, values, counts.unwrap_or_default()))
    }

    /// Adds the report of a part, as `generate` returned it.
    fn add_report(&self, py: Python<'_>, report: &str) -> PyResult<()> {
        let report = RunReport::from_json(report);
        let report = report.map_err(|error| errors::pipeline_to_python(py, &error))?;
        self.change(py, |pipeline| pipeline.add_report(&report))
    }

    /// Ends a merge: keeps what is frequent in vocabularies with a `min_count`.
    fn finish_merge(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, Pipeline::finish_merge)
    }

    /// Ends the making of a copy: freezes the vocabularies with a `min_count`.
    fn finish_copy(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, Pipeline::finish_copy)
    }

    /// The sum of the reports that were added.
    fn report(&self) -> PyResult<PyRunReport> {
        self.slot.look(|pipeline| PyRunReport::new(pipeline.merged_report()))
    }

    /// The sum of the reports as JSON, which `add_report` takes.
    fn report_json(&self) -> PyResult<String> {
        self.slot.look(|pipeline| pipeline.merged_report().to_json())
    }

    /// The batches of a part. With `replay`, the part is one of those that made the vocabularies.
    fn feed(
        &self,
        py: Python<'_>,
        split: &str,
        row: PartRow,
        replay: bool,
        batch_rows: usize,
    ) -> PyResult<PyFeed> {
        let input = self.input(split, row);
        let input = input.map_err(|error| errors::pipeline_to_python(py, &error))?;
        self.feed_of(py, input, replay, batch_rows)
    }

    /// The batches of rows that are an Arrow stream.
    fn feed_rows(&self, py: Python<'_>, stream: &[u8], batch_rows: usize) -> PyResult<PyFeed> {
        self.feed_of(py, FeedInput::memory("rows", stream), false, batch_rows)
    }

    /// Writes the vocabularies into a bank.
    fn write(&self, py: Python<'_>, bank: &Bound<'_, PyBank>) -> PyResult<()> {
        let pipeline = self.slot.look(Pipeline::evaluation)?;
        let written =
            bank.get().cell.with_bank(py, |bank| Ok(pipeline.write_vocabularies(bank)))?;
        written.map_err(|error| errors::pipeline_to_python(py, &error))
    }
}

impl PyPartPipeline {
    fn input(&self, split: &str, row: PartRow) -> embank_pipeline::Result<FeedInput> {
        Ok(Split::from_json(split)?.input(&self.spec, &part(row))?.into())
    }

    fn generate_of(&self, py: Python<'_>, input: &FeedInput) -> PyResult<String> {
        let taken = self.slot.take()?;
        let run = |pipeline: &mut Pipeline| pipeline.generate(&[input.input()]);
        match run_interruptibly(py, taken, run)? {
            Some(Ok(report)) => Ok(report.to_json()),
            Some(Err(error)) => Err(errors::pipeline_to_python(py, &error)),
            None => Err(self.slot.take().err().unwrap_or_else(|| self.slot.ended())),
        }
    }

    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Pipeline) -> embank_pipeline::Result<()> + Send,
    ) -> PyResult<()> {
        let mut taken = self.slot.take()?;
        let changed = py.detach(|| {
            let changed = change(taken.pipeline());
            drop(taken);
            changed
        });
        changed.map_err(|error| errors::pipeline_to_python(py, &error))
    }

    fn feed_of(
        &self,
        py: Python<'_>,
        input: FeedInput,
        replay: bool,
        batch_rows: usize,
    ) -> PyResult<PyFeed> {
        let make = if replay { Pipeline::replay } else { Pipeline::evaluation };
        let slot = SlotOwner::alone(Slot::new(self.slot.look(make)?, Weak::new()));
        let options = FeedOptions { batch_rows, ..FeedOptions::default() };
        options.check().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let taken = slot.take()?;
        let feed =
            py.detach(|| taken.feed(false, |pipeline| pipeline.feed(vec![input], &options)))?;
        let feed = feed.map_err(|error| errors::pipeline_to_python(py, &error))?;
        Ok(PyFeed::new(slot, feed, Arc::clone(&self.schema)))
    }
}
