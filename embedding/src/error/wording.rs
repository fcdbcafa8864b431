//! Parts of error messages.

use std::time::Duration;

use crate::stats::lease_info::LeaseInfo;
use crate::unknown_id::UNKNOWN_ID;

/// Returns an error message's advice: how to get keys that are ids of the table's vocabulary.
pub(crate) fn cure(key: u64, unknown: Option<u64>, first_id: u64) -> String {
    match (key == UNKNOWN_ID, unknown) {
        (false, _) => {
            "take keys from the vocabulary's ids, lookup or ids_or_insert, and insert values before the rows that \
             belong to them"
                .to_owned()
        }
        (true, Some(id)) => format!("look the values up with lookup, which gives id {id} to unknown ones"),
        (true, None) if first_id > 0 => {
            "insert the value first with ids_or_insert, or give it one of your own ids below the first one".to_owned()
        }
        (true, None) => {
            "insert the value first with ids_or_insert, or make the vocabulary with an id for unknown values, such as \
             id 0 where the first value gets id 1"
                .to_owned()
        }
    }
}

/// Returns a message's words for the unchanged rows beyond the first. `rows` counts all unchanged
/// rows.
pub(crate) fn others(rows: usize) -> String {
    match rows {
        0 | 1 => String::new(),
        2 => " (and 1 other row)".to_owned(),
        rows => format!(" (and {} other rows)", rows - 1),
    }
}

/// Returns the reason for a wait: other Gets overtook this one, or a lease was not ended.
pub(crate) fn why_it_waited(
    outstanding: u32,
    bound: u32,
    waited: Duration,
    oldest: Option<&LeaseInfo>,
) -> String {
    match oldest {
        Some(oldest) if outstanding > bound && oldest.age >= waited / 2 => format!(
            "{outstanding} Gets were outstanding, more than the staleness bound of {bound} lets through, still after \
             {waited:?} (the oldest holds {oldest}); apply or drop the leases that hold this row, raise the bound, or raise \
             the bank's wait_timeout"
        ),
        Some(LeaseInfo { age, .. }) => format!(
            "other Gets took rows of this batch at the staleness bound of {bound} again and again for {waited:?}, and no \
             lease on this row is older than {age:.1?}; threads that get rows before they end their earlier leases come \
             first, so end leases before the next Get, get smaller batches, or raise the bound"
        ),
        None => format!(
            "other Gets took rows of this batch at the staleness bound of {bound} again and again for {waited:?}, and at \
             the end none held this row; get smaller batches, raise the bound, or raise the bank's wait_timeout"
        ),
    }
}
