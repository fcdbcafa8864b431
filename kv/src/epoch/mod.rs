//! Epochs: a way to wait until no thread still uses an old state.
//!
//! Every batch pins the epoch once and works on memory only while pinned. While pinned, it never
//! waits for the disk or for another thread's pin. It waits only for a mutex whose holders release
//! it after a few instructions. `barrier` waits until all threads that were pinned when it was
//! called have unpinned. Every thread then sees the change made before the call: a moved boundary
//! (read-only, head), or the pause flag.
//!
//! There are two implementations, and each process chooses one. `slots` has nearly free pins and
//! needs `membarrier(2)` (Linux 4.14). `portable` uses `crossbeam-epoch` where the kernel has no
//! `membarrier`. A build with debug assertions uses `portable` if the environment has
//! `EMBANK_PINS=portable`, for tests.

mod portable;
mod slots;

use std::sync::atomic::AtomicU8;

use crate::process::fork;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, Planted, planted};

/// A pin of this thread. While it exists, these stay valid for the thread: the places of frames,
/// the settled pages and the state of the gate.
#[must_use]
pub(crate) enum Pin {
    Slot(#[expect(dead_code, reason = "held for its drop")] slots::Pin),
    Portable(#[expect(dead_code, reason = "held for its drop")] portable::Guard),
}

#[inline]
fn pin() -> Pin {
    match slots::own() {
        Some(slot) => Pin::Slot(slot.pin()),
        None => pin_anew(),
    }
}

#[cold]
fn pin_anew() -> Pin {
    if by_slots() { Pin::Slot(slots::pin_anew()) } else { Pin::Portable(portable::pin()) }
}

/// True if this thread is pinned.
pub(crate) fn is_pinned() -> bool {
    if by_slots() { slots::is_pinned() } else { portable::is_pinned() }
}

/// Waits until every thread that is pinned at the call has unpinned. The caller must not be pinned.
///
/// The wait ends, because a pinned thread only computes.
pub(crate) fn barrier() {
    debug_assert!(!is_pinned());
    if by_slots() { slots::barrier() } else { portable::barrier() }
}

/// True if this process pins by `slots`.
fn by_slots() -> bool {
    const UNKNOWN: u8 = 0;
    const SLOTS: u8 = 1;
    const PORTABLE: u8 = 2;
    // `WAY` is an atomic and not a `OnceLock`, because another thread might hold the lock of a
    // `OnceLock` during a fork.
    static WAY: AtomicU8 = AtomicU8::new(UNKNOWN);
    // Relaxed: no other data depends on the number. The first exchange decides for all threads.
    let way = match WAY.load(Ordering::Relaxed) {
        UNKNOWN => {
            let way = if choose_slots() { SLOTS } else { PORTABLE };
            let chosen = WAY.compare_exchange(UNKNOWN, way, Ordering::Relaxed, Ordering::Relaxed);
            chosen.map_or_else(|before| before, |_| way)
        }
        way => way,
    };
    way == SLOTS
}

#[cold]
fn choose_slots() -> bool {
    // Without the fork handler, a child would wait for pins of threads that only its parent has.
    // `slots` is therefore chosen only if the handler is registered.
    let watched = fork::watch(fork::Owner::Pins, renew_in_child).is_ok();
    if cfg!(debug_assertions)
        && std::env::var_os("EMBANK_PINS").is_some_and(|way| way == "portable")
    {
        return false;
    }
    watched && slots::available()
}

/// Forgets the pins of the parent's other threads. Runs in a forked child, which has only the
/// calling thread.
fn renew_in_child() {
    #[cfg(not(embank_shuttle))]
    slots::renew_in_child();
    portable::renew_in_child();
}

/// Lets batches pin the epoch, or holds them back while a checkpoint fixes the store's state or the
/// index folds.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    paused: AtomicBool,
    waiting: Mutex<()>,
    resumed: Condvar,
    /// Locked by the thread that pauses batches.
    pausing: Mutex<()>,
}

impl Gate {
    /// Waits while a pause is set, then pins the epoch for one stretch of work in memory.
    #[inline]
    pub(crate) fn enter(&self) -> Pin {
        loop {
            let pin = pin();
            // Acquire: pairs with the Release store in `Pause::drop`. A pause that is set after
            // this load waits for this pin, because `pause` ends with a barrier.
            if !self.paused.load(Ordering::Acquire) {
                return pin;
            }
            drop(pin);
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut waiting = self.waiting.lock();
        while self.paused.load(Ordering::Acquire) {
            self.resumed.wait(&mut waiting);
        }
    }

    /// Holds back all batches, and returns when no batch works in memory. Waits for the end of a
    /// pause by another thread.
    ///
    /// The caller must not be pinned. In a pause, it may take only locks for which no pinned thread
    /// and no pausing thread waits longer than for a few instructions.
    pub(crate) fn pause(&self) -> Pause<'_> {
        let alone = self.pausing.lock();
        self.paused.store(true, Ordering::SeqCst);
        let pause = Pause { gate: self, _alone: alone };
        if !planted(Planted::PauseAtOnce) {
            barrier();
        }
        pause
    }
}

/// While a `Pause` exists, no batch works in memory. Dropping it lets the batches continue.
#[must_use]
pub(crate) struct Pause<'a> {
    gate: &'a Gate,
    /// Released after `drop` has let the batches continue.
    _alone: MutexGuard<'a, ()>,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let _waiting = self.gate.waiting.lock();
        // Release: pairs with the Acquire load in `enter`. Resumed batches see the changes made
        // during the pause.
        self.gate.paused.store(false, Ordering::Release);
        self.gate.resumed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    const ROUNDS: u64 = if cfg!(miri) { 3 } else { 200 };

