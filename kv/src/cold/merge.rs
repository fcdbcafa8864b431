//! Merging: several runs become one, or runs become part of the base.
//!
//! **Problem.** A key may have a version in each run and in the base. A merge reads its sources in
//! the order of hashes and writes the newest version of each row.
//!
//! **Approach.** A tournament tree of losers (Knuth, *The Art of Computer Programming*, volume 3,
//! section 5.4.1) names the source with the next row. Of equal rows that of the newest source comes
//! first. A merge works in units of about 1 MiB of rows that it reads. Between units the caller may
//! do other work, or abandon the merge and remove the parts that it has begun.
//!
//! **Two merges.**
//! - A *consolidation* ([`Merge::consolidate`]) joins runs to one of the next level. Older versions
//!   may lie in other sources, so it keeps tombstones. It leaves out the rows that a base part has
//!   merged already.
//! - A *base merge* ([`Merge::merge_base`]) joins neighbouring base parts with all newer runs. No
//!   source has older versions, so it drops tombstones.
//!
//! **Counts.** The mark *uncounted* says of a version that the table's count of rows does not have
//! it: the count has the state of the next older version instead, a row (1) or no row (0). A merge
//! that meets both versions lays the newer over the older. If only the newer is marked, the count
//! changes by the difference of their states. The result has the mark of the older, which still
//! waits for its own older version. At the base a mark ends, because nothing is older.
//!
//! The differences of a stack of marked versions add up to that of its newest and its oldest
//! version. So a version may occur twice, as a record that a spill took for current and as its
//! copy, and the count is right (`record::layout` has the table of marks).
//!
//! **Invariants.**
//! - A version meets the base once. Otherwise its mark would raise the count again. So a base part
//!   names the newest run that it has merged (`through`), and every merge leaves out the rows that
//!   a base part of their hash has merged.
//! - The parts of a merge's result answer for all hashes of its range, and no two for one hash.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::cold::block::block_bits_for;
use crate::cold::cursor::{PartCursor, UNIT_BYTES as CURSOR_BYTES_MAX};
use crate::cold::head::{Kind, PartHead, PartSite};
use crate::cold::keep::PartMemory;
use crate::cold::part::Part;
use crate::cold::row::{ColdRow, RowFlags, RowOrder};
use crate::cold::writer::PartWriter;
use crate::device::Device;
use crate::device::placement::part_span_bytes;
use crate::error::Result;
use crate::record::address::TableNumber;

#[cfg(test)]
mod tests;

/// The parts of one run, or neighbouring base parts, in the order of their hashes.
pub(crate) type Parts = Vec<Arc<Part>>;

/// What the parts of a merge's result have in common.
#[derive(Clone, Copy)]
pub(crate) struct Target<'d> {
    pub(crate) bank: u64,
    /// Says how much of each part stays in memory.
    pub(crate) memory: &'d dyn PartMemory,
    /// Bytes that all sources read at a time together. Each reads at least a block: `unit_bytes`.
    pub(crate) cursors_bytes: usize,
    /// Bytes that are written at a time.
    pub(crate) writer_bytes: usize,
    /// Columns of the filters.
    pub(crate) columns: u32,
    /// Length of a part in bytes. The result has parts of about equal lengths, at most 1.5 times as
    /// long.
    pub(crate) part_bytes: u64,
    /// Blocks have at most `1 << block_bits_max` bytes.
    pub(crate) block_bits_max: u8,
}

/// The number and the salt of a new part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewPart {
    pub(crate) number: u64,
    pub(crate) salt: u64,
}

/// The result of a merge.
#[derive(Debug)]
pub(crate) struct Merged {
    /// The new parts, in the order of their hashes. They are durable after the next sync.
    pub(crate) parts: Parts,
    /// For each table the change of its count of rows.
    pub(crate) counted: BTreeMap<TableNumber, i64>,
    pub(crate) rows_read: u64,
    pub(crate) rows_written: u64,
}

