//! Collects the log messages of the library.

use std::sync::{Mutex, MutexGuard, PoisonError};

struct Kept(Mutex<Vec<String>>);

impl log::Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        told().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

/// Begins to collect warnings. A second call has no effect.
pub(crate) fn listen() {
    let _ = log::set_logger(&KEPT);
    log::set_max_level(log::LevelFilter::Warn);
}

/// Returns all warnings collected so far.
pub(crate) fn told() -> MutexGuard<'static, Vec<String>> {
    KEPT.0.lock().unwrap_or_else(PoisonError::into_inner)
}
