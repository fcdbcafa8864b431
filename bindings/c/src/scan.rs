//! Scans: every row of a table, as a checkpoint holds it.

use embank::Scan;
use embank::locks::Mutex;

use crate::handle::{self, Owned, borrowed};
use crate::memory::{Lent, Place};
use crate::status::{Failure, call, embank_status};

/// The rows of a table as the newest checkpoint held them. Each row comes once, in no particular
/// order. Free with embank_scan_free.
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
/// `scan` must be null or a handle that is not freed during the call.
unsafe fn scan_of<'a>(scan: *const embank_scan) -> Result<&'a Mutex<Scan>, Failure> {
    // SAFETY: `# Safety` obliges the caller to pass null or a handle that is not freed.
    unsafe { borrowed("scan", scan) }?.inner.get()
}

/// Fills `keys` and `rows` with the next rows; `rows` has room for capacity * dim values. `count`
/// gets the number of rows: below `capacity` only at the end, and 0 after the last row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_scan_next(
    scan: *const embank_scan,
    keys: *mut u64,
    capacity: usize,
    rows: *mut f32,
    rows_len: usize,
    count: *mut usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `scan` is null or a handle that has not been
    // freed; `keys`, `rows` and `count` are each null or valid for the call.
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

/// The number of the checkpoint, the number of its rows of the table, and the number of rows still
/// to come. Any place may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_scan_progress(
    scan: *const embank_scan,
    checkpoint: *mut u64,
    rows: *mut u64,
    remaining: *mut u64,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `scan` is null or a handle that has not been
    // freed; `checkpoint`, `rows` and `remaining` are each null or valid for the call.
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
    // SAFETY: the caller keeps the header's rules: `scan` is null or a handle that has not been
    // freed.
    unsafe { handle::free(scan) };
}
