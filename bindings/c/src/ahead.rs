//! Gets ahead: gets that a thread of the bank makes while the program computes an earlier batch.

use embank::locks::Mutex;
use embank::{AheadQueue, Error, Pending};

use crate::bank::{bank_of, embank_bank};
use crate::handle::{self, Owned, borrowed};
use crate::lease::embank_lease;
use crate::memory::{HandlePlace, Lent, Place};
use crate::request::{Fills, LentRequest, embank_request};
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

/// A queue of gets ahead. A thread of the queue makes the gets in the order of the calls. The gets
/// may be of several tables of the bank. A program has one queue for each training loop. Free with
/// embank_ahead_queue_free.
#[derive(Debug)]
pub struct embank_ahead_queue {
    inner: Owned<AheadQueue>,
}

/// A get ahead. embank_pending_wait ends it, even if that call returns an error. If an argument is
/// wrong, the get stays as it was. Free with embank_pending_free, which also cancels the get if it
/// has not ended.
#[derive(Debug)]
pub struct embank_pending {
    inner: Owned<Mutex<Option<Pending>>>,
    fills: Fills,
}

/// # Safety
/// `queue` must be null or a handle that the caller does not free while the returned reference is
/// in use.
unsafe fn queue_of<'a>(queue: *const embank_ahead_queue) -> Result<&'a AheadQueue, Failure> {
    // SAFETY: by this function's `# Safety`, `queue` is null or a live handle.
    unsafe { borrowed("queue", queue) }?.inner.get()
}

fn ended() -> Failure {
    Failure {
        status: embank_status::AheadEnded,
        message:
            "embank_pending_wait has ended this get already; call embank_table_get_ahead again"
                .to_owned(),
    }
}

/// Makes a queue of gets ahead, and starts its thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_ahead_queue(
    bank: *const embank_bank,
    queue: *mut *mut embank_ahead_queue,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `queue` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("queue", queue)?;
        let inner = Owned::new(bank_of(bank)?.ahead_queue()?);
        place.hand_over(embank_ahead_queue { inner });
        Ok(())
    })
}

/// Asks for rows of a later batch, as `request` says, and returns at once; NULL stands for the
/// defaults. The queue's thread makes the get after the earlier gets of the queue: it takes the
/// lease, and brings rows from disk into memory. embank_pending_wait returns the lease and the
/// rows. The lease counts for the staleness bound from the time when the thread makes the get. To
/// get n batches ahead of the batch in hand, a program needs a bound of n or more. With a smaller
/// bound, a get ahead waits until the leases of earlier batches end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_ahead(
    table: *const embank_table,
    keys: *const u64,
    key_count: usize,
    request: *const embank_request,
    queue: *const embank_ahead_queue,
    pending: *mut *mut embank_pending,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` and `queue` are each null or a live handle,
    // `request` is null or a struct that begins with its size, and all other pointers are each null
    // or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("pending get", pending)?;
        let table = table_of(table)?;
        let queue = queue_of(queue)?;
        let request = LentRequest::new(keys, key_count, request)?;
        let pending = table.get_ahead(request.read(table)?, queue)?;
        let inner = Owned::new(Mutex::new(Some(pending)));
        place.hand_over(embank_pending { inner, fills: request.fills() });
        Ok(())
    })
}

/// `ready` gets 1 if embank_pending_wait would not wait for the get, and 0 if it would.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_pending_is_ready(
    pending: *const embank_pending,
    ready: *mut u8,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `pending` is null or a live handle, and `ready` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = Place::required("answer", ready)?;
        let held = borrowed("pending get", pending)?.inner.get()?.lock();
        let ready = held.as_ref().ok_or_else(ended)?.is_ready();
        place.set(u8::from(ready));
        Ok(())
    })
}

/// Waits for a get ahead, and returns its lease and its rows, with all updates up to now. `rows`
/// and `row_count` are as for embank_table_get_rows. The time limit of the get begins with this
/// call. No other call reports an error of the get. The calling thread becomes the thread that took
/// the lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_pending_wait(
    pending: *const embank_pending,
    rows: *mut f32,
    rows_len: usize,
    row_count: *mut usize,
    lease: *mut *mut embank_lease,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `pending` is null or a live handle, and all other pointers
    // are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("lease", lease)?;
        let count = Place::optional("number of rows", row_count)?;
        let pending = borrowed("pending get", pending)?;
        let held = pending.inner.get()?;
        // SAFETY: the call has no other buffer. By the rules of embank.h, no other code uses this
        // one during the call.
        let rows = Lent::new_mut("rows", rows, rows_len)?.write();
        let (taken, rows) = {
            let mut held = held.lock();
            let get = held.as_ref().ok_or_else(ended)?;
            let (table, row_count) = (get.table(), get.row_count());
            let expected = row_count.saturating_mul(table.dim());
            let rows = pending.fills.part_of(rows, row_count, table.dim());
            if rows.len() != expected {
                let (table, found) = (table.name().to_owned(), rows.len());
                return Err(Error::ShapeMismatch { table, what: "rows", expected, found }.into());
            }
            (held.take().ok_or_else(ended)?, rows)
        };
        let row_count = taken.row_count();
        let got = taken.wait(rows)?;
        count.set(row_count);
        place.hand_over(embank_lease::new(got));
        Ok(())
    })
}

/// Cancels the get if it has not ended, and releases its lease. Then frees the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_pending_free(pending: *mut embank_pending) {
    // SAFETY: by the rules of embank.h, `pending` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(pending) };
}

/// Ends the queue's thread and frees the handle. For gets that the thread has not made,
/// embank_pending_wait then returns EMBANK_STATUS_AHEAD_ENDED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_ahead_queue_free(queue: *mut embank_ahead_queue) {
    // SAFETY: by the rules of embank.h, `queue` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(queue) };
}
