//! Gives reads with a waiting caller priority over other reads.
//!
//! A drive serves the reads in its queue nearly in order, and a read in the queue can't be taken
//! back. A get therefore waits behind all reads that lookahead, compaction or a scan has begun.
//! Background calls must keep the drive's queue short.
//!
//! Each read has a weight: 1, plus 1 for each 8 KiB. The *window* limits the total weight of
//! background reads in flight. The window is
//! - [`YIELDING`] while a foreground call runs or waits for a ring;
//! - [`ALONE`] once background reads of enough weight have completed since the last foreground
//!   call;
//! - in between, a value that grows from [`YIELDING`] to [`ALONE`]: by 1 for each weight of
//!   [`GROWTH`] of completed background reads. Frequent gets then always find a short queue, and
//!   rare gets cost background calls little.
//!
//! Background calls share the window equally. Each may always have one read in flight, so each
//! makes progress. A foreground call is limited only by its ring.
//!
//! The values were chosen by measurements of random reads of 512 bytes on a virtual drive. With
//! [`ALONE`] reads in flight, background calls get the drive's full rate. With [`YIELDING`], they
//! get about 0.7 of it, and a foreground read takes twice as long as without background calls.
//! Without a window it would take twenty times as long.

use super::Priority;
use crate::sync::{AtomicU32, Ordering};
use crate::testing::mechanisms::{Mechanism, is_on};

/// Limit of the weight of background reads in flight while a foreground call runs.
pub(super) const YIELDING: u32 = 32;

/// Limit of the weight of background reads in flight without foreground calls. A higher limit gives
/// no more reads per second.
pub(super) const ALONE: u32 = 128;

/// Weight of completed background reads that widens the window by 1 after a foreground call.
pub(super) const GROWTH: u32 = 4;

/// Number of bytes that add 1 to a read's weight.
const WEIGHT_BYTES: usize = 8 << 10;

/// Counts the calls that run in a device.
#[derive(Debug)]
pub(super) struct Traffic {
    foreground: AtomicU32,
    background: AtomicU32,
    /// Weight of background reads that completed since the last foreground call, counted up to
    /// about `ALONE * GROWTH`.
    undisturbed: AtomicU32,
}

impl Traffic {
    pub(super) fn new() -> Self {
        Traffic {
            foreground: AtomicU32::new(0),
            background: AtomicU32::new(0),
            undisturbed: AtomicU32::new(ALONE * GROWTH),
        }
    }

    /// Counts a call as running. A call must enter before it waits for a ring. Dropping the result
    /// ends the call.
    pub(super) fn enter(&self, priority: Priority) -> Lane<'_> {
        let priority = if is_on(Mechanism::Priorities) { priority } else { Priority::Foreground };
        // Relaxed: the counts guard no data. A background call that sees a count late only has a
        // few more reads in flight.
        self.count(priority).fetch_add(1, Ordering::Relaxed);
        Lane { traffic: self, priority, in_flight: 0 }
    }

    fn count(&self, priority: Priority) -> &AtomicU32 {
        match priority {
            Priority::Foreground => &self.foreground,
            Priority::Background => &self.background,
        }
    }

    /// Returns the weight that each background call may have in flight.
    fn window(&self) -> u32 {
        let together = if self.foreground.load(Ordering::Acquire) > 0 {
            YIELDING
        } else {
            ALONE.min(YIELDING + self.undisturbed.load(Ordering::Relaxed) / GROWTH)
        };
        (together / self.background.load(Ordering::Relaxed).max(1)).max(1)
    }
}

/// One call's reads in flight.
#[derive(Debug)]
pub(super) struct Lane<'t> {
    traffic: &'t Traffic,
    priority: Priority,
    /// Total weight of this call's reads in flight.
    in_flight: u32,
}

