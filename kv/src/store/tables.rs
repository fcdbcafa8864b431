//! Makes, drops and lists the tables of a store.

use super::Store;
use crate::engine::tables::{NewTable, TableInfo};
use crate::error::{Error, Result};
use crate::operation::Width;
use crate::record::address::TableId;
use crate::sync::{Planted, planted, thread};

impl Store {
    /// Makes a table whose values have `value_bytes` bytes each. Stores `descriptor` with the
    /// table; only the caller interprets these bytes. The table is durable after the next
    /// checkpoint.
    ///
    /// # Errors
    /// - `TableMismatch` if another table has the name.
    /// - `TooLong` if a value of this length fits no page, or if the descriptor is longer than 2
    ///   KiB.
    /// - `Exhausted` if all 65,535 table numbers are taken. A dropped table keeps its number while
    ///   the log or a kept checkpoint still has its records.
    pub fn create_table(&self, name: &str, value_bytes: u32, descriptor: &[u8]) -> Result<TableId> {
        let table = NewTable { name, width: Width::Fixed, value_bytes, descriptor };
        self.create(&table)
    }

    /// Makes several tables. Every checkpoint has all of them or none. After an error, none exists.
    /// The order of the ids is that of `tables`.
    ///
    /// # Errors
    /// The errors of [`create_table`](Self::create_table), and `InvalidArgument` if two of
    /// `tables` have the same name.
    pub fn create_tables(&self, tables: &[NewTable<'_>]) -> Result<Vec<TableId>> {
        let core = self.core();
        if !tables.is_empty()
            && let Err(error @ Error::ReadOnly { .. }) = core.log.check_poison()
        {
            return Err(error);
        }
        let mut settled = false;
        // The loop ends: the second iteration returns.
        loop {
            let mut locked = core.tables.lock();
            let (begin, checkpoints) = (core.rows_begin(), core.space.checkpoints_on_disk());
            if let Some(ids) = locked.make(tables, begin, &checkpoints)? {
                return Ok(ids);
            }
            drop(locked);
            if std::mem::replace(&mut settled, true) {
                return Err(core.tables.no_number_left());
            }
            core.tables.settle_dropped(|| core.rows_end());
        }
    }

    /// Makes a table whose values may have any length up to `value_bytes_max` bytes. A record has a
    /// header of 32 bytes and the value, padded to a multiple of 8 bytes. The table takes
    /// operations whose [`Operation::WIDTH`](crate::Operation::WIDTH) is `Variable`.
    ///
    /// The store changes a value in place if its padded length stays the same. Otherwise it appends
    /// a new record at the log's tail. The old record takes space until compaction has passed it.
    ///
    /// ```
    /// use embank_kv::{Access, Clock, Operation, Store, StoreOptions, Width};
    ///
    /// struct PutWords<'a>(&'a [&'a str]);
    /// impl Operation for PutWords<'_> {
    ///     const ACCESS: Access = Access::Put;
    ///     const WIDTH: Width = Width::Variable;
    ///     fn value_bytes(&mut self, i: usize, _old: Option<&[u8]>) -> usize {
    ///         self.0[i].len()
    ///     }
    ///     fn update(&mut self, i: usize, value: &mut [u8]) {
    ///         value.copy_from_slice(self.0[i].as_bytes());
    ///     }
    ///     fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
    ///         self.update(i, value);
    ///         true
    ///     }
    /// }
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let store = Store::open(dir.path(), &StoreOptions::default())?;
    /// let words = store.create_variable_table("words", 1024, b"")?;
    /// store.execute(words, &[0, 1], Clock::Keep, &mut PutWords(&["in", "order"]))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`create_table`](Self::create_table). `TooLong` if a value of
    /// `value_bytes_max` bytes fits no page.
    pub fn create_variable_table(
        &self,
        name: &str,
        value_bytes_max: u32,
        descriptor: &[u8],
    ) -> Result<TableId> {
        let width = Width::Variable;
        self.create(&NewTable { name, width, value_bytes: value_bytes_max, descriptor })
    }

    fn create(&self, table: &NewTable<'_>) -> Result<TableId> {
        Ok(self.create_tables(std::slice::from_ref(table))?[0])
    }

    /// True if this table's number was not given to another table: the table exists, or it was
    /// dropped and its number is still free.
    #[must_use]
    pub fn has_its_number(&self, table: TableId) -> bool {
        self.core().tables.has_its_number(table)
    }

    /// Returns the hash of a key, whose bits decide which rows share an entry of the index. Only
    /// for tests.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn key_hash(&self, table: TableId, key: u64) -> u64 {
        self.core().key_hash.of(table.number, key)
    }

