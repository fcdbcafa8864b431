//! Functions on a table: they read, train, put and delete batches of rows.

use std::ffi::{CString, c_char, c_void};

use embank::{Missing, Table};

use crate::bytes::embank_bytes;
use crate::callbacks::{OnRow, embank_on_row};
use crate::handle::{self, Owned, borrowed};
use crate::lease::embank_lease;
use crate::memory::{HandlePlace, Lent, Place};
use crate::optimizer::embank_optimizer;
use crate::scan::embank_scan;
use crate::settings::{bound_from_rust, bound_to_rust, embank_table_settings};
use crate::sized;
use crate::status::{Failure, call, embank_status};

/// A table of a bank: rows of floats, each under a 64-bit key. A table may have several handles.
/// Free with embank_table_free.
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
/// `table` must be null or a handle that the caller does not free while the returned reference is
/// in use.
pub(crate) unsafe fn table_of<'a>(table: *const embank_table) -> Result<&'a Table, Failure> {
    // SAFETY: by this function's `# Safety`, `table` is null or a live handle.
    unsafe { borrowed("table", table) }?.inner.get()
}

/// How a peek treats a key that has no row.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_missing {
    /// The key gets the row's initial values, which a get would return.
    Initial = 0,
    /// The peek fails with EMBANK_STATUS_MISSING_ROW.
    Error = 1,
    /// The peek leaves the key's part of `rows` unchanged.
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
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(table) };
}

/// The table's name as UTF-8; NULL if `table` is NULL. Valid until the handle is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_name(table: *const embank_table) -> *const c_char {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle.
    unsafe { table.as_ref() }.map_or(std::ptr::null(), |table| table.name.as_ptr())
}

/// The number of values per row; 0 if `table` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_dim(table: *const embank_table) -> u32 {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle.
    unsafe { table.as_ref() }.map_or(0, |table| table.dim)
}

/// Fills `settings` with the table's present settings. `size` is sizeof(embank_table_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_settings(
    table: *const embank_table,
    settings: *mut embank_table_settings,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `settings` is null or
    // valid until the call returns.
    call(|| unsafe {
        let config = table_of(table)?.config();
        sized::write(settings, size, &embank_table_settings::from_rust(&config)?)
    })
}

/// `name` gets the name of the vocabulary whose ids are the table's keys, or NULL if the keys
/// belong to no vocabulary. Free with embank_bytes_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_vocabulary(
    table: *const embank_table,
    name: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `name` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("name", name)?;
        if let Some(vocabulary) = table_of(table)?.config().vocabulary {
            place.hand_over(embank_bytes::new(vocabulary.name.as_bytes()));
        }
        Ok(())
    })
}

/// Gets rows for training: one per key, duplicates included. Inserts missing rows with their
/// initial values. Raises the staleness clock of each distinct key by one until the lease ends. If
/// a clock is above the table's staleness bound, the call first waits until it is not, at most for
/// the bank's wait timeout. A call that fails raises no clock. Rows that it has inserted before it
/// failed stay, with their initial values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
    lease: *mut *mut embank_lease,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys`, `rows` and
    // `lease` are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let table = table_of(table)?;
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        let got = table.get(keys, rows)?;
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
}

/// Reads rows for evaluation, one per key. Changes no staleness clock, waits for no clock, and
/// writes nothing. `missing` is one of embank_missing. `present` has key_count bytes: 1 for each
/// key that has a row, and 0 for each key that has none. It may be NULL.
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
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys`, `rows` and
    // `present` are each null or valid until the call returns.
    call(|| unsafe {
        let table = table_of(table)?;
        let present_len = if present.is_null() { 0 } else { key_count };
        let present = Lent::new_mut("present", present, present_len)?;
        present.check_apart(&Lent::new("keys", keys, key_count)?)?;
        present.check_apart(&Lent::new("rows", rows, rows_len)?)?;
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        let outcome = table.peek(keys, rows, missing_of(missing)?)?;
        // SAFETY: `check_apart` found that `present` does not overlap `keys` or `rows`. By the
        // rules of embank.h, no other code uses it during the call.
        let present = present.write();
        present.fill(1);
        if !present.is_empty() {
            outcome.missing.iter().for_each(|&place| present[place as usize] = 0);
        }
        Ok(())
    })
}

