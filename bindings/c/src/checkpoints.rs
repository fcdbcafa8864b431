//! Functions on the kept checkpoints of a bank. The bank need not be open.

use std::ffi::c_char;

use embank::Bank;

use crate::memory::{Lent, Place, path as path_of};
use crate::status::{call, embank_status};

/// Lists the kept checkpoints of the bank in `path`, oldest first. Another process may have the
/// bank open. `count` gets their number; the first `capacity` numbers go to `numbers`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_list_checkpoints(
    path: *const c_char,
    numbers: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `path`, `numbers` and `count` are each null or
    // valid for the call.
    call(|| unsafe {
        let place = Place::required("count", count)?;
        let numbers = Lent::new_mut("numbers", numbers, capacity)?;
        let checkpoints = Bank::checkpoints(path_of("path", path)?)?;
        // SAFETY: the call has no other buffer that could overlap this one.
        let numbers = numbers.write();
        for (number, checkpoint) in numbers.iter_mut().zip(&checkpoints) {
            *number = checkpoint.number;
        }
        place.set(checkpoints.len());
        Ok(())
    })
}

/// Takes the bank in `path` back to an older checkpoint for good; newer checkpoints are removed. No
/// process may have the bank open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_roll_back(path: *const c_char, checkpoint: u64) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `path` is null or valid for the call.
    call(|| unsafe {
        Bank::roll_back(path_of("path", path)?, checkpoint)?;
        Ok(())
    })
}

/// Copies a checkpoint of the bank in `path`, or the newest one for 0, to the directory `to`, which
/// is then a bank of its own. Another process may have the bank in `path` open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_copy_checkpoint(
    path: *const c_char,
    checkpoint: u64,
    to: *const c_char,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `path` and `to` are each null or valid for the
    // call.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let to = path_of("path of the copy", to)?;
        Bank::copy_checkpoint(path, (checkpoint != 0).then_some(checkpoint), to)?;
        Ok(())
    })
}

/// Writes the difference between the checkpoints `from` and `to` (0 means the newest) of the bank
/// in `path` to a new file, for embank_apply_delta. Another process may have the bank open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_export_delta(
    path: *const c_char,
    from: u64,
    to: u64,
    file: *const c_char,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `path` and `file` are each null or valid for the
    // call.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let file = path_of("delta's path", file)?;
        Bank::export_delta(path, from, (to != 0).then_some(to), file)?;
        Ok(())
    })
}

/// Brings the bank in `path`, a copy, to the checkpoint that the delta in `file` leads to, and
/// keeps its newest `checkpoints_kept` checkpoints. No process may have the copy open for writing.
/// Returns EMBANK_STATUS_DELTA_MISMATCH if the delta does not follow the copy's newest checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_apply_delta(
    path: *const c_char,
    file: *const c_char,
    checkpoints_kept: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `path` and `file` are each null or valid for the
    // call.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let file = path_of("delta's path", file)?;
        Bank::apply_delta(path, file, checkpoints_kept)?;
        Ok(())
    })
}
