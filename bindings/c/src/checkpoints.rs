//! Functions on the kept checkpoints of a bank. The bank need not be open.

use std::ffi::c_char;

use embank::Bank;
use embank::fleet::refuse_shard;

use crate::memory::{Lent, Place, path as path_of};
use crate::status::{call, embank_status};

/// Lists the kept checkpoints of the bank in `path`, oldest first. Another process may have the
/// bank open. `count` gets the number of kept checkpoints. `numbers` gets the numbers of the first
/// `capacity` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_list_checkpoints(
    path: *const c_char,
    numbers: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `path`, `numbers` and `count` are each null or valid until
    // the call returns.
    call(|| unsafe {
        let place = Place::required("count", count)?;
        let numbers = Lent::new_mut("numbers", numbers, capacity)?;
        let checkpoints = Bank::checkpoints(path_of("path", path)?)?;
        // SAFETY: by the rules of embank.h, no other code uses `numbers` during the call. No other
        // slice of the caller's memory is in use here.
        let numbers = numbers.write();
        for (number, checkpoint) in numbers.iter_mut().zip(&checkpoints) {
            *number = checkpoint.number;
        }
        place.set(checkpoints.len());
        Ok(())
    })
}

/// Takes the bank in `path` back to an older checkpoint, and removes all newer checkpoints. This
/// can't be undone. No process may have the bank open for writing. Returns EMBANK_STATUS_OTHER for
/// a shard of a fleet: the whole fleet goes back together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_roll_back(path: *const c_char, checkpoint: u64) -> embank_status {
    // SAFETY: by the rules of embank.h, `path` is null or valid until the call returns.
    call(|| unsafe {
        let path = path_of("path", path)?;
        refuse_shard(path)?;
        Bank::roll_back(path, checkpoint)?;
        Ok(())
    })
}

/// Copies a checkpoint of the bank in `path` to the directory `to`, which is then an independent
/// bank. If `checkpoint` is 0, copies the newest checkpoint. Another process may have the bank in
/// `path` open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_copy_checkpoint(
    path: *const c_char,
    checkpoint: u64,
    to: *const c_char,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `path` and `to` are each null or valid until the call
    // returns.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let to = path_of("path of the copy", to)?;
        Bank::copy_checkpoint(path, (checkpoint != 0).then_some(checkpoint), to)?;
        Ok(())
    })
}

/// Writes a delta, the difference between the checkpoints `from` and `to` of the bank in `path`, to
/// a new file. embank_apply_delta reads this file. If `to` is 0, it means the newest checkpoint.
/// Another process may have the bank open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_export_delta(
    path: *const c_char,
    from: u64,
    to: u64,
    file: *const c_char,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `path` and `file` are each null or valid until the call
    // returns.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let file = path_of("delta's path", file)?;
        Bank::export_delta(path, from, (to != 0).then_some(to), file)?;
        Ok(())
    })
}

/// Brings a copy of a bank to the checkpoint at which the delta in `file` ends. The copy is the
/// bank in `path`; it keeps its newest `checkpoints_kept` checkpoints. No process may have the copy
/// open for writing. Returns EMBANK_STATUS_DELTA_MISMATCH if the delta does not follow the copy's
/// newest checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_apply_delta(
    path: *const c_char,
    file: *const c_char,
    checkpoints_kept: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `path` and `file` are each null or valid until the call
    // returns.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let file = path_of("delta's path", file)?;
        Bank::apply_delta(path, file, checkpoints_kept)?;
        Ok(())
    })
}
