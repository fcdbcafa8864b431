//! The floating-point state of a thread: rounding, and whether numbers near zero become zero.
//!
//! A program can change the state of a thread, for example with `torch.set_flush_denormal(True)`. A
//! new thread begins with the state of the thread that starts it, and keeps it. A thread that helps
//! another thread with a call must therefore take over the state of that thread. Otherwise equal
//! calls give different results, by the thread that happens to take a row.

/// The control bits of a thread's floating-point state. The bits that record past exceptions are
/// not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloatState(u64);

impl FloatState {
    /// Returns the state of this thread.
    #[inline]
    #[must_use]
    pub fn of_this_thread() -> Self {
        FloatState(register::read() & register::CONTROL)
    }

    /// Runs `work` with this state on this thread, which has its own state again afterwards.
    #[inline]
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        /// Restores the thread's own state, even if `work` panics.
        struct Restore(FloatState);
        impl Drop for Restore {
            fn drop(&mut self) {
                self.0.set();
            }
        }
        let own = Self::of_this_thread();
        if own == self {
            return work();
        }
        let _restore = Restore(own);
        self.set();
        work()
    }

    fn set(self) {
        register::write((register::read() & !register::CONTROL) | self.0);
    }

    /// Returns the state as a number, for an atomic.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Returns the state that `bits` was made of.
    pub(crate) fn from_bits(bits: u64) -> Self {
        FloatState(bits)
    }
}

/// The register MXCSR.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;

    /// Denormals are zero, exception masks, rounding, flush to zero.
    pub(super) const CONTROL: u64 = 0xffc0;

    #[inline]
    pub(super) fn read() -> u64 {
        let mut word = 0_u32;
        // SAFETY: the instruction stores 4 bytes to `word`, which lives during it.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags));
        }
        word.into()
    }

    pub(super) fn write(word: u64) {
        let word = word as u32;
        // SAFETY: the instruction reads 4 bytes of `word`, which lives during it. No reserved bit
        // is set, because all bits came from the register of a thread. The thread's own code
        // computes with the caller's state only during the caller's work, which runs with it
        // anyway.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags));
        }
    }
}

/// The register FPCR. It has control bits only.
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) const CONTROL: u64 = u64::MAX;

    #[inline]
    pub(super) fn read() -> u64 {
        let word;
        // SAFETY: the instruction reads a register of this thread.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: u64) {
        // SAFETY: the instruction writes a register of this thread. All bits came from the register
        // of a thread. The thread's own code computes with the caller's state only during the
        // caller's work, which runs with it anyway.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// Other processors, and Miri, which has no such register: threads keep their own state.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod register {
    pub(super) const CONTROL: u64 = 0;

    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn write(_: u64) {}
}

#[cfg(test)]
pub(crate) use testing::{flushing, halved};

#[cfg(test)]
mod testing {
    use super::FloatState;

    /// Returns the state of this thread, with numbers near zero becoming zero. `None` on a
    /// processor whose state this module does not know.
    pub(crate) fn flushing() -> Option<FloatState> {
        let bits = match () {
            () if cfg!(miri) => return None,
            () if cfg!(target_arch = "x86_64") => 0x8040,
            () if cfg!(target_arch = "aarch64") => 1 << 24,
            () => return None,
        };
        Some(FloatState(FloatState::of_this_thread().0 | bits))
    }

    /// Half of the smallest normal number: a number near zero, or zero if those become zero.
    #[inline(never)]
    pub(crate) fn halved() -> f32 {
        std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn work_runs_with_the_state_and_the_thread_gets_its_own_back() {
        let Some(flushing) = flushing() else { return };
        let own = FloatState::of_this_thread();
        assert_ne!(halved(), 0.0);
        assert_eq!(flushing.during(halved), 0.0);
        assert_eq!(flushing.during(FloatState::of_this_thread), flushing);
        assert_eq!(flushing.during(|| own.during(halved)), halved());
        assert!(catch_unwind(|| flushing.during(|| panic!("planted"))).is_err());
        assert_eq!(FloatState::of_this_thread(), own);
        assert_ne!(halved(), 0.0);
    }
}