/// The rows of one source, in order.
#[derive(Debug)]
struct Source<'d> {
    /// The newest run whose rows the source has. `None` for the base.
    run: Option<u64>,
    parts: VecDeque<Arc<Part>>,
    cursor: Option<PartCursor<'d>>,
    /// The order of the next row; `None` at the end.
    head: Option<RowOrder>,
    /// Rows with a lower hash do not take part.
    from: u64,
    /// Rows with a higher hash do not take part.
    last: u64,
    /// Bytes that are read at a time.
    unit_bytes: usize,
    /// Places of `Merge::merged` that lie before the next row.
    passed: usize,
}

/// A merge in progress.
pub(crate) struct Merge<'d> {
    site: PartSite<'d>,
    /// Newest first.
    sources: Vec<Source<'d>>,
    /// For each inner node of the tournament, the source that lost there. Place 0 has the winner.
    losers: Vec<usize>,
    hashes: RangeInclusive<u64>,
    /// The hash ranges of base parts and the newest run that each has merged, in order.
    merged: Vec<(RangeInclusive<u64>, u64)>,
    is_dropped: Box<dyn Fn(TableNumber) -> bool + Send + 'd>,
    /// True if no source outside the merge has older versions.
    is_base: bool,
    head: PartHead,
    columns: u32,
    writer_bytes: usize,
    memory: &'d dyn PartMemory,
    part_bytes: u64,
    new_part: Box<dyn FnMut() -> NewPart + Send + 'd>,
    writer: Option<PartWriter<'d>>,
    /// The first hash of the next part.
    next_hash: u64,
    /// The value of the present row.
    value: Vec<u8>,
    begun: Vec<u64>,
    result: Merged,
    has_failed: bool,
}

impl<'d> Merge<'d> {
    /// Begins to join runs, the newest first, to one run of the next level. `base` has all base
    /// parts. `is_dropped` tells of a table's number whether its rows are to be left out.
    ///
    /// # Errors
    /// The errors of the device, and `Damaged` for a damaged block.
    pub(crate) fn consolidate(
        site: PartSite<'d>,
        runs: Vec<Parts>,
        base: &[Arc<Part>],
        target: Target<'d>,
        is_dropped: impl Fn(TableNumber) -> bool + Send + 'd,
        new_part: impl FnMut() -> NewPart + Send + 'd,
    ) -> Result<Self> {
        let heads = || runs.iter().flatten().map(|part| part.head());
        let level = heads().map(|head| head.level).max().unwrap_or(0).saturating_add(1);
        let hashes = 0..=u64::MAX;
        let plan = Plan { kind: Kind::Run, level, hashes, base, target };
        Self::begin(site, runs, plan, Box::new(is_dropped), Box::new(new_part))
    }

    /// Begins to join neighbouring base parts with the runs above them, the newest run first.
    /// `runs` has of each run the parts that have hashes of the base parts; rows of other hashes
    /// are left out. Without a base part the result is the first base and covers all hashes.
    ///
    /// # Errors
    /// Those of [`consolidate`](Self::consolidate).
    pub(crate) fn merge_base(
        site: PartSite<'d>,
        runs: Vec<Parts>,
        base: &[Arc<Part>],
        target: Target<'d>,
        is_dropped: impl Fn(TableNumber) -> bool + Send + 'd,
        new_part: impl FnMut() -> NewPart + Send + 'd,
    ) -> Result<Self> {
        let hashes = match base {
            [] => 0..=u64::MAX,
            [first, .., last] => *first.head().hashes.start()..=*last.head().hashes.end(),
            [only] => only.head().hashes.clone(),
        };
        let mut sources = runs;
        if !base.is_empty() {
            sources.push(base.to_vec());
        }
        let plan = Plan { kind: Kind::Base, level: 0, hashes, base, target };
        Self::begin(site, sources, plan, Box::new(is_dropped), Box::new(new_part))
    }

