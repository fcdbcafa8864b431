//! When a bank has two tiers, and what is due then: spills, which keep the log short, and merges,
//! which keep the runs few.

use super::Space;
use super::options::ColdTier;
use super::pressure::{Debt, log_limit_bytes, run_limit_bytes};
use super::room::Headroom;
use super::signal::{CompactorState, Until};
use super::tier_memory::TierMemory;
use crate::device::placement::part_span_bytes;
use crate::engine::cold::dues::{Due, Dues};
use crate::engine::cold::memory_plan::block_bits_max;
use crate::engine::cold::sort_buffer::SortBuffer;
use crate::memory::budget::Budget;
use crate::sync::Ordering;

/// A bank gets a second tier if its index has or needs more than the memory budget divided by this
/// number. Below that, rows are read in the order of their use, which takes fewer reads than the
/// order of hashes (`docs/cold-tier.md`).
const INDEX_PART: u64 = 4;
/// An index of more than this number of eighths of the memory budget leaves parts no memory. A bank
/// in one tier then stays in one tier. One with parts opens with an empty index (`store::open`).
const INDEX_EIGHTHS_MAX: u64 = 3;
/// Bytes of index that a row needs at the index's usual load.
const INDEX_BYTES_PER_ROW: u64 = 15;
/// A bank with a smaller memory budget in bytes gets no second tier: the sort buffer and the parts
/// would take most of its memory.
const BUDGET_BYTES_MIN: u64 = 1 << 20;
/// Bytes of a block with one row beside the row.
const BLOCK_BYTES_BESIDE_ROW: u64 = 36;
/// A unit of work has the memory budget divided by this number, and at most `UNIT_BYTES_MAX`.
const UNIT_PART: u64 = 4;
const UNIT_BYTES_MAX: u64 = 1 << 20;
/// A part of the base has the bytes of at most this number of sort buffers.
const BASE_PART_BUFFERS: u64 = 8;

/// Limits that tests give a bank in two tiers, which otherwise follow from its budget.
#[derive(Debug, Clone, Copy)]
pub struct TierLimits {
    /// The length in bytes that the log may have before its oldest rows go to the cold tier.
    pub log_bytes: u64,
    /// The bytes of rows that are sorted at a time.
    pub sort_buffer_bytes: u64,
    /// The bytes of a part of the base.
    pub base_part_bytes: u64,
    /// Most runs of a level that consolidation joins.
    pub level_runs: usize,
}

/// The work of the compactor that is next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    /// Give back space that no holder needs any more.
    Free,
    /// Copy the current rows of the oldest page to the tail.
    Page,
    /// Move the rows of the oldest pages to the cold tier.
    Spill,
    Merge(Due),
}

impl Space {
    /// True if the bank should have a second tier.
    fn wants_second_tier(&self) -> bool {
        // Relaxed: the flag orders no other memory. A thread that sees it late works in one tier
        // for as long.
        self.second_tier.load(Ordering::Relaxed) || self.tier_limits.get().is_some()
    }

    /// Gives the bank a second tier with these limits. Only the first call has an effect.
    #[cfg(any(test, feature = "testing", feature = "bench"))]
    pub(crate) fn begin_second_tier(&self, limits: TierLimits) {
        let _ = self.tier_limits.set(limits);
        self.signal.raise();
    }
}

/// True if a bank that is opened with this option and this budget may get a cold tier by itself.
pub(crate) fn may_get_cold_tier(option: ColdTier, budget: &Budget) -> bool {
    option != ColdTier::Never && budget.total_bytes() >= BUDGET_BYTES_MIN
}

/// True if the index leaves memory for parts.
pub(crate) fn leaves_memory_to_parts(budget: &Budget) -> bool {
    budget.index_bytes() <= budget.total_bytes() / 8 * INDEX_EIGHTHS_MAX
}

