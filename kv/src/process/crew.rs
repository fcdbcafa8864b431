//! A crew: threads that help the calling thread with one job at a time.
//!
//! **Problem.** A batch of some thousand rows takes about 100 microseconds. On a virtual machine,
//! waking a sleeping thread takes up to 40 microseconds, so most of its help would come too late. A
//! caller must also not wait for a helper that is still waking up when no work is left.
//!
//! **Approach.** A job is a function that a caller and its helpers all run. The function takes one
//! part after another from a common list, until none is left. The state of the job is one word:
//!
//! ```text
//!  63 .......... 32   31      30       29     28 ........ 15   14 ......... 0
//!  round (32)         end   closed   waited   places (14)      inside (15)
//! ```
//!
//! - The caller publishes a job by a store of a new round with a number of places.
//! - A helper enters by a compare-and-swap: one place less, one thread inside more. It enters a
//!   round at most once. When it has run the function, it leaves: one thread inside less.
//! - When the caller has run the function itself, it closes the round and waits until no thread is
//!   inside. A helper that comes after the closing can't enter, so the caller waits only for
//!   helpers that are at work.
//!
//! The word is changed by atomic read-modify-writes while a round is open. So a helper is either
//! inside before the closing, and the caller waits for it, or it does not enter. Therefore the job,
//! which lies on the caller's stack, outlives every use.
//!
//! **Waiting.** A helper without a job looks at the word for `ShortWait`, and then sleeps. Calls
//! of a training loop often follow each other within this time, and then no thread has to be woken.
//! A caller that will publish a job soon can wake the helpers beforehand ([`Crew::rouse`]).
//!
//! Before a helper sleeps, it looks at the word once more, under the lock of `sleep`. The caller
//! takes this lock after it has published. So either the helper sees the job, or the caller sees
//! the sleeper.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::Arc;
// Not modelled: the word orders all accesses of both.
use std::sync::atomic::{AtomicPtr, AtomicU64 as OrderedU64};

use crate::process::float_state::FloatState;
use crate::process::home::Home;
use crate::process::thread_start;
use crate::sync::thread::JoinHandle;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering, Planted, ShortWait, planted};

const INSIDE: u64 = 1;
const INSIDE_MASK: u64 = (1 << 15) - 1;
const PLACE: u64 = 1 << 15;
const PLACES_MASK: u64 = ((1 << 14) - 1) << 15;
/// The caller sleeps until no thread is inside.
const WAITED: u64 = 1 << 29;
/// No thread may enter any more.
const CLOSED: u64 = 1 << 30;
/// The threads of the crew end.
const END: u64 = 1 << 31;
const ROUND_SHIFT: u32 = 32;

/// Largest number of threads of a crew.
pub const CREW_THREADS_MAX: usize = (1 << 14) - 1;

/// What all threads of a job run.
type Work<'a> = &'a (dyn Fn() + Sync);

/// Threads that help with one job at a time. Dropping the crew ends the threads. In a forked child,
/// which does not have them, the drop does nothing.
#[derive(Debug)]
pub struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// True while a caller has the crew.
    taken: AtomicBool,
    home: Home,
}

#[derive(Debug)]
struct Shared {
    /// Number of threads that the crew has, or will have when it has started.
    threads: usize,
    /// The state of the present job; see the essay of this module.
    word: AtomicU64,
    /// Points to the `Work` of the present job, which is valid while a thread is inside. Null
    /// between jobs.
    work: AtomicPtr<()>,
    /// The caller's floating-point state, with which helpers run the present job.
    float_state: OrderedU64,
    sleep: Mutex<Sleep>,
    /// Wakes helpers.
    wake: Condvar,
    /// Wakes the caller when the last helper has left.
    left: Condvar,
    /// The first panic of a helper in the present job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Debug, Default)]
struct Sleep {
    /// Number of sleeping helpers that no caller has woken yet.
    asleep: usize,
    /// Number of helpers that were woken and have not noticed it yet.
    woken: usize,
}

impl Crew {
    /// Starts `count` threads, at most [`CREW_THREADS_MAX`]. `name` returns the name of each.
    ///
    /// # Errors
    /// The system's error if it refuses a thread. The threads that were started have ended then.
    pub fn start(count: usize, name: impl Fn(usize) -> String) -> io::Result<Self> {
        let count = count.min(CREW_THREADS_MAX);
        let shared = Arc::new(Shared {
            threads: count,
            word: AtomicU64::new(CLOSED),
            work: AtomicPtr::new(ptr::null_mut()),
            float_state: OrderedU64::new(0),
            sleep: Mutex::new(Sleep::default()),
            wake: Condvar::new(),
            left: Condvar::new(),
            panic: Mutex::new(None),
        });
        let taken = AtomicBool::new(false);
        let mut crew = Self { shared, threads: Vec::new(), taken, home: Home::here() };
        for number in 0..count {
            let shared = Arc::clone(&crew.shared);
            // If a thread is refused, the drop of `crew` ends the others.
            crew.threads.push(thread_start::start(name(number), move || shared.help())?);
        }
        Ok(crew)
    }