    fn begin(
        site: PartSite<'d>,
        sources: Vec<Parts>,
        plan: Plan<'_, 'd>,
        is_dropped: Box<dyn Fn(TableNumber) -> bool + Send + 'd>,
        new_part: Box<dyn FnMut() -> NewPart + Send + 'd>,
    ) -> Result<Self> {
        let Plan { kind, level, hashes, base, target } = plan;
        let parts = || sources.iter().flatten();
        let rows: u64 = parts().map(|part| part.rows()).sum();
        let row_bytes: u64 = parts().map(|part| part.row_bytes()).sum();
        let all_bytes: u64 = parts().map(|part| bytes_within(part, &hashes)).sum();
        let heads = || parts().map(|part| part.head());
        let ends = |heads: &mut dyn Iterator<Item = u64>| heads.max().unwrap_or(0);
        let head = PartHead {
            bank: target.bank,
            salt: 0,
            number: 0,
            kind,
            level,
            block_bits: block_bits_for(row_bytes.checked_div(rows).unwrap_or(0) as usize)
                .min(target.block_bits_max),
            runs: heads().map(|head| *head.runs.start()).min().unwrap_or(0)
                ..=ends(&mut heads().map(|head| *head.runs.end())),
            hashes: hashes.clone(),
            log: log_of(heads()),
        };
        let count = (all_bytes + target.part_bytes / 2) / target.part_bytes.max(1);
        let span = part_span_bytes(site.segment_size_bytes);
        let part_bytes = all_bytes.div_ceil(count.max(1)).min(span);
        let merged = base.iter().map(|part| (part.head().hashes.clone(), *part.head().runs.end()));
        let (first, last) = (*hashes.start(), *hashes.end());
        let sizes = sources.iter().map(|parts| {
            let bytes: u64 = parts.iter().map(|part| bytes_within(part, &hashes)).sum();
            let longest = parts.iter().map(|part| part.longest_block_bytes()).max();
            (bytes, longest.unwrap_or(0))
        });
        let units = unit_bytes(target.cursors_bytes, &sizes.collect::<Vec<_>>());
        let source = |(parts, unit_bytes)| Source::new(parts, first, last, unit_bytes);
        let sources: Vec<_> = sources.into_iter().zip(units).map(source).collect();
        let mut merge = Merge {
            site,
            losers: vec![0; sources.len()],
            sources,
            hashes,
            merged: merged.collect(),
            is_dropped,
            is_base: kind == Kind::Base,
            head,
            columns: target.columns,
            writer_bytes: target.writer_bytes,
            memory: target.memory,
            part_bytes,
            new_part,
            writer: None,
            next_hash: first,
            value: Vec::new(),
            begun: Vec::new(),
            result: Merged {
                parts: Vec::new(),
                counted: BTreeMap::new(),
                rows_read: 0,
                rows_written: 0,
            },
            has_failed: false,
        };
        merge.read_ahead(None)?;
        for source in 0..merge.sources.len() {
            merge.step(source)?;
        }
        merge.play();
        Ok(merge)
    }

    /// Reads the next blocks of all sources that have room for them, at the same time. One after
    /// the other, the reads would take most of the merge's time. The source `passed` does not need
    /// its present row any more.
    #[cold]
    fn read_ahead(&mut self, passed: Option<usize>) -> Result<()> {
        let device = self.site.device;
        let mut reads = Vec::with_capacity(self.sources.len());
        for (i, source) in self.sources.iter_mut().enumerate() {
            source.open(device);
            let cursor = source.cursor.as_mut();
            reads.extend(cursor.and_then(|cursor| cursor.read_ahead(passed != Some(i))));
        }
        device.read_many_behind(&mut reads)?;
        let cursors = self.sources.iter_mut().filter_map(|source| source.cursor.as_mut());
        cursors.for_each(PartCursor::note_ahead);
        Ok(())
    }

    /// Returns the numbers of all parts that the merge has begun. If the caller abandons the merge,
    /// it removes them.
    pub(crate) fn begun(&self) -> &[u64] {
        &self.begun
    }

