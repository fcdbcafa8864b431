//! When a wait ends.

use std::time::{Duration, Instant};

/// Stands for longer times, and for where a deadline lies that the clock can't represent.
pub(crate) const FAR_OFF: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The time `wait` from now.
pub(crate) fn deadline_after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR_OFF)
}
