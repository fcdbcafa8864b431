//! Leases: the right to update rows that a get returned.
//!
//! In Rust an update consumes the lease. In C the handle stays until the caller frees it, and calls
//! on an ended lease fail. Every handle is therefore freed once, also after an error.

use embank::locks::Mutex;
use embank::{Error, Lease};

use crate::bags::{LentBags, embank_bags};
use crate::handle::{self, Owned, borrowed};
use crate::memory::{Lent, Place};
use crate::status::{Failure, call, embank_status};

/// The counts that a get took up in the staleness clocks of its rows. Applying, putting and
/// releasing end it, whatever they return, except that a wrong argument leaves it as it was. Free
/// with embank_lease_free, which releases it if it has not ended.
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
/// `lease` must be null or a handle that is not freed during the call.
unsafe fn lease_of<'a>(lease: *const embank_lease) -> Result<&'a Mutex<Option<Lease>>, Failure> {
    // SAFETY: by this function's `# Safety`, `lease` is null or a live handle.
    unsafe { borrowed("lease", lease) }?.inner.get()
}

/// Ends the lease with `count(lease)` rows of values, which `end` applies or puts.
///
/// # Safety
/// `lease` must be null or a handle that is not freed. `values` must have `values_len` values,
/// which no code changes during the call.
unsafe fn end_with(
    lease: *const embank_lease,
    what: &'static str,
    values: *const f32,
    values_len: usize,
    count: impl FnOnce(&Lease) -> usize,
    end: impl FnOnce(Lease, &[f32]) -> embank::Result<()>,
) -> embank_status {
    call(|| {
        // SAFETY: by this function's `# Safety`, `lease` is null or a live handle, and `values`
        // holds `values_len` values.
        let (lease, values) =
            unsafe { (lease_of(lease)?, Lent::new(what, values, values_len)?.read()) };
        let taken = {
            let mut held = lease.lock();
            let lease = held.as_ref().ok_or_else(ended)?;
            let expected = count(lease) * lease.table().dim();
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

/// Ends the lease with one gradient for each bag.
///
/// # Safety
/// `lease` must be null or a handle that is not freed. `bags` must be null or an initialised
/// struct. Its buffers and `gradients` must have the stated lengths, and no code may change them
/// during the call.
pub(crate) unsafe fn end_with_bags(
    lease: *const embank_lease,
    bags: *const embank_bags,
    gradients: *const f32,
    gradients_len: usize,
) -> Result<(), Failure> {
    // SAFETY: by this function's `# Safety`, `lease` is null or a live handle.
    let lease = unsafe { lease_of(lease)? };
    let gradients = Lent::new("gradients", gradients, gradients_len)?;
    let mut held = lease.lock();
    let held_lease = held.as_ref().ok_or_else(ended)?;
    // SAFETY: by this function's `# Safety`, the buffers of `bags` stay valid and unchanged.
    let bags = unsafe { LentBags::new(bags, held_lease.unique().batch_len())?.read() };
    // SAFETY: by this function's `# Safety`, `gradients` holds `gradients_len` values.
    let gradients = unsafe { gradients.read() };
    // The check comes before `take`, so a wrong argument does not end the lease.
    held_lease.check_bag_gradients(bags, gradients)?;
    let taken = held.take().ok_or_else(ended)?;
    drop(held);
    taken.apply_bags(bags, gradients)?;
    Ok(())
}

/// Applies one gradient per key of the batch with the table's optimizer; those of equal keys are
/// summed first. The next checkpoint makes it durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_apply(
    lease: *const embank_lease,
    gradients: *const f32,
    gradients_len: usize,
) -> embank_status {
    let count = |lease: &Lease| lease.unique().batch_len();
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed; `gradients` is null or valid for the call.
    unsafe {
        end_with(lease, "gradients", gradients, gradients_len, count, |lease, values| {
            lease.apply(values)
        })
    }
}

/// Applies one gradient per distinct key, in the order of embank_lease_distinct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_apply_distinct(
    lease: *const embank_lease,
    gradients: *const f32,
    gradients_len: usize,
) -> embank_status {
    let count = |lease: &Lease| lease.unique().len();
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed; `gradients` is null or valid for the call.
    unsafe {
        end_with(lease, "gradients", gradients, gradients_len, count, |lease, values| {
            lease.apply_distinct(values)
        })
    }
}

/// Replaces the rows, one per key of the batch; of equal keys the last one wins. Optimizer state
/// stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_put(
    lease: *const embank_lease,
    rows: *const f32,
    rows_len: usize,
) -> embank_status {
    let count = |lease: &Lease| lease.unique().batch_len();
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed; `rows` is null or valid for the call.
    unsafe { end_with(lease, "rows", rows, rows_len, count, |lease, values| lease.put(values)) }
}

/// Replaces the rows, one per distinct key, in the order of embank_lease_distinct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_put_distinct(
    lease: *const embank_lease,
    rows: *const f32,
    rows_len: usize,
) -> embank_status {
    let count = |lease: &Lease| lease.unique().len();
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed; `rows` is null or valid for the call.
    unsafe {
        end_with(lease, "rows", rows, rows_len, count, |lease, values| lease.put_distinct(values))
    }
}

/// Gives the counts back without an update, and says if that failed. Of a lease that has ended,
/// there are none left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_release(lease: *const embank_lease) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed.
    call(|| unsafe {
        let held = lease_of(lease)?.lock().take();
        Ok(held.map_or(Ok(()), Lease::release)?)
    })
}

/// Says that another thread than the one that took it ends the lease. A get of this thread that its
/// count blocks then waits, where it would fail with EMBANK_STATUS_SELF_BLOCKED otherwise. Call it
/// before the other thread gets the lease; needed only until some lease of the bank has been ended
/// by another thread than the one that took it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_hand_over(lease: *const embank_lease) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed.
    call(|| unsafe {
        lease_of(lease)?.lock().as_ref().ok_or_else(ended)?.hand_over();
        Ok(())
    })
}

/// The distinct keys of the batch in order of first appearance, and each key's place among them:
/// place[i] is that of keys[i]. `count` is how many there are. `keys` and `places` may be NULL;
/// else the first holds at least that many, and the second as many as the batch has keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_distinct(
    lease: *const embank_lease,
    keys: *mut u64,
    keys_len: usize,
    places: *mut u32,
    places_len: usize,
    count: *mut usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed; `keys`, `places` and `count` are each null or valid for the call.
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
        // SAFETY: `check_apart` found that the two buffers do not overlap.
        let keys = keys.write();
        let places = places.write();
        keys.iter_mut().zip(unique.keys()).for_each(|(key, &found)| *key = found);
        places.iter_mut().zip(unique.inverse()).for_each(|(place, &found)| *place = found);
        count.set(unique.len());
        Ok(())
    })
}

/// Releases the lease, if it has not ended, and frees the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_lease_free(lease: *mut embank_lease) {
    // SAFETY: the caller keeps the header's rules: `lease` is null or a handle that has not been
    // freed.
    unsafe { handle::free(lease) };
}
