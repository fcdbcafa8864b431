//! Which rows of the log hide rows of the parts.
//!
//! A row or a tombstone in the log hides the row of the same key in the parts. A chain of records
//! with a damaged record may have had newer records of some keys. The rows of these keys in the
//! parts are doubtful.

use std::collections::{BTreeSet, HashMap};

use super::walk::Broken;
use crate::cold::slice::Slice;
use crate::index::{Entry, Probe};
use crate::record::address::TableNumber;

/// A chain of records that contains a damaged record, at address `below`. The chain's older records
/// have lower addresses and may be sound. The keys in `seen` were found before the damage.
#[derive(Debug)]
pub(super) struct OpenChain {
    entry: Entry,
    below: u64,
    seen: BTreeSet<(TableNumber, u64)>,
}

impl OpenChain {
    /// True if the chain may have led to a record of the row at an address.
    fn leads_to(&self, hash: u64, depth: u32, row: (TableNumber, u64), address: u64) -> bool {
        self.entry.matches(Probe::new(hash, depth))
            && address < self.below
            && !self.seen.contains(&row)
    }
}

/// The chains with a damaged record, by the depth and number of their buckets.
#[derive(Debug, Default)]
pub(super) struct OpenChains {
    by_bucket: HashMap<(u32, u64), Vec<OpenChain>>,
    depths: BTreeSet<u32>,
}

impl OpenChains {
    pub(super) fn note(&mut self, broken: &Broken<'_>) {
        let &Broken { bucket, depth, entry, at: below, seen, .. } = broken;
        let seen = seen.iter().copied().collect();
        self.depths.insert(depth);
        let chains = self.by_bucket.entry((depth, bucket)).or_default();
        chains.push(OpenChain { entry, below, seen });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_bucket.is_empty()
    }

    /// True if one of the chains may have led to a record of the row at an address. Parts are older
    /// than the log: their rows have the address 0.
    pub(super) fn lead_to(&self, hash: u64, row: (TableNumber, u64), address: u64) -> bool {
        self.depths.iter().any(|&depth| {
            let bucket = hash & ((1 << depth) - 1);
            let chains = self.by_bucket.get(&(depth, bucket)).into_iter().flatten();
            chains.into_iter().any(|chain| chain.leads_to(hash, depth, row, address))
        })
    }
}

/// What a walk notes of the log's rows, slice by slice.
#[derive(Debug)]
pub(super) struct HotRows {
    pub(super) slice: Slice<(u64, u16)>,
    pub(super) open: OpenChains,
}

impl HotRows {
    pub(super) fn new(memory_bytes: u64) -> Self {
        let noted_max = memory_bytes as usize / size_of::<(u64, u16)>();
        HotRows { slice: Slice::new(noted_max), open: OpenChains::default() }
    }

    /// Notes a row or a tombstone.
    pub(super) fn note(&mut self, hash: u64, table: TableNumber) {
        self.slice.note((hash, table.0));
    }

    /// True if the log has a row or tombstone of this row. Rows come in order.
    pub(super) fn hides(&mut self, hash: u64, table: TableNumber) -> bool {
        self.slice.hides((hash, table.0))
    }
}
