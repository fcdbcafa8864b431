//! Data that all threads of a run share and that never changes during it.

use std::sync::Arc;

use crate::batch::MatrixInfo;
use crate::format::Format;
use crate::input::Chunks;
use crate::options::RunOptions;
use crate::plan::Plan;
use crate::vocabulary::RunNumbering;

/// The inputs, the plan and the options of a run.
pub(crate) struct Setup<'a, 'i> {
    /// The plan for rows with the fields in the pipeline's order. The plans of other headers have
    /// the same vocabularies, look-ups and outputs.
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) format: Format,
    pub(crate) options: &'a RunOptions,
    pub(crate) infos: &'a Arc<[MatrixInfo]>,
    /// One for each vocabulary.
    pub(crate) numberings: &'a [RunNumbering],
    /// True if the run only makes and counts vocabularies, without output.
    pub(crate) generates: bool,
    pub(crate) chunks: &'a Chunks<'i>,
}
