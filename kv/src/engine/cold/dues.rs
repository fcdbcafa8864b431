//! Which merge is next, and how many bytes of runs the base lacks.
//!
//! *Consolidation* joins runs of a level, [`LEVEL_RUNS`] if memory allows, into one run of the next
//! level. So a search passes few runs although each spill adds one. A *base merge* joins the base
//! part at the cursor and all runs that the part lacks. The cursor passes all hashes in turn, so
//! each base part waits equally long. The rules are functions of a view's shape, which is small and
//! has no rows.
//!
//! **Damage.** A merge that meets a damaged block is given up, and its range of hashes, or its
//! runs, are left out from then on. All other hashes are merged.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::view::ColdView;
use crate::cold::part::Part;
use crate::sync::{Planted, planted};

/// Number of runs of a level that consolidation joins, if memory allows.
pub(crate) const LEVEL_RUNS: usize = 16;

/// How many runs there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunLimits {
    /// Number of runs of a level that consolidation joins.
    pub(crate) level: usize,
    /// Number of runs of all levels above which base merges are due.
    pub(crate) all: usize,
}

/// A merge that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Due {
    /// Joins the runs with these numbers into one.
    Consolidation(RangeInclusive<u64>),
    /// Joins the base parts of these hashes and the runs that they lack.
    IntoBase(RangeInclusive<u64>),
}

/// What merges leave out, because they met a damaged block there.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    hashes: Vec<RangeInclusive<u64>>,
    /// The last numbers of runs.
    runs: BTreeSet<u64>,
}

impl Spared {
    /// Leaves the hashes of a base merge, or the runs of a consolidation, out from now on.
    pub(crate) fn leave_out(&mut self, merge: &Due) {
        match merge {
            Due::Consolidation(runs) => self.runs.extend(runs.clone()),
            Due::IntoBase(hashes) => self.hashes.push(hashes.clone()),
        }
    }

    fn has_hashes(&self, of: &RangeInclusive<u64>) -> bool {
        self.hashes.iter().any(|hashes| overlap(hashes, of).is_some())
    }
}

/// What is due in a view.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Dues {
    /// The bytes of all base parts.
    pub(crate) base_bytes: u64,
    /// The bytes of runs that the base lacks.
    pub(crate) run_bytes: u64,
    pub(crate) runs: usize,
    /// The number of runs that a scan can surely merge.
    pub(crate) runs_max: usize,
    pub(crate) consolidation: Option<Due>,
    /// The bytes of the runs that the consolidation joins.
    pub(crate) consolidated_bytes: u64,
    pub(crate) base_merge: Option<Due>,
}

/// A part's place in the order of versions.
#[derive(Debug, Clone)]
struct Shape {
    hashes: RangeInclusive<u64>,
    /// The newest run whose rows the part has.
    through: u64,
    bytes: u64,
}

/// A run's place in the order of versions.
#[derive(Debug)]
struct RunShape {
    numbers: RangeInclusive<u64>,
    level: u8,
    parts: Vec<Shape>,
}

impl Dues {
    /// True if there are more runs than a scan can surely merge.
    pub(crate) fn has_too_many_runs(&self) -> bool {
        self.runs > self.runs_max
    }

    /// Returns what is due in `view`. The next base merge begins at the hash `cursor`, and joins
    /// parts until they have `joined_bytes`.
    pub(crate) fn of(
        view: &ColdView,
        cursor: u64,
        joined_bytes: u64,
        limits: RunLimits,
        spared: &Spared,
    ) -> Self {
        let shape = |part: &Arc<Part>| Shape {
            hashes: part.head().hashes.clone(),
            through: *part.head().runs.end(),
            bytes: part.file_bytes(),
        };
        let base: Vec<Shape> = view.base().iter().map(shape).collect();
        let run = |(numbers, parts): (&RangeInclusive<u64>, &[Arc<Part>])| RunShape {
            numbers: numbers.clone(),
            level: parts.first().map_or(0, |part| part.head().level),
            parts: parts.iter().map(shape).collect(),
        };
        let runs: Vec<RunShape> = view.runs().map(run).collect();
        Self::of_shapes(&base, &runs, (cursor, joined_bytes), limits, spared)
    }

    fn of_shapes(
        base: &[Shape],
        runs: &[RunShape],
        (cursor, joined_bytes): (u64, u64),
        limits: RunLimits,
        spared: &Spared,
    ) -> Self {
        let of_runs = runs.iter().flat_map(|run| &run.parts);
        let consolidated = consolidation(runs, limits.level, spared);
        let bytes_of = |runs: &[RunShape]| -> u64 {
            runs.iter().flat_map(|run| &run.parts).map(|part| part.bytes).sum()
        };
        Dues {
            base_bytes: base.iter().map(|part| part.bytes).sum(),
            run_bytes: of_runs.map(|part| lacking_bytes(part, base)).sum(),
            runs: runs.len(),
            runs_max: limits.all,
            consolidated_bytes: consolidated.map_or(0, bytes_of),
            consolidation: consolidated.and_then(|runs| {
                let (newest, oldest) = (runs.first()?, runs.last()?);
                Some(Due::Consolidation(*oldest.numbers.start()..=*newest.numbers.end()))
            }),
            base_merge: base_merge(base, runs, cursor, joined_bytes, spared),
        }
    }
}

