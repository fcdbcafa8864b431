//! Checks the 96-bit times of Parquet, which Spark and Impala write.
//!
//! A value is the nanoseconds of a day (64 bits) and the number of the day (32 bits). The `parquet`
//! crate turns it into an i64 of the unit that is asked for, and wraps without an error: in
//! nanoseconds before 1677 and after 2262. So this module looks at each value before a decoder
//! does.

use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::errors::{ParquetError, Result};

use super::counts::values_of;
use crate::spec::TimeUnit;

const VALUE_BYTES: usize = 12;
/// Number of the day 1970-01-01.
const FIRST_DAY: i128 = 2_440_588;
const NANOSECONDS_A_DAY: i128 = 86_400_000_000_000;

/// Fails if a time of the page has no i64 in this unit. A page of dictionary indices has no times.
pub(super) fn check_times(page: &Page, levels: (i16, i16), unit: TimeUnit) -> Result<()> {
    let has_times =
        matches!(page, Page::DictionaryPage { .. }) || page.encoding() == Encoding::PLAIN;
    if !has_times {
        return Ok(());
    }
    let nanoseconds_a_unit = 1_000_000_000 / unit.per_second();
    for value in values_of(page, levels)?.chunks_exact(VALUE_BYTES) {
        let (nanoseconds, day) = value.split_at(size_of::<i64>());
        let nanoseconds = i64::from_le_bytes(nanoseconds.try_into().expect("it was split there"));
        let day = i32::from_le_bytes(day.try_into().expect("it is the rest"));
        let time = (i128::from(day) - FIRST_DAY) * NANOSECONDS_A_DAY + i128::from(nanoseconds);
        if i64::try_from(time / nanoseconds_a_unit).is_err() {
            return Err(ParquetError::General(match unit {
                TimeUnit::Nanosecond => "a time of it is before 1677 or after 2262, which 64 bits of nanoseconds do not \
                     reach: give the field the `time_unit` of microseconds"
                    .to_owned(),
                _ => "a time of it does not fit into 64 bits".to_owned(),
            }));
        }
    }
    Ok(())
}