    /// Merges rows of about `unit_bytes` bytes. Returns false once all are merged: then call
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// The errors of the device, and `Damaged` for a damaged block. The merge can then only be
    /// abandoned.
    pub(crate) fn advance(&mut self, unit_bytes: u64) -> Result<bool> {
        assert!(!self.has_failed, "a merge that failed is abandoned");
        self.has_failed = true;
        let mut bytes = 0;
        // The loop ends: each round takes at least one row of a source.
        while bytes < unit_bytes {
            let Some(order) = self.winner().and_then(|winner| self.sources[winner].head) else {
                self.has_failed = false;
                return Ok(false);
            };
            bytes += self.take(order)?;
        }
        self.has_failed = false;
        Ok(true)
    }

    /// Merges all versions of the row at `order`, the next one. Returns their bytes.
    fn take(&mut self, order: RowOrder) -> Result<u64> {
        let winner = self.losers[0];
        let row = self.sources[winner].row();
        let mut bytes = row.stored_bytes() as u64;
        self.value.clear();
        self.value.extend_from_slice(row.value);
        let (unused_bytes, uses, tombstone) = (row.unused_bytes, row.uses, row.flags.tombstone);
        let mut uncounted = row.flags.uncounted;
        let mut change = 0;
        self.replace_winner()?;
        // The loop ends: each source has the row at most once.
        while let Some(older) =
            self.winner().filter(|&other| self.sources[other].head == Some(order))
        {
            let row = self.sources[older].row();
            bytes += row.stored_bytes() as u64;
            let older = row.flags;
            let difference = i64::from(!tombstone) - i64::from(!older.tombstone);
            change += difference * (i64::from(uncounted) - i64::from(older.uncounted));
            uncounted = older.uncounted;
            self.replace_winner()?;
        }
        if self.is_base && uncounted {
            change += i64::from(!tombstone);
            uncounted = false;
        }
        if change != 0 {
            *self.result.counted.entry(order.1).or_default() += change;
        }
        if self.is_base && tombstone {
            return Ok(bytes);
        }
        self.write(order, RowFlags { tombstone, uncounted }, unused_bytes, uses)?;
        Ok(bytes)
    }

    /// Writes a row with the value `self.value`.
    fn write(
        &mut self,
        order: RowOrder,
        flags: RowFlags,
        unused_bytes: u8,
        uses: u8,
    ) -> Result<()> {
        let (hash, table, key) = order;
        let span = part_span_bytes(self.site.segment_size_bytes);
        // A new block, its fences and its filter take at most this.
        let room = self.value.len() as u64 + (64 << 10);
        if let Some(writer) = &self.writer
            && writer.last().is_some_and(|last| last.0 < hash)
            && (writer.file_bytes_max() >= self.part_bytes || writer.file_bytes_max() + room > span)
        {
            self.end_part(hash - 1)?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(Self::next_part(
                self.site,
                &self.head,
                self.next_hash..=*self.hashes.end(),
                (self.columns, self.writer_bytes),
                &mut self.new_part,
                &mut self.begun,
            )),
        };
        // Asked after the part has its number, as `engine::tables::numbers` requires: another
        // thread may have dropped the table since the row became its source's next row.
        if (self.is_dropped)(table) {
            return Ok(());
        }
        let value = &self.value;
        writer.push(&ColdRow { table, key, hash, flags, unused_bytes, uses, value })?;
        self.result.rows_written += 1;
        Ok(())
    }

