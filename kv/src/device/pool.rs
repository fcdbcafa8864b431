//! The pool of threads that read for all [`ThreadDevice`](super::ThreadDevice)s of a process.
//!
//! **Problem.** A thread that blocks in `pread` has one read in flight, so a fast drive needs tens
//! of threads. If each bank had its own threads, a process with several banks could have too many:
//! containers limit the threads of a process.
//!
//! **Approach.** A process has one pool. A burst of reads enters the pool's queue. The calling
//! thread and the pool's threads claim the burst's reads one by one. The pool starts a thread if a
//! burst has more reads than its calling thread and the idle threads can claim at once. The burst's
//! device limits the number of threads (`DeviceOptions::threads`). Idle threads sleep on a
//! condition variable. Dropping the last device joins all threads.
//!
//! **Progress.** The calling thread claims reads of its burst until all are claimed. Then it waits
//! only for reads that other threads have claimed. A burst therefore needs no thread of the pool.
//! If a bank on a slow drive occupies all threads, callers of other banks read alone and wait for
//! no slow read. The threads serve the oldest burst first, so every burst is served.
//!
//! **Refusal.** If the system refuses a thread (`EAGAIN`), the pool continues with the threads that
//! it has, possibly none. It tries again after [`BURSTS_UNTIL_RETRY`] more bursts that lacked a
//! thread.
//!
//! **Fork.** A child has no thread of the pool, and another thread of the parent may have held a
//! lock of the pool at the fork. The fork handler therefore forgets the parent's pool
//! (`forget_in_child`). The first device that the child opens makes a new pool. If no handler ran,
//! the process id in the pool shows that the pool belongs to the parent. A device of the parent
//! that is dropped in the child joins no thread.

use std::collections::VecDeque;
use std::mem;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use super::threads::Burst;
use crate::process::home::Home;
use crate::process::locks::{Condvar, Mutex, MutexGuard};
use crate::process::{fork, thread_start};
use crate::sync::thread::JoinHandle;

/// After the system has refused a thread, this number of bursts that lack threads start no thread.
/// A refused attempt costs as much time as some reads, so attempts must be rare.
pub(super) const BURSTS_UNTIL_RETRY: u32 = 1_000;

/// The pool of this process, or of a parent process. `null` before the first device is opened.
/// Never freed, because a thread may still read it. A chain of forks leaks one value per process.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

struct Shared {
    process: u32,
    /// `upgrade` returns the pool while a device is open.
    pool: Mutex<Weak<ReadPool>>,
}

/// The reading threads. Dropping the pool ends and joins them.
#[derive(Debug)]
pub(super) struct ReadPool {
    home: Home,
    queue: Arc<Queue>,
    threads: Mutex<Threads>,
}

#[derive(Debug, Default)]
struct Threads {
    started: Vec<JoinHandle<()>>,
    /// Number of bursts that will start no thread although they lack threads.
    bursts_until_retry: u32,
}

impl ReadPool {
    /// Returns the pool that all devices of this process share. Dropping the last device drops the
    /// pool.
    pub(super) fn of_this_process() -> Arc<Self> {
        // An error is ignored: without the fork handler, the process id in `Shared` still shows
        // that a pool belongs to the parent.
        let _ = fork::watch(fork::Owner::ReadPool, forget_in_child);
        let mut pool = shared(process::id()).pool.lock();
        pool.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Self::new());
            *pool = Arc::downgrade(&made);
            made
        })
    }

    /// Makes a pool without threads.
    pub(super) fn new() -> Self {
        ReadPool { home: Home::here(), queue: Arc::default(), threads: Mutex::default() }
    }

    /// Puts a burst into the queue. Starts threads if the burst lacks threads and the pool has
    /// fewer than `threads_max`.
    pub(super) fn offer(&self, burst: &Arc<Burst>, threads_max: usize) {
        let lacking = self.queue.push(burst);
        if lacking > 0 {
            self.grow(lacking, threads_max);
        }
    }

    /// Removes a burst that has no unclaimed reads from the queue, if the queue still has the
    /// burst.
    pub(super) fn retire(&self, burst: &Arc<Burst>) {
        self.queue.state.lock().retire(burst);
    }

    #[cold]
    fn grow(&self, lacking: usize, threads_max: usize) {
        // If the lock is taken, another caller is starting threads. Those threads will serve this
        // burst too.
        let Some(mut threads) = self.threads.try_lock() else { return };
        if threads.bursts_until_retry > 0 {
            threads.bursts_until_retry -= 1;
            return;
        }
        let more = threads_max.saturating_sub(threads.started.len());
        for _ in 0..lacking.min(more) {
            let name = format!("embank-read-{}", threads.started.len());
            let queue = Arc::clone(&self.queue);
            match thread_start::start(name, move || queue.serve()) {
                Ok(thread) => threads.started.push(thread),
                Err(_) => {
                    threads.bursts_until_retry = BURSTS_UNTIL_RETRY;
                    return;
                }
            }
        }
    }
}

