//! Counts the threads of this process by name.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Returns the number of threads whose name begins with `begin`. A new thread has its name only
/// after a moment.
pub(crate) fn threads_named(begin: &str) -> usize {
    let name =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    tasks.map(name).filter(|name| name.starts_with(begin)).count()
}

/// Waits until a thread has a name that begins with `begin`.
pub(crate) fn await_thread_named(begin: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while threads_named(begin) == 0 {
        assert!(Instant::now() < deadline, "no thread has the name {begin:?}");
        thread::yield_now();
    }
}

/// Waits until no thread has a name that begins with `begin`. The system still lists a joined
/// thread for a moment.
pub(crate) fn await_no_thread_named(begin: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while threads_named(begin) > 0 {
        assert!(Instant::now() < deadline, "a thread still has the name {begin:?}");
        thread::yield_now();
    }
}
