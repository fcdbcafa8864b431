//! Policies of a cache of equal rows, as plain as they can be: what the store's own is held against.

use std::collections::{HashMap, VecDeque};

/// A cache that is asked for one row after another and keeps what it likes.
pub(crate) trait Policy {
    fn name(&self) -> &'static str;
    /// Whether the row was there.
    fn ask(&mut self, key: u64) -> bool;
}

/// Holds the rows that are asked for most often, from the start: what no policy that learns can pass for
/// long on requests that are independent of each other.
pub(crate) struct Ideal {
    held: Vec<bool>,
}

impl Ideal {
    /// `trace` is all that will be asked for.
    pub(crate) fn new(rows: u64, capacity: usize, trace: &[u64]) -> Self {
        let mut counts = vec![0_u32; rows as usize];
        for &key in trace {
            counts[key as usize] += 1;
        }
        let mut by_count: Vec<usize> = (0..counts.len()).collect();
        by_count.sort_unstable_by_key(|&key| std::cmp::Reverse(counts[key]));
        let mut held = vec![false; counts.len()];
        for &key in by_count.iter().take(capacity) {
            held[key] = true;
        }
        Self { held }
    }
}

impl Policy for Ideal {
    fn name(&self) -> &'static str {
        "ideal"
    }
    fn ask(&mut self, key: u64) -> bool {
        self.held[key as usize]
    }
}

/// The least recently used row leaves.
pub(crate) struct Lru {
    capacity: usize,
    /// When a row was asked for last.
    last: HashMap<u64, u64>,
    /// Every request, oldest first; those that are not a row's last mean nothing.
    requests: VecDeque<(u64, u64)>,
    now: u64,
}

impl Lru {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, last: HashMap::new(), requests: VecDeque::new(), now: 0 }
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "LRU"
    }
    fn ask(&mut self, key: u64) -> bool {
        self.now += 1;
        self.requests.push_back((key, self.now));
        let hit = self.last.insert(key, self.now).is_some();
        while self.last.len() > self.capacity {
            let Some((oldest, time)) = self.requests.pop_front() else { break };
            if self.last.get(&oldest) == Some(&time) {
                self.last.remove(&oldest);
            }
        }
        hit
    }
}

/// First in, first out, with another round for what was used (CLOCK).
pub(crate) struct Clock {
    capacity: usize,
    used: HashMap<u64, bool>,
    queue: VecDeque<u64>,
}

impl Clock {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, used: HashMap::new(), queue: VecDeque::new() }
    }
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "CLOCK"
    }
    fn ask(&mut self, key: u64) -> bool {
        if let Some(used) = self.used.get_mut(&key) {
            *used = true;
            return true;
        }
        while self.used.len() >= self.capacity.max(1) {
            let Some(oldest) = self.queue.pop_front() else { break };
            match self.used.get_mut(&oldest) {
                Some(used) if *used => {
                    *used = false;
                    self.queue.push_back(oldest);
                }
                _ => {
                    self.used.remove(&oldest);
                }
            }
        }
        self.used.insert(key, false);
        self.queue.push_back(key);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: &mut dyn Policy, trace: &[u64]) -> Vec<bool> {
        trace.iter().map(|&key| policy.ask(key)).collect()
    }

    #[test]
    fn lru_forgets_what_was_not_asked_for_longest() {
        assert_eq!(
            hits(&mut Lru::new(2), &[1, 2, 1, 3, 1, 2]),
            [false, false, true, false, true, false]
        );
    }

    #[test]
    fn clock_gives_a_used_row_another_round() {
        assert_eq!(
            hits(&mut Clock::new(2), &[1, 2, 1, 3, 1, 2]),
            [false, false, true, false, true, false]
        );
        assert_eq!(hits(&mut Clock::new(2), &[1, 2, 3, 1]), [false; 4]);
    }

    #[test]
    fn the_ideal_holds_what_is_asked_for_most() {
        let trace = [5, 1, 5, 2, 5, 2];
        assert_eq!(
            hits(&mut Ideal::new(6, 2, &trace), &trace),
            [true, false, true, true, true, true]
        );
    }
}
