//! Locks that also work in a child made by `fork`.
//!
//! The crate `parking_lot` keeps the waiting threads of all locks of the process in one table,
//! which refers to memory of those threads. A forked child has a copy of the table, with threads
//! that the child does not have. New threads of the child may get the memory of those threads, and
//! may then wait for each other forever. The locks of the standard library keep their whole state
//! inside the lock. The types of this module wrap the standard library's locks in the interface of
//! `parking_lot`: a panic leaves a lock usable, and a wait takes the guard by reference.
//!
//! **Fairness.** The standard library gives a released mutex to the next thread that asks. A thread
//! that locks the mutex again at once would therefore win against a waiting thread, which must wake
//! up first. To prevent this, an unlock yields the processor until a waiting thread has had the
//! lock. A mutex yields this way at most once in 500 microseconds, so that the yields cost little.
//! `parking_lot` has a similar rule.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{self, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Largest number of times that one unlock yields the processor. The thread then continues, even if
/// no waiting thread has had the lock.
const YIELDS_MAX: u32 = 100;
/// Time after a yield in which the mutex does not yield again.
const FAIR_AFTER: Duration = Duration::from_micros(500);

/// A value behind a lock. The lock stays usable if a thread panics while it holds the lock.
///
/// ```
/// let mutex = embank_kv::locks::Mutex::new(1);
/// *mutex.lock() += 1;
/// assert_eq!(mutex.into_inner(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T> {
    locked: sync::Mutex<Locked<T>>,
    /// Number of threads that wait for the lock. A thread that waits for the lock after a
    /// [`Condvar`] has woken it is not counted.
    waiting: AtomicU32,
}

#[derive(Debug, Default)]
struct Locked<T> {
    value: T,
    /// Time from which an unlock yields again. `None` before the first yield.
    fair_at: Option<Instant>,
}

/// Access to the value of a locked [`Mutex`]. Dropping the guard unlocks the mutex.
#[derive(Debug)]
#[must_use]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only while a method that takes the guard by `&mut` runs.
    guard: Option<sync::MutexGuard<'a, Locked<T>>>,
}

impl<T> Mutex<T> {
    /// Makes an unlocked mutex.
    pub const fn new(value: T) -> Self {
        let locked = Locked { value, fair_at: None };
        Mutex { locked: sync::Mutex::new(locked), waiting: AtomicU32::new(0) }
    }

    /// Takes the lock. Waits until it is free.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        // Relaxed: unlocks use `waiting` only as a hint to yield.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        MutexGuard { mutex: self, guard: Some(guard) }
    }

    /// Takes the lock if it is free. `None` if another thread has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.locked.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, guard: Some(guard) })
    }

    /// Returns the value. Needs no lock, because the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.locked.get_mut().unwrap_or_else(PoisonError::into_inner).value
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.locked.into_inner().unwrap_or_else(PoisonError::into_inner).value
    }
}

impl<T> Mutex<T> {
    /// Yields the processor until a waiting thread has had the lock, at most `YIELDS_MAX` times.
    /// The caller has just released the lock.
    #[cold]
    fn yield_to_waiting(&self) {
        // Relaxed: `waiting` is only a hint whether to yield.
        let before = self.waiting.load(Ordering::Relaxed);
        for _ in 0..YIELDS_MAX {
            let now = self.waiting.load(Ordering::Relaxed);
            if now == 0 || now < before {
                break;
            }
            thread::yield_now();
        }
    }
}

