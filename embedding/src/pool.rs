//! The thread pool that shares the large batches of a bank.
//!
//! **Problem.** A training loop calls a table from one thread. Without a pool, its batches run on
//! only one processor of the machine.
//!
//! **Approach.** A batch is divided if there are at least 1,024 keys per thread. The parts are
//! consecutive ranges of keys, four per thread. The calling thread and the threads of the pool each
//! take the next part whenever they have finished one. A thread that starts late, because it had to
//! be woken, therefore does less. The store executes each part as if it were a whole batch. The
//! calling thread joins the results in the order of the parts. The caller therefore sees the rows,
//! clocks, counters and errors of one undivided batch.
//!
//! **Limit.** When no part is left, the calling thread waits for the threads that have begun one.
//! If other programs keep all processors busy, such a thread may lose its processor for
//! milliseconds. A program of that kind should set
//! [`BankOptions::threads`](crate::BankOptions::threads) to 1.
//!
//! **Waking.** To wake a thread takes up to 40 microseconds. A thread of the pool therefore looks
//! for the next batch for 50 microseconds before it sleeps (`embank_kv::crew`). A call that
//! searches for the distinct keys of its batch wakes the threads before the search
//! ([`BatchPool::rouse`]). On two cores, gets of 4,096 rows of 64 bytes took 26 ns a key while the
//! threads looked for the next batch. After a pause of 300 microseconds they took 37 ns, and 42 ns
//! if the threads were woken after the search.
//!
//! **Rows on disk.** If the bank has rows that are only on disk, each thread gets one part of the
//! batch. The thread reads the rows of its part as one stream, and the store joins the reads of
//! neighbours within a stream. With four parts per thread, a batch of 8,192 keys needed 0.90 reads
//! a row instead of 0.64.
//!
//! **One batch at a time.** While one batch uses the pool, other batches are not divided. Several
//! calling threads already keep the processors busy. A part never waits for the parts of another
//! batch.
//!
//! **Life.** The first divided batch starts the threads. They may therefore run on the processors
//! that the thread of that batch may use. If the system refuses the threads, the pool asks again
//! after [`BATCHES_UNTIL_RETRY`] more such batches. The threads end when the bank is closed. After
//! `fork`, the child has the pool but not its threads, and must not use the bank of its parent. The
//! bindings return an error for such a call; a Rust program must avoid it. It may drop the bank.

use std::num::NonZero;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::thread;

use embank_kv::THREADS_ADVICE;
use embank_kv::crew::{Crew, CrewTurn};
use embank_kv::locks::Mutex;

/// Least number of keys per thread of a divided batch. With fewer keys, the calling thread would
/// finish the batch before the other threads are awake.
const THREAD_KEYS_MIN: usize = 1024;
/// Number of parts per thread. With fewer parts, the calling thread waits longer for the last one.
/// More parts cost more than they gain.
const PARTS_PER_THREAD: usize = 4;
/// Default limit on a bank's threads. More threads gain little, because they saturate the memory of
/// a socket.
const THREADS_MAX_DEFAULT: usize = 16;
/// Largest number of threads of a bank. The bank refuses a larger number, because it must be a
/// mistake, for example a number of bytes.
pub(crate) const THREADS_MAX: usize = 1024;
/// Parts begin at multiples of this number of keys. [`Reached`](crate::table::operations::Reached)
/// has one bit per key, so the bits of a part then fill whole words.
const PART_KEYS_STEP: usize = 64;

/// Returns the number of processors that this process may use, at most 16. This is the default of
/// [`BankOptions::threads`](crate::BankOptions::threads).
pub(crate) fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX_DEFAULT)
}

/// Returns [`THREAD_KEYS_MIN`]. In a build for tests, the environment variable
/// `EMBANK_TEST_PART_KEYS` replaces this number. With 64, whole test suites run with divided
/// batches.
fn thread_keys_min() -> usize {
    #[cfg(feature = "testing")]
    {
        static SET: OnceLock<Option<usize>> = OnceLock::new();
        let read = || std::env::var("EMBANK_TEST_PART_KEYS").ok()?.parse().ok();
        if let Some(keys) = SET.get_or_init(read) {
            return *keys.max(&1);
        }
    }
    THREAD_KEYS_MIN
}

/// After the system has refused the threads, this number of batches that would be divided run on
/// their own thread. Then the pool asks again. A refused attempt costs as much time as a small
/// batch, so attempts must be rare.
const BATCHES_UNTIL_RETRY: u32 = 1_000;

