//! Leases: the right to update rows that a get returned.
//!
//! In Rust an update consumes the lease. In C the handle stays until the caller frees it, and calls
//! on an ended lease fail. Every handle is therefore freed once, also after an error.

use embank::locks::Mutex;
use embank::{Error, Lease};

use crate::handle::{self, Owned, borrowed};
use crate::memory::{Lent, Place};
use crate::status::{Failure, call, embank_status};

/// A lease, which a get returns. Until the lease ends, it counts in the staleness clock of each row
/// of the get. Applying, putting or releasing the lease ends it, even if the call returns an error.
/// Only if an argument is wrong does the lease stay as it was. Free with embank_lease_free, which
/// also releases the lease if it has not ended.
#[derive(Debug)]
pub struct embank_lease {
    inner: Owned<Mutex<Option<Lease>>>,
}

impl embank_lease {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { inner: Owned::new(Mutex::new(Some(lease))) }
    }
}

fn ended() -> Failure {
    Failure {
        status: embank_status::LeaseEnded,
        message: "the lease was applied, put or released already; get the rows again".to_owned(),
    }
}

/// # Safety
/// `lease` must be null or a handle that the caller does not free while the returned reference is
/// in use.
unsafe fn lease_of<'a>(lease: *const embank_lease) -> Result<&'a Mutex<Option<Lease>>, Failure> {
    // SAFETY: by this function's `# Safety`, `lease` is null or a live handle.
    unsafe { borrowed("lease", lease) }?.inner.get()
}

/// Ends the lease: `end` applies or puts `values`. Fails, and leaves the lease as it was, unless
/// there is one row of values per row of the get.
///
/// # Safety
/// `lease` must be null or a handle that the caller does not free during the call. `values` must
/// have `values_len` values, which no other code changes during the call.
unsafe fn end_with(
    lease: *const embank_lease,
    what: &'static str,
    values: *const f32,
    values_len: usize,
    end: fn(Lease, &[f32]) -> embank::Result<()>,
) -> embank_status {
    call(|| {
        // SAFETY: by this function's `# Safety`, `lease` is null or a live handle, and `values`
        // holds `values_len` values.
        let (lease, values) =
            unsafe { (lease_of(lease)?, Lent::new(what, values, values_len)?.read()) };
        let taken = {
            let mut held = lease.lock();
            let lease = held.as_ref().ok_or_else(ended)?;
            let expected = lease.row_count() * lease.table().dim();
            if values.len() != expected {
                let table = lease.table().name().to_owned();
                let found = values.len();
                return Err(Error::ShapeMismatch { table, what, expected, found }.into());
            }
            held.take().ok_or_else(ended)?
        };
        Ok(end(taken, values)?)
    })
}

/// Ends the lease: applies one gradient per row of the get, that is per key of the batch, per
/// distinct key, or per bag, with the table's optimizer. Sums the gradients of equal keys first. A
/// bag's gradient goes to the rows of its keys, once for each place of a key: times the weight, or
/// with EMBANK_POOLING_MEAN divided by the bag's number of keys. The next checkpoint makes the
/// update durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_apply(
    lease: *const embank_lease,
    gradients: *const f32,
    gradients_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `lease` is null or a live handle, and `gradients` is null
    // or valid until the call returns.
    unsafe { end_with(lease, "gradients", gradients, gradients_len, Lease::apply) }
}

/// Ends the lease: replaces the rows. `rows` has one row per row of the get. If a key repeats, its
/// last row wins. The optimizer state of the rows stays. Fails for a lease on bags, which then
/// ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_put(
    lease: *const embank_lease,
    rows: *const f32,
    rows_len: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `lease` is null or a live handle, and `rows` is null or
    // valid until the call returns.
    unsafe { end_with(lease, "rows", rows, rows_len, Lease::put) }
}

/// Ends the lease without an update: lowers the staleness clocks of its rows again. Returns an
/// error if that fails. Does nothing if the lease has ended already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_release(lease: *const embank_lease) -> embank_status {
    // SAFETY: by the rules of embank.h, `lease` is null or a live handle.
    call(|| unsafe {
        let held = lease_of(lease)?.lock().take();
        Ok(held.map_or(Ok(()), Lease::release)?)
    })
}

/// Declares that a thread other than the one that took the lease will end it. If the lease then
/// blocks a get of the thread that took it, that get waits. Without this call, the get may fail
/// with EMBANK_STATUS_SELF_BLOCKED. Call this function before the other thread receives the lease.
/// The call becomes unnecessary once any lease of the bank was ended by a thread that did not take
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_hand_over(lease: *const embank_lease) -> embank_status {
    // SAFETY: by the rules of embank.h, `lease` is null or a live handle.
    call(|| unsafe {
        lease_of(lease)?.lock().as_ref().ok_or_else(ended)?.hand_over();
        Ok(())
    })
}

/// `keys` gets the distinct keys of the batch, in order of first appearance. `places[i]` gets the
/// place of the batch's key i among the distinct keys. `count` gets the number of distinct keys.
/// `keys` and `places` may be NULL. Otherwise `keys` needs room for all distinct keys, and `places`
/// for one number per key of the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_distinct(
    lease: *const embank_lease,
    keys: *mut u64,
    keys_len: usize,
    places: *mut u32,
    places_len: usize,
    count: *mut usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `lease` is null or a live handle, and `keys`, `places` and
    // `count` are each null or valid until the call returns.
    call(|| unsafe {
        let count = Place::required("count", count)?;
        let keys = Lent::new_mut("keys", keys, if keys.is_null() { 0 } else { keys_len })?;
        let places =
            Lent::new_mut("places", places, if places.is_null() { 0 } else { places_len })?;
        keys.check_apart(&places)?;
        let lease = lease_of(lease)?.lock();
        let unique = lease.as_ref().ok_or_else(ended)?.unique();
        for (what, len, needed) in
            [("keys", keys.len(), unique.len()), ("places", places.len(), unique.batch_len())]
        {
            if len != 0 && len < needed {
                return Err(Failure {
                    status: embank_status::ShapeMismatch,
                    message: format!("{what} must hold {needed} values or more, found {len}"),
                });
            }
        }
        // SAFETY: `check_apart` found that `keys` and `places` do not overlap. By the rules of
        // embank.h, no other code uses them during the call.
        let keys = keys.write();
        let places = places.write();
        keys.iter_mut().zip(unique.keys()).for_each(|(key, &found)| *key = found);
        places.iter_mut().zip(unique.inverse()).for_each(|(place, &found)| *place = found);
        count.set(unique.len());
        Ok(())
    })
}

/// Releases the lease if it has not ended, then frees the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_free(lease: *mut embank_lease) {
    // SAFETY: by the rules of embank.h, `lease` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(lease) };
}
