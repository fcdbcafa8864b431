//! Runs of a pipeline in their own thread, so that Ctrl-C can end them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use embank::locks::Mutex;
use embank_pipeline::{Error, Pipeline, RunReport};
use pyo3::prelude::*;

use super::slot::Taken;
use crate::errors;
use crate::signals::SIGNAL_INTERVAL;

/// Calls `call` in a thread, and checks for Ctrl-C until the thread ends. `None` if the thread
/// panicked, which loses the pipeline.
pub(super) fn run_interruptibly(
    py: Python<'_>,
    mut taken: Taken<'_>,
    call: impl FnOnce(&mut Pipeline) -> embank_pipeline::Result<RunReport> + Send,
) -> PyResult<Option<embank_pipeline::Result<RunReport>>> {
    let stop = Arc::clone(&taken.stop);
    taken.pipeline().stop_when(Arc::clone(&stop));
    let (sender, ended) = sync_channel::<()>(1);
    let ended = Mutex::new(ended);
    let run = || {
        // The loop below waits for the drop of this sender.
        let _ended = sender;
        let outcome = call(taken.pipeline());
        taken.pipeline().stop_when(Arc::default());
        // Puts the pipeline back before the loop below learns that the run has ended.
        drop(taken);
        outcome
    };
    let mut interrupted = None;
    let joined = std::thread::scope(|scope| {
        // If the system refuses the thread, `run` is dropped here, which puts the pipeline back.
        let thread = std::thread::Builder::new().spawn_scoped(scope, run)?;
        // The loop ends with the run. A signal stops the run early.
        while py.detach(|| ended.lock().recv_timeout(SIGNAL_INTERVAL))
            == Err(RecvTimeoutError::Timeout)
        {
            if let Err(signal) = py.check_signals() {
                // Relaxed: the flag guards no other data, and the run may see it late.
                stop.store(true, Ordering::Relaxed);
                interrupted = Some(signal);
            }
        }
        Ok(thread.join())
    });
    let joined = joined.map_err(|source| {
        errors::pipeline_to_python(py, &Error::ThreadRefused { thread: "run", source })
    })?;
    match interrupted {
        Some(signal) => Err(signal),
        None => Ok(joined.ok()),
    }
}
