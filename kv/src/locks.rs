//! Locks that also work in a child made by `fork`.
//!
//! `parking_lot` keeps the threads that wait for any lock of the process in one table, in memory of those threads. A
//! child has a copy of that table, with threads that it does not have; its own threads get the same memory, and then
//! wait for each other for ever. The standard library's locks keep all of their state in the lock. These types have
//! its locks and `parking_lot`'s interface: a panic leaves a lock usable, and a wait takes the guard by reference.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{self, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Yields of [`MutexGuard::bump`] before it takes the lock back although no waiting thread has had it.
const BUMP_YIELDS_MAX: u32 = 100;

/// A value behind a lock. Locking does not fail after a panic.
///
/// ```
/// let mutex = embank_kv::locks::Mutex::new(1);
/// *mutex.lock() += 1;
/// assert_eq!(mutex.into_inner(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T> {
    value: sync::Mutex<T>,
    /// Threads that wait for the lock.
    waiting: AtomicU32,
}

/// A locked [`Mutex`].
#[derive(Debug)]
#[must_use]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only inside a method that takes the guard by `&mut`.
    guard: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A mutex that is not locked.
    pub const fn new(value: T) -> Self {
        Mutex { value: sync::Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        // Relaxed: a hint for `bump`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        MutexGuard { mutex: self, guard: Some(guard) }
    }

    /// Takes the lock; `None` if it is taken.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.value.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, guard: Some(guard) })
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `work` while the mutex is not locked.
    pub fn unlocked<U>(guard: &mut Self, work: impl FnOnce() -> U) -> U {
        /// Locks again, also after a panic.
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

    /// Lets a waiting thread have the lock, if there is one.
    pub fn bump(guard: &mut Self) {
        let waiting = &guard.mutex.waiting;
        // Relaxed: a hint.
        let before = waiting.load(Ordering::Relaxed);
        if before > 0 {
            Self::unlocked(guard, || {
                for _ in 0..BUMP_YIELDS_MAX {
                    if waiting.load(Ordering::Relaxed) < before {
                        break;
                    }
                    thread::yield_now();
                }
            });
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("locked")
    }
}

/// Lets threads wait for what another thread does under a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

/// Whether a wait ended at its deadline.
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
    /// A condition that no thread waits for.
    #[must_use]
    pub const fn new() -> Self {
        Condvar(sync::Condvar::new())
    }

    /// Waits for a notification; may also return without one.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let locked = guard.guard.take().expect("locked");
        guard.guard = Some(self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
    }

    /// As [`wait`](Self::wait), until `deadline` at the latest.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitResult {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// As [`wait`](Self::wait), for `timeout` at most.
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

/// A value behind a lock that readers share. Locking does not fail after a panic. A thread must not lock it again while
/// it holds it.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// A [`RwLock`] that is locked for reading.
pub type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;
/// A [`RwLock`] that is locked for writing.
pub type RwLockWriteGuard<'a, T> = sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// A lock that is not taken.
    pub const fn new(value: T) -> Self {
        RwLock(sync::RwLock::new(value))
    }

    /// Waits to share the value with other readers.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits to have the value alone.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value.
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
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let (mut in_mutex, mut in_lock) = (mutex.lock(), lock.write());
            (*in_mutex, *in_lock) = (2, 2);
            MutexGuard::unlocked(&mut in_mutex, || panic!("while it is unlocked"));
        }));
        assert!(panicked.is_err());
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
        assert_eq!((mutex.into_inner(), lock.into_inner()), (2, 2));
    }

    #[test]
    fn a_bump_lets_a_waiting_thread_have_the_lock() {
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            let mut guard = mutex.lock();
            scope.spawn(|| *mutex.lock() += 1);
            // Ends: the thread waits for the lock sooner or later, and a bump then gives it away.
            while *guard == 0 {
                MutexGuard::bump(&mut guard);
                thread::yield_now();
            }
        });
        assert_eq!(mutex.into_inner(), 1);
    }
}