impl Drop for ReadPool {
    fn drop(&mut self) {
        let threads = mem::take(&mut self.threads.get_mut().started);
        if !self.home.is_here() {
            mem::forget(threads);
            return;
        }
        self.queue.close();
        for thread in threads {
            // An error is ignored: it means that the thread panicked. The panic was printed, and
            // the burst failed.
            let _ = thread.join();
        }
    }
}

/// Returns the value that all devices of this process share. `process` is the id of this process.
fn shared(process: u32) -> &'static Shared {
    // Acquire: pairs with the Release of the exchange below, which publishes the value.
    let mut found = SHARED.load(Ordering::Acquire);
    loop {
        // SAFETY: the pointer is null or was made below, and the value is never freed.
        match unsafe { found.as_ref() } {
            Some(shared) if shared.process == process => return shared,
            _ => {}
        }
        let made = Box::into_raw(Box::new(Shared { process, pool: Mutex::new(Weak::new()) }));
        // Release: pairs with the Acquire loads here and above.
        match SHARED.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `made` was made above, and is never freed once it is stored.
            Ok(_) => return unsafe { &*made },
            // The loop ends: only another thread of this process can have stored a value, and that
            // value belongs to this process.
            Err(other) => {
                // SAFETY: `made` was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                found = other;
            }
        }
    }
}

/// Forgets the parent's pool. Runs in a forked child, which has one thread.
pub(crate) fn forget_in_child() {
    // Relaxed: the child has one thread.
    SHARED.store(ptr::null_mut(), Ordering::Relaxed);
}

/// The bursts that have unclaimed reads, oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    bursts: VecDeque<Arc<Burst>>,
    /// Number of threads that wait for `changed`.
    idle: usize,
    closing: bool,
}

impl QueueState {
    fn retire(&mut self, burst: &Arc<Burst>) {
        self.bursts.retain(|queued| !Arc::ptr_eq(queued, burst));
    }
}

impl Queue {
    /// Puts a burst into the queue. Wakes an idle thread for each of the burst's reads except the
    /// first, which the caller claims. Returns how many more threads could read at once.
    fn push(&self, burst: &Arc<Burst>) -> usize {
        let mut state = self.state.lock();
        state.bursts.push_back(Arc::clone(burst));
        // Each caller claims one read of its burst. A woken thread that does not run yet counts as
        // idle, and its read counts as claimable.
        let claimable = state.bursts.iter().map(|burst| burst.unclaimed().saturating_sub(1)).sum();
        let idle = state.idle;
        drop(state);
        let helpers = burst.len() - 1;
        if helpers >= idle {
            self.changed.notify_all();
        } else {
            (0..helpers).for_each(|_| self.changed.notify_one());
        }
        usize::saturating_sub(claimable, idle)
    }

    fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_all();
    }

    /// Runs a thread of the pool. It serves the oldest burst, sleeps if there is none, and returns
    /// when the queue is closed.
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(burst) = state.bursts.front() {
                let burst = Arc::clone(burst);
                MutexGuard::unlocked(&mut state, || burst.work());
                state.retire(&burst);
            } else if state.closing {
                return;
            } else {
                state.idle += 1;
                self.changed.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
impl ReadPool {
    pub(super) fn threads_started(&self) -> usize {
        self.threads.lock().started.len()
    }

    pub(super) fn threads_idle(&self) -> usize {
        self.queue.state.lock().idle
    }

    pub(super) fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }

    pub(super) fn has_no_bursts(&self) -> bool {
        self.queue.state.lock().bursts.is_empty()
    }
}
