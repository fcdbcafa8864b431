//! Functions on a bank: open and close it, open and drop its tables and vocabularies, take
//! checkpoints.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use embank::Bank;

use crate::bytes::{embank_bytes, embank_names};
use crate::handle::{self, Owned, borrowed};
use crate::memory::{HandlePlace, Lent, Place, path as path_of, text};
use crate::options::embank_bank_options;
use crate::settings::embank_table_settings;
use crate::sized;
use crate::status::{Failure, call, embank_status};
use crate::table::embank_table;
use crate::vocabulary::{self, embank_vocabulary, embank_vocabulary_settings};

/// An open bank: a directory with tables that share one memory budget. Free with embank_bank_close.
#[derive(Debug)]
pub struct embank_bank {
    inner: Owned<Bank>,
}

/// # Safety
/// `bank` must be null or a handle that the caller does not free while the returned reference is in
/// use.
pub(crate) unsafe fn bank_of<'a>(bank: *const embank_bank) -> Result<&'a Bank, Failure> {
    // SAFETY: by this function's `# Safety`, `bank` is null or a live handle.
    unsafe { borrowed("bank", bank) }?.inner.get()
}

/// # Safety
/// `options` must be null or point to a struct whose first field is the struct's size in bytes.
unsafe fn options_of(options: *const embank_bank_options) -> Result<embank::BankOptions, Failure> {
    // SAFETY: by this function's `# Safety`, `options` is null or a struct of the size in its first
    // field.
    unsafe { sized::read_or_defaults(options) }?.to_rust()
}

/// Opens the bank in the directory `path`, or creates it there. An existing bank has the content of
/// its newest complete checkpoint; changes after that checkpoint are lost. If `options` is NULL,
/// every option has its default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open(
    path: *const c_char,
    options: *const embank_bank_options,
    bank: *mut *mut embank_bank,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `path`, `options` and `bank` are each null or valid until
    // the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("bank", bank)?;
        let path = path_of("path", path)?;
        let options = options_of(options)?;
        let inner = Owned::new(Bank::open(path, options)?);
        place.hand_over(embank_bank { inner });
        Ok(())
    })
}

/// Opens the bank in the directory `path` read-only. Another process may write the bank meanwhile.
/// `checkpoint` is the number of the checkpoint to open, or 0 for the newest. Peeks and scans work;
/// a call that would write returns EMBANK_STATUS_READ_ONLY. The process that writes the bank keeps
/// the checkpoint until this bank is refreshed or closed. `options` may be NULL. Only its memory
/// budget, device and threads have an effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open_read_only(
    path: *const c_char,
    options: *const embank_bank_options,
    checkpoint: u64,
    bank: *mut *mut embank_bank,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `path`, `options` and `bank` are each null or valid until
    // the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("bank", bank)?;
        let path = path_of("path", path)?;
        let options = options_of(options)?;
        let checkpoint = (checkpoint != 0).then_some(checkpoint);
        let inner = Owned::new(Bank::open_read_only(path, options, checkpoint)?);
        place.hand_over(embank_bank { inner });
        Ok(())
    })
}

/// Frees the handle. The bank closes when the handles of its tables, vocabularies, leases, scans,
/// gets ahead and their queues are freed too. Until then no other process can open the bank for
/// writing. This function takes no checkpoint, so changes after the last checkpoint are lost.
/// changed_since_checkpoint of embank_bank_get_stats is their number, and embank_bank_checkpoint
/// saves them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_close(bank: *mut embank_bank) {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and the caller does not
    // use it again.
    unsafe { handle::free(bank) };
}

/// Opens the table `name`, or creates it. The next checkpoint makes a new table durable.
/// embank_bank_table_of_vocabulary creates a table whose keys are a vocabulary's ids; this function
/// only opens such a table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_table(
    bank: *const embank_bank,
    name: *const c_char,
    settings: *const embank_table_settings,
    table: *mut *mut embank_table,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `name`, `settings` and
    // `table` are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("table", table)?;
        let bank = bank_of(bank)?;
        let name = text("table's name", name)?;
        let mut config = sized::read(settings)?.to_rust()?;
        let there = bank.tables().into_iter().find(|table| table.name == name);
        if let Some(vocabulary) = there.and_then(|table| table.config.vocabulary) {
            config = config.vocabulary(vocabulary.name);
        }
        place.hand_over(embank_table::new(bank.table(name, config)?));
        Ok(())
    })
}