/// Fills `rows` with the initial values of the keys' rows, whether the table has the rows or not.
/// The values depend only on the table's settings and name, the key and the column.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_initial(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` and `rows` are
    // each null or valid until the call returns.
    call(|| unsafe {
        let table = table_of(table)?;
        let (keys, rows) = keys_and_rows_mut(keys, key_count, rows, rows_len)?;
        Ok(table.initial(keys, rows)?)
    })
}

/// Replaces or inserts rows without a lease. If a key repeats, its last row wins. Keeps the
/// optimizer state of rows that exist. Changes no staleness clock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_put(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *const f32,
    rows_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` and `rows` are
    // each null or valid until the call returns.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let rows = Lent::new("rows", rows, rows_len)?.read();
        Ok(table.put(keys, rows)?)
    })
}

/// Replaces or inserts rows as embank_table_put does, but reads fewer old rows (a blind write). In
/// a bank with two tiers, the call does not read old rows of the cold tier. It still reads a row
/// that the log has only on disk. In a bank with one tier, it does what embank_table_put does.
/// After blind puts in a bank with two tiers, the table's number of rows may be wrong, and that of
/// a scan is an upper bound, until embank_bank_compact has counted the rows. Values, scans and
/// exports are exact. Returns EMBANK_STATUS_INVALID_ARGUMENT for a table with optimizer state,
/// admission or tracking.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_put_blind(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    rows: *const f32,
    rows_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` and `rows` are
    // each null or valid until the call returns.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let rows = Lent::new("rows", rows, rows_len)?.read();
        Ok(table.put_blind(keys, rows)?)
    })
}

/// Applies gradients with the table's optimizer, without a lease. Sums the gradients of equal keys
/// first. Inserts missing rows with their initial values before the step. Changes no staleness
/// clock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_apply_gradients(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    gradients: *const f32,
    gradients_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` and
    // `gradients` are each null or valid until the call returns.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let gradients = Lent::new("gradients", gradients, gradients_len)?.read();
        Ok(table.apply_gradients(keys, gradients)?)
    })
}

/// Changes rows by the callback `change`, without a lease: a read-modify-write. Inserts missing
/// rows with their initial values before the change. Changes each distinct key once. Changes no
/// staleness clock. The result replaces exactly the row that `change` got, so no change by another
/// call is lost.
///
/// Several threads may call `change` at the same time, for different rows: the calling thread and
/// threads of the bank. If a row's record moves during the call, `change` is called again with the
/// row's present values, and only the last result counts. So `change` should only compute from its
/// arguments. It must be short, and it must not call the library, which may then wait forever.
///
/// A value that is not finite in the table's dtype leaves its row unchanged, and the call fails
/// with EMBANK_STATUS_UPDATE_REFUSED after all other rows are changed. After
/// EMBANK_STATUS_CANCELLED or a failure of the store, some rows may be changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_update(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    change: embank_on_row,
    context: *mut c_void,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` is null or
    // valid until the call returns. The callback accepts `context`, returns, and may run on several
    // threads.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let on_row = OnRow::new(change, context)?;
        Ok(table.update_with(keys, |key, row, state| on_row.change(key, row, state))?)
    })
}

/// Deletes rows. `deleted` gets the number of rows that existed, and may be NULL. A lease on a
/// deleted row no longer counts in the row's staleness clock, and its gradient for the row is
/// dropped. This holds even if a get inserts the row again before the lease ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_delete(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    deleted: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` and `deleted`
    // are each null or valid until the call returns.
    call(|| unsafe {
        let place = Place::optional("number of deleted rows", deleted)?;
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let deleted = table.delete(keys)?;
        place.set(deleted);
        Ok(())
    })
}

/// Tells which keys have a row. `present` has key_count bytes: 1 for each key that has a row, and 0
/// for each key that has none. Changes no staleness clock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_contains(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    present: *mut u8,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` and `present`
    // are each null or valid until the call returns.
    call(|| unsafe {
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?;
        let present = Lent::new_mut("present", present, key_count)?;
        present.check_apart(&keys)?;
        let found = table.contains(keys.read())?;
        // SAFETY: `check_apart` found that `present` does not overlap `keys`. By the rules of
        // embank.h, no other code uses it during the call.
        let present = present.write();
        present.iter_mut().zip(found).for_each(|(present, found)| *present = u8::from(found));
        Ok(())
    })
}

