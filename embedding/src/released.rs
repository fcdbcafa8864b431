//! Numbers of dropped tables, given back when the last handle is gone.
//!
//! A handle of a dropped table still calls the store with the table's number, and is told that there is no such table. So
//! the number must not be another table's while a handle, a lease or a call of it is there. Each of these holds the shared
//! part of the table, or of the vocabulary, which gets a [`ReleasedTables`] when it is dropped from the bank: that is
//! dropped with the shared part.

use std::sync::{Arc, Weak};

use embank_kv::{Store, TableId};

/// Dropped, it lets the store give the numbers to other tables.
#[derive(Debug)]
pub(crate) struct ReleasedTables {
    store: Weak<Store>,
    tables: Vec<TableId>,
}

impl ReleasedTables {
    pub(crate) fn new(store: &Arc<Store>, tables: impl IntoIterator<Item = TableId>) -> Self {
        ReleasedTables { store: Arc::downgrade(store), tables: tables.into_iter().collect() }
    }
}

impl Drop for ReleasedTables {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            self.tables.iter().for_each(|&table| store.release_table(table));
        }
    }
}
