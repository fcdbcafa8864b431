//! Pins that cost two plain stores, because the barrier does the expensive work.
//!
//! **Problem.** A thread must announce its pin before it reads shared state. Between the store that
//! announces the pin and the first load, the processor then needs a full fence or a locked
//! instruction. For a batch of many keys, this cost is negligible. With batches of one key, the
//! fence keeps the processor from overlapping the cache misses of two batches. Reads of one key
//! each then take three times as long.
//!
//! **Approach.** The fence is asymmetric, as in Linux's RCU for user space and folly's hazard
//! pointers. A pin is a plain store of the era into the thread's own slot, kept in place by a
//! compiler fence. The barrier runs a few times a second. It increments the era and makes every
//! running thread of the process execute a full fence by `membarrier(2)`. It then waits for the
//! slots that are pinned in an older era.
//!
//! **Why it is right.** Consider a change (a moved boundary, a pause) followed by a barrier, and a
//! thread that pins. In the first case, the thread's store to its slot came before the fence that
//! `membarrier` made it execute. The barrier then sees the slot and waits, unless the slot has the
//! barrier's era or a newer one. A thread that stored such an era loaded it with Acquire from an
//! increment after the change, and so sees the change. In the second case, the store came after
//! that fence. Every later load of the thread came after the fence too, so these loads see the
//! change.
//!
//! **Threads.** A thread takes a slot at its first pin and gives it back when it ends. Pins nest,
//! and only the outermost unpin counts. (A callback that enters any store's gate may wait for a
//! pause that waits for the callback's own batch. `Operation` forbids such callbacks.)
//!
//! **Fork.** A forked child has one thread and a copy of its parent's slots. The fork handler
//! (`renew_in_child`) frees the slots of the threads that the child does not have, because the
//! child's barriers would wait for them. A fork handler must not take a lock, so threads take and
//! return slots by atomics alone.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::AtomicPtr;

use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence, global, rest, thread_local,
};

/// Number of slots in a block: 64, so that one word has a bit for each slot. Blocks are never
/// freed.
const BLOCK_SLOTS: usize = u64::BITS as usize;
/// Largest number of blocks in a process. At most 65,536 threads can therefore use stores at one
/// time.
const BLOCKS_MAX: usize = 1024;

/// The pin of one thread. A slot has two cache lines of its own, and other threads read only `era`.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Slot {
    /// The era of the thread's pin. The value is 0 while the thread is not pinned.
    era: AtomicU64,
    /// Number of nested pins of the thread.
    depth: AtomicUsize,
    /// The slot's number over all blocks.
    number: AtomicUsize,
    /// True if the slot belongs to an ending thread. The slot then serves one outermost pin and is
    /// given back.
    late: AtomicBool,
}

