//! Measures how long a thread has run on a processor.

use std::time::Duration;

/// Returns the processor time of the calling thread since it started. Zero if the system does not
/// report it.
pub(crate) fn of_this_thread() -> Duration {
    if cfg!(miri) {
        return Duration::ZERO;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer leads to a local `timespec`, which the call may write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn work_counts_and_waiting_does_not() {
        let before = of_this_thread();
        let mut sum = 0_u64;
        while of_this_thread() == before {
            sum = std::hint::black_box(sum + 1);
        }
        // Processor time that the other thread uses while this thread waits.
        const ENOUGH: Duration = Duration::from_millis(50);
        let before = of_this_thread();
        let others = std::thread::spawn(|| {
            while of_this_thread() < ENOUGH {
                std::hint::spin_loop();
            }
        });
        others.join().unwrap();
        assert!(of_this_thread() - before < ENOUGH);
    }
}
