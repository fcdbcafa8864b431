//! Counters: structs with the counters that a training loop needs, and text with all counters.

use bytemuck::Zeroable;

use crate::bank::{embank_bank, stats_of};
use crate::bytes::embank_bytes;
use crate::counters::{embank_bank_stats, embank_table_stats};
use crate::memory::HandlePlace;
use crate::sized::{self, Growing};
use crate::status::{call, embank_status};
use crate::table::{embank_table, table_of};

// SAFETY: the struct is `Pod`, so it has no padding, and its first field is `size`.
unsafe impl Growing for embank_bank_stats {
    const NAME: &'static str = "embank_bank_stats";
    const FILLED_BY: &'static str = "embank_bank_get_stats";
    const SIZE_MIN: usize = 288;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

// SAFETY: the struct is `Pod`, so it has no padding, and its first field is `size`.
unsafe impl Growing for embank_table_stats {
    const NAME: &'static str = "embank_table_stats";
    const FILLED_BY: &'static str = "embank_table_get_stats";
    const SIZE_MIN: usize = 136;

    fn defaults() -> Self {
        Self::zeroed()
    }
}

/// The bank's counters. `size` is sizeof(embank_bank_stats).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_get_stats(
    bank: *const embank_bank,
    stats: *mut embank_bank_stats,
    size: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `bank` is null or a handle that has not been
    // freed; `stats` is null or valid for the call.
    call(|| unsafe {
        let found = embank_bank_stats::of(&stats_of(bank)?, size);
        sized::write(stats, size, &found)
    })
}

/// The table's counters. `size` is sizeof(embank_table_stats).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_get_stats(
    table: *const embank_table,
    stats: *mut embank_table_stats,
    size: usize,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `table` is null or a handle that has not been
    // freed; `stats` is null or valid for the call.
    call(|| unsafe {
        let found = embank_table_stats::of(&table_of(table)?.stats(), size);
        sized::write(stats, size, &found)
    })
}

/// All counters of the bank as text in the format of Prometheus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_bank_prometheus(
    bank: *const embank_bank,
    text: *mut *mut embank_bytes,
) -> embank_status {
    // SAFETY: the caller keeps the header's rules: `bank` is null or a handle that has not been
    // freed; `text` is null or valid for the call.
    call(|| unsafe {
        let place = HandlePlace::cleared("text", text)?;
        let stats = stats_of(bank)?;
        place.hand_over(embank_bytes::new(stats.to_prometheus().as_bytes()));
        Ok(())
    })
}
