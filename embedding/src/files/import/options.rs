//! What an import takes of a file.

use crate::files::FileFormat;

/// What an import takes of a file. Default: what an export wrote there, in the format that the
/// file's suffix stands for; of files that others made, a single matrix.
///
/// # Examples
/// See [`Table::import`](crate::Table::import).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// Default: by the suffix ([`FileFormat::of_path`]).
    pub format: Option<FileFormat>,
    /// The tensor or column of the keys (for npy the file). Default: `keys` or `key`. Where there
    /// is neither, row i is the row of key i if nothing else in the file may be keys; else
    /// they must be named, or `first_key` be given.
    pub keys: Option<String>,
    /// The tensor or column of the vectors (for npy the file). Default: `rows` or `vector`, or the
    /// only matrix.
    pub rows: Option<String>,
    /// By position: row i is the row of this key plus i, whatever else is in the file; rows of a
    /// further file go on from there. Default: `None`.
    pub first_key: Option<u64>,
    /// Whether the optimizer's state is taken too, and in a table with [tracking](crate::Tracking)
    /// each row's uses and last use, if the file has them. Default: yes.
    pub state: bool,
    /// Whether NaN and infinite values are taken, and values that the table's dtype makes
    /// infinite. Default: no, they are an error.
    pub non_finite: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            format: None,
            keys: None,
            rows: None,
            first_key: None,
            state: true,
            non_finite: false,
        }
    }
}
