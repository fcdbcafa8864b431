//! Simple cache policies for rows of one size. A measurement compares the store's own policy with
//! them.

use std::collections::{HashMap, VecDeque};

/// A cache that gets one request after another and decides which rows to keep.
pub(crate) trait Policy {
    fn name(&self) -> &'static str;
    /// Requests a row. Returns true if the cache has it.
    fn ask(&mut self, key: u64) -> bool;
}

/// Holds the most requested rows of the trace from the start. If each request is drawn
/// independently of the others, no policy that learns from past requests does better over a long
/// trace.
pub(crate) struct Ideal {
    held: Vec<bool>,
}

impl Ideal {
    /// `trace` has all requests to come.
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

/// Evicts the least recently used row (LRU).
pub(crate) struct Lru {
    capacity: usize,
    /// The time of each row's last request.
    last: HashMap<u64, u64>,
    /// Requests as pairs of key and time, oldest first. If a row has several pairs, only the newest
    /// counts, whose time is in `last`.
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

/// Evicts rows in the order in which they entered a queue. A row that was used is not evicted: it
/// goes back to the end of the queue (CLOCK).
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

/// A row in the list of [`Sieve`].
struct Sieved {
    key: u64,
    used: bool,
    older: Option<usize>,
    newer: Option<usize>,
}

/// A row keeps its place in a list, in the order of entry. A hand moves from the oldest to the
/// newest row. If the row at the hand is marked as used, the hand clears the mark and moves on.
/// Otherwise the row is evicted (SIEVE, Zhang et al., NSDI 2024).
pub(crate) struct Sieve {
    capacity: usize,
    /// The place of each row in `list`.
    places: HashMap<u64, usize>,
    list: Vec<Sieved>,
    oldest: Option<usize>,
    newest: Option<usize>,
    hand: Option<usize>,
}

impl Sieve {
    pub(crate) fn new(capacity: usize) -> Self {
        let (oldest, newest, hand) = (None, None, None);
        let capacity = capacity.max(1);
        Self { capacity, places: HashMap::new(), list: Vec::new(), oldest, newest, hand }
    }

    /// Takes a row out of the list. Returns its place, which is then free.
    fn evict(&mut self) -> usize {
        let mut place = self.hand.or(self.oldest).expect("a full cache has rows");
        // The loop ends because each turn clears a mark, and a row without a mark is evicted.
        while std::mem::take(&mut self.list[place].used) {
            place = self.list[place].newer.or(self.oldest).expect("a full cache has rows");
        }
        let Sieved { key, older, newer, .. } = self.list[place];
        match older {
            Some(older) => self.list[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.list[newer].older = older,
            None => self.newest = older,
        }
        self.hand = newer;
        self.places.remove(&key);
        place
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "SIEVE"
    }
    fn ask(&mut self, key: u64) -> bool {
        if let Some(&place) = self.places.get(&key) {
            self.list[place].used = true;
            return true;
        }
        let free = (self.places.len() >= self.capacity).then(|| self.evict());
        let row = Sieved { key, used: false, older: self.newest, newer: None };
        let place = free.unwrap_or(self.list.len());
        match free {
            Some(free) => self.list[free] = row,
            None => self.list.push(row),
        }
        match self.newest.replace(place) {
            Some(newest) => self.list[newest].newer = Some(place),
            None => self.oldest = Some(place),
        }
        self.places.insert(key, place);
        false
    }
}

/// The store's own policy, counted in rows instead of bytes: a small queue, a main queue, and the
/// keys of evicted rows, at most as many keys as the main queue has rows (S3-FIFO, Yang et al.,
/// SOSP 2023).
pub(crate) struct S3Fifo {
    small_capacity: usize,
    main_capacity: usize,
    /// Uses of each row in the cache, at most 3.
    uses: HashMap<u64, u8>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    forgotten: VecDeque<u64>,
    is_forgotten: HashMap<u64, u32>,
}

impl S3Fifo {
    pub(crate) fn new(capacity: usize) -> Self {
        let small_capacity = (capacity / 10).max(1);
        Self {
            small_capacity,
            main_capacity: (capacity - small_capacity.min(capacity)).max(1),
            uses: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            forgotten: VecDeque::new(),
            is_forgotten: HashMap::new(),
        }
    }

    fn forget(&mut self, key: u64) {
        self.uses.remove(&key);
        self.forgotten.push_back(key);
        *self.is_forgotten.entry(key).or_default() += 1;
        if self.forgotten.len() > self.main_capacity
            && let Some(oldest) = self.forgotten.pop_front()
            && let Some(times) = self.is_forgotten.get_mut(&oldest)
        {
            *times -= 1;
            if *times == 0 {
                self.is_forgotten.remove(&oldest);
            }
        }
    }

    fn push_main(&mut self, key: u64) {
        while self.main.len() >= self.main_capacity {
            let Some(oldest) = self.main.pop_front() else { break };
            match self.uses.get_mut(&oldest) {
                Some(uses) if *uses > 0 => {
                    *uses -= 1;
                    self.main.push_back(oldest);
                }
                _ => {
                    self.uses.remove(&oldest);
                }
            }
        }
        self.main.push_back(key);
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "S3-FIFO"
    }
    fn ask(&mut self, key: u64) -> bool {
        if let Some(uses) = self.uses.get_mut(&key) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        self.uses.insert(key, 0);
        if self.is_forgotten.contains_key(&key) {
            self.push_main(key);
            return false;
        }
        if self.small.len() >= self.small_capacity
            && let Some(oldest) = self.small.pop_front()
        {
            let used = self.uses.get(&oldest).is_some_and(|&uses| uses > 0);
            // While the main queue is not full, every row enters the main queue.
            if used || self.main.len() < self.main_capacity {
                self.uses.insert(oldest, 0);
                self.push_main(oldest);
            } else {
                self.forget(oldest);
            }
        }
        self.small.push_back(key);
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
    fn sieve_spares_what_was_used_and_keeps_its_place() {
        // For key 4 the hand passes row 1, which was used, and evicts row 2. For key 5 the hand
        // continues and evicts row 3.
        assert_eq!(
            hits(&mut Sieve::new(3), &[1, 2, 3, 1, 4, 5, 1, 3]),
            [false, false, false, true, false, false, true, false]
        );
    }

    #[test]
    fn a_scan_leaves_the_main_queue_of_s3_fifo_alone() {
        let mut policy = S3Fifo::new(20);
        let hot: Vec<u64> = (0..10).collect();
        hits(&mut policy, &hot);
        hits(&mut policy, &hot);
        hits(&mut policy, &(100..200).collect::<Vec<_>>());
        assert!(hits(&mut policy, &hot).into_iter().filter(|&hit| hit).count() >= 8);
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
