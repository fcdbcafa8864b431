//! The checkpoint that a read-only store shows.

use crate::checkpoint::hold::Hold;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::recovered::Recovered;
use std::sync::Arc;

/// The checkpoint that a read-only store shows.
#[derive(Debug)]
pub(crate) struct ReadAt {
    pub(crate) manifest: Manifest,
    pub(crate) recovered: Arc<Recovered>,
    pub(crate) _hold: Hold,
}

impl ReadAt {
    pub(crate) fn number_and_id(&self) -> (u64, u64) {
        (self.manifest.number, self.manifest.id)
    }
}