impl Headroom<'_> {
    /// True if rows leave the log for the cold tier.
    pub(super) fn has_two_tiers(&self) -> bool {
        self.cold.has_rows() || self.space.wants_second_tier()
    }

    /// Returns the memory of spills and merges.
    pub(crate) fn tier_memory(&self) -> TierMemory {
        let budget = &self.space.budget;
        let longest = longest_block_bytes(self.tables.longest_record(), budget.total_bytes());
        let segment_bytes = self.cold.segment_bytes();
        let (total_bytes, page_bytes) = (budget.total_bytes(), self.log.page_bytes());
        let mut memory = TierMemory::of(total_bytes, page_bytes, segment_bytes, longest);
        if let Some(limits) = self.space.tier_limits.get() {
            let page = SortBuffer::bytes_for_page(self.log.page_bytes());
            memory.sort_buffer_bytes = limits.sort_buffer_bytes.max(page);
        }
        memory
    }

    /// Decides whether the bank gets a second tier, and starts the compaction thread if the bank
    /// has one and works without being asked. A batch calls this when the log needs another page.
    /// The decision for a second tier is never taken back.
    pub(super) fn decide_tiers(&self) {
        if !self.has_two_tiers() {
            if !self.should_get_second_tier() {
                return;
            }
            self.space.second_tier.store(true, Ordering::Relaxed);
        }
        if !self.works_in_background() {
            return;
        }
        self.log.spill_from_memory(self.run_pages());
        // Also while work is stopped: a writer waits as soon as a checkpoint has ended the stop,
        // and only this function starts the thread that it waits for.
        if let Err(refused) = self.space.thread.start() {
            // The next page tries again.
            self.space.signal.stop_until(&refused, Until::Signal);
        }
    }

    /// True if the index is too large for a bank in one tier: see [`ColdTier::Auto`].
    fn should_get_second_tier(&self) -> bool {
        let budget = &self.space.budget;
        let limit_bytes = budget.total_bytes() / INDEX_PART;
        let view = self.log.view();
        may_get_cold_tier(self.space.cold_tier, budget)
            && view.head > view.begin
            && leaves_memory_to_parts(budget)
            // The budget may have refused memory to the index, so what its rows need counts, too.
            && (budget.index_bytes() > limit_bytes
                || self.tables.live(self.log.page_bytes()).rows * INDEX_BYTES_PER_ROW > limit_bytes)
    }

    /// True if compaction, or spills and merges, happen without a call of the program.
    pub(super) fn works_in_background(&self) -> bool {
        let Space { options, cold_tier, tier_limits, .. } = self.space;
        // A test with limits of its own says by `background` whether it wants the thread.
        let by_itself = *cold_tier == ColdTier::Auto && tier_limits.get().is_none();
        options.background || by_itself && self.has_two_tiers()
    }

    /// Returns the number of tiers, and what a bank in two tiers has in its log and runs. `None` in
    /// a bank in one tier and in a read-only store, which neither spills nor merges.
    pub(crate) fn tiers(&self) -> (u64, Option<Debt>) {
        let is_writer = self.space.checkpoints.is_some();
        match self.has_two_tiers() {
            true if is_writer => (2, Some(self.debt(&mut self.space.signal.state.lock()))),
            true => (2, None),
            false => (1, None),
        }
    }

    /// Returns the size of the sort buffer in bytes.
    pub(super) fn sort_buffer_bytes(&self) -> u64 {
        self.tier_memory().sort_buffer_bytes
    }

    /// Returns the number of the log's pages whose rows surely fit the sort buffer.
    fn run_pages(&self) -> u64 {
        self.sort_buffer_bytes() / SortBuffer::bytes_for_page(self.log.page_bytes())
    }

    /// Returns the size in bytes of a unit of work, for which writers wait.
    pub(super) fn unit_bytes(&self) -> u64 {
        (self.space.budget.total_bytes() / UNIT_PART).min(UNIT_BYTES_MAX)
    }

    /// Returns the size in bytes at which merges end a part of the base.
    pub(super) fn base_part_bytes(&self) -> u64 {
        if let Some(limits) = self.space.tier_limits.get() {
            return limits.base_part_bytes;
        }
        let span = part_span_bytes(self.cold.segment_bytes());
        (BASE_PART_BUFFERS * self.sort_buffer_bytes()).min(span / 2)
    }

    /// Returns the debt of a bank in two tiers.
    pub(super) fn debt(&self, state: &mut CompactorState) -> Debt {
        // The beginning first, because both grow.
        let begin = self.log.begin();
        let log_bytes = self.log.tail_address() - begin;
        let shortest = state.shortest_log_bytes.get_or_insert(log_bytes);
        *shortest = log_bytes.min(*shortest);
        let shortest_bytes = *shortest;
        let budget = &self.space.budget;
        let log_limit_bytes = match self.space.tier_limits.get() {
            Some(limits) => limits.log_bytes,
            None => {
                let frames_bytes = budget.frames_allowed() * budget.page_bytes();
                let memory_bytes = frames_bytes + budget.cache_bytes();
                log_limit_bytes(self.log.bytes_before_spill(), memory_bytes, shortest_bytes)
            }
        };
        let log_limit_bytes = state.held.log_limit_bytes(log_limit_bytes);
        let dues = self.dues(state);
        let run_share = self.cold.memory_plan().run_share;
        let run_limit_bytes = run_limit_bytes(dues.base_bytes, self.sort_buffer_bytes(), run_share);
        let debt = Debt {
            log_bytes,
            log_limit_bytes,
            run_bytes: dues.run_bytes,
            run_limit_bytes,
            runs: dues.runs,
            runs_max: dues.runs_max,
        };
        self.space.far_ahead.store(debt.makes_writers_wait(), Ordering::Relaxed);
        debt
    }

    /// Returns what is due in the present view of the cold tier.
    fn dues<'s>(&self, state: &'s mut CompactorState) -> &'s Dues {
        let view = self.cold.view();
        let known = &mut state.dues;
        if known.as_ref().is_none_or(|(number, _)| *number != view.number()) {
            let joined_bytes = self.base_part_bytes() / 2;
            let longest = view.longest_block_bytes();
            let mut limits =
                self.tier_memory().run_limits(self.space.budget.total_bytes(), longest);
            if let Some(of_test) = self.space.tier_limits.get() {
                limits.level = of_test.level_runs.min(limits.level);
            }
            let dues = Dues::of(&view, self.cold.cursor(), joined_bytes, limits, &state.spared);
            *known = Some((view.number(), dues));
        }
        &known.get_or_insert_default().1
    }

    /// Returns the spill or merge that is due. If `urgent` is true, because a writer lacks room,
    /// also returns one that can free space.
    pub(super) fn tier_work(&self, state: &mut CompactorState, urgent: bool) -> Option<Work> {
        if self.is_spill_due(state, urgent) {
            let merge = self.merge_before_spill(state);
            return Some(merge.map_or(Work::Spill, Work::Merge));
        }
        self.merge_work(state, urgent).map(Work::Merge)
    }

    /// True if rows have to leave the log, and their pages are settled.
    pub(super) fn is_spill_due(&self, state: &mut CompactorState, urgent: bool) -> bool {
        // A spill waits until the pages for a whole run are settled. Short runs would cost searches
        // a read each and merges more writes.
        let page_bytes = self.log.page_bytes();
        let run_bytes = if urgent { page_bytes } else { self.run_pages() * page_bytes };
        let begin = self.log.begin();
        self.log.settled().saturating_sub(begin) >= run_bytes
            && match urgent {
                true => state.held.lets_shrink(self.log.tail_address() - begin),
                false => self.debt(state).exceeds_log(),
            }
    }

    /// Returns the base merge at the cursor, however few bytes the runs have.
    pub(super) fn base_merge(&self, state: &mut CompactorState) -> Option<Due> {
        self.dues(state).base_merge.clone()
    }

    /// Returns a merge that has to come before the next spill, because there is no memory for the
    /// fences of another run.
    ///
    /// A bank with little memory therefore never stops while its base fits. Each such merge brings
    /// all runs, or the oldest ones, into the base parts at the cursor, which passes all of them in
    /// turn. No spill adds runs meanwhile. So after finitely many merges no run is left, or the
    /// fences of another run fit. If they do not fit although no run is left, the base alone is too
    /// large for the budget: the spill then fails and says which budget would do.
    pub(super) fn merge_before_spill(&self, state: &mut CompactorState) -> Option<Due> {
        match self.cold.has_memory_for_run(self.sort_buffer_bytes()) {
            true => None,
            false => self.dues(state).base_merge.clone(),
        }
    }

    /// Returns the merge that is due. If `urgent` is true, because a writer lacks room, also
    /// returns one that can free space.
    pub(super) fn merge_work(&self, state: &mut CompactorState, urgent: bool) -> Option<Due> {
        let debt = self.debt(state);
        let merges_into_base = debt.exceeds_runs() || urgent && debt.has_space_in_runs();
        let dues = self.dues(state);
        let has_memory = self.cold.has_memory_for_run(dues.consolidated_bytes);
        let merges_into_base = merges_into_base || dues.has_too_many_runs() || !has_memory;
        let due = dues.consolidation.as_ref().filter(|_| has_memory);
        due.or(dues.base_merge.as_ref().filter(|_| merges_into_base)).cloned()
    }
}

/// Returns the length of the longest block of a part that has records of up to `record_bytes`.
pub(crate) fn longest_block_bytes(record_bytes: usize, budget_bytes: u64) -> u64 {
    // A row is shorter than its record in the log. The block has a header and a checksum too.
    let block_bytes = 1 << block_bits_max(budget_bytes);
    (record_bytes as u64 + BLOCK_BYTES_BESIDE_ROW).next_multiple_of(4 << 10).max(block_bytes)
}
