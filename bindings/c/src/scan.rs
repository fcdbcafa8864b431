//! Functions on a scan, which returns every row of a table in a checkpoint.

use embank::Scan;
use embank::locks::Mutex;

use crate::handle::{self, Owned, borrowed};
use crate::memory::{Lent, Place};
use crate::status::{Failure, call, embank_status};

/// A scan: the rows of a table in the checkpoint that was the newest when the scan began. Each row
/// comes once, in no particular order. Free with embank_scan_free.
#[derive(Debug)]
pub struct embank_scan {
    inner: Owned<Mutex<Scan>>,
}

impl embank_scan {
    pub(crate) fn new(scan: Scan) -> Self {
        Self { inner: Owned::new(Mutex::new(scan)) }
    }
}

/// # Safety
/// `scan` must be null or a handle that the caller does not free while the returned reference is in
/// use.
unsafe fn scan_of<'a>(scan: *const embank_scan) -> Result<&'a Mutex<Scan>, Failure> {
    // SAFETY: by this function's `# Safety`, `scan` is null or a live handle.
    unsafe { borrowed("scan", scan) }?.inner.get()
}

/// Fills `keys` and `rows` with the next rows of the scan. `keys` has room for `capacity` keys, and
/// `rows` for capacity * dim values. `count` gets the number of rows. It is less than `capacity`
/// only at the end of the table, and 0 after the last row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_scan_next(
    scan: *const embank_scan,
    keys: *mut u64,
    capacity: usize,
    rows: *mut f32,
    rows_len: usize,
    count: *mut usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `scan` is null or a live handle, and `keys`, `rows` and
    // `count` are each null or valid until the call returns.
    call(|| unsafe {
        let place = Place::required("count", count)?;
        let keys = Lent::new_mut("keys", keys, capacity)?;
        let rows = Lent::new_mut("rows", rows, rows_len)?;
        keys.check_apart(&rows)?;
        let mut scan = scan_of(scan)?.lock();
        let count = scan.next_batch(keys.write(), rows.write())?;
        place.set(count);
        Ok(())
    })
}

/// `checkpoint` gets the number of the checkpoint, `rows` the number of the table's rows in that
/// checkpoint, and `remaining` the number of rows that the scan has not returned yet. After blind
/// puts, the two numbers are upper bounds. Each of the three may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_scan_progress(
    scan: *const embank_scan,
    checkpoint: *mut u64,
    rows: *mut u64,
    remaining: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `scan` is null or a live handle, and `checkpoint`, `rows`
    // and `remaining` are each null or valid until the call returns.
    call(|| unsafe {
        let checkpoint = Place::optional("checkpoint", checkpoint)?;
        let rows = Place::optional("number of rows", rows)?;
        let remaining = Place::optional("number of remaining rows", remaining)?;
        let scan = scan_of(scan)?.lock();
        checkpoint.set(scan.checkpoint());
        rows.set(scan.rows());
        remaining.set(scan.remaining());
        Ok(())
    })
}

/// Ends the scan and frees the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_scan_free(scan: *mut embank_scan) {
    // SAFETY: by the rules of embank.h, `scan` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(scan) };
}