/// Asks for lookahead: a worker thread of the bank soon brings the rows of `keys` that are on disk
/// into memory. The call itself never waits for the disk. It drops keys that do not fit the
/// lookahead queue. `accepted` gets the number of keys that the worker will bring into memory, and
/// may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_lookahead(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    accepted: *mut usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `keys` and `accepted`
    // are each null or valid until the call returns.
    call(|| unsafe {
        let place = Place::optional("number of accepted keys", accepted)?;
        let table = table_of(table)?;
        let keys = Lent::new("keys", keys, key_count)?.read();
        let receipt = table.lookahead(keys)?;
        place.set(receipt.accepted());
        Ok(())
    })
}

/// `outstanding` gets the staleness clock of a row: the number of its gets whose update has not
/// come yet. It gets -1 if the key has no row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_outstanding(
    table: *const embank_table,
    key: u64,
    outstanding: *mut i64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `outstanding` is null
    // or valid until the call returns.
    call(|| unsafe {
        let place = Place::required("clock", outstanding)?;
        let clock = table_of(table)?.outstanding(key)?;
        place.set(clock.map_or(-1, i64::from));
        Ok(())
    })
}

/// `bound` gets the table's staleness bound, or -1 if the table has no bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_staleness_bound(
    table: *const embank_table,
    bound: *mut i64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `bound` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = Place::required("bound", bound)?;
        let bound = table_of(table)?.staleness_bound();
        place.set(bound_from_rust(bound));
        Ok(())
    })
}

/// Sets the staleness bound for all handles of the table. A negative number removes the bound. Gets
/// that already wait use the new bound. The setting is not durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_staleness_bound(
    table: *const embank_table,
    bound: i64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle.
    call(|| unsafe {
        let table = table_of(table)?;
        table.set_staleness_bound(bound_to_rust(bound)?);
        Ok(())
    })
}

/// Sets the learning rate for all handles of the table and all batches that are applied from now
/// on. The setting is not durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_learning_rate(
    table: *const embank_table,
    learning_rate: f64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle.
    call(|| unsafe { Ok(table_of(table)?.set_learning_rate(learning_rate)?) })
}

/// Sets the time that each row records when it is used from now on, for example an epoch, or
/// thousands of steps. The table's tracking must be EMBANK_TRACKING_SET_TIME.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_time(
    table: *const embank_table,
    time: u32,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle.
    call(|| unsafe { Ok(table_of(table)?.set_time(time)?) })
}

/// Sets the numbers of the optimizer, for all handles of the table and all batches that are applied
/// from now on. The kind and the initial accumulator must equal the table's. Momentum and Adagrad's
/// lr_decay must be 0 if the table's number is 0, and must not be 0 otherwise. The setting is not
/// durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_set_optimizer(
    table: *const embank_table,
    optimizer: embank_optimizer,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle.
    call(|| unsafe { Ok(table_of(table)?.set_optimizer(optimizer.to_rust()?)?) })
}

/// Begins a scan, which returns the table's rows in the newest checkpoint. Training may go on
/// meanwhile. Until the scan is freed, the bank frees no disk space that the checkpoint needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_scan(
    table: *const embank_table,
    scan: *mut *mut embank_scan,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `scan` is null or
    // valid until the call returns.
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
/// `keys` must have `key_count` keys and `rows` room for `rows_len` values. During the call, no
/// other code may write `keys`, or read or write `rows`.
unsafe fn keys_and_rows_mut<'a>(
    keys: *const u64,
    key_count: usize,
    rows: *mut f32,
    rows_len: usize,
) -> Result<(&'a [u64], &'a mut [f32]), Failure> {
    let keys = Lent::new("keys", keys, key_count)?;
    let rows = Lent::new_mut("rows", rows, rows_len)?;
    rows.check_apart(&keys)?;
    // SAFETY: `check_apart` found no overlap, and `write` is called once. By this function's `#
    // Safety`, the buffers are valid and no other code uses them.
    Ok(unsafe { (keys.read(), rows.write()) })
}
