//! Merges runs of the cold tier: several runs into one, or runs into the base.
//!
//! A merge works in units of 1 MiB, or less with little memory. Between two units, the compactor
//! spills if the log has become too long, and rests. The thread holds no lock that a batch takes.
//! When the merge is complete, the compactor publishes a view that has the new parts in place of
//! the old ones, under one pin.
//!
//! A run that was spilled meanwhile is newer than all that the merge reads, so it stays above the
//! result. No other merge runs meanwhile: the compactor holds the lock of compaction all the time.
//!
//! **When a run's part goes.** A base merge covers some hashes, and a run's part may have more. The
//! part goes once the base parts over all of its hashes have merged its run. Until then, searches
//! and merges leave out its rows of the merged hashes (`ColdView::run_parts`).
//!
//! **Failure.** The parts that the merge has begun are removed, and the old parts stay. After a
//! damaged block, later merges leave out the hashes or the runs of this merge
//! (`engine::cold::dues`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use super::Compaction;
use crate::cold::merge::{Merge, Merged, NewPart, Parts, Target};
use crate::cold::part::Part;
use crate::engine::cold::dues::{Due, is_merged, overlap};
use crate::engine::cold::memory_plan::{RUN_COLUMNS, block_bits_max};
use crate::engine::cold::view::ColdView;
use crate::engine::core::Core;
use crate::engine::space::compactor::{free_in_strides, rest};
use crate::engine::space::tier_memory::TierMemory;
use crate::engine::space::tiers::Work;
use crate::error::{Error, Result};

/// Columns of the filters of the base: none. A row that the bank does not have costs a read, and
/// the memory of the filters serves larger runs.
const BASE_COLUMNS: u32 = 0;
/// Number of parts of a consolidated run that is longer than a part of the base. Its parts go one
/// after another as base merges pass.
const RUN_PARTS: u64 = 16;
/// Such a part has at least this length, because header, trailer, fences and filters take 12 KiB or
/// more.
const RUN_PART_BYTES_MIN: u64 = 64 << 10;

/// Number of steps of a merge in a unit of work. After each, a spill may pass: while a merge works,
/// the log grows by what its spare frames hold.
const STEPS_PER_UNIT: u64 = 4;

/// Why a merge has no result.
enum Ended {
    /// The store is being closed.
    Shutdown,
    /// The merge failed.
    Failed(Error),
    /// A spill between two units, or freeing the log's space after it, failed.
    SpillFailed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Ended::Failed(error)
    }
}

impl Compaction<'_> {
    /// Makes a merge. If `rests` is true, rests after each unit as the debt allows.
    ///
    /// # Errors
    /// The errors of the device, `DiskFull` among them, and those of [`spill`](Self::spill). The old
    /// parts then stay. Returns no error after damage in a part.
    pub(in super::super) fn merge(&mut self, due: &Due, rests: bool) -> Result<()> {
        let core = self.core;
        let view = core.cold.view();
        let due = &alone_if_limited(&view, due, core.headroom().tier_memory());
        let mut begun = Vec::new();
        let merged = self.merged(&view, due, rests, &mut begun);
        let published = merged.and_then(|merged| Ok(publish(core, due, merged)?));
        // The joined parts go with the last view that has them.
        drop(view);
        core.remove_unneeded_parts();
        let Err(ended) = published else { return core.give_way() };
        begun.into_iter().for_each(|number| self.remove_part(number));
        match ended {
            Ended::Shutdown => Ok(()),
            Ended::Failed(error @ (Error::Damaged { .. } | Error::Truncated { .. })) => {
                core.space.signal.state.lock().leave_out(due, &error);
                Ok(())
            }
            Ended::Failed(error) | Ended::SpillFailed(error) => Err(self.failure(error)),
        }
    }

    /// Merges in steps. Notes the parts that the merge has begun in `begun`.
    fn merged(
        &mut self,
        view: &ColdView,
        due: &Due,
        rests: bool,
        begun: &mut Vec<u64>,
    ) -> std::result::Result<Merged, Ended> {
        let core = self.core;
        let signal = &core.space.signal;
        let mut merge = begin(core, view, due, core.reserve_for_tiers()?)?;
        let step_bytes = core.headroom().unit_bytes() / STEPS_PER_UNIT;
        // The loop ends with the rows of the merge's parts.
        loop {
            let started = Instant::now();
            let step = merge.advance(step_bytes);
            begun.splice(.., merge.begun().iter().copied());
            if !step? {
                break;
            }
            signal.note_work(step_bytes);
            let next = {
                let mut state = signal.state.lock();
                if state.shutdown {
                    return Err(Ended::Shutdown);
                }
                let urgent = state.urgent;
                core.headroom().tier_work(&mut state, urgent)
            };
            if next == Some(Work::Spill) {
                self.spill().map_err(Ended::SpillFailed)?;
            }
            free_in_strides(core).map_err(Ended::SpillFailed)?;
            if rests {
                rest(core, step_bytes, started.elapsed());
            }
        }
        let merged = merge.finish();
        begun.splice(.., merge.begun().iter().copied());
        let merged = merged?;
        let written_bytes = merged.parts.iter().map(|part| part.file_bytes()).sum();
        core.counters.merged_rows.add(merged.rows_written);
        core.counters.merged_bytes.add(written_bytes);
        core.counters.disk_write_bytes.add(written_bytes);
        Ok(merged)
    }
}

