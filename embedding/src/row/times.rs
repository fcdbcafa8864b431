//! The times that users set for their tables. The bank stores them.
//!
//! **Problem.** With [`Tracking::SetTime`](crate::Tracking::SetTime), a use of a row records the
//! time that the user set last. A process that has opened the bank and has not yet set a time would
//! record time 0. A later eviction by age would delete such rows as very old.
//!
//! **Approach.** A separate table of the bank has one row of 8 bytes for each table whose time was
//! set. The row's key is the number of that table, and its value is the largest time that was set.
//! Every checkpoint, copy and delta contains the row, a rollback restores it, and opening the bank
//! reads it. Lists of tables do not show the separate table.
//!
//! A new table may get the number of a dropped table, but must not get the dropped table's time. A
//! call that stores a time checks, under the lock `Times::keeping`, that the table exists. A drop
//! removes the table first, and then deletes its time under that lock. A new table deletes a time
//! that a failed drop has left.

use std::sync::OnceLock;

use embank_kv::locks::Mutex;
use embank_kv::{Access, Clock, Operation, Store, TableId};

use crate::error::Result;
use crate::row::descriptor::{counts_descriptor, is_counts_descriptor};

/// Name of the table of times. The parentheses distinguish it from the names of users' tables.
pub(crate) const NAME: &str = "(times of tables)";
const TIME_BYTES: u32 = 8;

/// Returns the table of times; `None` if the bank has none.
pub(crate) fn table_of_times(store: &Store) -> Option<TableId> {
    let is_it = |table: &embank_kv::TableInfo| {
        table.name == NAME && is_counts_descriptor(&table.descriptor)
    };
    store.tables().into_iter().find(is_it).map(|table| table.id)
}

/// Returns the largest time that was set for table `number`.
pub(crate) fn read_time(store: &Store, times: TableId, number: u16) -> Result<Option<u32>> {
    let mut time = ReadTime(None);
    store.execute(times, &[u64::from(number)], Clock::Keep, &mut time)?;
    Ok(time.0)
}

/// The times that a bank stores for its tables.
#[derive(Debug)]
pub(crate) struct Times {
    /// The table of times, once it exists.
    table: OnceLock<TableId>,
    /// Held while a time is stored or deleted. A thread that also needs the lock of the bank's
    /// tables must take that lock first.
    keeping: Mutex<()>,
}

impl Times {
    /// Opens the times of the bank in `store`.
    pub(crate) fn of(store: &Store) -> Self {
        let table = table_of_times(store).map(OnceLock::from).unwrap_or_default();
        Self { table, keeping: Mutex::new(()) }
    }

    /// Stores `time` for a table, unless a later time is already stored.
    ///
    /// # Errors
    /// `NoSuchTable` if the table was dropped.
    pub(crate) fn keep(&self, store: &Store, table: TableId, time: u32) -> Result<()> {
        // While this lock is held, the table's time is not deleted, and only one thread makes the
        // table of times. The lock of the bank's tables would not do. This call may wait for disk
        // space, and a thread that drops a table to free space needs the lock of the bank's tables.
        let _keeping = self.keeping.lock();
        store.rows(table)?;
        let times = self.table_or_new(store)?;
        let number = table.number();
        if read_time(store, times, number)?.is_some_and(|kept| kept >= time) {
            return Ok(());
        }
        store.execute(times, &[u64::from(number)], Clock::Keep, &mut KeepTime(time))?;
        Ok(())
    }

    /// Deletes the time of table `number`, which was dropped or has just been made. After a drop,
    /// no call can store a time for the dropped table. The caller must hold the lock of the bank's
    /// tables.
    pub(crate) fn forget(&self, store: &Store, number: u16) -> Result<()> {
        let _keeping = self.keeping.lock();
        if let Some(&times) = self.table.get() {
            store.delete(times, &[u64::from(number)])?;
        }
        Ok(())
    }

    fn table_or_new(&self, store: &Store) -> Result<TableId> {
        if let Some(&times) = self.table.get() {
            return Ok(times);
        }
        let made = store.create_table(NAME, TIME_BYTES, &counts_descriptor())?;
        Ok(*self.table.get_or_init(|| made))
    }
}

fn time_in(value: &[u8]) -> u32 {
    u32::from_le_bytes([value[0], value[1], value[2], value[3]])
}

#[derive(Debug)]
struct ReadTime(Option<u32>);

impl Operation for ReadTime {
    const ACCESS: Access = Access::Peek;

    fn read(&mut self, _: usize, value: &[u8]) {
        self.0 = Some(time_in(value));
    }
}

#[derive(Debug)]
struct KeepTime(u32);

impl Operation for KeepTime {
    const ACCESS: Access = Access::Update;
    // The write does not count as a change of a user's row.
    const CHANGES: bool = false;

    fn update(&mut self, _: usize, value: &mut [u8]) {
        let latest = self.0.max(time_in(value));
        value[..4].copy_from_slice(&latest.to_le_bytes());
    }

    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}
