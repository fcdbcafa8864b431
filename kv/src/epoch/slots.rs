//! Pins that cost two plain stores: the barrier pays instead.
//!
//! **Problem.** Whoever pins must announce it before it looks at shared state, which takes a full fence
//! (or a locked instruction) between a store and a load. In a batch that is nothing. Between single
//! operations it keeps the processor from starting the next one's cache misses while those of the last
//! are still under way: reads of one key each took 600 ns, and take a third of that without it.
//!
//! **Approach.** An asymmetric fence (as in Linux's RCU for user space and folly's hazard pointers). A
//! pin is a plain store of the era into the thread's own slot, kept in place by a compiler fence. The
//! barrier, which runs a few times a second, makes every running thread of the process execute a full
//! fence by `membarrier(2)` and then waits for the slots that it finds pinned in an older era.
//!
//! **Why it is right.** Let a barrier follow a change (a moved boundary, a pause), and a thread pin.
//! Either the thread's store to its slot came before the fence that `membarrier` made it execute: then
//! the barrier sees the slot and waits, unless it holds this era or a newer one; the thread read
//! that era with Acquire from the addition that followed the change, and so sees the change. Or the store came
//! after that fence: then so did every later load of the thread, which sees the change.
//!
//! **Threads.** A thread takes a slot at its first pin and gives it back when it ends. Pins nest: the
//! outermost unpin counts. (A callback that enters any store's gate again may still wait for a pause that
//! waits for its own batch; `Operation` forbids it.)
//!
//! **Fork.** A child has one thread and all slots of its parent's. What the others had pinned is unpinned for
//! it by a handler at the fork, lest its barriers wait for threads that it does not have.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, compiler_fence, fence, global, rest,
    thread_local,
};

/// Slots are made in blocks of this many, and never given back to the system.
const BLOCK_SLOTS: usize = 64;
/// Bounds the threads of a process that use stores at one time to 65,536.
const BLOCKS_MAX: usize = 1024;

/// What a thread has pinned. Two cache lines of its own; only `era` is read by others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Slot {
    /// The era of the thread's pin, 0 while it is not pinned.
    era: AtomicU64,
    /// How many pins the thread has.
    depth: AtomicUsize,
    /// Its place in the list.
    number: AtomicUsize,
    /// It serves one pin and is then given back.
    late: AtomicBool,
}

impl Slot {
    /// A slot that nobody uses.
    fn take(late: bool) -> &'static Slot {
        let mut free = FREE.lock();
        let number = free.0.pop().unwrap_or_else(|| {
            free.1 += 1;
            free.1 - 1
        });
        assert!(number < BLOCK_SLOTS * BLOCKS_MAX, "more than 65,536 threads use stores");
        let slot = slot(number);
        slot.number.store(number, Ordering::Relaxed);
        // A thread that ended in the midst of a pin, by `exit` in a callback, has left its mark.
        slot.depth.store(0, Ordering::Relaxed);
        slot.era.store(0, Ordering::Relaxed);
        slot.late.store(late, Ordering::Relaxed);
        slot
    }

    #[cold]
    fn give_back(&self) {
        FREE.lock().0.push(self.number.load(Ordering::Relaxed));
    }

    #[inline]
    pub(super) fn pin(&'static self) -> Pin {
        // Relaxed: the thread's own. The lock of the list orders one owner after the other.
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            // Acquire: see the essay.
            let era = ERA.load(Ordering::Acquire);
            // Release: a barrier that meets this pin in place of the last one's end must see what was done
            // under the last one, too.
            self.era.store(era, Ordering::Release);
            // The store above stays before every later load; the barrier's fence does the rest.
            compiler_fence(Ordering::SeqCst);
        }
        Pin { slot: self, thread: PhantomData }
    }

    #[inline]
    fn unpin(&self) {
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            // Release: what was done under the pin comes before what follows the barrier.
            self.era.store(0, Ordering::Release);
            if self.late.load(Ordering::Relaxed) {
                self.give_back();
            }
        }
    }
}

global! {
    static ERA: AtomicU64 = AtomicU64::new(1);
    static BLOCKS: [OnceLock<Box<[Slot; BLOCK_SLOTS]>>; BLOCKS_MAX] =
        [const { OnceLock::new() }; BLOCKS_MAX];
    /// Numbers of slots that nobody uses, and how many there have been.
    static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));
}