    /// Takes the crew for a caller. `None` while another caller has it.
    pub fn turn(&self) -> Option<CrewTurn<'_>> {
        // Acquire: pairs with the Release in the drop of the turn before. This turn therefore sees
        // its last change of `word`.
        let taken = self.taken.swap(true, Ordering::Acquire) && !planted(Planted::CrewShared);
        // Made only if the crew was free, because its drop frees the crew.
        (!taken).then(|| CrewTurn { crew: self })
    }

    /// Wakes up to `helpers` threads for a job that comes within microseconds. The call has no
    /// other effect.
    pub fn rouse(&self, helpers: usize) {
        // Relaxed: the word only tells whether the helpers are at work. A wrong answer costs time.
        if self.shared.word.load(Ordering::Relaxed) & CLOSED != 0 {
            self.shared.wake(helpers);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // A thread of the parent may have held the lock of `sleep` at the fork.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        // Relaxed: no data depends on it. The lock below orders the flag for sleeping threads.
        self.shared.word.fetch_or(END, Ordering::Relaxed);
        self.shared.wake(usize::MAX);
        for thread in self.threads.drain(..) {
            // `help` catches the panics of jobs, so a thread does not end with one.
            let _ = thread.join();
        }
    }
}

/// One caller's use of a crew.
#[derive(Debug)]
#[must_use]
pub struct CrewTurn<'a> {
    crew: &'a Crew,
}

impl CrewTurn<'_> {
    /// Runs `work` on this thread and on up to `helpers` threads of the crew. Returns when all of
    /// them have run it. A thread that has not begun by the time at which this thread is done does
    /// not begin any more. `work` must therefore leave no part undone when it returns. All threads
    /// run it with the floating-point state of this thread.
    ///
    /// # Panics
    /// If `work` panics on any thread, after it has ended on all. The panic of the caller's own
    /// thread comes first.
    pub fn run(&mut self, helpers: usize, work: impl Fn() + Sync) {
        let shared = &*self.crew.shared;
        let helpers = helpers.min(self.crew.threads.len());
        if helpers == 0 {
            return work();
        }
        let job: Work<'_> = &work;
        let job = ptr::from_ref(&job).cast_mut().cast();
        // Relaxed: the store of the word below orders it. `turn` has ordered the turn before, at
        // whose end the pointer was null.
        let relaxed = Ordering::Relaxed;
        let stored = shared.work.compare_exchange(ptr::null_mut(), job, relaxed, relaxed);
        assert!(stored.is_ok(), "another caller runs a job");
        // Relaxed: the store of the word below orders it too.
        shared.float_state.store(FloatState::of_this_thread().bits(), Ordering::Relaxed);
        // Relaxed: only this turn's caller begins rounds, and `turn` has ordered the turn before.
        let round = (shared.word.load(Ordering::Relaxed) >> ROUND_SHIFT).wrapping_add(1);
        // Release: pairs with the Acquire in `enter`, whose thread then sees `work` and all that
        // the job refers to.
        shared.word.store((round << ROUND_SHIFT) | (helpers as u64 * PLACE), Ordering::Release);
        let open = Open(shared);
        shared.wake(helpers);
        work();
        drop(open);
        if let Some(panic) = shared.panic.lock().take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for CrewTurn<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `turn`.
        self.crew.taken.store(false, Ordering::Release);
    }
}

/// An open round. Its drop ends the round, also while the caller panics. `work` lives longer.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.close();
        // Relaxed: no helper is inside, and `turn` orders it for the next caller.
        self.0.work.store(ptr::null_mut(), Ordering::Relaxed);
        if std::thread::panicking() {
            // The caller's panic goes on, so that of a helper is forgotten.
            std::mem::forget(self.0.panic.lock().take());
        }
    }
}

/// What a helper finds when it looks for a job.
enum Found {
    /// The helper has entered this round.
    Job(u64),
    Nothing,
    End,
}

impl Shared {
    /// Runs jobs until the crew ends.
    fn help(&self) {
        let mut last = 0;
        loop {
            let mut wait = ShortWait::new();
            loop {
                match self.enter(last) {
                    Found::Job(round) => {
                        last = round;
                        self.run_job();
                        wait = ShortWait::new();
                    }
                    Found::Nothing if wait.again() => {}
                    Found::Nothing => break,
                    Found::End => return,
                }
            }
            self.sleep(last);
        }
    }