    fn next_part(
        site: PartSite<'d>,
        head: &PartHead,
        hashes: RangeInclusive<u64>,
        (columns, unit_bytes): (u32, usize),
        new_part: &mut dyn FnMut() -> NewPart,
        begun: &mut Vec<u64>,
    ) -> PartWriter<'d> {
        let NewPart { number, salt } = new_part();
        begun.push(number);
        let head = PartHead { number, salt, hashes, ..head.clone() };
        PartWriter::with_unit(site, head, columns, unit_bytes)
    }

    /// Ends the present part, which answers for hashes up to `last`.
    fn end_part(&mut self, last: u64) -> Result<()> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        writer.end_at(last);
        self.result.parts.push(Arc::new(writer.finish_within(self.memory)?));
        self.next_hash = last.saturating_add(1);
        Ok(())
    }

    /// Ends the merge after [`advance`](Self::advance) has returned false. A base merge without
    /// rows has one empty part, a consolidation none.
    ///
    /// # Errors
    /// The errors of the device. The caller then removes the parts of [`begun`](Self::begun).
    pub(crate) fn finish(&mut self) -> Result<Merged> {
        assert!(!self.has_failed, "a merge that failed is abandoned");
        debug_assert!(self.winner().is_none_or(|winner| self.sources[winner].head.is_none()));
        if self.writer.is_none() && self.is_base {
            let hashes = self.hashes.clone();
            let (head, columns) = (&self.head, (self.columns, self.writer_bytes));
            let new_part = &mut self.new_part;
            let writer =
                Self::next_part(self.site, head, hashes, columns, new_part, &mut self.begun);
            self.writer = Some(writer);
        }
        self.end_part(*self.hashes.end())?;
        let Merged { parts, counted, rows_read, rows_written } = &mut self.result;
        Ok(Merged {
            parts: std::mem::take(parts),
            counted: std::mem::take(counted),
            rows_read: *rows_read,
            rows_written: *rows_written,
        })
    }

    /// Returns the source with the next row. `None` without sources.
    #[inline]
    fn winner(&self) -> Option<usize> {
        self.losers.first().copied()
    }

    /// True if the next row of source `a` comes before that of source `b`.
    #[inline]
    fn is_before(&self, a: usize, b: usize) -> bool {
        let (first, second) = (&self.sources[a].head, &self.sources[b].head);
        match (first, second) {
            (Some(first), Some(second)) if first != second => first < second,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            // The newer source comes first.
            _ => a < b,
        }
    }

    /// Plays the whole tournament.
    fn play(&mut self) {
        let count = self.sources.len();
        let mut winners = vec![0; 2 * count];
        for source in 0..count {
            winners[count + source] = source;
        }
        for node in (1..count).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            let (winner, loser) = if self.is_before(a, b) { (a, b) } else { (b, a) };
            (winners[node], self.losers[node]) = (winner, loser);
        }
        if let Some(winner) = self.losers.first_mut() {
            // With one source, the only leaf is node 1.
            *winner = winners[1];
        }
    }

    /// Goes to the winner's next row, and finds the next winner.
    #[inline]
    fn replace_winner(&mut self) -> Result<()> {
        let source = self.losers[0];
        self.step(source)?;
        let mut winner = source;
        let mut node = (self.sources.len() + source) / 2;
        while node > 0 {
            let other = self.losers[node];
            if self.is_before(other, winner) {
                self.losers[node] = winner;
                winner = other;
            }
            node /= 2;
        }
        self.losers[0] = winner;
        Ok(())
    }

    /// Goes to the next row of a source that takes part in the merge.
    #[inline]
    fn step(&mut self, source: usize) -> Result<()> {
        if self.sources[source].cursor.as_ref().is_some_and(PartCursor::is_drained) {
            self.read_ahead(Some(source))?;
        }
        let source = &mut self.sources[source];
        // The loop ends at the source's end.
        loop {
            source.step(self.site.device)?;
            let Some((hash, table, _)) = source.head else { return Ok(()) };
            if hash > *self.hashes.end() {
                (source.head, source.cursor) = (None, None);
                source.parts.clear();
                return Ok(());
            }
            self.result.rows_read += 1;
            if !source.is_merged(hash, &self.merged) && !(self.is_dropped)(table) {
                return Ok(());
            }
        }
    }
}

/// What the two kinds of merges differ in.
struct Plan<'p, 'd> {
    kind: Kind,
    level: u8,
    hashes: RangeInclusive<u64>,
    base: &'p [Arc<Part>],
    target: Target<'d>,
}

