//! Commits chunks one after the other, in the order of the input.
//!
//! **Problem.** Threads work on chunks in parallel and finish them in any order. Ids must be given,
//! and batches passed on, in the order of the input. If each thread waited for the chunk before its
//! own, it would lose the time of that wait. It would also lose the time of a wake-up at every
//! other chunk, tens of microseconds on a virtual machine.
//!
//! **Approach.** A reorder buffer, as processors have. A thread puts its finished chunk into the
//! buffer and takes another chunk. If the chunk is the next in order, the thread commits it, and
//! then all finished chunks that follow it without a gap. If another thread is committing, the
//! first thread leaves its chunk to the committing thread. One thread at a time commits, in order.
//! A thread waits only if `window` chunks are uncommitted, because the oldest is late or the
//! consumer is slow. Waiting threads sleep until half of the window is free. A wake-up after every
//! commit would make threads sleep and wake all the time.
//!
//! **No chunk is forgotten.** `committing` is set and cleared under the lock. A thread clears it
//! only after it has seen, under the same lock, that the next chunk is missing. The thread that
//! puts in the next chunk therefore finds `committing` cleared, and commits.

use std::collections::VecDeque;

use embank::locks::{Condvar, Mutex};

/// Finished work that waits for the work before it.
#[derive(Debug)]
pub(crate) struct Order<T> {
    window: u64,
    buffer: Mutex<ReorderBuffer<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct ReorderBuffer<T> {
    /// Number of the first chunk whose commit has not begun.
    next: u64,
    /// Finished chunks, from number `next` on; `None` for an unfinished one.
    finished: VecDeque<Option<T>>,
    committing: bool,
    ended: bool,
    /// The lowest chunk number that a sleeping thread waits to begin. `u64::MAX` if no thread
    /// sleeps.
    nearest_asleep: u64,
}

impl<T> Order<T> {
    /// Allows at most `window` uncommitted chunks; 0 counts as 1.
    pub(crate) fn new(window: usize) -> Self {
        let buffer = ReorderBuffer {
            next: 0,
            finished: VecDeque::new(),
            committing: false,
            ended: false,
            nearest_asleep: u64::MAX,
        };
        Self { window: window.max(1) as u64, buffer: Mutex::new(buffer), changed: Condvar::new() }
    }

    /// Waits until chunk `number` may begin. Returns false if the run has ended.
    pub(crate) fn begin(&self, number: u64) -> bool {
        let mut buffer = self.buffer.lock();
        // The loop ends: the thread with the oldest chunk commits it, or ends the run.
        while number >= buffer.next + self.window && !buffer.ended {
            buffer.nearest_asleep = buffer.nearest_asleep.min(number);
            self.changed.wait(&mut buffer);
        }
        !buffer.ended
    }

    /// As [`begin`](Self::begin), but does not wait. `None` if chunk `number` may not begin yet.
    pub(crate) fn try_begin(&self, number: u64) -> Option<bool> {
        let buffer = self.buffer.lock();
        if buffer.ended {
            return Some(false);
        }
        (number < buffer.next + self.window).then_some(true)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.buffer.lock().ended
    }

    /// Wakes the threads that wait to begin, if half of the window is free.
    fn wake(&self, buffer: &mut ReorderBuffer<T>) {
        // No sleeper is forgotten: all chunks before `nearest_asleep` are being worked on, so their
        // commits raise `next` far enough.
        if buffer.nearest_asleep < buffer.next + self.window.div_ceil(2) {
            buffer.nearest_asleep = u64::MAX;
            self.changed.notify_all();
        }
    }

    /// Puts in finished work. Commits the work that is next in order, unless another thread is
    /// committing. `commit` returns false to end the run; then nothing more is committed.
    pub(crate) fn finish(&self, number: u64, work: T, mut commit: impl FnMut(T) -> bool) {
        let mut buffer = self.buffer.lock();
        let place = (number - buffer.next) as usize;
        if buffer.finished.len() <= place {
            buffer.finished.resize_with(place + 1, || None);
        }
        buffer.finished[place] = Some(work);
        if buffer.committing || buffer.ended {
            return;
        }
        buffer.committing = true;
        // The loop ends: each round commits a chunk, and the input has a limited number of chunks.
        // It ends earlier if the next chunk is not finished.
        while let Some(work) = buffer.finished.front_mut().and_then(Option::take) {
            // Changed together, because indices in `finished` count from `next`.
            buffer.finished.pop_front();
            buffer.next += 1;
            drop(buffer);
            let go_on = commit(work);
            buffer = self.buffer.lock();
            buffer.ended |= !go_on;
            if buffer.ended {
                break;
            }
            self.wake(&mut buffer);
        }
        buffer.committing = false;
        if buffer.ended {
            self.changed.notify_all();
        }
    }

    /// Ends the run: nothing more begins or is committed.
    pub(crate) fn end(&self) {
        self.buffer.lock().ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn whatever_the_order_of_finishing_commits_are_in_order() {
        for threads in [1, 2, 5] {
            let order = Order::new(4);
            let claims = AtomicU64::new(0);
            let committed = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        loop {
                            let number = claims.fetch_add(1, Ordering::Relaxed);
                            if number >= 2000 {
                                return;
                            }
                            assert!(order.begin(number));
                            if number.is_multiple_of(7) {
                                std::thread::yield_now();
                            }
                            order.finish(number, number, |number| {
                                committed.lock().push(number);
                                true
                            });
                        }
                    });
                }
            });
            assert_eq!(committed.into_inner(), (0..2000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_late_one_holds_the_others_back_at_the_window() {
        let order = Order::new(2);
        let committed = Mutex::new(Vec::new());
        let commit = |number| {
            committed.lock().push(number);
            true
        };
        assert!(order.begin(0) && order.begin(1));
        order.finish(1, 1, commit);
        assert!(committed.lock().is_empty());
        std::thread::scope(|scope| {
            let third = scope.spawn(|| order.begin(2));
            order.finish(0, 0, commit);
            assert!(third.join().unwrap());
        });
        assert_eq!(*committed.lock(), [0, 1]);
    }

    #[test]
    fn after_a_refusal_nothing_more_is_committed_or_begun() {
        let order = Order::new(8);
        let committed = Mutex::new(Vec::new());
        let commit = |number| {
            committed.lock().push(number);
            number < 1
        };
        for number in [2, 1, 0, 3] {
            order.finish(number, number, commit);
        }
        assert_eq!(*committed.lock(), [0, 1]);
        assert!(!order.begin(4));
    }

    #[test]
    fn who_waits_is_told_of_the_end() {
        let order = Order::<()>::new(1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| order.begin(5));
            order.end();
            assert!(!waiting.join().unwrap());
        });
    }
}
