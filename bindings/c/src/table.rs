//! Tables: batches of rows in and out.

use std::ffi::{CString, c_char};
use std::time::Duration;

use embank::{Missing, Table};

use crate::bytes::embank_bytes;
use crate::handle::{self, Owned, borrowed};
use crate::lease::embank_lease;
use crate::memory::{HandlePlace, Lent, Place};
use crate::optimizer::embank_optimizer;
use crate::scan::embank_scan;
use crate::settings::{bound_from_rust, bound_to_rust, embank_table_settings};
use crate::sized;
use crate::status::{Failure, call, embank_status};

/// A table of a bank: rows of f32 by 64-bit key. All handles of a table are one table. Free with
/// embank_table_free.
#[derive(Debug)]
pub struct embank_table {
    inner: Owned<Table>,
    name: CString,
    dim: u32,
}

impl embank_table {
    pub(crate) fn new(table: Table) -> Self {
        let name = CString::new(table.name()).unwrap_or_default();
        let dim = table.config().dim;
        Self { inner: Owned::new(table), name, dim }
    }
}

/// # Safety
/// `table` must be null or a handle that is not freed during the call.
pub(crate) unsafe fn table_of<'a>(table: *const embank_table) -> Result<&'a Table, Failure> {
    // SAFETY: by this function's `# Safety`, `table` is null or a live handle.
    unsafe { borrowed("table", table) }?.inner.get()
}

/// What a peek does about keys that have no row. It never makes up zeros.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_missing {
    /// Fills in the row's initial values, which the first get would give it.
    Initial = 0,
    /// Fails with EMBANK_STATUS_MISSING_ROW.
    Error = 1,
    /// Leaves that part of the rows as it is.
    Skip = 2,
}

fn missing_of(number: u32) -> Result<Missing, Failure> {
    const INITIAL: u32 = embank_missing::Initial as u32;
    const ERROR: u32 = embank_missing::Error as u32;
    const SKIP: u32 = embank_missing::Skip as u32;
    match number {
        INITIAL => Ok(Missing::Initial),
        ERROR => Ok(Missing::Error),
        SKIP => Ok(Missing::Skip),
        other => Err(Failure::invalid(format!("there is no embank_missing {other}"))),
    }
}

/// Frees the handle. The table stays in its bank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_free(table: *mut embank_table) {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed.
    unsafe { handle::free(table) };
}

/// The table's name as UTF-8, valid until the handle is freed. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_name(table: *const embank_table) -> *const c_char {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed.
    unsafe { table.as_ref() }.map_or(std::ptr::null(), |table| table.name.as_ptr())
}

/// Values per row. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_dim(table: *const embank_table) -> u32 {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed.
    unsafe { table.as_ref() }.map_or(0, |table| table.dim)
}

/// The table's settings as they are now. `size` is sizeof(embank_table_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_settings(
    table: *const embank_table,
    settings: *mut embank_table_settings,
    size: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `settings` is null or valid for the call.
    call(|| unsafe {
        let config = table_of(table)?.config();
        sized::write(settings, size, &embank_table_settings::from_rust(&config)?)
    })
}

/// The name of the vocabulary whose ids are the table's keys; NULL if they are no vocabulary's.
/// Free with embank_bytes_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_vocabulary(
    table: *const embank_table,
    name: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `name` is null or valid for the call.
    call(|| unsafe {
        let place = HandlePlace::cleared("name", name)?;
        if let Some(vocabulary) = table_of(table)?.config().vocabulary {
            place.hand_over(embank_bytes::new(vocabulary.name.as_bytes()));
        }
        Ok(())
    })
}

