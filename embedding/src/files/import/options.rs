//! The options of an import.

use crate::files::FileFormat;

/// The options of an import. Default: all that an export wrote, in the format of the file's suffix;
/// of another program's file, a single matrix.
///
/// # Examples
/// See [`Table::import`](crate::Table::import).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// Default: by the suffix ([`FileFormat::of_path`]).
    pub format: Option<FileFormat>,
    /// The tensor or column of the keys (for npy the file). Default: `keys` or `key`. Without such
    /// a name, row i is the row of key i, if no other part of the file can be keys. Otherwise the
    /// caller must name the keys or set `first_key`.
    pub keys: Option<String>,
    /// The tensor or column of the vectors (for npy the file). Default: `rows` or `vector`, or the
    /// only matrix.
    pub rows: Option<String>,
    /// Imports by position: row i is the row of this key plus i, whatever else is in the file. Rows
    /// of a further file continue from there. Default: `None`.
    pub first_key: Option<u64>,
    /// Also takes the optimizer's state, and in a table with [tracking](crate::Tracking) each row's
    /// uses and last use, if the file has them. Default: yes.
    pub state: bool,
    /// Takes NaN and infinite values, and values that the table's dtype makes infinite. Default:
    /// no, they are an error.
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
