//! Scans: reads every row of a table, as a checkpoint holds it.

use std::fmt;

use crate::error::{Error, Result};
use crate::table::Table;

/// A row that a [`Scan`] returns.
///
/// # Examples
/// See [`Table::scan`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ScannedRow<'a> {
    /// The row's key.
    pub key: u64,
    /// The row's vector, dim values.
    pub vector: &'a [f32],
}

/// Iterates over the rows of a table as the newest checkpoint held them when [`Table::scan`] was
/// called. Each row comes once, in no particular order. Changes of the table during the scan have
/// no effect on the rows that it returns. The scan keeps the bank open.
///
/// # Examples
/// See [`Table::scan`].
pub struct Scan {
    // Declared before `table` so that it is dropped first: the scan reads the bank that `table`
    // keeps open.
    rows: embank_kv::Scan<'static>,
    table: Table,
    remaining: u64,
    /// Scratch memory for rows that need conversion.
    room: Vec<f32>,
}

impl fmt::Debug for Scan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Scan")
            .field("table", &self.table.name())
            .field("checkpoint", &self.checkpoint())
            .field("remaining", &self.remaining)
            .finish()
    }
}

impl Scan {
    /// Number of the scanned checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        self.rows.checkpoint()
    }

    /// Total number of rows that the scan returns. An upper bound if
    /// [`has_exact_rows`](Self::has_exact_rows) is false.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows.rows()
    }

    /// False if the checkpoint does not know the number of rows, because of
    /// [blind puts](Table::put_blind).
    #[must_use]
    pub fn has_exact_rows(&self) -> bool {
        self.rows.has_exact_rows()
    }

    /// Number of rows that the scan has not returned yet; an upper bound if
    /// [`has_exact_rows`](Self::has_exact_rows) is false. 0 after the last row.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the next row; `None` after the last row.
    ///
    /// # Errors
    /// A part of the checkpoint can't be read, or its checksum is wrong. All rows returned before
    /// are correct.
    pub fn next_row(&mut self) -> Result<Option<ScannedRow<'_>>> {
        let Some(row) = self.rows.next_row()? else {
            self.remaining = 0;
            return Ok(None);
        };
        self.remaining = self.remaining.saturating_sub(1);
        let vector = self.table.shared.layout().vector(row.value, &mut self.room);
        Ok(Some(ScannedRow { key: row.key, vector }))
    }

    /// Returns the next row in its stored encoding.
    pub(crate) fn next_value(&mut self) -> Result<Option<(u64, &[u8])>> {
        let Some(row) = self.rows.next_row()? else {
            self.remaining = 0;
            return Ok(None);
        };
        self.remaining = self.remaining.saturating_sub(1);
        Ok(Some((row.key, row.value)))
    }

    /// Fills `keys` and `rows` with the next rows and returns their number. `rows` holds keys * dim
    /// values. The number is less than `keys.len()` only at the end, and 0 after the last row.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], and the errors of [`next_row`](Self::next_row).
    pub fn next_batch(&mut self, keys: &mut [u64], rows: &mut [f32]) -> Result<usize> {
        self.table.check_shape("rows", keys.len(), rows.len())?;
        let dim = self.table.dim();
        for (filled, key) in keys.iter_mut().enumerate() {
            let Some(row) = self.next_row()? else { return Ok(filled) };
            *key = row.key;
            rows[filled * dim..][..dim].copy_from_slice(row.vector);
        }
        Ok(keys.len())
    }
}

impl Table {
    /// Scans the table as the newest checkpoint holds it. Training may continue meanwhile. A scan
    /// uses constant memory and reads sequentially. It does not return rows that were made after
    /// the checkpoint, and ignores staleness clocks. It reads the checkpoint's whole log, including
    /// the records of other tables. While a scan exists, the bank frees no disk space that the
    /// checkpoint needs, the scan takes two pages of the memory budget, and the bank stays open.
    ///
    /// # Errors
    /// [`Error::TableDropped`] if the table was dropped.
    /// [`NoSuchTable`](crate::StoreError::NoSuchTable) if the table was made after the newest
    /// checkpoint, and [`NoSuchCheckpoint`](crate::StoreError::NoSuchCheckpoint) if the bank has no
    /// checkpoint: take one first. [`BudgetTooSmall`](crate::StoreError::BudgetTooSmall). A
    /// checkpoint that can't be read.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
    /// let table = bank.table("user", TableConfig::new(2))?;
    /// table.put(&[1, 2, 3], &[0.5; 6])?;
    /// bank.checkpoint(b"")?;
    ///
    /// let mut scan = table.scan()?;
    /// let (mut keys, mut rows) = ([0; 1000], [0.0; 2000]);
    /// let mut seen = 0;
    /// while let count @ 1.. = scan.next_batch(&mut keys, &mut rows)? {
    ///     assert!(rows[..count * 2].iter().all(|&value| value == 0.5));
    ///     seen += count;
    /// }
    /// assert_eq!(seen, 3);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn scan(&self) -> Result<Scan> {
        // Called for its error: it fails if the table was dropped. The error of the store's scan
        // does not tell a dropped table from a table that is newer than the checkpoint.
        self.contains(&[])?;
        let rows = self.context().store.scan_shared(self.shared.id);
        let rows =
            rows.map_err(|error| Error::from(self.context().budget.in_terms_of_the_bank(error)))?;
        Ok(Scan { remaining: rows.rows(), rows, table: self.clone(), room: Vec::new() })
    }
}