    /// Limits the number of tables of the bank to `max`. Only for tests of a bank that has used all
    /// table numbers.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn limit_table_numbers(&self, max: u16) {
        self.core().tables.limit_numbers(max);
    }

    /// Drops a table. Later operations on the table, and batches that wait for one of its rows,
    /// fail with `NoSuchTable`. The drop is durable after the next checkpoint. A crash before that
    /// brings back the table as the last checkpoint has it. Compaction frees the table's space.
    ///
    /// A new table may have the same name at once. A new table gets the dropped table's number only
    /// if the bank has no unused number left. In addition, the log and the kept checkpoints must
    /// have no record of the dropped table any more. The id of the dropped table stays invalid.
    ///
    /// # Errors
    /// `NoSuchTable` if the table does not exist.
    pub fn drop_table(&self, table: TableId) -> Result<()> {
        self.drop_tables(&[table])
    }

    /// Drops several tables as [`drop_table`](Self::drop_table) does. Every checkpoint has all of
    /// them or none. A table that is given twice is dropped once.
    ///
    /// # Errors
    /// `NoSuchTable` if one of the tables does not exist. Then none is dropped.
    pub fn drop_tables(&self, tables: &[TableId]) -> Result<()> {
        if tables.is_empty() {
            return Ok(());
        }
        let core = self.core();
        core.log.check_poison()?;
        let mut locked = core.tables.lock();
        let dropped = locked.drop_tables(tables)?;
        let late = planted(Planted::DropCountedLate);
        let locked = (!late).then_some(locked);
        if late {
            thread::yield_now();
        }
        // Counted under the lock. A checkpoint that has taken the lock and finds a table gone must
        // also find the drop counted (`Store::checkpoint_id`).
        core.counters.tables_dropped.add(dropped);
        drop(locked);
        self.waiters.wake_all();
        core.space.signal().raise();
        Ok(())
    }

    /// Returns the number of rows of a table. The number is exact while no batch of the table runs.
    /// In a read-only store it is the number of rows in the checkpoint.
    ///
    /// ```
    /// use embank_kv::{Access, Clock, Operation, Store, StoreOptions};
    ///
    /// struct PutZeros;
    /// impl Operation for PutZeros {
    ///     const ACCESS: Access = Access::Put;
    ///     fn insert(&mut self, _: usize, _: &mut [u8]) -> bool {
    ///         true
    ///     }
    /// }
    ///
    /// # fn main() -> embank_kv::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let store = Store::open(dir.path(), &StoreOptions::default())?;
    /// let table = store.create_table("zeros", 8, b"")?;
    /// store.execute(table, &[1, 2, 3], Clock::Keep, &mut PutZeros)?;
    /// store.delete(table, &[2, 4])?;
    /// assert_eq!(store.rows(table)?, 2);
    /// store.drop_table(table)?;
    /// assert!(store.rows(table).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// After [blind puts](crate::Operation::BLIND) in a bank with two tiers, the number may lack
    /// new rows that these have written, and may have rows that were deleted after that. Merges of
    /// the cold tier correct it in time. [`compact`](Self::compact) makes it exact, with the
    /// conditions and the cost that it names.
    ///
    /// # Errors
    /// `NoSuchTable` if the table does not exist.
    pub fn rows(&self, table: TableId) -> Result<u64> {
        self.core().tables.rows(table)
    }

    /// Returns all tables that were not dropped, in the order of their numbers. This is the order
    /// of creation, unless a table got the number of a dropped table.
    #[must_use]
    pub fn tables(&self) -> Vec<TableInfo> {
        self.core().tables.infos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::StoreOptions;

    fn new(name: &str) -> NewTable<'_> {
        NewTable { name, width: Width::Fixed, value_bytes: 8, descriptor: b"" }
    }

    fn names(store: &Store) -> Vec<String> {
        store.tables().into_iter().map(|table| table.name).collect()
    }

    /// Regression test: a call that was refused for its table counted its keys.
    #[test]
    fn a_call_on_a_table_that_is_gone_counts_nothing() {
        struct Release;
        impl crate::Operation for Release {
            const ACCESS: crate::Access = crate::Access::Touch;
        }
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let table = store.create_table("a", 8, b"").unwrap();
        store.drop_table(table).unwrap();
        let before = store.stats();
        for keys in [&[1][..], &[1, 2, 3]] {
            let released = store.execute(table, keys, crate::Clock::Release, &mut Release);
            assert!(matches!(released, Err(Error::NoSuchTable(_))), "{released:?}");
            let deleted = store.delete(table, keys);
            assert!(matches!(deleted, Err(Error::NoSuchTable(_))), "{deleted:?}");
        }
        let after = store.stats();
        assert_eq!(after.batches, before.batches);
        assert_eq!(after.update_keys, before.update_keys);
        assert_eq!(after.delete_keys, before.delete_keys);
    }

    #[test]
    fn several_tables_are_made_and_dropped_together_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let made = store.create_tables(&[new("a"), new("b")]).unwrap();
        let taken = store.create_tables(&[new("c"), new("b")]);
        assert!(matches!(taken, Err(Error::TableMismatch { .. })), "{taken:?}");
        let twice = store.create_tables(&[new("c"), new("c")]);
        assert!(matches!(twice, Err(Error::InvalidArgument(_))), "{twice:?}");
        let too_long =
            store.create_tables(&[new("c"), NewTable { value_bytes: u32::MAX, ..new("d") }]);
        assert!(matches!(too_long, Err(Error::TooLong { .. })), "{too_long:?}");
        assert_eq!(names(&store), ["a", "b"]);
        // One number is free, and two are needed.
        store.limit_table_numbers(3);
        let none_left = store.create_tables(&[new("c"), new("d")]);
        assert!(matches!(none_left, Err(Error::Exhausted(_))), "{none_left:?}");
        assert_eq!(names(&store), ["a", "b"]);
        store.drop_tables(&[made[0]]).unwrap();
        let gone = store.drop_tables(&[made[1], made[0]]);
        assert!(matches!(gone, Err(Error::NoSuchTable(_))), "{gone:?}");
        assert_eq!(names(&store), ["b"]);
        assert_eq!(store.rows(made[1]).unwrap(), 0);
        store.checkpoint(b"").unwrap();
        drop(store);
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        assert_eq!(names(&store), ["b"]);
        assert!(store.create_table("b", 8, b"").is_err());
        store.create_tables(&[new("a"), new("c")]).unwrap();
    }

    /// Regression test: a table that was given twice counted as two dropped tables, and its second
    /// drop made the name of the table without a name free.
    #[test]
    fn a_table_that_is_given_twice_is_dropped_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let made = store.create_tables(&[new(""), new("a")]).unwrap();
        store.drop_tables(&[made[1], made[1]]).unwrap();
        assert_eq!(store.core().counters.tables_dropped.get(), 1);
        assert_eq!(names(&store), [""]);
        assert!(store.create_table("", 8, b"").is_err(), "the name is taken");
    }
}
