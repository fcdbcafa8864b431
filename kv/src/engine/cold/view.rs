//! The parts of a bank as one reader sees them.
//!
//! A key's versions lie in the parts whose hashes contain the key's hash. A run with larger numbers
//! has newer versions. The base has the oldest ones. A base part holds all that the runs up to its
//! `through` (the last of its run numbers) had for its hashes, so a lookup skips these runs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::cold::filter::MixedHash;
use crate::cold::head::{Kind, PartHead};
use crate::cold::list::check_shape;
use crate::cold::part::Part;
use crate::engine::cold::memory_plan::BaseSize;

/// The parts of the bank as one reader sees them. A view never changes.
#[derive(Debug, Default)]
pub(crate) struct ColdView {
    number: u64,
    /// The base parts by hash. Without base parts, the runs have all versions.
    base: Ranged,
    /// The runs, newest first. Of two runs with the same last number, the one with more numbers
    /// comes first: it has the rows of the other.
    runs: Vec<Run>,
    base_size: BaseSize,
    longest_block_bytes: u64,
    rows: u64,
    memory_bytes: u64,
    file_bytes: u64,
}

/// The parts of a run, whose hashes may have gaps.
#[derive(Debug)]
struct Run {
    numbers: RangeInclusive<u64>,
    parts: Ranged,
}

/// Parts whose hashes do not overlap.
#[derive(Debug, Default)]
struct Ranged {
    /// The first hash of each part, in ascending order.
    firsts: Vec<u64>,
    parts: Vec<Arc<Part>>,
}

impl Ranged {
    fn of(mut parts: Vec<Arc<Part>>) -> Self {
        parts.sort_unstable_by_key(|part| *part.head().hashes.start());
        let firsts = parts.iter().map(|part| *part.head().hashes.start()).collect();
        Ranged { firsts, parts }
    }

    /// Returns the part that answers for a hash.
    fn at(&self, hash: u64) -> Option<&Arc<Part>> {
        let before = self.firsts.partition_point(|&first| first <= hash);
        let part = &self.parts[before.checked_sub(1)?];
        (hash <= *part.head().hashes.end()).then_some(part)
    }
}

impl ColdView {
    /// Makes the view with this number.
    ///
    /// # Panics
    /// If the parts break the invariants of a list's parts (see `cold::list`).
    pub(crate) fn new(number: u64, parts: Vec<Arc<Part>>) -> Self {
        if let Err(what) = check_shape(parts.iter().map(|part| part.head())) {
            panic!("view {number} of the cold tier: {what}");
        }
        let sum = |of: fn(&Part) -> u64| parts.iter().map(|part| of(part)).sum();
        let rows = sum(Part::rows);
        let memory_bytes = sum(|part| part.memory_bytes() as u64);
        let file_bytes = sum(Part::file_bytes);
        let longest_block_bytes = parts.iter().map(|part| part.longest_block_bytes()).max();
        let longest_block_bytes = longest_block_bytes.unwrap_or(0) as u64;
        let base_size = BaseSize::of(parts.iter().map(|part| (part.needs(), part.rows())));
        let (base, of_runs): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| part.head().kind == Kind::Base);
        let mut runs: BTreeMap<(u64, std::cmp::Reverse<u64>), Vec<Arc<Part>>> = BTreeMap::new();
        for part in of_runs {
            let PartHead { runs: numbers, .. } = part.head();
            let key = (*numbers.end(), std::cmp::Reverse(*numbers.start()));
            runs.entry(key).or_default().push(part);
        }
        let run = |((last, std::cmp::Reverse(first)), parts)| Run {
            numbers: first..=last,
            parts: Ranged::of(parts),
        };
        let runs = runs.into_iter().rev().map(run).collect();
        let base = Ranged::of(base);
        ColdView {
            number,
            base,
            runs,
            base_size,
            longest_block_bytes,
            rows,
            memory_bytes,
            file_bytes,
        }
    }

    /// Returns the next view: this one with the parts `added` and without the parts whose numbers
    /// are in `removed`.
    pub(crate) fn changed(&self, added: Vec<Arc<Part>>, removed: &[u64]) -> ColdView {
        let kept = self.parts().filter(|part| !removed.contains(&part.head().number)).cloned();
        ColdView::new(self.number + 1, kept.chain(added).collect())
    }

    /// The view's number. Each published view has the number after that of the one before.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.base.parts.is_empty() && self.runs.is_empty()
    }

    /// Returns the lowest number of a part. `u64::MAX` without parts.
    pub(crate) fn oldest_part(&self) -> u64 {
        self.parts().map(|part| part.head().number).min().unwrap_or(u64::MAX)
    }

    /// Number of row versions in all parts, with tombstones and superseded versions.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the size of the base. Without a base, the runs will become the base.
    pub(crate) fn base_size(&self) -> BaseSize {
        self.base_size
    }

    /// Length of the longest block of a part in bytes. 0 without parts.
    pub(crate) fn longest_block_bytes(&self) -> u64 {
        self.longest_block_bytes
    }

    /// Bytes of memory of all parts.
    #[cfg_attr(
        not(any(test, feature = "bench")),
        expect(dead_code, reason = "a measurement shows it")
    )]
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Bytes of the files of all parts.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Number of parts.
    pub(crate) fn part_count(&self) -> usize {
        self.parts().count()
    }

    /// Returns all parts: the base by hash, then the runs, newest first.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Arc<Part>> {
        let runs = self.runs.iter().flat_map(|run| &run.parts.parts);
        self.base.parts.iter().chain(runs)
    }

    /// Returns the base parts by hash.
    pub(crate) fn base(&self) -> &[Arc<Part>] {
        &self.base.parts
    }

    /// Returns the runs, newest first: the numbers of each, and its parts by hash.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&RangeInclusive<u64>, &[Arc<Part>])> {
        self.runs.iter().map(|run| (&run.numbers, &run.parts.parts[..]))
    }

    /// Returns the base part for a hash. `None` if there is no base.
    pub(crate) fn base_part(&self, hash: u64) -> Option<&Arc<Part>> {
        self.base.at(hash)
    }

    /// Returns the next part to look into for a hash: the parts of runs, newest first, and then the
    /// base part. `from` is 0 for the first part, and otherwise the number that the call before
    /// returned with its part.
    pub(crate) fn part_after(&self, hash: u64, from: usize) -> Option<(usize, &Arc<Part>)> {
        let base = self.base_part(hash);
        let through = base.map_or(0, |part| *part.head().runs.end());
        let end = self.runs.len();
        let runs = self.runs.iter().enumerate().skip(from);
        runs.take_while(|(_, run)| *run.numbers.end() > through)
            .find_map(|(n, run)| Some((n + 1, run.parts.at(hash)?)))
            .or_else(|| base.filter(|_| from <= end).map(|part| (end + 1, part)))
    }

    /// Prefetches the filters that a search for a hash asks.
    pub(crate) fn prefetch(&self, hash: u64) {
        let mixed = MixedHash::of(hash);
        for part in self.run_parts(hash) {
            part.prefetch(hash, mixed);
        }
    }

    /// Returns the parts of runs that may have versions of a hash, newest first. A search looks
    /// into the base part after them. Runs that the base part has merged are left out.
    pub(crate) fn run_parts(&self, hash: u64) -> impl Iterator<Item = &Arc<Part>> {
        let through = self.base_part(hash).map_or(0, |part| *part.head().runs.end());
        let newer = self.runs.iter().take_while(move |run| *run.numbers.end() > through);
        newer.filter_map(move |run| run.parts.at(hash))
    }
}
