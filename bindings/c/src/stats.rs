//! Counters: structs with the counters that a training loop needs, and text with all counters.

use bytemuck::Zeroable;

use crate::bank::{embank_bank, stats_of};
use crate::bytes::embank_bytes;
use crate::counters::{embank_bank_stats, embank_table_stats};
use crate::memory::HandlePlace;
use crate::sized::{self, Growing};
use crate::status::{call, embank_status};
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