/// The thread pool of a bank.
#[derive(Debug)]
pub(crate) struct BatchPool {
    /// Largest number of threads that work on a batch, including the calling thread.
    threads: usize,
    /// Set when the first batch is divided.
    crew: OnceLock<Crew>,
    /// Number of batches that will not be divided although they could be, because the system has
    /// refused the threads.
    batches_until_retry: Mutex<u32>,
}

impl BatchPool {
    /// `threads` is the largest number of threads that work on a batch, including the calling
    /// thread; 0 counts as 1.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        Self { threads, crew: OnceLock::new(), batches_until_retry: Mutex::new(0) }
    }

    /// Number of threads that work on a batch of `keys` keys.
    fn threads_of(&self, keys: usize) -> usize {
        match u32::try_from(keys) {
            Ok(_) => self.threads.min(keys / thread_keys_min()),
            Err(_) => 1,
        }
    }

    /// Returns the threads. Starts them if that has not been done. `None` if the system refuses
    /// them, or has refused them some batches ago.
    fn crew(&self) -> Option<&Crew> {
        self.crew.get().or_else(|| self.start())
    }

    #[cold]
    fn start(&self) -> Option<&Crew> {
        // If the lock is taken, another thread is starting the threads.
        let mut batches_until_retry = self.batches_until_retry.try_lock()?;
        if self.crew.get().is_none() {
            if *batches_until_retry > 0 {
                *batches_until_retry -= 1;
                return None;
            }
            let name = |number| format!("embank-batch-{number}");
            match Crew::start(self.threads - 1, name) {
                Ok(crew) => drop(self.crew.set(crew)),
                Err(error) => {
                    *batches_until_retry = BATCHES_UNTIL_RETRY;
                    log::warn!(
                        "the next {BATCHES_UNTIL_RETRY} large batches run on one thread each, because the system \
                         refuses threads: {error}; {THREADS_ADVICE}"
                    );
                }
            }
        }
        self.crew.get()
    }

    /// Wakes the threads that will work on a batch of `keys` keys. Called some microseconds before
    /// [`turn`](Self::turn).
    pub(crate) fn rouse(&self, keys: usize) {
        if let (threads @ 2.., Some(crew)) = (self.threads_of(keys), self.crew.get()) {
            crew.rouse(threads - 1);
        }
    }

    /// Reserves the pool for a batch of `keys` keys. `None` if the calling thread must run the
    /// whole batch.
    pub(crate) fn turn(&self, keys: usize) -> Option<Turn<'_>> {
        let threads = self.threads_of(keys);
        if threads < 2 {
            return None;
        }
        let crew = self.crew()?.turn()?;
        Some(Turn { crew, threads })
    }
}

/// One batch's use of the pool.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    crew: CrewTurn<'a>,
    /// Number of threads that work on the batch, including the calling thread.
    threads: usize,
}

