//! The result of a thread's work on a chunk.

use std::sync::Arc;

use super::setup::Setup;
use crate::batch::Batch;
use crate::decode::BadList;
use crate::vocabulary::UnseenList;

/// A transformed chunk before its commit.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) batch: Batch,
    /// For each look-up of the plan, the values without an id, in the order of the rows.
    pub(super) unseen: Vec<UnseenList>,
    pub(super) bad: BadList,
    pub(super) lines: usize,
}

impl Work {
    pub(super) fn new(setup: &Setup<'_, '_>) -> Self {
        let unseen = setup
            .plan
            .look_ups
            .iter()
            .map(|look_up| UnseenList::new(setup.plan.vocabularies[look_up.vocabulary].space));
        Self {
            batch: Batch::new(Arc::clone(setup.infos)),
            unseen: unseen.collect(),
            bad: BadList::default(),
            lines: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.unseen.iter_mut().for_each(UnseenList::clear);
        self.bad.clear();
        self.lines = 0;
    }
}
