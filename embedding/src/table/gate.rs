//! The state with which a table decides which keys get rows; see the module `admission`.

use std::sync::OnceLock;

use embank_kv::TableId;
use embank_kv::locks::RwLock;

use crate::table::count_tables::Generations;

/// Decides for a table.
#[derive(Debug)]
pub(crate) enum Gate {
    Counts {
        needed: u32,
        counts: RwLock<Generations>,
    },
    /// `gets`: the table with one row, which numbers the Gets that meet a key without a row.
    Chance {
        probability: f32,
        seed: u64,
        gets: OnceLock<TableId>,
    },
}

impl Gate {
    /// The tables that the gate keeps beside the table.
    pub(crate) fn side_tables(&self) -> Vec<TableId> {
        match self {
            Self::Counts { counts, .. } => counts.read().tables().collect(),
            Self::Chance { gets, .. } => gets.get().copied().into_iter().collect(),
        }
    }
}

/// The decision of a Get on a missing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Open,
    Admitted,
    Refused,
}