/// Gets rows for training: one per key, duplicates included. Missing rows are inserted with their
/// initial values. The staleness clock of each distinct key goes up by one until the lease ends; if
/// a clock is above the table's bound, the call waits, at most the bank's wait timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
    lease: *mut *mut embank_lease,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys`, `rows` and `lease` are each null or valid for the call.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let table = table_of(table)?;
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        let got = table.get(keys, rows)?;
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
}

/// As embank_table_get, but waits at most `timeout_ms` milliseconds in place of the bank's wait
/// timeout. With 0 it fails at once with EMBANK_STATUS_STALENESS_TIMEOUT if a clock is above the
/// bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_within(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
    timeout_ms: u64,
    lease: *mut *mut embank_lease,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys`, `rows` and `lease` are each null or valid for the call.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let table = table_of(table)?.with_wait_timeout(Duration::from_millis(timeout_ms));
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        let got = table.get(keys, rows)?;
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
}

/// Gets one row per distinct key for training, in order of first appearance. `rows` may be longer
/// than that: key_count * dim values always do. How many distinct keys there are goes to
/// `distinct_count`, which may be NULL; which they are is told by embank_lease_distinct. Otherwise
/// as embank_table_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_distinct(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
    distinct_count: *mut usize,
    lease: *mut *mut embank_lease,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys`, `rows`, `distinct_count` and `lease` are each null or valid for the call.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let count = Place::optional("number of distinct keys", distinct_count)?;
        let table = table_of(table)?;
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        let unique = table.unique_keys(keys);
        let distinct = unique.len();
        let used = rows.len().min(distinct * table.dim());
        let got = table.get_distinct(unique, &mut rows[..used])?;
        count.set(distinct);
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
}

/// Reads rows for evaluation, one per key. Touches no clock, waits for none, and writes nothing.
/// `missing` is one of embank_missing. `present`, key_count bytes, gets 1 for each key that has a
/// row and 0 for the others; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_peek(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
    missing: u32,
    present: *mut u8,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys`, `rows` and `present` are each null or valid for the call.
    call(|| unsafe {
        let table = table_of(table)?;
        let present_len = if present.is_null() { 0 } else { key_count };
        let present = Lent::new_mut("present", present, present_len)?;
        present.check_apart(&Lent::new("keys", keys, key_count)?)?;
        present.check_apart(&Lent::new("rows", rows, rows_len)?)?;
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        let outcome = table.peek(keys, rows, missing_of(missing)?)?;
        // SAFETY: the checks above found that `present` overlaps no other buffer.
        let present = present.write();
        present.fill(1);
        if !present.is_empty() {
            outcome.missing.iter().for_each(|&place| present[place as usize] = 0);
        }
        Ok(())
    })
}

/// What rows start with, whether they are there or not: a pure function of the table's seed and
/// name, key and column.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_initial(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys` and `rows` are each null or valid for the call.
    call(|| unsafe {
        let table = table_of(table)?;
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        Ok(table.initial(keys, rows)?)
    })
}

/// Replaces or inserts rows without a lease; of equal keys the last one wins. Optimizer state
/// stays. Touches no clock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_put(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *const f32,
    rows_len: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys` and `rows` are each null or valid for the call.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let rows = Lent::new("rows", rows, rows_len)?.read();
        Ok(table.put(keys, rows)?)
    })
}

/// Takes a step of the table's optimizer without a lease; gradients of equal keys are summed first.
/// Missing rows start from their initial values. Touches no clock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_apply_gradients(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    gradients: *const f32,
    gradients_len: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys` and `gradients` are each null or valid for the call.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let gradients = Lent::new("gradients", gradients, gradients_len)?.read();
        Ok(table.apply_gradients(keys, gradients)?)
    })
}

/// Deletes rows. `deleted` gets the number of rows that existed, and may be NULL. Leases on the
/// rows lose their counts and their gradients for them, also if a row is made again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_delete(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    deleted: *mut u64,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys` and `deleted` are each null or valid for the call.
    call(|| unsafe {
        let place = Place::optional("number of deleted rows", deleted)?;
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let deleted = table.delete(keys)?;
        place.set(deleted);
        Ok(())
    })
}

