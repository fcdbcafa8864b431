//! A feed that its Python object and the pipeline's slot share, so that the bank can end it.

use embank::locks::{Mutex, MutexGuard};
use embank_pipeline::{Feed, FeedPosition, Pipeline, RunReport};

/// A feed with its lock.
#[derive(Debug)]
pub(crate) struct FeedCell(Mutex<FeedState>);

#[derive(Debug)]
pub(crate) enum FeedState {
    Open(Box<Feed>),
    Closed {
        position: FeedPosition,
        report: Option<Box<RunReport>>,
        /// True if the feed ended early because its bank was closed.
        by_bank: bool,
    },
}

impl FeedCell {
    pub(crate) fn new(feed: Feed) -> Self {
        Self(Mutex::new(FeedState::Open(Box::new(feed))))
    }

    /// Locks the feed. Must be called without the GIL: a thread that waits for a batch holds the
    /// lock for up to a signal interval.
    pub(crate) fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.0.lock()
    }

    /// Returns why the run's spool takes no more arrays, once. Must be called without the GIL, like
    /// [`lock`](Self::lock).
    pub(crate) fn take_spool_failure(&self) -> Option<String> {
        match &mut *self.0.lock() {
            FeedState::Closed { report: Some(report), .. } => report.arrays.spool_failure.take(),
            FeedState::Closed { report: None, .. } | FeedState::Open(_) => None,
        }
    }

    /// Ends the run, and passes its pipeline to `put_back`, or `None` if the pipeline is lost. Must
    /// be called without the GIL, like [`lock`](Self::lock).
    pub(crate) fn end(&self, by_bank: bool, put_back: impl FnOnce(Option<Box<Pipeline>>)) {
        let mut state = self.0.lock();
        let FeedState::Open(feed) = &mut *state else { return };
        feed.close();
        let closed = FeedState::Closed {
            position: feed.resume_position(),
            report: feed.report().cloned().map(Box::new),
            by_bank,
        };
        if let FeedState::Open(feed) = std::mem::replace(&mut *state, closed) {
            // `put_back` is called under the lock, so that a call that sees the closed feed finds
            // the pipeline in its slot.
            put_back(feed.into_pipeline().ok().map(Box::new));
        }
    }
}
