//! Tracking: the time of the last use and the number of uses, two words in every row of a table
//! that tracks them.
//!
//! The words follow the optimizer's state in the row. An update changes them under the row's lock,
//! which the update holds anyway. A use is a gradient that is applied or a row that is put. A peek
//! is no use. A Get is no use either, because an update usually follows it. A row that a Get makes
//! has the present time and no uses.
//!
//! The time of a row never goes back: an update with an older time counts as a use and keeps the
//! time. Checkpoints contain the largest time that was set (module `times`), so the next open
//! continues with it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether a table's rows record the time of their last use and the number of their uses. Evictions
/// by age and by frequency need these two numbers. Tracking adds 8 bytes to each row, so it is
/// fixed when the table is created. Default: [`Tracking::None`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use embank::{Bank, BankOptions, Eviction, TableConfig, Tracking};
///
/// let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
/// let table = bank.table("user", TableConfig::new(2).tracking(Tracking::SetTime))?;
/// table.set_time(7)?; // an epoch, or thousands of steps
/// table.put(&[1], &[0.5, 1.5])?;
/// table.set_time(10)?;
/// table.put(&[2], &[0.5, 1.5])?;
/// bank.checkpoint(b"")?;
/// let evicted = table.evict(&Eviction::new().unused_for(3))?;
/// assert_eq!((evicted.rows, table.contains(&[1, 2])?), (1, vec![false, true]));
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Tracking {
    /// Rows record neither their last use nor their number of uses.
    #[default]
    None,
    /// Each row records its last use and its number of uses. The time is the system clock in
    /// minutes.
    Minutes,
    /// Each row records its last use and its number of uses. The time is the one that
    /// [`Table::set_time`](crate::Table::set_time) has set, in any unit: steps, epochs or days. The
    /// bank stores the largest time that was set. The time is 0 before the first call.
    SetTime,
}

/// Bytes of a row's two words: the time of the last use and the number of uses, each a u32.
pub(crate) const TRACKING_BYTES: usize = 8;

/// The time that the rows of a table store when they are used: minutes, or the time that
/// `Table::set_time` has set.
#[derive(Debug)]
pub(crate) struct Tracker {
    by_clock: bool,
    now: AtomicU32,
    /// True once the time was set.
    is_set: AtomicBool,
}

/// The use words of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) last: u32,
    pub(crate) count: u32,
}

impl Tracker {
    pub(crate) fn new(tracking: Tracking) -> Option<Self> {
        let by_clock = match tracking {
            Tracking::None => return None,
            Tracking::Minutes => true,
            Tracking::SetTime => false,
        };
        let tracker = Self { by_clock, now: AtomicU32::new(0), is_set: AtomicBool::new(false) };
        tracker.refresh();
        Some(tracker)
    }

    /// Reads the system clock, once per batch.
    pub(crate) fn refresh(&self) {
        if self.by_clock {
            self.set(minutes_now());
        }
    }

    pub(crate) fn is_by_clock(&self) -> bool {
        self.by_clock
    }

    pub(crate) fn set(&self, now: u32) {
        // Relaxed here and below: no other data depends on the time.
        self.now.store(now, Ordering::Relaxed);
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// True if the time was set, in this process or before the last checkpoint.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Writes the present time to a new row, whose words are zero.
    pub(crate) fn begin(&self, words: &mut [u8]) {
        words[..4].copy_from_slice(&self.now().to_le_bytes());
    }

    /// Records a use.
    pub(crate) fn note(&self, words: &mut [u8]) {
        let Uses { last, count } = Uses::of(words);
        let uses = Uses { last: last.max(self.now()), count: count.saturating_add(1) };
        uses.write(words);
    }

    /// Writes a use count from a file, and the present time as the last use.
    pub(crate) fn adopt(&self, words: &mut [u8], count: u32) {
        let last = Uses::of(words).last.max(self.now());
        Uses { last, count }.write(words);
    }
}

impl Uses {
    pub(crate) fn of(words: &[u8]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]])
        };
        Self { last: word(0), count: word(4) }
    }

    pub(crate) fn write(self, words: &mut [u8]) {
        words[..4].copy_from_slice(&self.last.to_le_bytes());
        words[4..].copy_from_slice(&self.count.to_le_bytes());
    }
}

/// Returns the system clock in minutes since 1970. A u32 lasts for eight thousand years.
pub(crate) fn minutes_now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() / 60) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_and_time_never_goes_back() {
        let tracker = Tracker::new(Tracking::SetTime).unwrap();
        let mut words = [0; TRACKING_BYTES];
        tracker.set(5);
        tracker.begin(&mut words);
        assert_eq!(Uses::of(&words), Uses { last: 5, count: 0 });
        tracker.set(3);
        tracker.note(&mut words);
        assert_eq!(Uses::of(&words), Uses { last: 5, count: 1 });
        tracker.set(9);
        tracker.note(&mut words);
        assert_eq!(Uses::of(&words), Uses { last: 9, count: 2 });
        words[4..].fill(0xFF);
        tracker.note(&mut words);
        assert_eq!(Uses::of(&words).count, u32::MAX);
        tracker.set(8);
        tracker.adopt(&mut words, 7);
        assert_eq!(Uses::of(&words), Uses { last: 9, count: 7 });
    }

    #[test]
    fn the_clock_counts_minutes() {
        let tracker = Tracker::new(Tracking::Minutes).unwrap();
        // Minutes of the years 2025 and 2400.
        assert!((28_928_160..226_164_960).contains(&tracker.now()), "{}", tracker.now());
        assert!(Tracker::new(Tracking::None).is_none());
    }
}
