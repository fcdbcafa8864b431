//! Starts the compaction thread, and waits for its end.
//!
//! With `background` compaction, the thread starts with the store. In a bank with two tiers, it
//! starts when a batch begins a page of the log: the batch has rows that may have to leave the log.
//! The core has the thread's handle, and the thread has a reference to the core. So the core keeps
//! a weak reference to itself, from which it makes the thread's reference.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use super::compactor;
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::process::thread_start;
use crate::sync::Mutex;
use crate::sync::thread::JoinHandle;

/// The compaction thread of a store.
#[derive(Debug, Default)]
pub(super) struct CompactorThread {
    /// The core that has this value, and the bank's directory. Not set in a read-only store.
    of: OnceLock<(Weak<Core>, PathBuf)>,
    /// `None` before the start, and after the end.
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl CompactorThread {
    /// Starts the thread if it has not been started. Does nothing in a read-only store.
    ///
    /// # Errors
    /// `ThreadRefused` if the system refuses the thread.
    pub(super) fn start(&self) -> Result<()> {
        let Some((core, dir)) = self.of.get() else { return Ok(()) };
        let Some(core) = core.upgrade() else { return Ok(()) };
        let mut handle = self.handle.lock();
        if handle.is_none() {
            let work = move || compactor::run(&core);
            let started = thread_start::start("embank-compactor".into(), work);
            *handle = Some(started.map_err(|source| Error::ThreadRefused {
                thread: "compactor",
                path: dir.clone(),
                source,
            })?);
        }
        Ok(())
    }

    /// Waits for the thread's end. The thread must have been told to shut down.
    pub(super) fn join(&self) {
        if let Some(handle) = self.handle.lock().take() {
            // If the thread has panicked, this is a bug, and the caller cannot report it.
            let _ = handle.join();
        }
    }
}

/// Lets a store in the directory `dir` start its compaction thread. Starts it if the options ask
/// for background compaction.
///
/// # Errors
/// `ThreadRefused` if the system refuses the thread.
pub(crate) fn begin(core: &Arc<Core>, dir: &Path) -> Result<()> {
    let thread = &core.space.thread;
    let _ = thread.of.set((Arc::downgrade(core), dir.to_owned()));
    if core.space.options.background { thread.start() } else { Ok(()) }
}
