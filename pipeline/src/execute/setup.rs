//! Data that all threads of a run share and that never changes during the run.

use std::sync::Arc;

use super::kept::KeptRows;
use crate::arrays::{ArrayCache, Decoder, Root};
use crate::batch::MatrixInfo;
use crate::format::Format;
use crate::input::Chunks;
use crate::options::RunOptions;
use crate::plan::Plan;
use crate::vocabulary::RunNumbering;

/// The inputs, the plan and the options of a run.
pub(crate) struct Setup<'a, 'i> {
    /// The plan for rows whose fields are in the pipeline's order. An input with another header has
    /// its own plan, whose vocabularies, look-ups and outputs are those of this plan.
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) format: Format,
    pub(crate) options: &'a RunOptions,
    /// The folder of the files that fields name, if there is such a field.
    pub(crate) root: Option<&'a Root>,
    /// The decoder of each column of arrays.
    pub(crate) decoders: &'a [Arc<dyn Decoder>],
    /// The arrays of earlier runs, if the pipeline keeps some.
    pub(crate) cache: Option<&'a ArrayCache>,
    pub(crate) infos: &'a Arc<[MatrixInfo]>,
    /// How this run sees each vocabulary.
    pub(crate) numberings: &'a [RunNumbering],
    /// True if the run only gives ids and counts values, and makes no output.
    pub(crate) generates: bool,
    pub(crate) chunks: &'a Chunks<'i>,
    /// The rows that the run keeps. `None` to keep all.
    pub(crate) kept: Option<&'a KeptRows>,
}
