//! Deletes rows, including rows that leases hold.
//!
//! **Problem.** Deleting a row sets its clock (its number of outstanding Gets) to 0, so leases on
//! the row lose their counts. If the row is made again before those leases end, its clock counts
//! newer leases. An old lease that then gave its count back would remove a newer lease's count. The
//! staleness bound would let one Get too many through. A lease that hangs and later expires is an
//! example.
//!
//! **Approach.** A deletion strikes the row from all leases that hold it. A lease no longer changes
//! the clock of a struck row, and no longer applies gradients to it. For every thread that moves
//! clocks, deletion and striking must look like one step. The turnstile ensures that: it stops all
//! Gets of the table. Only rows with leases are deleted inside the turnstile, and most deletions
//! have none. All other rows are deleted first, on condition that their clock is 0
//! (`Store::delete_if`).

use std::collections::HashSet;

use crate::error::Result;
use crate::keys::UniqueKeys;
use crate::table::Table;

impl Table {
    /// Deletes rows and returns the number that existed. A later Get starts from the initial
    /// values. The keys' counts of Gets before admission are deleted too. Leases on the rows lose
    /// their counts, and drop their gradients for these rows. This holds even if a row is made
    /// again before the lease ends. A [`put`](crate::Lease::put) through such a lease writes the
    /// row, as a put without a lease would.
    ///
    /// # Errors
    /// A failure of the store, after which some of the rows may be deleted.
    pub fn delete(&self, keys: &[u64]) -> Result<u64> {
        self.check_numbering()?;
        let unique = UniqueKeys::new(keys);
        let keys = unique.keys();
        let store = &self.context().store;
        let mut leased = vec![false; keys.len()];
        let deleted = store.delete_if(self.shared.id, keys, |i, _, outstanding| {
            leased[i] = outstanding != 0;
            !leased[i]
        });
        let mut deleted = deleted.map_err(|error| self.in_terms_of_the_table(error))?;
        let leased = keys.iter().zip(&leased).filter(|(_, leased)| **leased);
        let leased: Vec<u64> = leased.map(|(&key, _)| key).collect();
        if !leased.is_empty() {
            deleted += self.delete_leased(&leased)?;
        }
        self.shared.counters.deleted_rows.add(deleted);
        self.delete_counts(keys)?;
        Ok(deleted)
    }

    fn delete_leased(&self, keys: &[u64]) -> Result<u64> {
        let shut = self.shared.leases.shut();
        let deleted = self.context().store.delete(self.shared.id, keys);
        // After a failure, only the deleted rows are struck. The clock of a row that still exists
        // still counts its leases.
        let gone = |key| deleted.is_ok() || matches!(self.outstanding(key), Ok(None | Some(0)));
        let gone: HashSet<u64> = keys.iter().copied().filter(|&key| gone(key)).collect();
        self.shared.leases.strike(&gone, &shut);
        deleted.map_err(|error| self.in_terms_of_the_table(error))
    }
}
