//! Runs in a thread of their own, which Ctrl-C ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

use embank::locks::Mutex;
use embank_pipeline::{Error, Pipeline, RunReport};
use pyo3::prelude::*;

use super::slot::Taken;
use crate::errors;
use crate::signals::SIGNAL_INTERVAL;

/// Runs in a thread, and looks for Ctrl-C meanwhile. None if the thread panicked, and the pipeline is gone then.
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
        // Its drop is what the loop below waits for.
        let _ended = sender;
        let outcome = call(taken.pipeline());
        taken.pipeline().stop_when(Arc::default());
        // Before it is told that the run has ended.
        drop(taken);
        outcome
    };
    let mut interrupted = None;
    let joined = std::thread::scope(|scope| {
        // If it is refused, `run` is dropped here, which gives the pipeline back.
        let thread = std::thread::Builder::new().spawn_scoped(scope, run)?;
        // Ends: the run does, and sooner when it is interrupted.
        while py.detach(|| ended.lock().recv_timeout(SIGNAL_INTERVAL))
            == Err(RecvTimeoutError::Timeout)
        {
            if let Err(signal) = py.check_signals() {
                // Relaxed: it is only to be seen some time.
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
