//! Reads that do not change staleness clocks.

use embank_kv::{Clock, check_batch};

use crate::error::{Error, Result};
use crate::table::Table;
use crate::table::operations::{FindRows, PeekRows};
use crate::table::parts::Divisible;

/// How a peek handles keys without a row. No choice replaces a missing row by zeros.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Missing, TableConfig};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(1))?;
/// let mut row = [7.0];
/// assert_eq!(table.peek(&[3], &mut row, Missing::Skip)?.missing, [0]);
/// assert_eq!(row, [7.0]);
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Fill in the row's initial values, which a Get would return.
    Initial,
    /// Fail with [`Error::MissingRow`].
    Error,
    /// Leave the key's row in the destination unchanged.
    Skip,
}

/// The result of a peek.
///
/// # Examples
/// See [`Missing`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekOutcome {
    /// Places in the batch of the keys that have no row, ascending.
    pub missing: Vec<u32>,
}

impl Table {
    /// Reads rows for evaluation. `rows` holds keys * dim values and receives one row per key. Does
    /// not change or wait for any staleness clock, and writes nothing.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]. [`Error::MissingRow`] if a row is missing and `missing` is
    /// [`Missing::Error`]. [`Error::KeyIsNoId`] if a key has no row and is not an id of the table's
    /// vocabulary, unless `missing` is [`Missing::Skip`]. Any failure of the store. After an error,
    /// the content of `rows` is unspecified.
    pub fn peek(&self, keys: &[u64], rows: &mut [f32], missing: Missing) -> Result<PeekOutcome> {
        self.check_shape("rows", keys.len(), rows.len())?;
        let layout = &self.shared.layout;
        let counters = &self.shared.counters;
        let mut peek = PeekRows { layout, rows, hints: None };
        let places = self.find(keys, &mut peek)?;
        counters.peeks.add(1);
        counters.peek_rows.add(keys.len() as u64);
        self.settle_missing(|place| keys[place as usize], rows, places, missing)
    }

    /// Handles the keys at `places`, which have no row. `missing` says how.
    pub(crate) fn settle_missing(
        &self,
        key_at: impl Fn(u32) -> u64,
        rows: &mut [f32],
        places: Vec<u32>,
        missing: Missing,
    ) -> Result<PeekOutcome> {
        let layout = &self.shared.layout;
        if missing != Missing::Skip && self.shared.ids().is_some() {
            let absent: Vec<u64> = places.iter().map(|&place| key_at(place)).collect();
            self.check_ids(&absent)?;
        }
        match (missing, places.first()) {
            (Missing::Initial, _) => {
                for &place in &places {
                    let row = &mut rows[place as usize * layout.dim..][..layout.dim];
                    layout.fill_initial(key_at(place), row);
                }
            }
            (Missing::Error, Some(&first)) => {
                return Err(Error::MissingRow {
                    table: self.name().to_owned(),
                    key: key_at(first),
                    count: places.len(),
                });
            }
            (Missing::Error, None) | (Missing::Skip, _) => {}
        }
        Ok(PeekOutcome { missing: places })
    }

    /// Writes the initial values of `keys` to `rows`, keys * dim values. A Get of a missing row
    /// returns these values. They are a pure function of the table's seed and name, the key and the
    /// column. No row is read.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::KeyIsNoId`].
    pub fn initial(&self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        self.check_shape("rows", keys.len(), rows.len())?;
        self.check_ids(keys)?;
        for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(self.dim())) {
            self.shared.layout.fill_initial(key, row);
        }
        Ok(())
    }

    /// Returns, for each key, true if the table has its row. Does not change staleness clocks.
    ///
    /// # Errors
    /// A failure of the store.
    pub fn contains(&self, keys: &[u64]) -> Result<Vec<bool>> {
        check_batch(keys.len())?;
        let mut present = vec![true; keys.len()];
        for place in self.find(keys, &mut FindRows)? {
            present[place as usize] = false;
        }
        Ok(present)
    }

    /// Executes an operation that only reads. Returns the places of missing rows, ascending.
    fn find<O: Divisible>(&self, keys: &[u64], operation: &mut O) -> Result<Vec<u32>> {
        self.check_numbering()?;
        let mut outcome = self.execute_in_parts(keys, Clock::Keep, operation)?;
        self.shared.counters.disk_reads.add(outcome.disk_reads);
        outcome.missing.sort_unstable();
        Ok(outcome.missing)
    }
}