/// Says which rows there are: `present`, key_count bytes, gets 1 or 0 for each key. Touches no
/// clock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_contains(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    present: *mut u8,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys` and `present` are each null or valid for the call.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?;
        let present = Lent::new_mut("present", present, key_count)?;
        present.check_apart(&keys)?;
        let found = table.contains(keys.read())?;
        // SAFETY: the check above found that `present` does not overlap the keys.
        let present = present.write();
        present.iter_mut().zip(found).for_each(|(present, found)| *present = u8::from(found));
        Ok(())
    })
}

/// Has the rows of `keys` that are on disk brought into memory soon. Never waits for the disk: what
/// does not fit the queue is dropped, and a worker does the rest. `accepted`, how many keys are on
/// their way, may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_lookahead(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    accepted: *mut usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `keys` and `accepted` are each null or valid for the call.
    call(|| unsafe {
        let place = Place::optional("number of accepted keys", accepted)?;
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let receipt = table.lookahead(keys)?;
        place.set(receipt.accepted());
        Ok(())
    })
}

/// The staleness clock of a row: gets whose update has not come yet. -1 if the row is missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_outstanding(
    table: *const embank_table,
    key: u64,
    outstanding: *mut i64,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `outstanding` is null or valid for the call.
    call(|| unsafe {
        let place = Place::required("clock", outstanding)?;
        let clock = table_of(table)?.outstanding(key)?;
        place.set(clock.map_or(-1, i64::from));
        Ok(())
    })
}

/// The staleness bound; -1 if the table has no bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_staleness_bound(
    table: *const embank_table,
    bound: *mut i64,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `bound` is null or valid for the call.
    call(|| unsafe {
        let place = Place::required("bound", bound)?;
        let bound = table_of(table)?.staleness_bound();
        place.set(bound_from_rust(bound));
        Ok(())
    })
}

/// Sets the staleness bound of all handles of the table; a negative number removes the bound. Gets
/// that wait look at the new bound. Not durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_staleness_bound(
    table: *const embank_table,
    bound: i64,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed.
    call(|| unsafe {
        let table = table_of(table)?;
        table.set_staleness_bound(bound_to_rust(bound)?);
        Ok(())
    })
}

/// Sets the learning rate of all handles of the table, for batches applied from now on. Not
/// durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_learning_rate(
    table: *const embank_table,
    learning_rate: f64,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed.
    call(|| unsafe { Ok(table_of(table)?.set_learning_rate(learning_rate)?) })
}

/// Sets the time that rows used from now on tell: an epoch, thousands of steps. The table's
/// tracking is EMBANK_TRACKING_SET_TIME.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_time(
    table: *const embank_table,
    time: u32,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed.
    call(|| unsafe { Ok(table_of(table)?.set_time(time)?) })
}

/// Sets the numbers of the optimizer, for all handles of the table and batches applied from now on.
/// Its kind, initial accumulator, whether there is momentum and whether Adagrad's rate decays must
/// be the table's. Not durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_optimizer(
    table: *const embank_table,
    optimizer: embank_optimizer,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed.
    call(|| unsafe { Ok(table_of(table)?.set_optimizer(optimizer.to_rust()?)?) })
}

/// Goes through the table as the newest checkpoint holds it, while training goes on. Disk space is
/// not given back until the scan is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_scan(
    table: *const embank_table,
    scan: *mut *mut embank_scan,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `scan` is null or valid for the call.
    call(|| unsafe {
        let place = HandlePlace::cleared("scan", scan)?;
        let begun = table_of(table)?.scan()?;
        place.hand_over(embank_scan::new(begun));
        Ok(())
    })
}

/// Checks the caller's buffers and returns the keys to read and the rows to write.
///
/// # Safety
/// Both buffers must have the stated lengths, and no other code may change them during the call.
unsafe fn keys_and_rows_mut<'a>(
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
) -> Result<(&'a [u64], &'a mut [f32]), Failure> {
    let keys = Lent::new("keys", keys, key_count)?;
    let rows = Lent::new_mut("rows", rows, rows_len)?;
    rows.check_apart(&keys)?;
    // SAFETY: the check above found no overlap, and the slices are made once. `# Safety` obliges
    // the caller to pass valid buffers.
    Ok(unsafe { (keys.read(), rows.write()) })
}
