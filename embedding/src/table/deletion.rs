//! Deletes rows, including rows that leases hold.
//!
//! **Problem.** Deleting a row sets its clock (its number of outstanding Gets) to 0, so leases on
//! the row lose their counts. If the row is made again before those leases end, its clock counts
//! newer leases. If an old lease then gave its count back, it would remove a newer lease's count,
//! and the staleness bound would let one Get too many through. For example, the old lease may
//! belong to a thread that hangs, and expire later.
//!
//! **Approach.** A deletion strikes the row from all leases that hold it. A lease no longer changes
//! the clock of a struck row, and no longer applies gradients to it. No thread that moves clocks
//! may see a row that is deleted but not yet struck. The turnstile ensures that: while it is shut,
//! all Gets of the table wait. A deletion shuts the turnstile only to delete rows with leases, and
//! most deletions have no such rows. Before it shuts the turnstile, it deletes all other rows, on
//! condition that their clock is 0 (`Store::delete_if`).

use std::collections::HashSet;

use crate::error::Result;
use crate::keys::UniqueKeys;
use crate::table::Table;

impl Table {
    /// Deletes rows and returns the number that existed. A later Get of a deleted row starts from
    /// the initial values. The call also deletes the counts of Gets that admission keeps for these
    /// keys. A lease on a deleted row no longer counts in the row's clock, and its gradient for the
    /// row is dropped. This holds even if the row is made again before the lease ends. A
    /// [`put`](crate::Lease::put) through such a lease inserts the row, as a put without a lease
    /// does.
    ///
    /// # Errors
    /// A failure of the store, after which some of the rows may be deleted.
    pub fn delete(&self, keys: &[u64]) -> Result<u64> {
        self.check_numbering()?;
        let unique = UniqueKeys::new(keys)?;
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
        // After a failure, strikes only rows that are gone or have clock 0. If another row still
        // exists, its clock still counts the row's leases.
        let gone = |key| deleted.is_ok() || matches!(self.outstanding(key), Ok(None | Some(0)));
        let gone: HashSet<u64> = keys.iter().copied().filter(|&key| gone(key)).collect();
        self.shared.leases.strike(&gone, &shut);
        deleted.map_err(|error| self.in_terms_of_the_table(error))
    }
}