/// Opens or creates, as embank_bank_table does, a table whose keys are the ids of the vocabulary
/// `vocabulary`. Calls with another key return EMBANK_STATUS_UNKNOWN_ID. The table can't be opened
/// after the vocabulary was renumbered, replaced or dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_table_of_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
    settings: *const embank_table_settings,
    vocabulary: *const c_char,
    table: *mut *mut embank_table,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `name`, `settings`,
    // `vocabulary` and `table` are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("table", table)?;
        let bank = bank_of(bank)?;
        let name = text("table's name", name)?;
        let vocabulary = text("vocabulary's name", vocabulary)?;
        let config = sized::read(settings)?.to_rust()?.vocabulary(vocabulary);
        place.hand_over(embank_table::new(bank.table(name, config)?));
        Ok(())
    })
}

/// Opens the vocabulary `name`, or creates it. The next checkpoint makes a new vocabulary durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
    settings: *const embank_vocabulary_settings,
    vocabulary: *mut *mut embank_vocabulary,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `name`, `settings` and
    // `vocabulary` are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("vocabulary", vocabulary)?;
        let bank = bank_of(bank)?;
        let name = text("vocabulary's name", name)?;
        let config = vocabulary::config_of(settings)?;
        place.hand_over(embank_vocabulary::new(bank.vocabulary(name, config)?));
        Ok(())
    })
}

/// Opens the existing vocabulary `name`, with the settings of its creation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
    vocabulary: *mut *mut embank_vocabulary,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `name` and
    // `vocabulary` are each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("vocabulary", vocabulary)?;
        let bank = bank_of(bank)?;
        let name = text("vocabulary's name", name)?;
        place.hand_over(embank_vocabulary::new(bank.open_vocabulary(name)?));
        Ok(())
    })
}

/// Drops the vocabulary `name`. Its values are gone when the call returns; the next checkpoint
/// makes this durable. Tables whose keys are the vocabulary's ids stay in the bank, but can't be
/// opened. The caller must still free the vocabulary's handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_drop_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `name` is null or
    // valid until the call returns.
    call(|| unsafe {
        let bank = bank_of(bank)?;
        let name = text("vocabulary's name", name)?;
        Ok(bank.drop_vocabulary(name)?)
    })
}

/// Lists the names of the bank's vocabularies, sorted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_vocabularies(
    bank: *const embank_bank,
    names: *mut *mut embank_names,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `names` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("names", names)?;
        let vocabularies = bank_of(bank)?.vocabularies();
        place.hand_over(embank_names::new(vocabularies.into_iter().map(|of| of.name)));
        Ok(())
    })
}

/// Opens the existing table `name`, with the settings that it has now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open_table(
    bank: *const embank_bank,
    name: *const c_char,
    table: *mut *mut embank_table,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `name` and `table` are
    // each null or valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("table", table)?;
        let bank = bank_of(bank)?;
        let name = text("table's name", name)?;
        place.hand_over(embank_table::new(bank.open_table(name)?));
        Ok(())
    })
}

/// Drops the table `name`. Its rows are gone when the call returns; the next checkpoint makes this
/// durable. The caller must still free the table's handles and leases. A new table may have the
/// name at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_drop_table(
    bank: *const embank_bank,
    name: *const c_char,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `name` is null or
    // valid until the call returns.
    call(|| unsafe {
        let bank = bank_of(bank)?;
        let name = text("table's name", name)?;
        Ok(bank.drop_table(name)?)
    })
}

/// Lists the names of the bank's tables, sorted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_tables(
    bank: *const embank_bank,
    names: *mut *mut embank_names,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `names` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("names", names)?;
        let tables = bank_of(bank)?.tables();
        place.hand_over(embank_names::new(tables.into_iter().map(|table| table.name)));
        Ok(())
    })
}

