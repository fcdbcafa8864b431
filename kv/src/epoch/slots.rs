//! Pins that cost two plain stores: the barrier pays instead.
//!
//! **Problem.** A thread that pins must announce it before it looks at shared state, which takes a
//! full fence (or a locked instruction) between a store and a load. For a batch that costs nothing.
//! Between single operations it keeps the processor from starting the cache misses of the next
//! operation while those of the last one are under way. Reads of one key each then take three times
//! as long.
//!
//! **Approach.** An asymmetric fence (as in Linux's RCU for user space and folly's hazard
//! pointers). A pin is a plain store of the era into the thread's own slot, kept in place by a
//! compiler fence. The barrier, which runs a few times a second, makes every running thread of the
//! process execute a full fence by `membarrier(2)` and then waits for the slots that it finds
//! pinned in an older era.
//!
//! **Why it is right.** Let a barrier follow a change (a moved boundary, a pause), and a thread
//! pin. Either the thread's store to its slot came before the fence that `membarrier` made it
//! execute: then the barrier sees the slot and waits, unless it holds this era or a newer one; the
//! thread read that era with Acquire from the addition that followed the change, and so sees the
//! change. Or the store came after that fence: then so did every later load of the thread, which
//! sees the change.
//!
//! **Threads.** A thread takes a slot at its first pin and gives it back when it ends. Pins nest:
//! the outermost unpin counts. (A callback that enters any store's gate again may still wait for a
//! pause that waits for its own batch; `Operation` forbids it.)
//!
//! **Fork.** A child has one thread and a copy of its parent's slots. The handler at the fork frees
//! the slots of the threads that the child does not have (`renew_in_child`); otherwise the child's
//! barriers would wait for them. A handler must not take a lock, so slots are taken and given back
//! by atomics alone.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::AtomicPtr;

use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence, global, rest, thread_local,
};

/// Slots are made in blocks of this many, and never given back to the system. A word has a bit for
/// each.
const BLOCK_SLOTS: usize = u64::BITS as usize;
/// Bounds the threads of a process that use stores at one time to 65,536.
const BLOCKS_MAX: usize = 1024;

/// What a thread has pinned. Two cache lines of its own; only `era` is read by other threads.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Slot {
    /// The era of the thread's pin, 0 while it is not pinned.
    era: AtomicU64,
    /// How many pins the thread has.
    depth: AtomicUsize,
    /// Its place in the list.
    number: AtomicUsize,
    /// It serves one outermost pin and is then given back: its thread is ending.
    late: AtomicBool,
}

impl Slot {
    /// Takes a free slot for this thread.
    #[cold]
    fn take(late: bool) -> &'static Slot {
        for block in 0..BLOCKS_MAX {
            // Made before one of its slots is taken: a block that is not there has none behind it.
            let slots = BLOCKS[block].get_or_make();
            let with_next = |taken: u64| {
                let free = taken.trailing_ones();
                (free < u64::BITS).then(|| taken | 1 << free)
            };
            // Acquire: pairs with the Release of `give_back`, so that one owner comes after the
            // other.
            let before = TAKEN[block].fetch_update(Ordering::Acquire, Ordering::Relaxed, with_next);
            let Ok(before) = before else { continue };
            let place = before.trailing_ones() as usize;
            let slot = &slots[place];
            // Relaxed, except for the era: the thread's own.
            slot.number.store(block * BLOCK_SLOTS + place, Ordering::Relaxed);
            // A thread that ended in the midst of a pin, by `exit` in a callback, has left its
            // mark.
            slot.depth.store(0, Ordering::Relaxed);
            slot.late.store(late, Ordering::Relaxed);
            // Release: pairs with the Acquire in `barrier`, which must see what that thread did.
            slot.era.store(0, Ordering::Release);
            // Relaxed: the barrier's fence orders this before the era of a pin, as in the essay.
            COUNT.fetch_max(block * BLOCK_SLOTS + place + 1, Ordering::Relaxed);
            return slot;
        }
        panic!("more than 65,536 threads use stores");
    }

    #[cold]
    fn give_back(&self) {
        let number = self.number.load(Ordering::Relaxed);
        // Release: pairs with the Acquire of `take`. The bit is set, so this clears it alone.
        TAKEN[number / BLOCK_SLOTS].fetch_sub(1 << (number % BLOCK_SLOTS), Ordering::Release);
    }

    #[inline]
    pub(super) fn pin(&'static self) -> Pin {
        // Relaxed: the thread's own. `take` orders one owner after the other.
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            // Acquire: see the essay.
            let era = ERA.load(Ordering::Acquire);
            // Release: a barrier that meets this pin in place of the last one's end must see what
            // was done under the last one, too.
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
                let _ = OWN.try_with(|own| own.set(None));
                self.give_back();
            }
        }
    }
}