fn slot(number: usize) -> &'static Slot {
    let block = BLOCKS[number / BLOCK_SLOTS]
        .get_or_init(|| Box::new(std::array::from_fn(|_| Slot::default())));
    &block[number % BLOCK_SLOTS]
}

/// Gives a thread's slot back when the thread ends.
struct Owner(&'static Slot);

impl Drop for Owner {
    fn drop(&mut self) {
        // It has nothing to destroy, so it is there; but in a model.
        let _ = OWN.try_with(|own| own.set(None));
        self.0.give_back();
    }
}

thread_local! {
    /// This thread's slot once it has one. Nothing to initialise and nothing to drop: a pin finds it with
    /// one load.
    static OWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    static OWNER: Owner = Owner(Slot::take(false));
}

/// A pin of this thread, until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pin {
    slot: &'static Slot,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        self.slot.unpin();
    }
}

/// This thread's slot, unless it has none yet or is ending.
#[inline]
pub(super) fn own() -> Option<&'static Slot> {
    OWN.try_with(Cell::get).ok().flatten()
}

/// A thread's first pin; or one of a thread that is ending, whose own slot is gone: that pin gets a slot
/// for itself.
pub(super) fn pin_anew() -> Pin {
    let own = OWNER.try_with(|owner| owner.0).inspect(|&slot| OWN.with(|own| own.set(Some(slot))));
    own.unwrap_or_else(|_| Slot::take(true)).pin()
}

pub(super) fn is_pinned() -> bool {
    own().is_some_and(|slot| slot.depth.load(Ordering::Relaxed) > 0)
}

/// See [`super::barrier`].
pub(super) fn barrier() {
    // Release (part of SeqCst): publishes the caller's change to those who pin in this era.
    let era = ERA.fetch_add(1, Ordering::SeqCst) + 1;
    fence(Ordering::SeqCst);
    membarrier::fence_all_threads();
    let slots = FREE.lock().1;
    for number in 0..slots {
        let mut round = 0;
        // Ends: a pinned thread only computes. Acquire: pairs with the Release in `unpin`.
        while matches!(slot(number).era.load(Ordering::Acquire), pinned if pinned != 0 && pinned < era)
        {
            rest(&mut round);
        }
    }
}

#[cfg(test)]
pub(super) fn slot_count() -> usize {
    FREE.lock().1
}

/// Whether this kernel makes other threads execute a fence on demand. Asked once.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| membarrier::register() && membarrier::watch_forks())
}

#[cfg(all(target_os = "linux", not(any(miri, embank_shuttle))))]
mod membarrier {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    use super::{FREE, Ordering, own, slot};

    /// Has the slots ready for use in whatever child this process has from now on.
    pub(super) fn watch_forks() -> bool {
        /// Nobody changes the list while it is copied.
        extern "C" fn before() {
            std::mem::forget(FREE.lock());
        }
        extern "C" fn in_parent() {
            // SAFETY: `before` locked it on this thread and forgot the guard.
            unsafe { FREE.force_unlock() };
        }
        extern "C" fn in_child() {
            in_parent();
            let slots = FREE.lock().1;
            for slot in (0..slots).map(slot) {
                if !own().is_some_and(|own| std::ptr::eq(own, slot)) {
                    slot.era.store(0, Ordering::Relaxed);
                }
            }
        }
        // SAFETY: the handlers are functions of this program, only lock, unlock and store.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 }
    }

    fn call(command: libc::c_int) -> bool {
        // SAFETY: membarrier takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    pub(super) fn register() -> bool {
        call(REGISTER_PRIVATE_EXPEDITED)
    }

    pub(super) fn fence_all_threads() {
        // A process that was made by fork may have to register again.
        let fenced = call(PRIVATE_EXPEDITED) || (register() && call(PRIVATE_EXPEDITED));
        assert!(fenced, "membarrier(2) was granted to this process before and is refused now");
    }
}

#[cfg(not(all(target_os = "linux", not(any(miri, embank_shuttle)))))]
mod membarrier {
    /// In a model all that happens is one sequence, with nothing for a fence to order.
    pub(super) fn register() -> bool {
        cfg!(embank_shuttle)
    }

    pub(super) fn watch_forks() -> bool {
        cfg!(embank_shuttle)
    }

    pub(super) fn fence_all_threads() {}
}
