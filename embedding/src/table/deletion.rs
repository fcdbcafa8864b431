//! Deleting rows, those with leases on them too.
//!
//! **Problem.** A deletion sets a row's clock to 0, so the leases on it lose their counts. When the row is made anew
//! before they end, its clock counts others' leases. To give a count back for an old one would take away a new one's,
//! and the staleness bound would let one Get too many through. A lease that hung and expires is just such an old one.
//!
//! **Approach.** A deletion strikes the row from the leases that are on it: whatever becomes of them, they have
//! nothing more to do with that row's clock, nor does a gradient of theirs reach the new row. For that, deletion and
//! striking must be one step for everybody who moves clocks, which is what the turnstile is for. It stops all Gets of
//! the table, so only rows with leases are deleted in there, mostly none: the others go before, on the condition that
//! their clock is at 0 (`Store::delete_if`).

use std::collections::HashSet;

use crate::error::Result;
use crate::keys::UniqueKeys;
use crate::table::Table;

impl Table {
    /// Deletes rows and returns how many there were. A later Get starts from the initial values again.
    /// Their counts of Gets before admission go, too. Leases on the rows lose their counts and their gradients for them, also where a row is made anew before such a
    /// lease ends; a [`put`](crate::Lease::put) through one writes the row as a put without a lease does.
    ///
    /// # Errors
    /// A failure of the store, after which some of the rows are gone.
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
        // After a failure those that are gone: the clock of one that is left would be up for its leases.
        let gone = |key| deleted.is_ok() || matches!(self.outstanding(key), Ok(None | Some(0)));
        let gone: HashSet<u64> = keys.iter().copied().filter(|&key| gone(key)).collect();
        self.shared.leases.strike(&gone, &shut);
        deleted.map_err(|error| self.in_terms_of_the_table(error))
    }
}