impl Turn<'_> {
    /// Divides `places` places into ranges of about equal length, for work in memory: four ranges
    /// per thread.
    pub(crate) fn ranges(&self, places: usize) -> Vec<Range<usize>> {
        self.ranges_per_thread(places, PARTS_PER_THREAD)
    }

    /// Divides `places` places into ranges of about equal length, for work that may read rows from
    /// disk: one range per thread. Each range is one stream of reads, and a long stream joins the
    /// reads of more neighbours.
    pub(crate) fn long_ranges(&self, places: usize) -> Vec<Range<usize>> {
        self.ranges_per_thread(places, 1)
    }

    fn ranges_per_thread(&self, places: usize, parts: usize) -> Vec<Range<usize>> {
        let least = thread_keys_min() * 2 / PARTS_PER_THREAD;
        let each = places.div_ceil(self.threads * parts).max(least);
        let each = each.next_multiple_of(PART_KEYS_STEP);
        (0..places).step_by(each).map(|start| start..places.min(start + each)).collect()
    }

    /// Runs `work` on each part. The threads take the parts in ascending order, and each thread
    /// runs one part at a time. Returns when all parts are done.
    ///
    /// # Panics
    /// If `work` panics for a part, after all other parts are done.
    pub(crate) fn run<T: Send>(&mut self, parts: &mut [T], work: impl Fn(&mut T) + Sync) {
        let helpers = self.threads.min(parts.len()).saturating_sub(1);
        let left = Mutex::new(parts.iter_mut());
        let panicked = Mutex::new(None);
        // Taking a part is a function of its own, so that the lock is released before `work`
        // begins.
        let next = || left.lock().next();
        self.crew.run(helpers, || {
            while let Some(part) = next() {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(part))) {
                    panicked.lock().replace(panic);
                }
            }
        });
        if let Some(panic) = panicked.into_inner() {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use embank_kv::with_threads_left;

    use super::*;

    #[test]
    fn small_batches_and_single_threads_are_not_cut() {
        assert!(BatchPool::new(4).turn(2 * thread_keys_min() - 1).is_none());
        assert!(BatchPool::new(1).turn(1 << 20).is_none());
        assert!(BatchPool::new(0).turn(1 << 20).is_none());
    }

    #[test]
    fn a_batch_that_the_store_refuses_for_its_length_is_not_cut() {
        assert!(BatchPool::new(4).turn(1 << 32).is_none());
    }

    /// One refused thread made all later batches of the bank run on one thread.
    #[test]
    fn a_pool_whose_threads_were_refused_asks_again_later() {
        let pool = BatchPool::new(3);
        for threads_left in [0, 1] {
            let refused = with_threads_left(threads_left, || pool.turn(1 << 20).is_none());
            assert!(refused);
            for _ in 0..BATCHES_UNTIL_RETRY {
                assert!(pool.turn(1 << 20).is_none());
                assert!(pool.turn(1).is_none(), "a small batch does not count");
            }
        }
        assert!(pool.turn(1 << 20).is_some());
        assert!(with_threads_left(0, || pool.turn(1 << 20).is_some()));
    }

    #[test]
    fn parts_cover_all_places_and_begin_at_whole_words() {
        let pool = BatchPool::new(3);
        for keys in [2 * thread_keys_min(), 4000, 4001, 100_000] {
            let turn = pool.turn(keys).unwrap();
            for (ranges, parts) in
                [(turn.ranges(keys), 3 * PARTS_PER_THREAD), (turn.long_ranges(keys), 3)]
            {
                assert!((2..=parts).contains(&ranges.len()), "{ranges:?}");
                assert_eq!((ranges[0].start, ranges.last().unwrap().end), (0, keys));
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(ranges.iter().all(|range| range.start % PART_KEYS_STEP == 0));
            }
        }
    }

    #[test]
    fn a_second_batch_is_not_cut_while_the_first_has_the_pool() {
        let pool = BatchPool::new(2);
        let turn = pool.turn(1 << 20);
        assert!(turn.is_some());
        assert!(pool.turn(1 << 20).is_none());
        drop(turn);
        assert!(pool.turn(1 << 20).is_some());
    }

    #[test]
    fn each_part_runs_once_on_a_thread_of_its_own() {
        let pool = BatchPool::new(3);
        let mut turn = pool.turn(1 << 20).unwrap();
        let meeting = std::sync::Barrier::new(3);
        let mut parts = [None; 3];
        turn.run(&mut parts, |part| {
            // The barrier opens only if all three parts run at the same time.
            meeting.wait();
            *part = Some(thread::current().id());
        });
        assert_eq!(parts.iter().flatten().collect::<HashSet<_>>().len(), 3);
    }

    #[test]
    fn a_slow_part_does_not_hold_up_the_parts_behind_it() {
        let pool = BatchPool::new(2);
        let mut turn = pool.turn(1 << 20).unwrap();
        let (done, all_others_done) = std::sync::mpsc::channel();
        let all_others_done = Mutex::new(all_others_done);
        let mut parts: Vec<(usize, bool)> = (0..8).map(|i| (i, false)).collect();
        turn.run(&mut parts, |(i, has_run)| {
            match *i {
                0 => (1..8).for_each(|_| all_others_done.lock().recv().unwrap()),
                _ => done.send(()).unwrap(),
            }
            *has_run = true;
        });
        assert!(parts.iter().all(|(_, has_run)| *has_run));
    }

    #[test]
    fn a_panic_of_a_part_reaches_the_caller_when_all_others_are_done() {
        let pool = BatchPool::new(2);
        for bad in [0..1, 7..8, 0..8] {
            let mut turn = pool.turn(1 << 20).unwrap();
            let mut parts: Vec<(usize, bool)> = (0..8).map(|i| (i, false)).collect();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                turn.run(&mut parts, |(i, done)| {
                    assert!(!bad.contains(i), "planted");
                    *done = true;
                });
            }));
            assert!(panicked.is_err());
            assert!(parts.iter().all(|(i, done)| *done != bad.contains(i)));
            drop(turn);
        }
        assert!(pool.turn(1 << 20).is_some());
    }
}