    /// Enters the present round, if that is not `last` and has a place.
    fn enter(&self, last: u64) -> Found {
        // Relaxed: the compare-and-swap below has the Acquire ordering.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & END != 0 {
                return Found::End;
            }
            if !offers(word, last) {
                return Found::Nothing;
            }
            let entered = word - PLACE + INSIDE;
            // Acquire: pairs with the Release in `run`. Other helpers may have changed the word
            // since, but only by read-modify-writes, which continue the release sequence.
            match self.word.compare_exchange(word, entered, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    debug_assert!(word & CLOSED == 0, "a helper has entered after the end");
                    return Found::Job(word >> ROUND_SHIFT);
                }
                Err(changed) => word = changed,
            }
        }
    }

    /// Runs the present job. The thread is inside, and leaves.
    fn run_job(&self) {
        // Relaxed: `enter` has ordered it.
        let work = self.work.load(Ordering::Relaxed).cast_const().cast::<Work<'_>>();
        // SAFETY: the duty is to pass a pointer to a `Work` that lives during the call. `run` has
        // stored one before it opened the round that this thread has entered. `Open` keeps `run`
        // from returning or unwinding while a thread is inside.
        let work = unsafe { *work };
        // Relaxed: `enter` has ordered it.
        let float_state = FloatState::from_bits(self.float_state.load(Ordering::Relaxed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| float_state.during(work))) {
            // The drop of a payload may panic too, so a second one is forgotten. This thread must
            // leave, or the caller would wait for ever.
            std::mem::forget(self.panic.lock().replace(panic));
        }
        // Release: pairs with the Acquire loads in `close`, whose thread then sees all that this
        // thread has done.
        let before = self.word.fetch_sub(INSIDE, Ordering::Release);
        if before & WAITED != 0 && before & INSIDE_MASK == INSIDE && !planted(Planted::LeftUntold) {
            // The caller holds this lock from before it sets `WAITED` until it sleeps.
            drop(self.sleep.lock());
            self.left.notify_all();
        }
    }

    /// Sleeps until a caller wakes this thread. Returns at once if there is a job after round
    /// `last`, or the crew ends.
    fn sleep(&self, last: u64) {
        let mut sleep = self.sleep.lock();
        // Relaxed: a caller that publishes a job, or ends the crew, takes the lock afterwards.
        // Either this thread sees its word, or the caller sees `asleep`.
        let word = self.word.load(Ordering::Relaxed);
        if (word & END != 0 || offers(word, last)) && !planted(Planted::SleepUnchecked) {
            return;
        }
        sleep.asleep += 1;
        while sleep.woken == 0 {
            self.wake.wait(&mut sleep);
        }
        sleep.woken -= 1;
    }

    /// Wakes sleeping helpers until `count` helpers are awake. Each of those that are awake already
    /// looks at the word before it sleeps.
    fn wake(&self, count: usize) {
        let mut sleep = self.sleep.lock();
        let awake = self.threads - sleep.asleep;
        let count = count.saturating_sub(awake).min(sleep.asleep);
        sleep.asleep -= count;
        sleep.woken += count;
        drop(sleep);
        for _ in 0..count {
            self.wake.notify_one();
        }
    }

    /// Ends the round: no helper enters any more, and none is inside when the call returns.
    fn close(&self) {
        // Acquire: pairs with the Release in `run_job`.
        let mut word = self.word.fetch_or(CLOSED, Ordering::Acquire);
        let mut wait = ShortWait::new();
        while word & INSIDE_MASK != 0 && wait.again() {
            word = self.word.load(Ordering::Acquire);
        }
        if word & INSIDE_MASK == 0 {
            return;
        }
        let mut sleep = self.sleep.lock();
        word = self.word.fetch_or(WAITED, Ordering::Acquire);
        while word & INSIDE_MASK != 0 {
            self.left.wait(&mut sleep);
            word = self.word.load(Ordering::Acquire);
        }
    }
}

/// True if the round of `word` is not `last`, is open and has a place.
fn offers(word: u64, last: u64) -> bool {
    let open = word & CLOSED == 0 || planted(Planted::EnterClosed);
    open && word >> ROUND_SHIFT != last && word & PLACES_MASK != 0
}