impl Lane<'_> {
    /// True if the call may begin another read. Always true if no read of the call is in flight.
    pub(super) fn has_room(&self) -> bool {
        match self.priority {
            Priority::Foreground => true,
            Priority::Background => self.in_flight < self.traffic.window(),
        }
    }

    /// Returns how many of the `outstanding` reads to wait for: an eighth of the reads that may be
    /// in flight. The drive's queue then never becomes empty, and one system call returns several
    /// reads.
    pub(super) fn patience(&self, depth: u32, outstanding: u32) -> u32 {
        let most = match self.priority {
            Priority::Foreground => depth,
            Priority::Background => depth.min(self.traffic.window()),
        };
        (most / 8).max(1).min(outstanding)
    }

    pub(super) fn begins(&mut self, bytes: usize) {
        self.in_flight += weight(bytes);
    }

    /// Notes that a read of `bytes` bytes has completed or failed.
    pub(super) fn ends(&mut self, bytes: usize) {
        self.in_flight -= weight(bytes);
        if self.priority == Priority::Background {
            let undisturbed = &self.traffic.undisturbed;
            if undisturbed.load(Ordering::Relaxed) < ALONE * GROWTH {
                undisturbed.fetch_add(weight(bytes), Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // The store of `undisturbed` must come before the `fetch_sub`. Otherwise a background call
        // could see that this call has ended and still see the old value of `undisturbed`. Release
        // here pairs with Acquire in `window`.
        if self.priority == Priority::Foreground {
            self.traffic.undisturbed.store(0, Ordering::Relaxed);
        }
        self.traffic.count(self.priority).fetch_sub(1, Ordering::Release);
    }
}

fn weight(bytes: usize) -> u32 {
    // The cast loses nothing, because a read is at most as long as a segment.
    1 + (bytes / WEIGHT_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins reads of `bytes` bytes until the lane has no room. Returns the number of reads.
    fn fill(lane: &mut Lane<'_>, bytes: usize) -> u32 {
        let mut begun = 0;
        while lane.has_room() {
            lane.begins(bytes);
            begun += 1;
        }
        begun
    }

    fn end(lane: &mut Lane<'_>, bytes: usize, reads: u32) {
        (0..reads).for_each(|_| lane.ends(bytes));
    }

    #[test]
    fn background_calls_keep_back_while_a_foreground_call_is_under_way() {
        let traffic = Traffic::new();
        let mut promote = traffic.enter(Priority::Background);
        assert_eq!(fill(&mut promote, 512), ALONE);
        let get = traffic.enter(Priority::Foreground);
        let second = traffic.enter(Priority::Foreground);
        end(&mut promote, 512, ALONE - YIELDING);
        assert!(!promote.has_room());
        end(&mut promote, 512, 1);
        assert_eq!(fill(&mut promote, 512), 1);
        drop(get);
        assert!(!promote.has_room(), "one more is under way");
        drop(second);
        assert!(!promote.has_room(), "it ended just now");
    }

    #[test]
    fn their_window_grows_again_by_what_they_bring() {
        let traffic = Traffic::new();
        drop(traffic.enter(Priority::Foreground));
        let mut scan = traffic.enter(Priority::Background);
        assert_eq!(fill(&mut scan, 512), YIELDING);
        end(&mut scan, 512, GROWTH);
        assert_eq!(fill(&mut scan, 512), GROWTH + 1);
        let rounds = (ALONE - YIELDING - 1) * GROWTH;
        for _ in 0..rounds - 1 {
            end(&mut scan, 512, 1);
            fill(&mut scan, 512);
        }
        assert_eq!(scan.in_flight, ALONE - 1);
        for _ in 0..10 * ALONE * GROWTH {
            end(&mut scan, 512, 1);
            fill(&mut scan, 512);
            assert!(scan.in_flight <= ALONE);
        }
        assert_eq!(scan.in_flight, ALONE);
    }

    #[test]
    fn several_background_calls_share_and_each_gets_on() {
        let traffic = Traffic::new();
        let mut lanes: Vec<_> = (0..40).map(|_| traffic.enter(Priority::Background)).collect();
        let _get = traffic.enter(Priority::Foreground);
        assert!(lanes.iter_mut().all(|lane| fill(lane, 512) == 1));
        lanes.truncate(4);
        assert_eq!(fill(&mut lanes[0], 512), YIELDING / 4 - 1);
    }

    #[test]
    fn long_reads_weigh_more() {
        let traffic = Traffic::new();
        let mut compaction = traffic.enter(Priority::Background);
        assert_eq!(fill(&mut compaction, 64 << 10), ALONE.div_ceil(9));
        let reads = ALONE.div_ceil(9);
        end(&mut compaction, 64 << 10, reads);
        assert_eq!(compaction.in_flight, 0);
        assert_eq!(fill(&mut compaction, 1 << 30), 1, "one read always finds room");
    }

    #[test]
    fn foreground_calls_have_the_whole_ring() {
        let traffic = Traffic::new();
        let _promote = traffic.enter(Priority::Background);
        let mut get = traffic.enter(Priority::Foreground);
        for _ in 0..4096 {
            assert!(get.has_room());
            get.begins(4096);
        }
        assert_eq!(get.patience(256, 256), 32);
        assert_eq!(get.patience(256, 3), 3);
    }
}