    #[test]
    fn nobody_is_inside_during_a_pause() {
        let gate = Gate::default();
        let inside = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = gate.enter();
                        inside.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(guard);
                    }
                });
            }
            // Two threads pause. The end of one pause must not end the other.
            let pausing = || {
                for _ in 0..ROUNDS {
                    let pause = gate.pause();
                    for _ in 0..100 {
                        assert_eq!(inside.load(Ordering::Relaxed), 0);
                    }
                    drop(pause);
                }
            };
            let other = s.spawn(pausing);
            pausing();
            other.join().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// Checks two things: a thread that pins after a barrier sees the stores made before the
    /// barrier, and the barrier waits for all other pinned threads. A writer can therefore change a
    /// cell only when no thread is reading it.
    fn a_barrier_separates<P>(rounds: u64, pin: impl Fn() -> P + Sync, barrier: impl Fn()) {
        // The number of the cell that readers use. The writer changes only the other cell.
        let current = AtomicU64::new(0);
        let cells = [AtomicU64::new(0), AtomicU64::new(0)];
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let pin = pin();
                        let cell = &cells[current.load(Ordering::Acquire) as usize];
                        let first = cell.load(Ordering::Relaxed);
                        let changed = (0..3_000).any(|_| cell.load(Ordering::Relaxed) != first);
                        drop(pin);
                        if changed {
                            stop.store(true, Ordering::Relaxed);
                            panic!("a cell in use was changed");
                        }
                    }
                });
            }
            for round in 0..rounds {
                let old = (round % 2) as usize;
                let new = ((round + 1) % 2) as usize;
                current.store(new as u64, Ordering::Release);
                barrier();
                cells[old].store(round, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    fn slots_pin() -> slots::Pin {
        slots::own().map_or_else(slots::pin_anew, slots::Slot::pin)
    }

    #[test]
    fn a_barrier_separates_by_slots() {
        if !slots::available() {
            eprintln!("skipped: this kernel has no membarrier");
            return;
        }
        a_barrier_separates(ROUNDS * 10, slots_pin, slots::barrier);
    }

    #[test]
    fn a_barrier_separates_portably() {
        a_barrier_separates(ROUNDS.min(20), portable::pin, portable::barrier);
    }

    #[test]
    fn pins_nest() {
        let gate = Gate::default();
        assert!(!is_pinned());
        let outer = gate.enter();
        drop(gate.enter());
        assert!(is_pinned());
        drop(outer);
        assert!(!is_pinned());
    }

    /// Forks while another thread is pinned, and runs a barrier in the child. An alarm ends the
    /// child if the barrier hangs.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_child_passes_its_barrier<P>(pin: impl Fn() -> P + Send + 'static, barrier: impl Fn()) {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let pinned = std::thread::spawn(move || {
            let pin = pin();
            tell.send(()).unwrap();
            let _ = ended.recv();
            drop(pin);
        });
        told.recv().unwrap();
        // SAFETY: the child only runs a barrier and exits. The alarm ends it if the barrier hangs.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `alarm` only requests a signal.
            unsafe { libc::alarm(20) };
            barrier();
            // SAFETY: `_exit` ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for this test's own child, and `status` is valid for writes.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        end.send(()).unwrap();
        pinned.join().unwrap();
        assert_eq!(status, 0, "killed by signal {}", status & 127);
    }

    /// Shows that a child's barrier does not wait for pins of threads that only the parent has.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_child_is_not_held_by_pins_of_threads_it_does_not_have() {
        fork::watch(fork::Owner::Pins, renew_in_child).unwrap();
        if slots::available() {
            a_child_passes_its_barrier(slots_pin, slots::barrier);
        }
    }

    /// Shows that a child's barrier by `portable` does not wait for pins of threads that only the
    /// parent has.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_child_is_not_held_by_portable_pins_of_threads_it_does_not_have() {
        fork::watch(fork::Owner::Pins, renew_in_child).unwrap();
        a_child_passes_its_barrier(portable::pin, portable::barrier);
    }

    /// Shows that a barrier succeeds after the kernel has refused `membarrier` for a while. A
    /// kernel that lacks memory for a moment refuses it.
    #[cfg(all(target_os = "linux", not(any(miri, embank_shuttle))))]
    #[test]
    fn a_barrier_outlasts_a_fence_that_is_refused_for_a_while() {
        use slots::refusing;
        if !slots::available() {
            return;
        }
        refusing::all(10);
        slots::barrier();
        assert_eq!(refusing::left(), 0);
        // If the quick command (`PRIVATE_EXPEDITED`) stays refused, the slower one takes its place.
        refusing::quick(u32::MAX);
        slots::barrier();
        refusing::quick(0);
    }

    /// Shows that a thread can pin while its thread-local variables are being destroyed. The thread
    /// takes a slot for the pin and gives it back.
    #[test]
    fn pins_nest_in_a_thread_that_is_ending() {
        struct AtTheEnd(std::sync::mpsc::Sender<[bool; 3]>);
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                let gate = Gate::default();
                let outer = gate.enter();
                drop(gate.enter());
                let inside = is_pinned();
                drop(outer);
                let outside = is_pinned();
                barrier();
                let _again = gate.enter();
                self.0.send([inside, outside, is_pinned()]).unwrap();
            }
        }
        std::thread_local! {
            static AT_THE_END: std::cell::RefCell<Option<AtTheEnd>> =
                const { std::cell::RefCell::new(None) };
        }
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // This variable is registered before this crate's thread-local variables, and is
            // therefore destroyed after them.
            AT_THE_END.set(Some(AtTheEnd(tell)));
            drop(Gate::default().enter());
        })
        .join()
        .unwrap();
        let [inside, outside, again] = told.recv().unwrap();
        if by_slots() {
            assert!(inside && again);
        }
        assert!(!outside);
    }

    #[test]
    fn a_thread_gives_its_slot_back() {
        if !slots::available() {
            return;
        }
        // There are more threads than the slots that the last line allows, so the threads must
        // reuse slots.
        for _ in 0..if cfg!(miri) { 3 } else { 2_000 } {
            std::thread::spawn(|| drop(slots_pin())).join().unwrap();
        }
        assert!(slots::slot_count() < 1_000, "{}", slots::slot_count());
    }
}