/// True if every base part over the hashes of a run's part has merged the run.
pub(crate) fn is_merged(part: &Part, base: &[Arc<Part>]) -> bool {
    let (run, hashes) = (*part.head().runs.end(), &part.head().hashes);
    let over = |other: &&Arc<Part>| overlap(&other.head().hashes, hashes).is_some();
    let mut over = base.iter().filter(over).map(|other| *other.head().runs.end() >= run).peekable();
    if planted(Planted::RunDroppedEarly) {
        return over.any(|merged| merged);
    }
    over.peek().is_some() && over.all(|merged| merged)
}

pub(crate) fn overlap(
    a: &RangeInclusive<u64>,
    b: &RangeInclusive<u64>,
) -> Option<RangeInclusive<u64>> {
    let both = *a.start().max(b.start())..=*a.end().min(b.end());
    (!both.is_empty()).then_some(both)
}

/// Number of hashes of a range.
fn width(hashes: &RangeInclusive<u64>) -> f64 {
    (hashes.end() - hashes.start()) as f64 + 1.0
}

/// Returns the bytes of a run's part that the base lacks, if they are spread evenly over its
/// hashes.
fn lacking_bytes(part: &Shape, base: &[Shape]) -> u64 {
    let merged = base.iter().filter(|other| other.through >= part.through);
    let merged = merged.filter_map(|other| overlap(&other.hashes, &part.hashes));
    let merged: f64 = merged.map(|hashes| width(&hashes)).sum();
    (part.bytes as f64 * (1.0 - merged / width(&part.hashes)).max(0.0)) as u64
}

/// Returns the runs of the consolidation that is due at the lowest level: `count` of one level.
/// `runs` has the newest run first.
fn consolidation<'r>(
    runs: &'r [RunShape],
    count: usize,
    spared: &Spared,
) -> Option<&'r [RunShape]> {
    let is_spared = |run: &RunShape| spared.runs.contains(run.numbers.end());
    let of_one_level = runs.chunk_by(|a, b| a.level == b.level && is_spared(a) == is_spared(b));
    let mut due = of_one_level.filter(|runs| runs.len() >= count && !is_spared(&runs[0]));
    // The oldest runs are joined, so newer ones of the level stay in order.
    due.next().map(|runs| &runs[runs.len() - count..])
}

