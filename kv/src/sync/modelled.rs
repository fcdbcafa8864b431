//! Types and functions with the names of `native`, for the model checker shuttle. At each
//! operation, shuttle's scheduler may switch to another thread.
//!
//! **Atomics** are those of the standard library, in wrappers of the same size. Shuttle's own
//! atomics are larger, and do not fit into the memory that the index and the log use as atomics.
//! All threads of a model are coroutines of one system thread. All operations therefore happen in
//! one sequence, and memory orders weaker than SeqCst are not modelled.
//!
//! **Locks** are those of shuttle, with the interface of `process::locks`. A wait with a deadline
//! (`wait_until`) ignores the deadline, so a lost wake-up shows as a deadlock. A wait for a given
//! time (`wait_for`) ends as soon as other threads have had a chance to run.
//!
//! **Statics** and thread locals are made again for each schedule.

#![expect(dead_code, reason = "not every type of atomic is used in every way")]

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub(crate) use shuttle::sync::RwLockWriteGuard;
pub(crate) use shuttle::{thread, thread_local};
pub(crate) use std::sync::atomic::{AtomicU64 as CountingU64, Ordering, compiler_fence};

std::thread_local! {
    static POINT: shuttle::sync::atomic::AtomicBool =
        const { shuttle::sync::atomic::AtomicBool::new(false) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Lets the scheduler choose the thread that runs next.
fn point() {
    if !QUIET.get() {
        // At any operation of a shuttle type, the scheduler may choose another thread. `yield_now`
        // is not used, because it tells shuttle that this thread can't continue yet.
        POINT.with(|point| point.load(Ordering::SeqCst));
    }
}

/// Runs `work`. Meanwhile, the scheduler does not switch threads at atomics. A model prepares and
/// checks its store this way, so that all choices of the scheduler are spent on the model's
/// threads.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }
    let _restore = Restore(QUIET.replace(true));
    work()
}

/// Does nothing, because all operations happen in one sequence.
pub(crate) fn fence(_: Ordering) {}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Default)]
        #[repr(transparent)]
        pub(crate) struct $name(std::sync::atomic::$name);

        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                $name(std::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, _: Ordering) -> $value {
                point();
                self.0.load(Ordering::SeqCst)
            }

            pub(crate) fn store(&self, value: $value, _: Ordering) {
                point();
                self.0.store(value, Ordering::SeqCst);
            }

            pub(crate) fn swap(&self, value: $value, _: Ordering) -> $value {
                point();
                self.0.swap(value, Ordering::SeqCst)
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                point();
                if super::planted(super::Planted::ExchangeUncompared) {
                    self.0.store(new, Ordering::SeqCst);
                    return Ok(old);
                }
                self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                $name::new(value)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! atomic_number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            pub(crate) fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                point();
                self.0.fetch_add(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_sub(&self, value: $value, _: Ordering) -> $value {
                point();
                self.0.fetch_sub(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_max(&self, value: $value, _: Ordering) -> $value {
                point();
                self.0.fetch_max(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_or(&self, value: $value, _: Ordering) -> $value {
                point();
                self.0.fetch_or(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_update(
                &self,
                _: Ordering,
                _: Ordering,
                next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point();
                self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic_number!(AtomicU32, u32);
atomic_number!(AtomicU64, u64);
atomic_number!(AtomicUsize, usize);

/// Declares statics that live for one schedule of a model.
macro_rules! global {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $(shuttle::lazy_static! { $(#[$attribute])* static ref $name: $type = $value; })*
    };
}
pub(crate) use global;

/// See `process::locks::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

/// A locked mutex. `guard` is `None` only during a wait.
#[must_use]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { mutex: self, guard: Some(guard) }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.0.try_lock().ok()?;
        Some(MutexGuard { mutex: self, guard: Some(guard) })
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn unlocked<U>(guard: &mut Self, work: impl FnOnce() -> U) -> U {
        drop(guard.guard.take());
        let done = work();
        guard.guard = guard.mutex.lock().guard.take();
        done
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("locked")
    }
}

/// See `process::locks::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

/// Tells whether a wait ended at its deadline.
pub(crate) struct TimedOut(bool);

impl TimedOut {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Condvar(shuttle::sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let locked = guard.guard.take().expect("locked");
        guard.guard = Some(self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for a notification and ignores the deadline.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> TimedOut {
        self.wait(guard);
        TimedOut(false)
    }

    /// Unlocks the mutex, lets the scheduler choose the thread that runs next, and returns. Does
    /// not wait for a notification.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> TimedOut {
        MutexGuard::unlocked(guard, point);
        TimedOut(true)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// See `process::locks::RwLock`.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces `native::Backoff`: tells the scheduler to run another thread.
pub(crate) struct Backoff;

impl Backoff {
    pub(crate) fn new() -> Self {
        Backoff
    }

    pub(crate) fn snooze(&mut self) {
        thread::yield_now();
    }
}

/// Lets other threads run. Called by a thread that waits for a pinned thread.
pub(crate) fn rest(_: &mut u32) {
    thread::yield_now();
}

/// Replaces `native::ShortWait`: lets other threads run once, and is over.
pub(crate) struct ShortWait(bool);

impl ShortWait {
    pub(crate) fn new() -> Self {
        ShortWait(true)
    }

    pub(crate) fn again(&mut self) -> bool {
        point();
        std::mem::take(&mut self.0)
    }
}
