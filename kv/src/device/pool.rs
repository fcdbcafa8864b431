//! The threads that read for all [`ThreadDevice`](super::ThreadDevice)s of the process.
//!
//! **Problem.** A thread that blocks in `pread` keeps one read in flight, so a drive needs tens of
//! threads. A set of threads for each bank takes a multiple of that, and containers limit the
//! threads of their processes.
//!
//! **Approach.** A process has one pool. A burst of reads goes on the pool's queue, and the pool's
//! threads and the calling thread claim its reads one by one. The pool starts a thread only if a
//! burst has reads that neither its calling thread nor an idle thread would claim at once. It never
//! has more threads than the device of that burst allows (`DeviceOptions::threads`). Idle threads
//! sleep on a condition variable. The drop of the last device joins all threads.
//!
//! **Progress.** The calling thread claims reads of its own burst until all are claimed. After that
//! it waits only for the reads of its burst that other threads have claimed. So a burst needs no
//! thread of the pool. A bank on a slow drive can occupy every thread of the pool. Callers on other
//! banks then read their bursts alone, and wait for no slow read. The threads take the oldest burst
//! first, so each burst has its turn.
//!
//! **Refusal.** At a limit of threads (`EAGAIN`) the pool uses the threads that it has, which may
//! be zero. It asks the system again after [`BURSTS_UNTIL_RETRY`] further bursts that lacked a
//! thread.
//!
//! **Fork.** A child has no thread of the pool, and a thread of the parent may hold any of the
//! pool's locks at the fork. So the handler at the fork forgets the parent's pool
//! (`forget_in_child`), and the first device that is opened in the child makes a new one. The
//! process id identifies a child for which no handler ran. Dropping a device of the parent in the
//! child joins no thread.

use std::collections::VecDeque;
use std::mem;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use super::threads::Burst;
use crate::process::locks::{Condvar, Mutex, MutexGuard};
use crate::process::{fork, thread_start};
use crate::sync::thread::JoinHandle;

/// Bursts that start no thread after the system has refused one, though they lack threads. A
/// refused attempt takes as long as some reads, so one burst in a thousand tries again.
pub(super) const BURSTS_UNTIL_RETRY: u32 = 1_000;

/// The pool of this process, or of the process that it was forked from. `null` before the first
/// device. Never freed, so that no thread reads freed memory. A process that forks keeps one more
/// for each generation.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

struct Shared {
    process: u32,
    /// Does not upgrade while no device is open.
    pool: Mutex<Weak<ReadPool>>,
}

/// The threads that read. They end when the pool is dropped.
#[derive(Debug)]
pub(super) struct ReadPool {
    process: u32,
    queue: Arc<Queue>,
    threads: Mutex<Threads>,
}

#[derive(Debug, Default)]
struct Threads {
    started: Vec<JoinHandle<()>>,
    /// Bursts that will start no thread, though they lack some.
    bursts_until_retry: u32,
}

impl ReadPool {
    /// The pool that all devices of this process share. It is dropped with the last of them.
    pub(super) fn of_this_process() -> Arc<Self> {
        // If the handler can't be installed, the process id alone identifies a child.
        let _ = fork::watch(fork::Owner::ReadPool, forget_in_child);
        let mut pool = shared(process::id()).pool.lock();
        pool.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Self::new());
            *pool = Arc::downgrade(&made);
            made
        })
    }

    /// A pool of its own, without a thread.
    pub(super) fn new() -> Self {
        ReadPool { process: process::id(), queue: Arc::default(), threads: Mutex::default() }
    }

    /// Offers a burst to the threads. Starts threads if the burst lacks some and there are fewer
    /// than `threads_max`.
    pub(super) fn offer(&self, burst: &Arc<Burst>, threads_max: usize) {
        let lacking = self.queue.push(burst);
        if lacking > 0 {
            self.grow(lacking, threads_max);
        }
    }

    /// Takes a burst that has nothing left to claim off the queue, if it is still there.
    pub(super) fn retire(&self, burst: &Arc<Burst>) {
        self.queue.state.lock().retire(burst);
    }

    #[cold]
    fn grow(&self, lacking: usize, threads_max: usize) {
        // Another caller is starting threads, which will help with this burst too.
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
        if self.process != process::id() {
            // A child made by `fork` does not have these threads. It could wait for them for ever.
            mem::forget(threads);
            return;
        }
        self.queue.close();
        for thread in threads {
            // If the thread has panicked, the panic was printed and its burst has failed.
            let _ = thread.join();
        }
    }
}

/// What the devices of `process` share. `process` is this process.
fn shared(process: u32) -> &'static Shared {
    // Acquire: pairs with the Release below, which published the target.
    let mut found = SHARED.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or made below and never freed.
        match unsafe { found.as_ref() } {
            Some(shared) if shared.process == process => return shared,
            _ => {}
        }
        let made = Box::into_raw(Box::new(Shared { process, pool: Mutex::new(Weak::new()) }));
        // Release: pairs with the Acquire loads here and above.
        match SHARED.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above and never freed from here on.
            Ok(_) => return unsafe { &*made },
            // Ends: a pool that another thread of this process stored is one of this process.
            Err(other) => {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                found = other;
            }
        }
    }
}

/// Called in a forked child, which has one thread.
pub(crate) fn forget_in_child() {
    // Relaxed: the child has one thread.
    SHARED.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Bursts that still have reads to claim, oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    bursts: VecDeque<Arc<Burst>>,
    /// Threads that wait for `changed`.
    idle: usize,
    closing: bool,
}

impl QueueState {
    fn retire(&mut self, burst: &Arc<Burst>) {
        self.bursts.retain(|queued| !Arc::ptr_eq(queued, burst));
    }
}

impl Queue {
    /// Puts a burst on the queue. Wakes an idle thread for each of its reads but the first, which
    /// the caller takes. Returns the number of further threads that could read at once.
    fn push(&self, burst: &Arc<Burst>) -> usize {
        let mut state = self.state.lock();
        state.bursts.push_back(Arc::clone(burst));
        // Each caller takes one read of its burst. Threads that were woken and do not run yet count
        // as idle, and the reads that they will claim count here.
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

    /// The loop of a thread of the pool: it works on the oldest burst, sleeps if there is no burst,
    /// and ends when the queue closes.
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
