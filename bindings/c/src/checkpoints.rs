//! Kept checkpoints of a bank that need not be open.

use std::ffi::c_char;

use embank::Bank;

use crate::memory::{Lent, Place, path as path_of};
use crate::status::{call, embank_status};

/// Lists the kept checkpoints of the bank in `path`, oldest first, beside whoever has it open. `count` is how many
/// there are; as many of their numbers as `capacity` allows go to `numbers`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_list_checkpoints(
    path: *const c_char,
    numbers: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = Place::required("count", count)?;
        let numbers = Lent::new_mut("numbers", numbers, capacity)?;
        let checkpoints = Bank::checkpoints(path_of("path", path)?)?;
        // SAFETY: the only buffer of the call.
        let numbers = numbers.write();
        for (number, checkpoint) in numbers.iter_mut().zip(&checkpoints) {
            *number = checkpoint.number;
        }
        place.set(checkpoints.len());
        Ok(())
    })
}

/// Takes the bank in `path`, which nobody has open for writing, back to an older checkpoint for good; the newer ones
/// are gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_roll_back(path: *const c_char, checkpoint: u64) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        Bank::roll_back(path_of("path", path)?, checkpoint)?;
        Ok(())
    })
}

/// Copies a checkpoint or, for 0, the newest one of the bank in `path` to the directory `to`, which is a bank of its
/// own then. Works beside whoever has the bank open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_copy_checkpoint(
    path: *const c_char,
    checkpoint: u64,
    to: *const c_char,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let to = path_of("path of the copy", to)?;
        Bank::copy_checkpoint(path, (checkpoint != 0).then_some(checkpoint), to)?;
        Ok(())
    })
}

/// Writes what lies between the checkpoints `from` and `to` (0 means the newest) of the bank in `path` to a new file,
/// for embank_apply_delta. Works beside whoever has the bank open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_export_delta(
    path: *const c_char,
    from: u64,
    to: u64,
    file: *const c_char,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let file = path_of("delta's path", file)?;
        Bank::export_delta(path, from, (to != 0).then_some(to), file)?;
        Ok(())
    })
}

/// Takes the bank in `path`, a copy that nobody has open for writing, to the checkpoint that the delta in `file`
/// leads to, and keeps the newest `checkpoints_kept`. EMBANK_STATUS_DELTA_MISMATCH if it does not follow the bank's
/// newest one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_apply_delta(
    path: *const c_char,
    file: *const c_char,
    checkpoints_kept: usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let path = path_of("path", path)?;
        let file = path_of("delta's path", file)?;
        Bank::apply_delta(path, file, checkpoints_kept)?;
        Ok(())
    })
}
