//! A bank on a device whose calls fail on a test's request.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

use crate::common::{PutAll, value};
use embank_kv::device::{Device, DeviceOptions, FaultyDevice, MemoryDevice};
use embank_kv::{Clock, Error, Outcome, Store, StoreOptions, TableId};

pub(crate) const BUDGET_BYTES: u64 = 256 << 10;
pub(crate) const VALUE_BYTES: usize = 64;

/// An open bank with one table.
pub(crate) struct Open {
    pub(crate) store: Store,
    pub(crate) device: Arc<FaultyDevice>,
    pub(crate) table: TableId,
}

/// Opens the bank in `dir` with its log on `disk`. Creates the table if the bank has none.
pub(crate) fn open_on(dir: &Path, disk: &Arc<dyn Device>, options: &StoreOptions) -> Open {
    let device = Arc::new(FaultyDevice::new(Arc::clone(disk)));
    let wrapped: Arc<dyn Device> = Arc::<FaultyDevice>::clone(&device);
    let store = Store::open_on(dir, options, |_| Ok(wrapped)).unwrap();
    let table = match store.tables().first() {
        Some(table) => table.id,
        None => store.create_table("users", VALUE_BYTES as u32, b"").unwrap(),
    };
    Open { store, device, table }
}

/// Makes a disk in memory. It still exists when the stores on it are closed.
pub(crate) fn memory() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(&DeviceOptions::default()).unwrap())
}

/// Puts the rows of `keys` with `version`.
pub(crate) fn try_put(open: &Open, keys: &[u64], version: u64) -> Result<Outcome, Error> {
    let values: Vec<_> = keys.iter().map(|&key| value(key, version, VALUE_BYTES)).collect();
    open.store.execute(open.table, keys, Clock::Keep, &mut PutAll(&values))
}
