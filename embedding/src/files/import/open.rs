//! Opens files of rows by their formats.

use crate::error::Result;
use crate::files::batch::{RowFile, Wanted};
use crate::files::import::options::ImportOptions;
use crate::files::inputs::Source;
use crate::files::selection::Selection;
use crate::files::settings::HeldValues;
use crate::files::{FileFormat, npy_set, safetensors, settings};
use crate::row::config::TableConfig;
use crate::row::tracking::Tracking;

/// A file's rows, with its settings of the exported table.
pub(super) struct Contents {
    pub(super) file: Box<dyn RowFile>,
    pub(super) held: Option<TableConfig>,
    pub(super) values: Option<HeldValues>,
}

/// `is_tracked`: true if the importing table tracks uses.
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
    // In a file of another program, or of a table without tracking, columns of these names mean
    // something else.
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
            // The set's list says which files belong to the set.
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
