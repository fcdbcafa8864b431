//! Banks.

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

/// An open bank: a directory with many tables under one memory budget. Free with embank_bank_close.
#[derive(Debug)]
pub struct embank_bank {
    inner: Owned<Bank>,
}

/// # Safety
/// By the header's rules for handles.
unsafe fn bank_of<'a>(bank: *const embank_bank) -> Result<&'a Bank, Failure> {
    // SAFETY: the caller's duty is the same.
    unsafe { borrowed("bank", bank) }?.inner.get()
}

/// # Safety
/// By the header's rules for structs; null is none.
unsafe fn options_of(options: *const embank_bank_options) -> Result<embank::BankOptions, Failure> {
    // SAFETY: the caller's duty is the same.
    unsafe { sized::read_or_defaults(options) }?.to_rust()
}

/// Opens the bank in the directory `path`, or creates it there. An existing bank comes back as its newest completed
/// checkpoint left it; what was written after that is gone. `options` may be NULL for defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open(
    path: *const c_char,
    options: *const embank_bank_options,
    bank: *mut *mut embank_bank,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = HandlePlace::cleared("bank", bank)?;
        let path = path_of("path", path)?;
        let options = options_of(options)?;
        let inner = Owned::new(Bank::open(path, options)?);
        place.hand_over(embank_bank { inner });
        Ok(())
    })
}

/// Opens the bank in the directory `path` to read only, at the checkpoint of that number or, for 0, at the newest one,
/// beside a process that writes it or none. Peek and scan; whatever would write is EMBANK_STATUS_READ_ONLY. The writer
/// keeps the checkpoint as long as the bank is at it. Of `options`, which may be NULL, memory budget and device count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open_read_only(
    path: *const c_char,
    options: *const embank_bank_options,
    checkpoint: u64,
    bank: *mut *mut embank_bank,
) -> embank_status {
    // SAFETY: by the header's rules.
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

/// Frees the handle. The bank closes when its tables, leases and scans are freed too; another can't open it for writing
/// before that. Takes no checkpoint: changed_since_checkpoint of embank_bank_get_stats says how much would be lost, and
/// embank_bank_checkpoint keeps it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_close(bank: *mut embank_bank) {
    // SAFETY: by the header's rules.
    unsafe { handle::free(bank) };
}

/// Opens the table `name`, or creates it. A new table is durable with the next checkpoint. A table whose keys are a
/// vocabulary's ids is made by embank_bank_table_of_vocabulary; this function opens one that exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_table(
    bank: *const embank_bank,
    name: *const c_char,
    settings: *const embank_table_settings,
    table: *mut *mut embank_table,
) -> embank_status {
    // SAFETY: by the header's rules.
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

/// As embank_bank_table, for a table whose keys are the ids of the vocabulary of this name: the table takes no other
/// keys, and can't be opened once the vocabulary is renumbered or replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_table_of_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
    settings: *const embank_table_settings,
    vocabulary: *const c_char,
    table: *mut *mut embank_table,
) -> embank_status {
    // SAFETY: by the header's rules.
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

/// Opens the vocabulary `name`, or creates it. A new one is durable with the next checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
    settings: *const embank_vocabulary_settings,
    vocabulary: *mut *mut embank_vocabulary,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = HandlePlace::cleared("vocabulary", vocabulary)?;
        let bank = bank_of(bank)?;
        let name = text("vocabulary's name", name)?;
        let config = vocabulary::config_of(settings)?;
        place.hand_over(embank_vocabulary::new(bank.vocabulary(name, config)?));
        Ok(())
    })
}

/// Opens the vocabulary `name` as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
    vocabulary: *mut *mut embank_vocabulary,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = HandlePlace::cleared("vocabulary", vocabulary)?;
        let bank = bank_of(bank)?;
        let name = text("vocabulary's name", name)?;
        place.hand_over(embank_vocabulary::new(bank.open_vocabulary(name)?));
        Ok(())
    })
}