/// Divides `cursors_bytes` among sources, of which `sources` has the bytes that take part in the
/// merge and the length of the longest block. Each gets a block, and a part of the rest in
/// proportion to its bytes. All sources then need their next blocks at about the same time, so few
/// reads bring all of them.
fn unit_bytes(cursors_bytes: usize, sources: &[(u64, usize)]) -> Vec<usize> {
    let mut units: Vec<usize> = sources.iter().map(|&(_, block_bytes)| block_bytes).collect();
    let mut rest = cursors_bytes.saturating_sub(units.iter().sum());
    let mut bytes_left: u64 = sources.iter().map(|&(bytes, _)| bytes).sum();
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(sources[i].0));
    // The largest first: what it can't use remains for the others.
    for i in order {
        let bytes = sources[i].0;
        let share = bytes as f64 / bytes_left.max(1) as f64;
        let room = CURSOR_BYTES_MAX.saturating_sub(units[i]);
        let more = ((rest as f64 * share) as usize).min(room);
        units[i] += more;
        rest -= more.min(rest);
        bytes_left -= bytes;
    }
    units
}

/// Returns the bytes of a part's rows within `hashes`, if they are spread evenly.
fn bytes_within(part: &Part, hashes: &RangeInclusive<u64>) -> u64 {
    let of = &part.head().hashes;
    let width = |first: u64, last: u64| last.saturating_sub(first) as f64 + 1.0;
    let both = width(*of.start().max(hashes.start()), *of.end().min(hashes.end()));
    (part.file_bytes() as f64 * both / width(*of.start(), *of.end())) as u64
}

/// Returns the shortest range that has the log ranges of all parts.
fn log_of<'h>(heads: impl Iterator<Item = &'h PartHead> + Clone) -> Range<u64> {
    let start = heads.clone().map(|head| head.log.start).min().unwrap_or(0);
    start..heads.map(|head| head.log.end).max().unwrap_or(0)
}

impl<'d> Source<'d> {
    /// The source has rows with the hashes from `from` to `last`.
    fn new(parts: Parts, from: u64, last: u64, unit_bytes: usize) -> Self {
        let heads = parts.iter().map(|part| part.head());
        let run = heads.clone().filter(|head| head.kind == Kind::Run);
        let run = run.map(|head| *head.runs.end()).max();
        debug_assert!(heads.is_sorted_by(|a, b| a.hashes.end() < b.hashes.start()));
        let parts = parts.into_iter().filter(|part| *part.head().hashes.end() >= from).collect();
        Source { run, parts, cursor: None, head: None, from, last, unit_bytes, passed: 0 }
    }

    /// Returns the next row. There must be one.
    #[inline]
    fn row(&self) -> ColdRow<'_> {
        let row = self.cursor.as_ref().and_then(PartCursor::row);
        row.expect("a source with a head has a row")
    }

    /// Goes to the next row.
    #[inline]
    fn step(&mut self, device: &'d dyn Device) -> Result<()> {
        self.open(device);
        // The loop ends with the last part.
        while let Some(cursor) = &mut self.cursor {
            self.head = cursor.step()?;
            if self.head.is_some() {
                return Ok(());
            }
            self.cursor = None;
            self.open(device);
        }
        self.head = None;
        Ok(())
    }

    /// Goes to the next part, if the source has no cursor.
    #[inline]
    fn open(&mut self, device: &'d dyn Device) {
        if self.cursor.is_none()
            && let Some(part) = self.parts.pop_front()
        {
            let cursor = part.cursor_from(device, self.from, self.unit_bytes);
            self.cursor = Some(cursor.ends_at(self.last));
        }
    }

    /// True if a base part has merged the row of a run with this hash. Hashes ascend.
    #[inline]
    fn is_merged(&mut self, hash: u64, merged: &[(RangeInclusive<u64>, u64)]) -> bool {
        let Some(run) = self.run else { return false };
        while merged.get(self.passed).is_some_and(|(hashes, _)| *hashes.end() < hash) {
            self.passed += 1;
        }
        let base = merged.get(self.passed).filter(|(hashes, _)| hashes.contains(&hash));
        base.is_some_and(|&(_, through)| run <= through)
    }
}