/// Begins a merge of parts of `view`.
fn begin<'c>(core: &'c Core, view: &ColdView, due: &Due, buffers: TierMemory) -> Result<Merge<'c>> {
    let site = core.part_site();
    let own = core.part_head();
    // A part gets its number before the tables of its rows are looked up: see
    // `engine::tables::numbers`.
    let new_part = move || NewPart { number: core.cold.next_part(), salt: own.salt };
    let is_dropped = |table| core.tables.of(table).is_none();
    let part_bytes = core.headroom().base_part_bytes();
    let target = Target {
        bank: own.bank,
        memory: &core.cold,
        cursors_bytes: buffers.cursors_bytes as usize,
        writer_bytes: buffers.writer_bytes as usize,
        columns: BASE_COLUMNS,
        part_bytes,
        block_bits_max: block_bits_max(core.budget.total_bytes()),
    };
    match due {
        Due::Consolidation(numbers) => {
            let joined = |of: &RangeInclusive<u64>| {
                numbers.start() <= of.start() && of.end() <= numbers.end()
            };
            let runs = view.runs().filter(|(of, _)| joined(of));
            let runs: Vec<Parts> = runs.map(|(_, parts)| parts.to_vec()).collect();
            let bytes: u64 = runs.iter().flatten().map(|part| part.file_bytes()).sum();
            let part_bytes = match bytes > part_bytes {
                true => (bytes / RUN_PARTS).max(RUN_PART_BYTES_MIN).min(part_bytes),
                false => bytes,
            };
            let target = Target { columns: RUN_COLUMNS, part_bytes, ..target };
            Merge::consolidate(site, runs, view.base(), target, is_dropped, new_part)
        }
        Due::IntoBase(hashes) => {
            let base = within(view.base(), hashes);
            let mut runs = lacking(view, &base, hashes);
            let sources_max = buffers.sources_max(view.longest_block_bytes());
            keep_oldest(&mut runs, sources_max - 1);
            let runs = runs.into_iter().map(|(_, parts)| parts).collect();
            Merge::merge_base(site, runs, &base, target, is_dropped, new_part)
        }
    }
}

/// Returns the runs that base parts lack, the newest first: the numbers of each, and its parts that
/// have hashes of the base parts. Without a base part, `hashes` are all.
fn lacking<'v>(
    view: &'v ColdView,
    base: &[Arc<Part>],
    hashes: &RangeInclusive<u64>,
) -> Vec<(&'v RangeInclusive<u64>, Parts)> {
    let through = base.iter().map(|part| *part.head().runs.end()).min().unwrap_or(0);
    let newer = view.runs().take_while(|(numbers, _)| *numbers.end() > through);
    let runs = newer.map(|(numbers, parts)| (numbers, within(parts, hashes)));
    runs.filter(|(_, parts)| !parts.is_empty()).collect()
}

