//! Counters: structs with the counters that a training loop needs, and text with all counters.

use std::collections::BTreeMap;
use std::ffi::c_char;

use bytemuck::Zeroable;
use embank::BankStats;

use crate::bank::{embank_bank, stats_of};
use crate::bytes::embank_bytes;
use crate::counters::{embank_bank_stats, embank_table_stats};
use crate::memory::{self, HandlePlace, Lent};
use crate::sized::{self, Growing};
use crate::status::{Failure, call, embank_status};
use crate::table::{embank_table, table_of};

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_bank_stats {
    const NAME: &'static str = "embank_bank_stats";
    const FILLED_BY: &'static str = "embank_bank_get_stats";
    const SIZE_MIN: usize = 288;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

// SAFETY: the struct is `repr(C)` and its first field is `size`. It is `Pod`, so it has no padding,
// and any bits are valid.
unsafe impl Growing for embank_table_stats {
    const NAME: &'static str = "embank_table_stats";
    const FILLED_BY: &'static str = "embank_table_get_stats";
    const SIZE_MIN: usize = 136;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

/// Fills `stats` with the bank's counters. `size` is sizeof(embank_bank_stats).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_get_stats(
    bank: *const embank_bank,
    stats: *mut embank_bank_stats,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `stats` is null or
    // valid until the call returns.
    call(|| unsafe {
        let found = embank_bank_stats::of(&stats_of(bank)?, size);
        sized::write(stats, size, &found)
    })
}

/// Fills `stats` with the table's counters. `size` is sizeof(embank_table_stats).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_stats(
    table: *const embank_table,
    stats: *mut embank_table_stats,
    size: usize,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `table` is null or a live handle, and `stats` is null or
    // valid until the call returns.
    call(|| unsafe {
        let found = embank_table_stats::of(&table_of(table)?.stats(), size);
        sized::write(stats, size, &found)
    })
}

/// `text` gets all counters of the bank, in the text format of Prometheus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_prometheus(
    bank: *const embank_bank,
    text: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `bank` is null or a live handle, and `text` is null or
    // valid until the call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("text", text)?;
        let stats = stats_of(bank)?;
        place.hand_over(embank_bytes::new(stats.to_prometheus().as_bytes()));
        Ok(())
    })
}

/// `text` gets all counters of `count` banks, as embank_bank_prometheus gives them for one. Each
/// number has the label `bank` with its bank's name from `names`. Two banks can't have the same
/// name. The texts of embank_bank_prometheus can't be joined, because they have the same series.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_banks_prometheus(
    banks: *const *const embank_bank,
    names: *const *const c_char,
    count: usize,
    text: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: by the rules of embank.h, `banks` and `names` are null or have `count` pointers. Each
    // bank is null or a live handle, each name is null or text. `text` is null or valid until the
    // call returns.
    call(|| unsafe {
        let place = HandlePlace::cleared("text", text)?;
        // Checks the pointers and the length. Pointers are as long and as aligned as `usize`.
        Lent::new("banks", banks.cast::<usize>(), count)?;
        Lent::new("names", names.cast::<usize>(), count)?;
        let mut stats = BTreeMap::new();
        for number in 0..count {
            let name = memory::text("name", *names.add(number))?;
            if stats.insert(name, stats_of(*banks.add(number))?).is_some() {
                return Err(Failure::invalid(format!("two banks have the name {name:?}")));
            }
        }
        let joined = BankStats::banks_to_prometheus(&stats);
        place.hand_over(embank_bytes::new(joined.as_bytes()));
        Ok(())
    })
}
