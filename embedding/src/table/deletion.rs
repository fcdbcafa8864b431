//! Deleting rows, also rows with leases on them.
//!
//! **Problem.** A deletion sets a row's clock to 0, so the leases on the row lose their counts. If
//! the row is made again before they end, its clock counts newer leases. An old lease that gives
//! its count back would take away a newer one's, and the staleness bound would let one Get too many
//! through. A lease that hung and expires is such an old one.
//!
//! **Approach.** A deletion strikes the row from the leases that hold it. From then on these leases
//! do not change that row's clock, and their gradients do not reach the new row. For that, deletion
//! and striking must be one step for every thread that moves clocks, which the turnstile provides.
//! The turnstile stops all Gets of the table, so only the rows with leases are deleted inside it,
//! and most deletions have none. The other rows are deleted before, on the condition that their
//! clock is 0 (`Store::delete_if`).

use std::collections::HashSet;

use crate::error::Result;
use crate::keys::UniqueKeys;
use crate::table::Table;

impl Table {
    /// Deletes rows and returns how many existed. A later Get starts from the initial values. The
    /// keys' counts of Gets before admission go too. Leases on the rows lose their counts and their
    /// gradients for them, also if a row is made again before such a lease ends. A
    /// [`put`](crate::Lease::put) through such a lease writes the row as a put without a lease
    /// does.
    ///
    /// # Errors
    /// A failure of the store; some of the rows are then deleted.
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
        // After a failure, strikes the rows that are gone: the clock of a row that is left counts
        // its leases.
        let gone = |key| deleted.is_ok() || matches!(self.outstanding(key), Ok(None | Some(0)));
        let gone: HashSet<u64> = keys.iter().copied().filter(|&key| gone(key)).collect();
        self.shared.leases.strike(&gone, &shut);
        deleted.map_err(|error| self.in_terms_of_the_table(error))
    }
}
