//! Starts and joins the threads of a run.

use std::any::Any;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use embank::locks::Mutex;

use super::commit::Committer;
use super::order::Order;
use super::setup::Setup;
use super::worker::{Shared, work};
use crate::arrays::ArrayCounts;
use crate::error::{BadRowReport, Error, Result};
use crate::trace::{ReadBusy, Stopwatch};
use crate::vocabulary::ValueCounts;

/// Uncommitted chunks that are allowed for each thread. Finished chunks wait in the buffer while an
/// earlier chunk takes long, so there must be room for several.
const CHUNKS_A_THREAD: usize = 16;

/// The result of a run without errors.
pub(crate) struct Outcome {
    pub(crate) rows: u64,
    pub(crate) bad_rows: u64,
    pub(crate) bad_lines: u64,
    pub(crate) first_bad_rows: Vec<BadRowReport>,
    pub(crate) arrays: ArrayCounts,
    /// Number of threads that worked.
    pub(crate) threads: usize,
    /// Time during which at least one thread was reading. Zero if the run is not traced.
    pub(crate) reading: Duration,
    /// Times of the stages, summed over all threads.
    pub(crate) stopwatch: Stopwatch,
    /// The counts of each thread, for each vocabulary.
    pub(crate) counted: Vec<Vec<Option<ValueCounts>>>,
}

/// Runs over all chunks.
///
/// # Errors
/// The first error of a chunk or of the consumer. [`Error::Panicked`] if a thread panicked.
/// [`Error::TooManyBadRows`] if every row is bad.
pub(crate) fn run(setup: &Setup<'_, '_>, committer: Committer<'_>) -> Result<Outcome> {
    let shared = Shared {
        setup,
        counted: Mutex::new(Vec::new()),
        order: Order::new(setup.options.threads * CHUNKS_A_THREAD),
        pool: Mutex::new(Vec::new()),
        reading: ReadBusy::default(),
        committer: Mutex::new(committer),
    };
    let (panicked, threads) = std::thread::scope(|scope| {
        // If the system refuses a thread, the threads that have started do all the work.
        let threads: Vec<_> = (1..setup.options.threads)
            .map_while(|_| {
                let thread = std::thread::Builder::new();
                thread.spawn_scoped(scope, || work(&shared)).ok()
            })
            .collect();
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&shared)));
        let started = 1 + threads.len();
        (first_panic(own, threads), started)
    });
    let committer = shared.committer.into_inner();
    if let Some(error) = committer.failure {
        return Err(error);
    }
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        return Err(Error::Panicked(text.unwrap_or_else(|| "without a message".to_owned())));
    }
    committer.check_any_good()?;
    Ok(Outcome {
        rows: committer.rows,
        bad_rows: committer.bad_rows,
        bad_lines: committer.bad_lines,
        first_bad_rows: committer.reported,
        arrays: committer.arrays,
        threads,
        reading: shared.reading.total(),
        stopwatch: committer.stopwatch,
        counted: shared.counted.into_inner(),
    })
}

/// Joins all threads, and returns the panic of the first one that panicked.
fn first_panic(
    own: std::thread::Result<()>,
    threads: Vec<ScopedJoinHandle<'_, ()>>,
) -> Option<Box<dyn Any + Send>> {
    let others = threads.into_iter().map(ScopedJoinHandle::join);
    // Joins all threads itself before it looks for a panic. A scope joins the threads that are
    // left, and panics if one of these has panicked.
    let all: Vec<_> = [own].into_iter().chain(others).collect();
    all.into_iter().find_map(std::result::Result::err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: when two threads panicked, `run` caught only the first panic, so `run`
    /// itself panicked.
    #[test]
    fn two_threads_that_panic_are_an_error() {
        let panicked = std::thread::scope(|scope| {
            let threads =
                vec![scope.spawn(|| panic!("the first")), scope.spawn(|| panic!("the second"))];
            first_panic(Ok(()), threads)
        });
        assert_eq!(panicked.unwrap().downcast_ref(), Some(&"the first"));
    }
}
