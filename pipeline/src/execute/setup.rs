//! What is the same for all threads of a run, from its beginning to its end.

use std::sync::Arc;

use crate::batch::MatrixInfo;
use crate::format::Format;
use crate::input::Chunks;
use crate::options::RunOptions;
use crate::plan::Plan;
use crate::vocabulary::RunNumbering;

/// What a run is over, and how.
pub(crate) struct Setup<'a, 'i> {
    /// The plan of rows that have the fields in the pipeline's order. Vocabularies, look-ups and
    /// outputs are those of the plans of all headers.
    pub(crate) plan: &'a Arc<Plan>,
    /// Of the inputs.
    pub(crate) format: Format,
    pub(crate) options: &'a RunOptions,
    pub(crate) infos: &'a Arc<[MatrixInfo]>,
    /// By vocabulary.
    pub(crate) numberings: &'a [RunNumbering],
    /// Whether vocabularies are made and counted, and nothing comes out.
    pub(crate) generates: bool,
    pub(crate) chunks: &'a Chunks<'i>,
}
