//! Deadlines of waits.

use std::time::{Duration, Instant};

/// Replaces a longer time, and a deadline that the clock can't represent.
pub(crate) const FAR_OFF: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The time `wait` from now. If the clock can't represent it, the time [`FAR_OFF`] from now.
pub(crate) fn deadline_after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR_OFF)
}
