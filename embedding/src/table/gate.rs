//! The state that a table needs to decide which keys get rows. The module `admission` describes the
//! decisions.

use std::sync::OnceLock;

use embank_kv::TableId;
use embank_kv::locks::RwLock;

use crate::table::count_tables::Generations;

/// The admission rule of a table and its state.
#[derive(Debug)]
pub(crate) enum Gate {
    Counts {
        needed: u32,
        counts: RwLock<Generations>,
    },
    /// `gets` is a table with one row: the number of Gets so far that met a key without a row.
    Chance {
        probability: f32,
        seed: u64,
        gets: OnceLock<TableId>,
    },
}

impl Gate {
    /// Returns the separate tables with the gate's counts.
    pub(crate) fn side_tables(&self) -> Vec<TableId> {
        match self {
            Self::Counts { counts, .. } => counts.read().tables().collect(),
            Self::Chance { gets, .. } => gets.get().copied().into_iter().collect(),
        }
    }
}

/// A Get's decision about a missing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Open,
    Admitted,
    Refused,
}