#[cfg(test)]
#[cfg(not(embank_shuttle))]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};
    use std::thread;

    use super::*;
    use crate::process::float_state::{flushing, halved};
    use crate::process::thread_start::with_threads_left;

    fn crew(count: usize) -> Crew {
        Crew::start(count, |number| format!("helper-{number}")).unwrap()
    }

    /// Runs `parts` parts and returns the threads that ran some.
    fn run_parts(crew: &Crew, helpers: usize, parts: u64) -> usize {
        let next = AtomicU64::new(0);
        let threads = Mutex::new(HashSet::new());
        crew.turn().unwrap().run(helpers, || {
            while next.fetch_add(1, Ordering::Relaxed) < parts {
                threads.lock().unwrap().insert(thread::current().id());
            }
        });
        assert!(next.into_inner() > parts);
        threads.into_inner().unwrap().len()
    }

    #[test]
    fn every_round_ends_with_its_parts_done() {
        let crew = crew(3);
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        for round in 0..rounds {
            assert!(run_parts(&crew, 1 + round as usize % 4, round % 7) <= 4);
        }
    }

    #[test]
    fn all_helpers_work_at_the_same_time() {
        let crew = crew(3);
        for sleep in [false, true] {
            if sleep {
                // The helpers are then asleep, or about to.
                while crew.shared.sleep.lock().asleep < 3 {
                    thread::yield_now();
                }
            }
            let meeting = Barrier::new(4);
            crew.turn().unwrap().run(3, || {
                meeting.wait();
            });
        }
    }

    #[test]
    fn a_roused_crew_does_its_next_job_and_sleeps_without_one() {
        let crew = crew(2);
        for _ in 0..3 {
            while crew.shared.sleep.lock().asleep < 2 {
                thread::yield_now();
            }
            crew.rouse(2);
        }
        let meeting = Barrier::new(3);
        crew.turn().unwrap().run(2, || {
            meeting.wait();
        });
    }

    /// Helpers kept the floating-point state with which they were started. Equal calls then gave
    /// different results after the caller had changed its own state.
    #[test]
    fn helpers_compute_as_their_caller_does() {
        let Some(flushing) = flushing() else { return };
        let crew = crew(2);
        let job = || {
            let meeting = Barrier::new(3);
            let results = Mutex::new(Vec::new());
            crew.turn().unwrap().run(2, || {
                meeting.wait();
                results.lock().unwrap().push(halved().to_bits());
            });
            results.into_inner().unwrap()
        };
        for _ in 0..3 {
            assert_eq!(job(), [halved().to_bits(); 3]);
            assert_eq!(flushing.during(job), [0; 3]);
        }
        assert_ne!(halved(), 0.0);
    }

    #[test]
    fn a_caller_sleeps_until_a_slow_helper_has_left() {
        let crew = crew(1);
        let caller = thread::current().id();
        let begun = Barrier::new(2);
        let done = AtomicBool::new(false);
        crew.turn().unwrap().run(1, || {
            begun.wait();
            if thread::current().id() != caller {
                // Relaxed: nothing else depends on it.
                while crew.shared.word.load(Ordering::Relaxed) & WAITED == 0 {
                    thread::yield_now();
                }
                done.store(true, Ordering::Relaxed);
            }
        });
        assert!(done.into_inner());
    }

    #[test]
    fn one_caller_has_the_crew_at_a_time() {
        let crew = crew(1);
        let turn = crew.turn();
        assert!(turn.is_some() && crew.turn().is_none());
        assert!(crew.turn().is_none(), "a refused turn has freed the crew");
        drop(turn);
        assert!(crew.turn().is_some());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_crew_goes_on() {
        let crew = crew(1);
        let caller = thread::current().id();
        for (of_caller, of_helper) in [(true, false), (false, true), (true, true)] {
            let meeting = Barrier::new(2);
            let ended = AtomicU64::new(0);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                crew.turn().unwrap().run(1, || {
                    meeting.wait();
                    let here = if thread::current().id() == caller { of_caller } else { of_helper };
                    ended.fetch_add(1, Ordering::Relaxed);
                    assert!(!here, "planted");
                });
            }));
            assert!(panicked.is_err());
            assert_eq!(ended.into_inner(), 2, "a thread is still in the job");
            assert!(run_parts(&crew, 1, 100) >= 1);
        }
    }

    #[test]
    fn crews_serve_callers_that_rouse_them_at_any_time() {
        let crew = crew(2);
        let rounds = if cfg!(miri) { 10 } else { 5_000 };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..rounds {
                        crew.rouse(1 + round % 2);
                        let Some(mut turn) = crew.turn() else { continue };
                        let next = AtomicU64::new(0);
                        let done = AtomicU64::new(0);
                        turn.run(1 + round % 2, || {
                            while next.fetch_add(1, Ordering::Relaxed) < 5 {
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                        assert_eq!(done.into_inner(), 5);
                    }
                });
            }
        });
    }

    #[test]
    fn a_refused_thread_is_an_error_and_ends_the_others() {
        with_threads_left(2, || {
            assert!(Crew::start(3, |number| number.to_string()).is_err());
        });
        assert!(Crew::start(0, |number| number.to_string()).unwrap().threads.is_empty());
    }
}
