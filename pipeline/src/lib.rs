//! Tabular preprocessing for embedding tables: decode, transform, number categories, feed.
//!
//! A [`Spec`] lists the fields of a row, the operators on each column, and the outputs. A
//! [`Pipeline`] runs a spec over its inputs in one pass. Threads decode lines with vector
//! instructions, transform blocks of columns in the processor's cache, and number categories in
//! order of first appearance. The ids do not depend on the number of threads. Vocabularies last as
//! long as the pipeline, or live in a bank ([`Pipeline::with_bank`]).
//!
//! # Where to look
//!
//! Apart from plain types such as [`Dtype`], a module uses only modules below it in this table.
//!
//! | module | what changes there |
//! |---|---|
//! | `flight`, `feed`, `sink` | where batches go: over the network, to a training loop, to files |
//! | `parts` | parts of files, for workers on several machines |
//! | `pipeline` | what a [`Pipeline`] can do: runs, counting, saving |
//! | `execute` | the threads of a run, the way of a chunk, the order of commits |
//! | `vocabulary` | ids of values, in memory and in a bank |
//! | `input` | where chunks come from: files, pipes, compressed and quoted text |
//! | `plan` | from a [`Spec`] to what runs over each block |
//! | `columns` | Parquet and Arrow files |
//! | `spec` | what a user says of fields, columns, outputs and vocabularies |
//! | `arrays` | decoders of pictures and other bytes, for costly columns |
//! | `operators` | what can be done to a column; a new operator is a file there |
//! | `decode` | text and packed rows to blocks of columns |
//! | `records` | record files: rows in groups with checksums |
//! | `trace`, `batch` | where the time goes; matrices |
//! | `options`, `format`, `error` | what a user sets, how rows lie in inputs, what can go wrong |

mod arrays;
mod batch;
#[cfg(feature = "parquet")]
mod columns;
mod decode;
mod error;
mod execute;
mod feed;
#[cfg(feature = "flight")]
mod flight;
mod format;
mod input;
mod operators;
mod options;
mod parts;
mod pipeline;
mod plan;
mod records;
mod sink;
mod spec;
mod trace;
mod vocabulary;

/// The Rust examples of the pages in `docs` compile. The tests stand here because this crate sees
/// all that the examples use.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/rust.md")]
    mod rust {}
    #[doc = include_str!("../../docs/vocabulary.md")]
    mod vocabulary {}
    #[doc = include_str!("../../docs/pipeline.md")]
    mod pipeline {}
}

pub use arrays::{DecodeChannel, DecodeFailure, DecodeUnit, Decoder, Decoders, decode_with};
pub use batch::{Batch, Matrix, MatrixBuffer, MatrixInfo};
#[cfg(feature = "arrow")]
pub use batch::{array_metadata, arrow_schema};
pub use decode::{BadField, FieldKind, Level};
pub use error::{BadRowReport, Error, Result};
pub use execute::{ArrayReport, Consumer, FeedPlace, RunReport};
pub use feed::{Feed, FeedInput, FeedPart, FeedPosition, InputId, PARTS_MAX, Waited};
#[cfg(feature = "flight")]
pub use flight::FlightServer;
pub use format::{Format, Header, Separator, TextSettings};
pub use input::Input;
pub use operators::{Crop, Decode, Image, Operator, Value};
#[cfg(feature = "flight")]
pub use options::FlightOptions;
pub use options::{FeedOptions, RunOptions, SpoolOptions};
pub use parts::{Part, Split, split_files};
pub use pipeline::{Pipeline, VocabularyValues};
pub use records::{
    RecordDamage, RecordFidelity, RecordFile, RecordGroup, RecordOptions, RecordReport,
    RecordWriter, verify_records,
};
pub use sink::{FileFormat, FileSink};
pub use spec::{BadRows, Column, Dtype, Field, Output, Source, Spec, TimeUnit, VocabularySpec};
pub use trace::{Bound, Explanation, Stage, StageTime, Trace};
pub use vocabulary::KeptValues;