/// Returns the parts that have hashes of `hashes`.
fn within(parts: &[Arc<Part>], hashes: &RangeInclusive<u64>) -> Parts {
    let of = |part: &&Arc<Part>| overlap(&part.head().hashes, hashes).is_some();
    parts.iter().filter(of).cloned().collect()
}

/// Returns a base merge of the first base part alone, if there is no memory to join all runs that
/// the base parts lack. The others may have merged newer runs than the merge can join, and the
/// result names one newest run for all of its rows.
fn alone_if_limited(view: &ColdView, due: &Due, buffers: TierMemory) -> Due {
    let Due::IntoBase(hashes) = due else { return due.clone() };
    let base = within(view.base(), hashes);
    let sources_max = buffers.sources_max(view.longest_block_bytes());
    match base.first() {
        Some(first) if base.len() > 1 && lacking(view, &base, hashes).len() >= sources_max => {
            Due::IntoBase(first.head().hashes.clone())
        }
        _ => due.clone(),
    }
}

/// Keeps the `count` oldest runs of a base merge, the newest first, or some more: a run and those
/// within it stay together. The base then has all rows up to the newest kept run, and no row of a
/// later one, so that no version meets the base twice.
fn keep_oldest(runs: &mut Vec<(&RangeInclusive<u64>, Parts)>, count: usize) {
    let mut from = runs.len().saturating_sub(count);
    // The loop ends: each round keeps another run.
    while from > 0 && runs[..from].iter().any(|(newer, _)| newer.start() <= runs[from].0.end()) {
        from -= 1;
    }
    runs.drain(..from);
}

/// Shows the result of a merge to searches, in place of the parts that it has joined.
fn publish(core: &Core, due: &Due, merged: Merged) -> Result<()> {
    let Core { cold, tables, gate, .. } = core;
    // Other runs may have been added since the merge began.
    let view = cold.view();
    let mut removed: Vec<u64> = Vec::new();
    match due {
        Due::Consolidation(numbers) => {
            let joined = view
                .runs()
                .filter(|(of, _)| numbers.start() <= of.start() && of.end() <= numbers.end());
            removed.extend(joined.flat_map(|(_, parts)| parts).map(|part| part.head().number));
        }
        Due::IntoBase(hashes) => {
            let (gone, mut base): (Parts, Parts) = { view.base().iter().cloned() }
                .partition(|part| overlap(&part.head().hashes, hashes).is_some());
            base.extend(merged.parts.iter().cloned());
            let dead = view.runs().flat_map(|(_, parts)| parts);
            let dead = dead.filter(|part| is_merged(part, &base));
            removed.extend(gone.iter().chain(dead).map(|part| part.head().number));
        }
    }
    let next = view.changed(merged.parts, &removed);
    // A checkpoint's pause waits for this pin, so a checkpoint has the view, the cursor and the
    // counts of one moment.
    let _pin = gate.enter();
    if let Due::IntoBase(hashes) = due {
        cold.set_cursor(hashes.end().wrapping_add(1));
    }
    cold.publish(next);
    for (number, change) in merged.counted {
        if let Some(table) = tables.of(number) {
            tables.add_rows(table, change.cast_unsigned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_of_few_runs_takes_the_oldest_and_what_lies_within_them() {
        // Runs 3 to 6 have the rows of run 5, which is still there.
        let numbers = [8..=8, 7..=7, 3..=6, 5..=5, 1..=2];
        let kept = |count| {
            let mut runs: Vec<_> = numbers.iter().map(|numbers| (numbers, Vec::new())).collect();
            keep_oldest(&mut runs, count);
            runs.len()
        };
        assert_eq!([1, 2, 3, 4, 5, 9].map(kept), [1, 3, 3, 4, 5, 5]);
    }
}
