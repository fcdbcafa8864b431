//! Counts threads of this process by their name.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// The number of threads of this process whose name begins with `begin`. A thread gets its name a
/// moment after its start.
pub(crate) fn threads_named(begin: &str) -> usize {
    let name =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    tasks.map(name).filter(|name| name.starts_with(begin)).count()
}

/// Waits until at least one thread has a name that begins with `begin`.
pub(crate) fn await_thread_named(begin: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while threads_named(begin) == 0 {
        assert!(Instant::now() < deadline, "no thread has the name {begin:?}");
        thread::yield_now();
    }
}

/// Waits until no thread has a name that begins with `begin`. The system lists a thread for a
/// moment after it was joined.
pub(crate) fn await_no_thread_named(begin: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while threads_named(begin) > 0 {
        assert!(Instant::now() < deadline, "a thread still has the name {begin:?}");
        thread::yield_now();
    }
}