impl<T> MutexGuard<'_, T> {
    /// Unlocks the mutex, runs `work`, and locks the mutex again.
    pub fn unlocked<U>(guard: &mut Self, work: impl FnOnce() -> U) -> U {
        /// Locks the mutex again when dropped, even if `work` panics.
        struct Relock<'g, 'a, T>(&'g mut MutexGuard<'a, T>);
        impl<T> Drop for Relock<'_, '_, T> {
            fn drop(&mut self) {
                self.0.guard = self.0.mutex.lock().guard.take();
            }
        }
        drop(guard.guard.take());
        let _relock = Relock(guard);
        work()
    }

    /// If a thread waits for the lock, lets it have the lock, and then takes the lock again.
    pub fn bump(guard: &mut Self) {
        // Relaxed: `waiting` is only a hint whether to yield.
        if guard.mutex.waiting.load(Ordering::Relaxed) > 0 {
            let mutex = guard.mutex;
            Self::unlocked(guard, || mutex.yield_to_waiting());
        }
    }

    #[cold]
    fn unlock_with_waiting(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        let now = Instant::now();
        let is_fair = guard.fair_at.is_none_or(|at| now >= at);
        if is_fair {
            guard.fair_at = Some(now + FAIR_AFTER);
        }
        drop(guard);
        if is_fair {
            self.mutex.yield_to_waiting();
        }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: `waiting` is only a hint whether to yield.
        if self.mutex.waiting.load(Ordering::Relaxed) > 0 {
            self.unlock_with_waiting();
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard.as_ref().expect("locked").value
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard.as_mut().expect("locked").value
    }
}

/// Lets a thread wait until another thread has changed a value under a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

/// Tells whether a wait ended at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitResult(bool);

impl WaitResult {
    /// True if the deadline ended the wait.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Makes a condition variable.
    #[must_use]
    pub const fn new() -> Self {
        Condvar(sync::Condvar::new())
    }

    /// Waits for a notification. May also return without a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let locked = guard.guard.take().expect("locked");
        guard.guard = Some(self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits as [`wait`](Self::wait) does, but not longer than until `deadline`.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitResult {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits as [`wait`](Self::wait) does, but not longer than `timeout`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitResult {
        let locked = guard.guard.take().expect("locked");
        let waited = self.0.wait_timeout(locked, timeout).unwrap_or_else(PoisonError::into_inner);
        guard.guard = Some(waited.0);
        WaitResult(waited.1.timed_out())
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A value behind a lock that several readers, or one writer, can hold at a time. The lock stays
/// usable if a thread panics while it holds the lock. A thread must not take the lock again while
/// it holds the lock.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// Access to the value of a [`RwLock`] that is locked for reading.
pub type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;
/// Access to the value of a [`RwLock`] that is locked for writing.
pub type RwLockWriteGuard<'a, T> = sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// Makes an unlocked lock.
    pub const fn new(value: T) -> Self {
        RwLock(sync::RwLock::new(value))
    }

    /// Takes the lock for reading, together with other readers. Waits while a writer has the lock.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock for writing. Waits while any other thread has the lock.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_leaves_locks_usable() {
        let mutex = Mutex::new(1);
        let lock = RwLock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut in_mutex = mutex.lock();
            let mut in_lock = lock.write();
            *in_mutex = 2;
            *in_lock = 2;
            MutexGuard::unlocked(&mut in_mutex, || panic!("while it is unlocked"));
        }));
        assert!(panicked.is_err());
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
        assert_eq!((mutex.into_inner(), lock.into_inner()), (2, 2));
    }

    /// Shows that a thread that locks repeatedly does not keep the lock from a waiting thread. With
    /// the standard library's mutex alone, the waiting thread may never get the lock.
    #[test]
    fn a_thread_that_locks_again_and_again_lets_others_have_the_lock() {
        let mutex = Mutex::new(0);
        let deadline = Instant::now() + Duration::from_secs(60);
        thread::scope(|scope| {
            scope.spawn(|| (0..20).for_each(|_| *mutex.lock() += 1));
            loop {
                let count = mutex.lock();
                if *count == 20 {
                    break;
                }
                assert!(Instant::now() < deadline, "the other thread had it {} times", *count);
                let until = Instant::now() + Duration::from_micros(200);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
        });
    }

    #[test]
    fn a_bump_lets_a_waiting_thread_have_the_lock() {
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            let mut guard = mutex.lock();
            scope.spawn(|| *mutex.lock() += 1);
            // The loop ends: the other thread waits for the lock at some time, and the next bump
            // gives it the lock.
            while *guard == 0 {
                MutexGuard::bump(&mut guard);
                thread::yield_now();
            }
        });
        assert_eq!(mutex.into_inner(), 1);
    }
}
