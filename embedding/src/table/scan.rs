//! Scans: every row of a table, as a checkpoint holds it.

use std::fmt;

use crate::error::{Error, Result};
use crate::table::Table;

/// A row that a [`Scan`] yields.
///
/// # Examples
/// See [`Table::scan`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ScannedRow<'a> {
    /// Its key.
    pub key: u64,
    /// Its vector, dim values.
    pub vector: &'a [f32],
}

/// The rows of a table as the newest checkpoint held them when [`Table::scan`] was called: each row
/// once, in no particular order, whatever happens to the table during the scan. The scan keeps the
/// bank open.
///
/// # Examples
/// See [`Table::scan`].
pub struct Scan {
    // Before the table, whose bank the scan reads.
    rows: embank_kv::Scan<'static>,
    table: Table,
    remaining: u64,
    /// Memory for rows that have to be converted.
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
    /// The checkpoint's number.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        self.rows.checkpoint()
    }

    /// How many rows the scan yields in all.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows.rows()
    }

    /// How many rows are still to come.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// A part of the checkpoint can't be read or does not verify; the rows before it were good.
    pub fn next_row(&mut self) -> Result<Option<ScannedRow<'_>>> {
        let Some(row) = self.rows.next_row()? else { return Ok(None) };
        self.remaining = self.remaining.saturating_sub(1);
        let vector = self.table.shared.layout().vector(row.value, &mut self.room);
        Ok(Some(ScannedRow { key: row.key, vector }))
    }

    /// The next row as the store keeps it.
    pub(crate) fn next_value(&mut self) -> Result<Option<(u64, &[u8])>> {
        let Some(row) = self.rows.next_row()? else { return Ok(None) };
        self.remaining = self.remaining.saturating_sub(1);
        Ok(Some((row.key, row.value)))
    }

    /// Fills `keys` and `rows`, which holds keys * dim values, with the next rows, and returns how
    /// many rows these are: fewer than fit only at the end, 0 after the last row.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; as [`next_row`](Self::next_row).
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
    /// Goes through the table as the newest checkpoint holds it, in constant memory and at the
    /// speed of sequential reads, while training goes on. Rows that came after the checkpoint
    /// are not in it; clocks play no part. It reads the checkpoint's log from end to end,
    /// whatever other tables lie in it. While a scan lives, space on disk is not given back,
    /// two pages of the memory budget are lent to it, and the bank stays open.
    ///
    /// # Errors
    /// [`Error::TableDropped`]; [`NoSuchTable`](crate::Error::NoSuchTable) if the table was made
    /// after the checkpoint, and [`NoSuchCheckpoint`](crate::Error::NoSuchCheckpoint) if there is
    /// none: take one first; [`BudgetTooSmall`](crate::Error::BudgetTooSmall); a checkpoint
    /// that can't be read.
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
        // Looked at first: the store's refusal of a number doesn't tell a dropped table from a new
        // one.
        self.contains(&[])?;
        let rows = self.context().store.scan_shared(self.shared.id);
        let rows =
            rows.map_err(|error| Error::from(self.context().budget.in_terms_of_the_bank(error)))?;
        Ok(Scan { remaining: rows.rows(), rows, table: self.clone(), room: Vec::new() })
    }
}
