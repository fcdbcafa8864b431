//! Opens a file of rows according to its format.

use crate::error::Result;
use crate::files::batch::{RowFile, Wanted};
use crate::files::import::options::ImportOptions;
use crate::files::inputs::Source;
use crate::files::selection::Selection;
use crate::files::settings::HeldValues;
use crate::files::{FileFormat, npy_set, safetensors, settings};
use crate::row::config::TableConfig;
use crate::row::tracking::Tracking;

/// An opened file, and what it stores about the exported table.
pub(super) struct Contents {
    pub(super) file: Box<dyn RowFile>,
    pub(super) held: Option<TableConfig>,
    pub(super) values: Option<HeldValues>,
}

/// Opens a file for an import. `is_tracked` is true if the importing table tracks uses.
pub(super) fn open(
    source: &Source,
    options: &ImportOptions,
    first_key: Option<u64>,
    is_tracked: bool,
) -> Result<Contents> {
    let path = &source.path;
    let keys = options.keys.as_deref();
    let rows = options.rows.as_deref();
    let state = options.state;
    let uses = options.state && is_tracked;
    // `last_used` and `uses` are read only if an exported table with tracking wrote them. In other
    // files, columns of these names may mean something else.
    let select = |held: Option<&TableConfig>| {
        let has_uses = held.is_some_and(|held| held.tracking != Tracking::None);
        Selection { keys, rows, first_key, wanted: Wanted { state, uses: uses && has_uses } }
    };
    match source.format {
        FileFormat::Safetensors => {
            let contents = safetensors::read(path)?;
            let held = settings::from_pairs(path, &contents.pairs)?;
            let values = settings::values_of(path, &contents.pairs)?;
            let file = contents.rows(path, select(held.as_ref()))?;
            Ok(Contents { file: Box::new(file), held, values })
        }
        FileFormat::Npy => {
            // The list of an npy set names the set's files of uses. `npy_set::read` therefore
            // ignores other files that have such names.
            let selection = Selection { keys, rows, first_key, wanted: Wanted { state, uses } };
            let (file, pairs) = npy_set::read(path, selection)?;
            let held = settings::from_pairs(path, &pairs)?;
            let values = settings::values_of(path, &pairs)?;
            Ok(Contents { file: Box::new(file), held, values })
        }
        #[cfg(feature = "parquet")]
        FileFormat::Parquet => {
            use crate::files::parquet;
            let pairs = parquet::read_pairs(path)?;
            let (held, values) =
                (settings::from_pairs(path, &pairs)?, settings::values_of(path, &pairs)?);
            let file = parquet::read(path, select(held.as_ref()))?;
            Ok(Contents { file: Box::new(file), held, values })
        }
        #[cfg(not(feature = "parquet"))]
        FileFormat::Parquet => Err(crate::files::no_parquet()),
    }
}