/// Drops the vocabulary `name`: its values are gone at once, for good with the next checkpoint. Tables that were made for
/// it stay, and can't be opened. Handles of it are still to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_drop_vocabulary(
    bank: *const embank_bank,
    name: *const c_char,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let bank = bank_of(bank)?;
        let name = text("vocabulary's name", name)?;
        Ok(bank.drop_vocabulary(name)?)
    })
}

/// Lists the names of the bank's vocabularies, in order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_vocabularies(
    bank: *const embank_bank,
    names: *mut *mut embank_names,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = HandlePlace::cleared("names", names)?;
        let vocabularies = bank_of(bank)?.vocabularies();
        place.hand_over(embank_names::new(vocabularies.into_iter().map(|of| of.name)));
        Ok(())
    })
}

/// Opens the table `name` as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_open_table(
    bank: *const embank_bank,
    name: *const c_char,
    table: *mut *mut embank_table,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = HandlePlace::cleared("table", table)?;
        let bank = bank_of(bank)?;
        let name = text("table's name", name)?;
        place.hand_over(embank_table::new(bank.open_table(name)?));
        Ok(())
    })
}

/// Drops the table `name`: its rows are gone at once, for good with the next checkpoint. Handles and leases of it are
/// still to be freed. The name may be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_drop_table(
    bank: *const embank_bank,
    name: *const c_char,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let bank = bank_of(bank)?;
        let name = text("table's name", name)?;
        Ok(bank.drop_table(name)?)
    })
}

/// Lists the names of the bank's tables, in order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_tables(
    bank: *const embank_bank,
    names: *mut *mut embank_names,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = HandlePlace::cleared("names", names)?;
        let tables = bank_of(bank)?.tables();
        place.hand_over(embank_names::new(tables.into_iter().map(|table| table.name)));
        Ok(())
    })
}

/// Makes all tables as they are, and the caller's own bytes, durable together. When the call returns, everything is on
/// stable storage; a crash at any later moment recovers at least this checkpoint. `number` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_checkpoint(
    bank: *const embank_bank,
    blob: *const c_void,
    blob_size: usize,
    number: *mut u64,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = Place::optional("number", number)?;
        let bank = bank_of(bank)?;
        let blob = Lent::new("blob", blob.cast::<u8>(), blob_size)?.read();
        let number = bank.checkpoint(blob)?;
        place.set(number);
        Ok(())
    })
}

/// The checkpoint that opening the bank recovered, or that a bank which is open to read only is at, with its blob.
/// Without one, the number is 0 and the blob NULL. Either place may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_recovered(
    bank: *const embank_bank,
    number: *mut u64,
    blob: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: by the header's rules.
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

/// Moves a bank that is open to read only on to its newest checkpoint. `number`, of the one that it is at then, may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_refresh(
    bank: *const embank_bank,
    number: *mut u64,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = Place::optional("number", number)?;
        let number = bank_of(bank)?.refresh()?;
        place.set(number);
        Ok(())
    })
}

/// Gives disk space back now, as far as no kept checkpoint holds it. Other calls go on meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_compact(bank: *const embank_bank) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        bank_of(bank)?.compact()?;
        Ok(())
    })
}

/// Forgets what lookahead has queued and not begun to read. `cancelled`, how many keys that were, may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_cancel_lookahead(
    bank: *const embank_bank,
    cancelled: *mut usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = Place::optional("number of cancelled keys", cancelled)?;
        let cancelled = bank_of(bank)?.cancel_lookahead();
        place.set(cancelled);
        Ok(())
    })
}

/// Waits until nothing is pending in the lookahead queue; `idle` is 1 then, and 0 if `timeout_ms` passed first. For
/// tests and measurements: training need not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_wait_lookahead(
    bank: *const embank_bank,
    timeout_ms: u64,
    idle: *mut u8,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe {
        let place = Place::required("answer", idle)?;
        let bank = bank_of(bank)?;
        let idle = bank.wait_lookahead(Duration::from_millis(timeout_ms));
        place.set(u8::from(idle));
        Ok(())
    })
}

/// # Safety
/// By the header's rules for handles.
pub(crate) unsafe fn stats_of(bank: *const embank_bank) -> Result<embank::BankStats, Failure> {
    // SAFETY: the caller's duty is the same.
    Ok(unsafe { bank_of(bank) }?.stats())
}
