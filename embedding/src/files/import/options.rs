//! The options of an import.

use crate::files::FileFormat;

/// Options of an import. By default, an import takes all that an export wrote. From another
/// program's file it takes the single matrix. The file's suffix gives the format.
///
/// # Examples
/// See [`Table::import`](crate::Table::import).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportOptions {
    /// File format. Default: the file's suffix gives it, see [`FileFormat::of_path`].
    pub format: Option<FileFormat>,
    /// Name of the tensor, column or (for npy) file with the keys. Default: `keys` or `key`. If
    /// neither exists and no other part of the file can be keys, row i is the row of key i. If
    /// another part can be keys, the caller must name the keys or set `first_key`.
    pub keys: Option<String>,
    /// Name of the tensor, column or (for npy) file with the vectors. Default: `rows` or `vector`,
    /// or the only matrix.
    pub rows: Option<String>,
    /// Imports by position: row i is the row of key `first_key` + i, and keys in the file are
    /// ignored. With several files, the numbering continues from file to file. Default: `None`.
    pub first_key: Option<u64>,
    /// Also takes the optimizer's state, if the file has it. In a table with
    /// [tracking](crate::Tracking), also takes each row's use count and time of last use. Default:
    /// yes.
    pub state: bool,
    /// Accepts NaN and infinite values, values that become infinite in the table's dtype, and
    /// negative sums of squares in the optimizer's state. Default: no; they are an error.
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
