//! Computes deadlines of waits.

use std::time::{Duration, Instant};

/// Ten years. Replaces a wait that is too long for the clock.
pub(crate) const FAR_OFF: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Returns the time `wait` from now, or [`FAR_OFF`] from now if the clock can't represent it.
pub(crate) fn deadline_after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR_OFF)
}