/// Returns the base merge at the cursor. `None` if the base has all that it may merge.
fn base_merge(
    base: &[Shape],
    runs: &[RunShape],
    cursor: u64,
    joined_bytes: u64,
    spared: &Spared,
) -> Option<Due> {
    let lacks = |hashes: &RangeInclusive<u64>, through: u64| {
        let newer = runs.iter().take_while(|run| *run.numbers.end() > through);
        { newer }.any(|run| run.parts.iter().any(|p| overlap(&p.hashes, hashes).is_some()))
    };
    let may_merge = |part: &Shape| !spared.has_hashes(&part.hashes);
    if base.is_empty() {
        let all = 0..=u64::MAX;
        return (lacks(&all, 0) && !spared.has_hashes(&all)).then_some(Due::IntoBase(all));
    }
    let at_cursor = base.partition_point(|part| *part.hashes.end() < cursor) % base.len();
    let first = (at_cursor..base.len()).chain(0..at_cursor);
    let first =
        { first }.find(|&i| may_merge(&base[i]) && lacks(&base[i].hashes, base[i].through))?;
    let mut bytes = base[first].bytes;
    let mut last = first;
    // The loop ends: each round takes another part.
    while bytes < joined_bytes && base.get(last + 1).is_some_and(may_merge) {
        last += 1;
        bytes += base[last].bytes;
    }
    Some(Due::IntoBase(*base[first].hashes.start()..=*base[last].hashes.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: u64 = 1 << 62;
    const LIMITS: RunLimits = RunLimits { level: LEVEL_RUNS, all: 63 };

    /// Returns a base of four parts that have merged the runs up to `through`.
    fn base(through: [u64; 4]) -> Vec<Shape> {
        (0..4)
            .zip(through)
            .map(|(i, through)| Shape { hashes: quarter(i), through, bytes: 100 })
            .collect()
    }

    fn quarter(i: u64) -> RangeInclusive<u64> {
        i * QUARTER..=i * QUARTER + (QUARTER - 1)
    }

    fn run(numbers: RangeInclusive<u64>, level: u8) -> RunShape {
        let part = Shape { hashes: 0..=u64::MAX, through: *numbers.end(), bytes: 40 };
        RunShape { numbers, level, parts: vec![part] }
    }

    fn due(base: &[Shape], runs: &[RunShape], cursor: u64) -> Dues {
        Dues::of_shapes(base, runs, (cursor, 0), LIMITS, &Spared::default())
    }

    #[test]
    fn runs_count_as_far_as_the_base_lacks_them() {
        let runs = [run(5..=5, 0), run(4..=4, 0), run(3..=3, 0)];
        let dues = due(&base([5, 4, 3, 2]), &runs, 0);
        assert_eq!((dues.base_bytes, dues.run_bytes), (400, 30 + 20 + 10));
        assert_eq!(due(&[], &runs, 0).run_bytes, 120, "without a base");
        let dues = due(&base([5; 4]), &runs, 0);
        assert_eq!((dues.base_bytes, dues.run_bytes, dues.runs), (400, 0, 3));
        assert_eq!((dues.consolidation, dues.base_merge), (None, None));
    }

    #[test]
    fn the_cursor_goes_round_over_the_parts_that_lack_runs() {
        let of = |through, cursor| due(&base(through), &[run(7..=7, 0)], cursor).base_merge;
        let merge = |i| Some(Due::IntoBase(quarter(i)));
        assert_eq!(of([0; 4], 0), merge(0));
        assert_eq!(of([0; 4], QUARTER), merge(1));
        assert_eq!(of([0; 4], QUARTER - 1), merge(0));
        assert_eq!(of([0, 7, 7, 0], QUARTER), merge(3));
        assert_eq!(of([0, 7, 7, 7], QUARTER), merge(0), "it goes on at the first hash");
        assert_eq!(of([7; 4], QUARTER), None);
        let all = Some(Due::IntoBase(0..=u64::MAX));
        assert_eq!(due(&[], &[run(1..=1, 0)], 9).base_merge, all);
        assert_eq!(due(&[], &[], 9).base_merge, None);
    }

    #[test]
    fn short_base_parts_are_joined() {
        let of = |cursor, joined_bytes| {
            let runs = [run(7..=7, 0)];
            Dues::of_shapes(
                &base([0; 4]),
                &runs,
                (cursor, joined_bytes),
                LIMITS,
                &Spared::default(),
            )
        };
        let hashes =
            |from: u64, to: u64| Some(Due::IntoBase(*quarter(from).start()..=*quarter(to).end()));
        assert_eq!(of(0, 100).base_merge, hashes(0, 0));
        assert_eq!(of(0, 101).base_merge, hashes(0, 1));
        assert_eq!(of(0, 300).base_merge, hashes(0, 2));
        assert_eq!(of(3 * QUARTER, 300).base_merge, hashes(3, 3), "the last part has no next one");
    }

    #[test]
    fn the_oldest_sixteen_runs_of_the_lowest_full_level_are_joined() {
        let level_0 = |count: u64| (0..count).rev().map(|i| run(100 + i..=100 + i, 0));
        let level_1 = |count: u64| (0..count).rev().map(|i| run(10 + 2 * i..=11 + 2 * i, 1));
        let of = |runs: Vec<RunShape>| due(&[], &runs, 0).consolidation;
        assert_eq!(of(level_0(15).chain(level_1(15)).collect()), None);
        let oldest = Some(Due::Consolidation(100..=115));
        assert_eq!(of(level_0(16).chain(level_1(16)).collect()), oldest);
        assert_eq!(of(level_0(18).chain(level_1(16)).collect()), oldest);
        assert_eq!(of(level_0(3).chain(level_1(17)).collect()), Some(Due::Consolidation(10..=41)));
    }

    #[test]
    fn with_little_memory_fewer_runs_are_joined_and_all_of_them_are_few() {
        let runs: Vec<RunShape> = (0..5).rev().map(|i| run(i + 1..=i + 1, 0)).collect();
        let of = |level, all| {
            let limits = RunLimits { level, all };
            let dues = Dues::of_shapes(&[], &runs, (0, 0), limits, &Spared::default());
            let has_too_many_runs = dues.has_too_many_runs();
            (dues.consolidation, dues.consolidated_bytes, has_too_many_runs)
        };
        assert_eq!(of(6, 5), (None, 0, false));
        assert_eq!(of(6, 4), (None, 0, true));
        assert_eq!(of(2, 4), (Some(Due::Consolidation(1..=2)), 80, true));
        assert_eq!(of(4, 5), (Some(Due::Consolidation(1..=4)), 160, false));
    }

    #[test]
    fn what_is_damaged_is_left_out_and_the_rest_is_merged() {
        let runs: Vec<RunShape> = (0..40).rev().map(|i| run(i + 1..=i + 1, 0)).collect();
        let base = base([0; 4]);
        let mut spared = Spared::default();
        let of = |spared: &Spared| Dues::of_shapes(&base, &runs, (QUARTER, 1000), LIMITS, spared);
        spared.leave_out(&Due::IntoBase(quarter(2)));
        assert_eq!(of(&spared).base_merge, Some(Due::IntoBase(quarter(1))), "it is not joined");
        spared.leave_out(&Due::IntoBase(quarter(1)));
        assert_eq!(of(&spared).base_merge, Some(Due::IntoBase(quarter(3))));
        assert_eq!(of(&spared).consolidation, Some(Due::Consolidation(1..=16)));
        spared.leave_out(&Due::Consolidation(1..=16));
        assert_eq!(of(&spared).consolidation, Some(Due::Consolidation(17..=32)));
    }
}
