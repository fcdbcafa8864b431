//! Makes a table with the settings that an export wrote into a file.

use std::path::Path;

use crate::bank::Bank;
use crate::error::Result;
use crate::files::import::exported_config;
use crate::files::{FileFormat, file_mismatch};
use crate::row::config::TableConfig;
use crate::table::Table;

impl Bank {
    /// Opens the table `name`, or creates it, with the settings that are stored in an exported
    /// file. The settings are the exported table's dim, dtypes, optimizer, initializer, seed,
    /// admission, tracking and vocabulary. The call imports no rows; [`Table::import`] does that.
    ///
    /// If `format` is `None`, the file's suffix gives the format. `change` is called with the
    /// settings before the table is opened or created. For example, it can set `vocabulary` to
    /// `None` if this bank does not have the exported table's vocabulary. It can also choose
    /// another staleness bound.
    ///
    /// # Errors
    /// [`FileMismatch`](crate::Error::FileMismatch) if the file stores no settings: another program
    /// wrote it, or it is a single dense npy matrix. Also the errors of [`exported_config`] and
    /// [`Bank::table`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, Dtype, ExportOptions, ImportOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(2).dtype(Dtype::F16))?;
    /// table.put(&[7], &[0.5, 1.5])?;
    /// bank.checkpoint(b"")?;
    /// let file = dir.path().join("user.safetensors");
    /// table.export(&file, &ExportOptions::default())?;
    ///
    /// let copy = bank.table_as_exported("copy", &file, None, |_| ())?;
    /// assert_eq!((copy.dim(), copy.config().dtype), (2, Dtype::F16));
    /// assert_eq!(copy.import(&file, &ImportOptions::default())?.rows, 1);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn table_as_exported(
        &self,
        name: &str,
        path: impl AsRef<Path>,
        format: Option<FileFormat>,
        change: impl FnOnce(&mut TableConfig),
    ) -> Result<Table> {
        let path = path.as_ref();
        let Some(mut config) = exported_config(path, format)? else {
            let what = "it does not tell the settings of a table; make the table first, with the dim of the file's vectors";
            return Err(file_mismatch(path, what));
        };
        change(&mut config);
        self.table(name, config)
    }
}