impl Slot {
    /// Takes a free slot for this thread.
    #[cold]
    fn take(late: bool) -> &'static Slot {
        for block in 0..BLOCKS_MAX {
            // A block is created before one of its slots is taken. No block exists after a missing
            // one.
            let slots = BLOCKS[block].get_or_make();
            let with_next = |taken: u64| {
                let free = taken.trailing_ones();
                (free < u64::BITS).then(|| taken | 1 << free)
            };
            // Acquire: pairs with the Release in `give_back`, and orders the new owner after the
            // old one.
            let before = TAKEN[block].fetch_update(Ordering::Acquire, Ordering::Relaxed, with_next);
            let Ok(before) = before else { continue };
            let place = before.trailing_ones() as usize;
            let slot = &slots[place];
            // Relaxed, here and below: only this thread uses these fields.
            slot.number.store(block * BLOCK_SLOTS + place, Ordering::Relaxed);
            // The former owner may have ended while pinned, by `exit` in a callback. So `depth` may
            // not be 0.
            slot.depth.store(0, Ordering::Relaxed);
            slot.late.store(late, Ordering::Relaxed);
            // Release: pairs with the Acquire in `barrier`, which must see the former owner's
            // actions.
            slot.era.store(0, Ordering::Release);
            // Relaxed: the barrier's fence orders this store before the era of a later pin, as the
            // essay explains.
            COUNT.fetch_max(block * BLOCK_SLOTS + place + 1, Ordering::Relaxed);
            return slot;
        }
        panic!("more than 65,536 threads use stores");
    }

    #[cold]
    fn give_back(&self) {
        let number = self.number.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`. The slot's bit is set, so the subtraction
        // clears only that bit.
        TAKEN[number / BLOCK_SLOTS].fetch_sub(1 << (number % BLOCK_SLOTS), Ordering::Release);
    }

    #[inline]
    pub(super) fn pin(&'static self) -> Pin {
        // Relaxed: only this thread uses the field, and `take` orders successive owners.
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            // Acquire: pairs with the increment in `barrier`, as the essay explains.
            let era = ERA.load(Ordering::Acquire);
            // Release: pairs with the Acquire in `barrier`. A barrier that reads this era instead
            // of the former 0 must also see the actions of the former pin.
            self.era.store(era, Ordering::Release);
            // Keeps the store above before every later load in the compiled code. The barrier's
            // fence does this for the processor.
            compiler_fence(Ordering::SeqCst);
        }
        Pin { slot: self, thread: PhantomData }
    }

    #[inline]
    fn unpin(&self) {
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            // Release: pairs with the Acquire in `barrier`. Orders the pin's actions before
            // everything after the barrier.
            self.era.store(0, Ordering::Release);
            if self.late.load(Ordering::Relaxed) {
                let _ = OWN.try_with(|own| own.set(None));
                self.give_back();
            }
        }
    }
}

/// A block of slots. The field is an atomic and not a `OnceLock`, because another thread might hold
/// the lock of a `OnceLock` during a fork.
struct Block(AtomicPtr<[Slot; BLOCK_SLOTS]>);

impl Block {
    const fn new() -> Self {
        Block(AtomicPtr::new(ptr::null_mut()))
    }

    fn get(&self) -> Option<&[Slot; BLOCK_SLOTS]> {
        // Acquire: pairs with the Release in `make`, which built the slots.
        // SAFETY: the pointer is null, or was made by `make` and is freed together with `self`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn get_or_make(&self) -> &[Slot; BLOCK_SLOTS] {
        self.get().unwrap_or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> &[Slot; BLOCK_SLOTS] {
        let made = Box::into_raw(Box::new(std::array::from_fn(|_| Slot::default())));
        let null = ptr::null_mut();
        // Release: pairs with the Acquire in `get`. Acquire on failure: pairs with the Release of
        // the thread whose exchange succeeded.
        match self.0.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the pointer was made above, and is freed together with `self`.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: the pointer was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: the pointer is not null, was made by another call of `make`, and is freed
                // together with `self`.
                unsafe { &*other }
            }
        }
    }
}

impl Drop for Block {
    /// Runs only in model tests (`embank_shuttle`), at the end of a schedule. In a program the
    /// blocks are statics, which are never dropped.
    fn drop(&mut self) {
        let made = *self.0.get_mut();
        if !made.is_null() {
            // SAFETY: the pointer was made by `make`, and `self` is borrowed exclusively.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

global! {
    static ERA: AtomicU64 = AtomicU64::new(1);
    static BLOCKS: [Block; BLOCKS_MAX] = [const { Block::new() }; BLOCKS_MAX];
    /// For each block, one bit for each slot that a thread has taken.
    static TAKEN: [AtomicU64; BLOCKS_MAX] = [const { AtomicU64::new(0) }; BLOCKS_MAX];
    /// The highest number of a slot that was ever taken, plus 1.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
}

/// Returns a slot that has been taken at least once.
fn slot(number: usize) -> &'static Slot {
    let block = BLOCKS[number / BLOCK_SLOTS].get().expect("its block was made before it was taken");
    &block[number % BLOCK_SLOTS]
}

/// Gives a thread's slot back when the thread ends.
struct Owner(&'static Slot);

impl Drop for Owner {
    fn drop(&mut self) {
        // In a program, `OWN` is always accessible, because it needs no destruction. In a model
        // test (`embank_shuttle`), the access may fail.
        let _ = OWN.try_with(|own| own.set(None));
        self.0.give_back();
    }
}

thread_local! {
    /// This thread's slot, if it has one. The cell needs no initialisation and no drop, so a pin
    /// finds the slot with one load.
    static OWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    static OWNER: Owner = Owner(Slot::take(false));
}

/// A pin of this thread. Dropping it unpins.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pin {
    slot: &'static Slot,
    /// Makes the pin `!Send`, because its slot belongs to this thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        self.slot.unpin();
    }
}

/// Returns this thread's slot. `None` if the thread has no slot yet, or is ending.
#[inline]
pub(super) fn own() -> Option<&'static Slot> {
    OWN.try_with(Cell::get).ok().flatten()
}

/// Pins a thread that has no slot. A new thread takes a slot until it ends. A thread that is ending
/// takes a slot for this one pin.
pub(super) fn pin_anew() -> Pin {
    let slot = OWNER.try_with(|owner| owner.0).unwrap_or_else(|_| Slot::take(true));
    let _ = OWN.try_with(|own| own.set(Some(slot)));
    slot.pin()
}

pub(super) fn is_pinned() -> bool {
    own().is_some_and(|slot| slot.depth.load(Ordering::Relaxed) > 0)
}

/// Implements [`super::barrier`].
pub(super) fn barrier() {
    // Release (part of SeqCst): publishes the caller's change to threads that pin in the new era.
    let era = ERA.fetch_add(1, Ordering::SeqCst) + 1;
    fence(Ordering::SeqCst);
    membarrier::fence_all_threads();
    // Relaxed: the fence above orders this load, see `take`.
    let slots = COUNT.load(Ordering::Relaxed);
    for number in 0..slots {
        let mut round = 0;
        // The loop ends: a pinned thread only computes. Acquire: pairs with the Release stores of
        // `era`.
        while matches!(slot(number).era.load(Ordering::Acquire), pinned if pinned != 0 && pinned < era)
        {
            rest(&mut round);
        }
    }
}

/// Frees the slots of all other threads. Runs in a forked child, which has only this thread.
#[cfg(not(embank_shuttle))]
pub(super) fn renew_in_child() {
    // Relaxed, here and below: the child has only this thread.
    let own = own().map(|slot| slot.number.load(Ordering::Relaxed));
    for number in (0..COUNT.load(Ordering::Relaxed)).filter(|&number| Some(number) != own) {
        slot(number).era.store(0, Ordering::Relaxed);
    }
    for (block, taken) in TAKEN.iter().enumerate() {
        let kept =
            own.filter(|own| own / BLOCK_SLOTS == block).map_or(0, |own| 1 << (own % BLOCK_SLOTS));
        // Does not store an equal value: a store would make the kernel copy the page, which parent
        // and child still share.
        if taken.load(Ordering::Relaxed) != kept {
            taken.store(kept, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
pub(super) fn slot_count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// True if this kernel can make other threads execute a fence.
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

    /// Largest number of attempts to fence all threads, 1 ms apart. If the kernel refuses all of
    /// them, the barrier panics.
    const ROUNDS_MAX: u32 = 1000;

    fn call(command: libc::c_int) -> bool {
        #[cfg(test)]
        if refusing::takes(command) {
            return false;
        }
        // SAFETY: membarrier takes three integers and accesses no memory of the process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    pub(super) fn register() -> bool {
        call(REGISTER_PRIVATE_EXPEDITED)
    }

    /// Makes all running threads of this process execute a full fence.
    ///
    /// The quick command (`PRIVATE_EXPEDITED`) can fail even after a successful registration,
    /// because the kernel may lack memory for a moment. `GLOBAL` needs no memory and takes some
    /// milliseconds, but kernels with `nohz_full` processors refuse it. The function therefore
    /// repeats both commands.
    pub(super) fn fence_all_threads() {
        for _ in 0..ROUNDS_MAX {
            // A forked process may have to register again.
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

    /// Lets a test refuse calls.
    #[cfg(test)]
    pub(in crate::epoch) mod refusing {
        use std::cell::Cell;

        std::thread_local! {
            /// The commands to refuse in calls by this thread, and the number of calls left to
            /// refuse.
            static REFUSED: Cell<(libc::c_int, u32)> = const { Cell::new((0, 0)) };
        }

        /// Refuses this thread's next `calls` calls of any command.
        pub(in crate::epoch) fn all(calls: u32) {
            REFUSED.set((!0, calls));
        }

        /// Refuses this thread's next `calls` calls of the quick command (`PRIVATE_EXPEDITED`).
        pub(in crate::epoch) fn quick(calls: u32) {
            REFUSED.set((super::PRIVATE_EXPEDITED, calls));
        }

        /// Returns the number of calls left to refuse.
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
    /// True in a model test (`embank_shuttle`), in which all actions form one sequence. A fence
    /// then has nothing to order.
    pub(super) fn register() -> bool {
        cfg!(embank_shuttle)
    }

    pub(super) fn fence_all_threads() {}
}
