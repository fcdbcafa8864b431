//! A feed that its Python object and the pipeline's slot share, so that the bank can end it.

use std::sync::Arc;
use std::time::Duration;

use embank::locks::{Mutex, MutexGuard};
use embank_pipeline::{Error, Feed, FeedPart, FeedPosition, Pipeline, RunReport, Waited};

/// A feed with its lock.
///
/// Lock order: the lock of a feed, then those of its parts.
#[derive(Debug)]
pub(crate) struct FeedCell(Mutex<FeedState>);

#[derive(Debug)]
pub(crate) enum FeedState {
    Open(Box<Batches>),
    /// The feed was split. The bank ends the parts through it.
    Split {
        parts: Vec<Arc<FeedCell>>,
        position: FeedPosition,
    },
    Closed {
        position: FeedPosition,
        report: Option<Box<RunReport>>,
        discarded_rows: u64,
        /// True if the feed ended early because its bank was closed.
        by_bank: bool,
    },
}

/// A feed, or a part of one.
#[derive(Debug)]
pub(crate) enum Batches {
    Whole(Feed),
    Part(FeedPart),
}

impl Batches {
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Waited, Arc<Error>> {
        match self {
            Self::Whole(feed) => feed.wait(limit).map_err(Arc::new),
            Self::Part(part) => part.wait(limit),
        }
    }

    fn close(&mut self) {
        match self {
            Self::Whole(feed) => feed.close(),
            Self::Part(part) => part.close(),
        }
    }

    pub(crate) fn position_at(&self, rows: u64) -> embank_pipeline::Result<FeedPosition> {
        match self {
            Self::Whole(feed) => Ok(feed.resume_position_at(rows)),
            Self::Part(part) => part.resume_position_at(rows),
        }
    }

    fn position(&self) -> FeedPosition {
        match self {
            Self::Whole(feed) => feed.resume_position(),
            Self::Part(part) => part.resume_position(),
        }
    }

    pub(crate) fn next_row(&self) -> u64 {
        match self {
            Self::Whole(feed) => feed.next_row(),
            Self::Part(part) => part.next_row(),
        }
    }

    fn report(&self) -> Option<RunReport> {
        match self {
            Self::Whole(feed) => feed.report().cloned(),
            Self::Part(part) => part.report(),
        }
    }

    pub(crate) fn discarded_rows(&self) -> u64 {
        match self {
            Self::Whole(_) => 0,
            Self::Part(part) => part.discarded_rows(),
        }
    }

    /// Returns the pipeline. `None` if another part of the feed is open, or has returned it.
    fn into_pipeline(self) -> embank_pipeline::Result<Option<Pipeline>> {
        match self {
            Self::Whole(feed) => feed.into_pipeline().map(Some),
            Self::Part(part) => part.into_pipeline(),
        }
    }
}

impl FeedCell {
    pub(crate) fn new(batches: Batches) -> Self {
        Self(Mutex::new(FeedState::Open(Box::new(batches))))
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
            FeedState::Closed { report: None, .. }
            | FeedState::Open(_)
            | FeedState::Split { .. } => None,
        }
    }

    /// Splits the feed. `None` if it is not open, or is a part itself. `parts` must be in the range
    /// of [`Feed::split`]. Must be called without the GIL, like [`lock`](Self::lock).
    pub(crate) fn split(&self, parts: usize) -> Option<Vec<Arc<Self>>> {
        let mut state = self.0.lock();
        let FeedState::Open(batches) = &*state else { return None };
        let Batches::Whole(_) = **batches else { return None };
        let split = FeedState::Split { parts: Vec::new(), position: batches.position() };
        let FeedState::Open(batches) = std::mem::replace(&mut *state, split) else {
            unreachable!("it is open")
        };
        let Batches::Whole(feed) = *batches else { unreachable!("it is no part") };
        let divided = feed.split(parts).expect("the caller has checked the number of parts");
        let divided = divided.into_iter().map(|part| Arc::new(Self::new(Batches::Part(part))));
        let divided: Vec<_> = divided.collect();
        if let FeedState::Split { parts, .. } = &mut *state {
            parts.clone_from(&divided);
        }
        Some(divided)
    }

    /// Ends the feed, and passes its pipeline to `put_back`, or `None` if the pipeline is lost. A
    /// part passes nothing while other parts of its feed are open. A feed that was split ends its
    /// parts if `by_bank` is true. Must be called without the GIL, like [`lock`](Self::lock).
    pub(crate) fn end(&self, by_bank: bool, put_back: &impl Fn(Option<Box<Pipeline>>)) {
        let mut state = self.0.lock();
        let batches = match &mut *state {
            FeedState::Open(batches) => batches,
            FeedState::Split { parts, .. } if by_bank => {
                return parts.iter().for_each(|part| part.end(by_bank, put_back));
            }
            FeedState::Split { .. } | FeedState::Closed { .. } => return,
        };
        batches.close();
        let closed = FeedState::Closed {
            position: batches.position(),
            report: batches.report().map(Box::new),
            discarded_rows: batches.discarded_rows(),
            by_bank,
        };
        if let FeedState::Open(batches) = std::mem::replace(&mut *state, closed) {
            // `put_back` is called under the lock, so that a call that sees the closed feed finds
            // the pipeline in its slot.
            match batches.into_pipeline() {
                Ok(Some(pipeline)) => put_back(Some(Box::new(pipeline))),
                Ok(None) => {}
                Err(_) => put_back(None),
            }
        }
    }
}
