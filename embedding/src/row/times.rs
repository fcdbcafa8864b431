//! The times of tables whose users set them, kept in the bank.
//!
//! **Problem.** With [`Tracking::SetTime`](crate::Tracking::SetTime) rows tell the time that the
//! user last set. A process that has opened the bank and set no time yet would mark rows with time
//! 0, and a later eviction by age would take them for ancient.
//!
//! **Approach.** The largest time that was ever set for a table is a row of 8 bytes in a table of
//! the bank's own, under the table's number. So it is part of each checkpoint, copy and delta, and
//! goes back with a roll-back. An open reads it. No list of tables shows that table.
//!
//! The number of a dropped table may become another table's, which must not get its time. A call
//! that keeps a time looks, under `Times::keeping`, whether the table is there. A drop removes the
//! table first, and then forgets its time under the same lock. A new table forgets what a drop that
//! failed halfway has left.

use std::sync::OnceLock;

use embank_kv::locks::Mutex;
use embank_kv::{Access, Clock, Operation, Store, TableId};

use crate::error::Result;
use crate::row::descriptor::{counts_descriptor, is_counts_descriptor};

/// The name of the table of times. The parentheses keep it apart from names that people give.
const NAME: &str = "(times of tables)";
const TIME_BYTES: u32 = 8;

/// The table of times, if the bank has one.
pub(crate) fn table_of_times(store: &Store) -> Option<TableId> {
    let is_it = |table: &embank_kv::TableInfo| {
        table.name == NAME && is_counts_descriptor(&table.descriptor)
    };
    store.tables().into_iter().find(is_it).map(|table| table.id)
}

/// The largest time that was set for table `number`.
pub(crate) fn read_time(store: &Store, times: TableId, number: u16) -> Result<Option<u32>> {
    let mut time = ReadTime(None);
    store.execute(times, &[u64::from(number)], Clock::Keep, &mut time)?;
    Ok(time.0)
}

/// The times that a bank keeps of its tables.
#[derive(Debug)]
pub(crate) struct Times {
    /// The table of times, once there is one.
    table: OnceLock<TableId>,
    /// Held while a time is kept or forgotten. Taken after the lock of the bank's tables, if both
    /// are.
    keeping: Mutex<()>,
}

impl Times {
    /// Those of the bank in `store`.
    pub(crate) fn of(store: &Store) -> Self {
        let table = table_of_times(store).map(OnceLock::from).unwrap_or_default();
        Self { table, keeping: Mutex::new(()) }
    }

    /// Keeps `time` for a table if none later is kept.
    ///
    /// # Errors
    /// `NoSuchTable` if the table was dropped.
    pub(crate) fn keep(&self, store: &Store, table: TableId, time: u32) -> Result<()> {
        // Held: the time of the table is not forgotten meanwhile, and two threads make one table of
        // times. Not the lock of all tables: this may wait for space on disk, which a drop
        // of a table gives.
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

    /// Forgets the time of table `number`, which was dropped or has just been made: no call keeps
    /// one for the dropped table afterwards. Called while the bank's tables are locked.
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
    // No row of a table changes.
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