/// Slots that are made together. No `OnceLock`: a thread of the parent may hold its lock at a fork.
struct Block(AtomicPtr<[Slot; BLOCK_SLOTS]>);

impl Block {
    const fn new() -> Self {
        Block(AtomicPtr::new(ptr::null_mut()))
    }

    fn get(&self) -> Option<&[Slot; BLOCK_SLOTS]> {
        // Acquire: pairs with the Release of `make`, which built the slots.
        // SAFETY: null, or made by `make` and freed with this.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn get_or_make(&self) -> &[Slot; BLOCK_SLOTS] {
        self.get().unwrap_or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> &[Slot; BLOCK_SLOTS] {
        let made = Box::into_raw(Box::new(std::array::from_fn(|_| Slot::default())));
        let null = ptr::null_mut();
        // Release: pairs with the Acquire of `get`. Acquire on failure: as there.
        match self.0.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and freed with this.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: made above; no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: not null, and freed with this.
                unsafe { &*other }
            }
        }
    }
}

impl Drop for Block {
    /// At the end of a model's schedule.
    fn drop(&mut self) {
        let made = *self.0.get_mut();
        if !made.is_null() {
            // SAFETY: made by `make`, and nothing refers to this any more.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

global! {
    static ERA: AtomicU64 = AtomicU64::new(1);
    static BLOCKS: [Block; BLOCKS_MAX] = [const { Block::new() }; BLOCKS_MAX];
    /// Which slots of each block threads have, a bit each.
    static TAKEN: [AtomicU64; BLOCKS_MAX] = [const { AtomicU64::new(0) }; BLOCKS_MAX];
    /// No slot from this number on has ever been taken.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
}

/// A slot that has been taken once.
fn slot(number: usize) -> &'static Slot {
    let block = BLOCKS[number / BLOCK_SLOTS].get().expect("its block was made before it was taken");
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
    /// This thread's slot once it has one. Nothing to initialise and nothing to drop: a pin finds
    /// it with one load.
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

/// A thread's first pin; or an outermost pin of a thread that is ending, whose own slot is gone:
/// that pin gets a slot for itself.
pub(super) fn pin_anew() -> Pin {
    let slot = OWNER.try_with(|owner| owner.0).unwrap_or_else(|_| Slot::take(true));
    let _ = OWN.try_with(|own| own.set(Some(slot)));
    slot.pin()
}

pub(super) fn is_pinned() -> bool {
    own().is_some_and(|slot| slot.depth.load(Ordering::Relaxed) > 0)
}

/// See [`super::barrier`].
pub(super) fn barrier() {
    // Release (part of SeqCst): publishes the caller's change to the threads that pin in this era.
    let era = ERA.fetch_add(1, Ordering::SeqCst) + 1;
    fence(Ordering::SeqCst);
    membarrier::fence_all_threads();
    // Relaxed: see `take`.
    let slots = COUNT.load(Ordering::Relaxed);
    for number in 0..slots {
        let mut round = 0;
        // Ends: a pinned thread only computes. Acquire: pairs with the Release in `unpin`.
        while matches!(slot(number).era.load(Ordering::Acquire), pinned if pinned != 0 && pinned < era)
        {
            rest(&mut round);
        }
    }
}

/// Called in a forked child, which has no other thread: frees the slots of all threads but this
/// one.
#[cfg(not(embank_shuttle))]
pub(super) fn renew_in_child() {
    // Relaxed, all of it: the child has one thread.
    let own = own().map(|slot| slot.number.load(Ordering::Relaxed));
    for number in (0..COUNT.load(Ordering::Relaxed)).filter(|&number| Some(number) != own) {
        slot(number).era.store(0, Ordering::Relaxed);
    }
    for (block, taken) in TAKEN.iter().enumerate() {
        let kept =
            own.filter(|own| own / BLOCK_SLOTS == block).map_or(0, |own| 1 << (own % BLOCK_SLOTS));
        // A store to a page would copy it for the child.
        if taken.load(Ordering::Relaxed) != kept {
            taken.store(kept, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
pub(super) fn slot_count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Whether this kernel makes other threads execute a fence on demand.
pub(super) fn available() -> bool {
    membarrier::register()
}

#[cfg(all(target_os = "linux", not(any(miri, embank_shuttle))))]
mod membarrier {
    use std::thread;
    use std::time::Duration;

    const GLOBAL: libc::c_int = 1 << 0;
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    /// Rounds of calls, a millisecond apart, before the kernel's refusal counts as final.
    const ROUNDS_MAX: u32 = 1000;

    fn call(command: libc::c_int) -> bool {
        #[cfg(test)]
        if refusing::takes(command) {
            return false;
        }
        // SAFETY: membarrier takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    pub(super) fn register() -> bool {
        call(REGISTER_PRIVATE_EXPEDITED)
    }

    /// Makes all running threads of this process execute a fence.
    ///
    /// The quick command can fail later although the registration was granted: the kernel may have
    /// no memory for it for a moment. `GLOBAL` needs no memory and takes some milliseconds.
    /// Kernels with processors that run without a tick (`nohz_full`) refuse it, so both are
    /// tried again.
    pub(super) fn fence_all_threads() {
        for _ in 0..ROUNDS_MAX {
            // A process that was made by fork may have to register again.
            let quick = || call(PRIVATE_EXPEDITED) || (register() && call(PRIVATE_EXPEDITED));
            if quick() || call(GLOBAL) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!(
            "membarrier(2) was granted to this process and has been refused for a second: {}. A seccomp filter that is \
             installed after a bank was opened must allow it",
            std::io::Error::last_os_error()
        );
    }

    /// Lets a test have calls refused.
    #[cfg(test)]
    pub(in crate::epoch) mod refusing {
        use std::cell::Cell;

        std::thread_local! {
            /// The commands to refuse to this thread, and how many calls.
            static REFUSED: Cell<(libc::c_int, u32)> = const { Cell::new((0, 0)) };
        }

        /// Refuses all commands to this thread, this many times.
        pub(in crate::epoch) fn all(calls: u32) {
            REFUSED.set((!0, calls));
        }

        /// Refuses this thread the quick command, this many times.
        pub(in crate::epoch) fn quick(calls: u32) {
            REFUSED.set((super::PRIVATE_EXPEDITED, calls));
        }

        /// How many calls are still to be refused.
        pub(in crate::epoch) fn left() -> u32 {
            REFUSED.get().1
        }

        pub(super) fn takes(command: libc::c_int) -> bool {
            let (commands, calls) = REFUSED.get();
            let refused = calls > 0 && command & commands != 0;
            REFUSED.set((commands, calls - u32::from(refused)));
            refused
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(miri, embank_shuttle))))]
pub(super) use membarrier::refusing;

#[cfg(not(all(target_os = "linux", not(any(miri, embank_shuttle)))))]
mod membarrier {
    /// In a model all that happens is one sequence, with nothing for a fence to order.
    pub(super) fn register() -> bool {
        cfg!(embank_shuttle)
    }

    pub(super) fn fence_all_threads() {}
}
