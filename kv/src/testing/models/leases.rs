//! Models of leases. Leases expire, and the staleness bound changes. The models assert that no row
//! ever has more outstanding gets than the bound permits.

use std::sync::Arc;
use std::time::Duration;

use super::store::{Bank, PAGES_IN_MEMORY, join};
use super::{explore, finds};
use crate::leases::Leases;
use crate::process::running_time::RunningTime;
use crate::sync::{AtomicU32, CountingU64, Ordering, Planted, quietly, thread};

const FILLED: u64 = PAGES_IN_MEMORY - 2;
const KEY: u64 = 0;

/// A bank, its leases, and counts that the model keeps in addition to the rows' clocks.
struct Course {
    bank: Arc<Bank>,
    leases: Leases<()>,
    bound: AtomicU32,
    /// The largest bound that the model sets.
    bound_max: u32,
    /// Number of gets that returned and whose lease is neither answered nor expired. It is raised
    /// after the row's clock and lowered before the row's clock, so it never exceeds the clock.
    having: CountingU64,
    answered: CountingU64,
}

impl Course {
    fn new(bound: u32, bound_max: u32) -> Arc<Course> {
        Arc::new(Course {
            bank: Bank::new(|bank| bank.fill(0..FILLED)),
            leases: Leases::default(),
            bound: AtomicU32::new(bound),
            bound_max,
            having: CountingU64::new(0),
            answered: CountingU64::new(0),
        })
    }

    fn spawn(
        self: &Arc<Self>,
        work: impl FnOnce(&Course) + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let course = Arc::clone(self);
        thread::spawn(move || work(&course))
    }

    fn try_get(&self) -> bool {
        self.bank.get(KEY, self.bound.load(Ordering::Relaxed))
    }

    /// Waits for the row as `embank` does: before each wait, the thread ends all expired leases.
    /// Here every lease counts as expired.
    fn get(&self) {
        while !self.try_get() {
            let ticket = self.bank.release_ticket(KEY);
            if self.try_get() {
                break;
            }
            self.expire();
            // In a model a wait has no timeout, so a lost wake-up shows as a deadlock.
            assert!(self.bank.wait_released(ticket));
        }
        let others = self.having.fetch_add(1, Ordering::SeqCst);
        assert!(others <= self.bound_max.into(), "{others} others have the row");
    }

    fn expire(&self) {
        let all = RunningTime::now() + Duration::from_secs(3600);
        for _ in self.leases.expire(all).leases {
            self.no_more();
            self.bank.release(KEY);
        }
    }

    fn no_more(&self) {
        assert_ne!(self.having.fetch_sub(1, Ordering::SeqCst), 0, "a count was given back twice");
    }

    /// Gets the row, and updates it if the lease has not expired.
    fn train(&self, thread: usize) {
        self.get();
        let lease = self.leases.register((), RunningTime::now(), thread);
        if lease.begin_answer() {
            self.no_more();
            self.answered.fetch_add(1, Ordering::SeqCst);
            self.bank.train(KEY);
        }
        self.leases.end(&lease);
    }

    /// Gets the row and never answers, so only expiry ends the lease.
    fn forget(&self, thread: usize) {
        self.get();
        self.leases.register((), RunningTime::now(), thread);
        // Another thread may have looked for expired leases before this lease was registered, and
        // may wait now. In the product that thread looks again after a timeout. A model has no
        // timeout, so this thread wakes the waiting thread.
        self.bank.wake_waiters();
    }

    fn set_bound(&self, bound: u32) {
        self.bound.store(bound, Ordering::Relaxed);
        self.bank.wake_waiters();
    }

    fn finish(&self) {
        quietly(|| {
            self.expire();
            assert_eq!(self.having.load(Ordering::SeqCst), 0);
            assert_eq!(self.bank.clock_of(KEY), Some(0));
            assert!(self.leases.held().is_empty());
            let answered = self.answered.load(Ordering::SeqCst);
            assert_eq!(self.bank.peek(KEY).unwrap_or(0), answered, "late updates change nothing");
        });
    }
}

/// Trainers wait for each other, and for a trainer that never answers.
fn expiring_leases() {
    let course = Course::new(0, 0);
    let threads = [
        course.spawn(|course| {
            course.train(0);
            course.train(0);
        }),
        course.spawn(|course| course.forget(1)),
        course.spawn(|course| course.train(2)),
    ];
    join(threads);
    course.finish();
}

/// The bound goes from 1 to 0 and back while pages leave memory. One get holds the row all the
/// time. With bound 1 a second get may hold the row too. With bound 0 a second get must wait.
fn changing_bound() {
    let course = Course::new(1, 1);
    quietly(|| course.get());
    let threads = [
        course.spawn(|course| {
            course.train(0);
            course.train(0);
        }),
        course.spawn(|course| course.train(1)),
        course.spawn(|course| {
            course.set_bound(0);
            course.bank.fill(FILLED..FILLED + 2);
            course.set_bound(1);
            course.train(2);
        }),
    ];
    join(threads);
    course.no_more();
    course.bank.release(KEY);
    course.finish();
}

#[test]
fn no_bound_is_exceeded_by_expired_leases() {
    explore("expiring leases", expiring_leases);
}

#[test]
fn no_bound_is_exceeded_while_it_changes() {
    explore("changing bound", changing_bound);
}

#[test]
fn planted_an_expiry_that_does_not_compare_is_found() {
    finds(Planted::ExpiryUncompared, expiring_leases);
}

#[test]
fn planted_an_acquire_that_does_not_look_again_is_found() {
    finds(Planted::AcquireUnchecked, expiring_leases);
    finds(Planted::AcquireUnchecked, changing_bound);
}

#[test]
fn planted_a_release_that_does_not_count_is_found() {
    finds(Planted::ReleaseUncounted, expiring_leases);
}