/// Takes a checkpoint: makes all tables and the caller's own bytes, `blob`, durable together. When
/// the call returns, all of them are on stable storage. After a crash at any later moment, the bank
/// opens at this checkpoint or a later one. `number` gets the checkpoint's number and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_checkpoint(
    bank: *const embank_bank,
    blob: *const c_void,
    blob_size: usize,
    number: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `blob` and `number`
    // are each null or valid until the call returns.
    call(|| unsafe {
        let place = Place::optional("number", number)?;
        let bank = bank_of(bank)?;
        let blob = Lent::new("blob", blob.cast::<u8>(), blob_size)?.read();
        let number = bank.checkpoint(blob)?;
        place.set(number);
        Ok(())
    })
}

/// Gets the number and the blob of a checkpoint: of the one at which the bank was opened, or of the
/// one that a read-only bank shows now. Without a checkpoint, the number is 0 and the blob is NULL.
/// `number` and `blob` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_recovered(
    bank: *const embank_bank,
    number: *mut u64,
    blob: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `number` and `blob`
    // are each null or valid until the call returns.
    call(|| unsafe {
        let blob = HandlePlace::cleared_optional("blob", blob)?;
        let number = Place::optional("number", number)?;
        let bank = bank_of(bank)?;
        let reading = bank.reading();
        let recovered = reading.as_deref().or(bank.recovered());
        if let (Some(place), Some(recovered)) = (blob, recovered) {
            place.hand_over(embank_bytes::new(&recovered.blob));
        }
        number.set(recovered.map_or(0, |recovered| recovered.checkpoint));
        Ok(())
    })
}

/// Moves a read-only bank to the newest checkpoint on disk. `number` gets the number of that
/// checkpoint and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_refresh(
    bank: *const embank_bank,
    number: *mut u64,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `number` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = Place::optional("number", number)?;
        let number = bank_of(bank)?.refresh()?;
        place.set(number);
        Ok(())
    })
}

/// Compacts the log: frees the disk space of old records, except space that a kept checkpoint or a
/// scan still needs. Other threads may use the bank meanwhile. In a bank with two tiers, rows go to
/// the cold tier instead, and files that are due are merged. The disk needs room for the new files
/// beside those that kept checkpoints hold. After blind puts, the call moves all rows of the log to
/// the cold tier, those in memory too, and rewrites the cold tier once. The number of rows is then
/// exact, unless rows have outstanding gets, other threads write meanwhile, files are damaged or
/// the disk has no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_compact(bank: *const embank_bank) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle.
    call(|| unsafe {
        bank_of(bank)?.compact()?;
        Ok(())
    })
}

/// Removes from the lookahead queue all keys that are not being read yet. `cancelled` gets the
/// number of removed keys, and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_cancel_lookahead(
    bank: *const embank_bank,
    cancelled: *mut usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `cancelled` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = Place::optional("number of cancelled keys", cancelled)?;
        let cancelled = bank_of(bank)?.cancel_lookahead();
        place.set(cancelled);
        Ok(())
    })
}

/// Waits until the lookahead queue is empty. `idle` gets 1 if the queue is empty, and 0 if
/// `timeout_ms` milliseconds passed before. For tests and measurements: training does not need it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_wait_lookahead(
    bank: *const embank_bank,
    timeout_ms: u64,
    idle: *mut u8,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `idle` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = Place::required("answer", idle)?;
        let bank = bank_of(bank)?;
        let idle = bank.wait_lookahead(Duration::from_millis(timeout_ms));
        place.set(u8::from(idle));
        Ok(())
    })
}

/// # Safety
/// `bank` must be null or a handle that is not freed during the call.
pub(crate) unsafe fn stats_of(bank: *const embank_bank) -> Result<embank::BankStats, Failure> {
    // SAFETY: by this function's `# Safety`, `bank` is null or a live handle.
    Ok(unsafe { bank_of(bank) }?.stats())
}
