//! Compares the indexes of checkpoints with the log.
//!
//! A walk reads the log once, page by page, in windows. For each window it collects the index
//! entries whose address is in the window, and sorts them by address.
//!
//! The walk chooses the windows so that the entries of one window fit into the given memory. To do
//! so, it first divides the log into up to 4096 parts of equal length, and counts the index entries
//! that lead into each part.
//!
//! An entry leads to a record. The walk follows the entry after it has read the record's page. If
//! the entry has a chain, the record is the chain's newest one. The older records have lower
//! addresses, mostly in earlier pages, and the walk reads them one by one. The first record of each
//! key in the chain is the key's row. When a bucket of the index is split in two, an entry may be
//! copied into both. A record therefore counts only in the bucket that its hash selects.
//!
//! A walk can read several checkpoints at once. It reads a page that several checkpoints share only
//! once.

use super::index::for_each_bucket;
use super::log_files::{LogFiles, Looked, PageRead};
use super::{Progress, bank::BankFiles};
use crate::checkpoint::identity::CheckpointIdentity;
use crate::checkpoint::manifest::TableEntry;
use crate::error::Result;
use crate::index::{Entry, Probe};
use crate::operation::Width;
use crate::record::address::TableNumber;
use crate::record::hash::KeyHash;
use crate::record::layout::{RecordImage, Shape};

/// Describes an entry that leads to a sound record of an unknown table.
pub(super) const STRANGER: &str = "a record of a table that is not there";

/// Largest number of parts into which the log is divided to count the index entries of each part.
const PARTS: u64 = 4096;

/// A checkpoint that a walk reads.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) identity: CheckpointIdentity,
    pub(super) log_begin: u64,
    pub(super) log_end: u64,
    /// True if the checkpoint's index can be read. Otherwise the walk reads only the pages.
    pub(super) has_index: bool,
    pub(super) key_hash: KeyHash,
    pub(super) tables: Vec<TableEntry>,
    /// The end of the log when the manifest that lists `tables` was written. This is below
    /// `log_end` if the checkpoint's own manifest is lost and `tables` come from an older
    /// checkpoint.
    pub(super) tables_end: u64,
}

/// An index entry whose chain contains a record that can't be used.
#[derive(Debug)]
pub(super) struct Broken<'a> {
    pub(super) source: usize,
    pub(super) bucket: u64,
    pub(super) depth: u32,
    pub(super) entry: Entry,
    /// The keys of the chain's newer records, which were found before the unusable record.
    pub(super) seen: &'a [(TableNumber, u64)],
    /// Address of the record that can't be used.
    pub(super) at: u64,
    pub(super) what: String,
}

/// A row of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) source: usize,
    pub(super) table: TableNumber,
    pub(super) key: u64,
    pub(super) value: &'a [u8],
    /// True if the manifest's number of rows does not have this version of the row.
    pub(super) uncounted: bool,
}

/// A row that is deleted by a tombstone in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deleted {
    pub(super) source: usize,
    pub(super) table: TableNumber,
    pub(super) key: u64,
    /// See `Row::uncounted`.
    pub(super) uncounted: bool,
}

/// Receives the findings of a walk.
pub(super) trait Visit {
    /// Called for each page, sound or damaged, before the rows in the page are visited.
    fn page(&mut self, log: &LogFiles, page: &PageRead) -> Result<()>;
    /// Called for a range of the log that is in no file and that no index entry leads into.
    fn missing(&mut self, log: &LogFiles, start: u64, end: u64);
    /// Called for each row, in no particular order. Returns false to end the walk.
    fn row(&mut self, row: Row<'_>) -> Result<bool>;
    /// Called for each row that is deleted by a tombstone in the log. Default: does nothing.
    fn tombstone(&mut self, _deleted: Deleted) {}
    /// Called for an entry whose chain contains an unusable record.
    fn broken(&mut self, log: &LogFiles, broken: Broken<'_>) -> Result<()>;
    /// Called after each page.
    fn progress(&mut self, progress: Progress);
}

/// An index entry, its bucket, and the place of its checkpoint in `sources`.
#[derive(Debug, Clone, Copy)]
struct Item {
    entry: Entry,
    bucket: u64,
    depth: u16,
    source: u16,
}

impl Source {
    /// Returns the table of the record at address `at`. `None` if the record can't belong to this
    /// checkpoint.
    ///
    /// A dropped table gets no new records. If all its records are gone, a later table may get its
    /// number. A record with this number at or above `tables_end` therefore belongs to a later
    /// table, which is not in `tables`.
    pub(super) fn table(&self, table: TableNumber, at: u64) -> Option<&TableEntry> {
        self.entry(table).filter(|entry| !(entry.is_gone() && at >= self.tables_end))
    }

    fn entry(&self, table: TableNumber) -> Option<&TableEntry> {
        self.tables.get(usize::from(table.0).checked_sub(1)?)
    }

    /// True if a record of this checkpoint can have the table and length of `shape`.
    pub(super) fn knows(&self, shape: Shape) -> bool {
        self.entry(shape.table()).is_some_and(|table| {
            let longest = (table.value_bytes as usize).next_multiple_of(8);
            let length = shape.padded_value_bytes();
            length == 0
                || length == longest
                || (length < longest && table.variable)
                || (table.dropped && longest == 0)
        })
    }

    /// Returns the value of a record of `table`. Fails if the table does not permit the value's
    /// length.
    pub(super) fn value<'a>(
        table: &TableEntry,
        image: RecordImage<'a>,
    ) -> std::result::Result<&'a [u8], String> {
        let bytes = image.value_bytes().filter(|&bytes| match table.width() {
            Width::Fixed => bytes == table.value_bytes as usize,
            Width::Variable => bytes <= table.value_bytes as usize,
        });
        let wrong = || format!("a record's length is not that of table {:?}", table.name);
        bytes.map(|bytes| &image.padded_value()[..bytes]).ok_or_else(wrong)
    }
}

/// Walks the checkpoints in `sources`. The index entries of one window use at most about
/// `memory_bytes`.
///
/// # Errors
/// The errors of `visit`. An error if an index can't be read.
pub(super) fn walk<V: Visit>(
    files: &BankFiles,
    log: &mut LogFiles,
    sources: &[Source],
    memory_bytes: u64,
    visit: &mut V,
) -> Result<()> {
    let Some(begin) = sources.iter().map(|source| source.log_begin).min() else { return Ok(()) };
    let end = sources.iter().map(|source| source.log_end).max().unwrap_or(begin);
    let page_bytes = log.page_bytes;
    let windows = windows(files, sources, (begin, end), page_bytes, memory_bytes)?;
    let mut items = Vec::new();
    let mut page = PageRead::new();
    for (start, window_end) in windows {
        items.clear();
        collect(files, sources, (start, window_end), &mut items)?;
        let mut rest = &items[..];
        let mut at = start;
        while at < window_end {
            let item = rest.first().map_or(window_end, |item| item.entry.address().raw());
            let (named, border) = named(sources, at);
            let next_item = item / page_bytes * page_bytes;
            let there = log.next_there(at).min(next_item).min(border).min(window_end);
            if there > at {
                if named {
                    visit.missing(log, at, there);
                }
                at = there;
                continue;
            }
            let next = at + page_bytes;
            let here = rest.partition_point(|item: &Item| item.entry.address().raw() < next);
            let (now, later) = rest.split_at(here);
            rest = later;
            if named {
                log.page(at, &mut page);
                visit.page(log, &page)?;
                for item in now {
                    if !follow(log, &sources[usize::from(item.source)], *item, &page, visit)? {
                        return Ok(());
                    }
                }
            }
            at = next;
            visit.progress(Progress { done_bytes: at - begin, total_bytes: end - begin });
        }
    }
    Ok(())
}

/// Returns true if the page at `at` belongs to a checkpoint in `sources`. Also returns the next
/// address after `at` at which the log of a checkpoint begins or ends.
fn named(sources: &[Source], at: u64) -> (bool, u64) {
    let names = |source: &Source| (source.log_begin..source.log_end).contains(&at);
    let borders = sources.iter().flat_map(|source| [source.log_begin, source.log_end]);
    let border = borders.filter(|&border| border > at).min();
    (sources.iter().any(names), border.unwrap_or(u64::MAX))
}

/// Divides the log into windows whose index entries fit into `memory_bytes`. A window that is a
/// single part of the log may exceed this memory.
fn windows(
    files: &BankFiles,
    sources: &[Source],
    (begin, end): (u64, u64),
    page_bytes: u64,
    memory_bytes: u64,
) -> Result<Vec<(u64, u64)>> {
    let part_bytes = ((end - begin) / PARTS).next_multiple_of(page_bytes).max(page_bytes);
    let mut counts = vec![0_u64; (end - begin).div_ceil(part_bytes) as usize];
    for source in sources.iter().filter(|source| source.has_index) {
        let manifest = files.manifest(source.identity.checkpoint);
        let range = (source.log_begin, source.log_end);
        let count = |_, _, entries: &[Entry]| {
            for entry in entries {
                counts[((entry.address().raw() - begin) / part_bytes) as usize] += 1;
            }
            Ok(())
        };
        for_each_bucket(&files.checkpoints, source.identity, manifest, range, count)?;
    }
    let most = (memory_bytes / size_of::<Item>() as u64).max(1);
    let mut windows = Vec::new();
    let mut taken = 0;
    let mut start = begin;
    for (count, at) in counts.into_iter().zip((begin..).step_by(part_bytes as usize)) {
        if taken > 0 && taken + count > most {
            windows.push((start, at));
            start = at;
            taken = 0;
        }
        taken += count;
    }
    windows.push((start, end));
    Ok(windows)
}

/// Collects the entries whose address is in a window, and sorts them by address.
fn collect(
    files: &BankFiles,
    sources: &[Source],
    (start, end): (u64, u64),
    items: &mut Vec<Item>,
) -> Result<()> {
    for (number, source) in sources.iter().enumerate().filter(|(_, source)| source.has_index) {
        let low = start.max(source.log_begin);
        let high = end.min(source.log_end);
        let visit = |bucket, depth, entries: &[Entry]| {
            for &entry in entries {
                if (low..high).contains(&entry.address().raw()) {
                    items.push(Item { entry, bucket, depth: depth as u16, source: number as u16 });
                }
            }
            Ok(())
        };
        let manifest = files.manifest(source.identity.checkpoint);
        let range = (source.log_begin, source.log_end);
        for_each_bucket(&files.checkpoints, source.identity, manifest, range, visit)?;
    }
    items.sort_unstable_by_key(|item| item.entry.address().raw());
    Ok(())
}

/// Follows the chain of an entry that leads to `page`. Returns false if the visitor ended the walk.
fn follow<V: Visit>(
    log: &mut LogFiles,
    source: &Source,
    item: Item,
    page: &PageRead,
    visit: &mut V,
) -> Result<bool> {
    let head = item.entry.address().raw();
    let mut chain = Chain { source, item, at: head, seen: Vec::new() };
    let mut stepped = chain.step(page.record((head - page.start) as usize), visit);
    // The loop ends: each step goes to a lower address.
    loop {
        match stepped {
            Ok(more) => {
                if !more? {
                    return Ok(false);
                }
            }
            Err(what) => {
                visit.broken(log, chain.broken(what))?;
                return Ok(true);
            }
        }
        if !item.entry.is_chained() || chain.at < source.log_begin.max(1) {
            return Ok(true);
        }
        stepped = chain.step(log.record(chain.at), visit);
    }
}

/// Follows the chain of one entry, which `TableReader::get` has read from a bucket.
pub(super) fn follow_entry<V: Visit>(
    log: &mut LogFiles,
    source: &Source,
    (bucket, depth, entry): (u64, u32, Entry),
    visit: &mut V,
) -> Result<()> {
    let mut page = PageRead::new();
    let address = entry.address().raw();
    log.page(address / log.page_bytes * log.page_bytes, &mut page);
    let item = Item { entry, bucket, depth: depth as u16, source: 0 };
    follow(log, source, item, &page, visit).map(|_| ())
}

/// The state of following a chain from its newest record to its oldest.
struct Chain<'a> {
    source: &'a Source,
    item: Item,
    at: u64,
    /// Keys whose newest record was visited.
    seen: Vec<(TableNumber, u64)>,
}

impl Chain<'_> {
    fn broken(&self, what: String) -> Broken<'_> {
        let Item { entry, bucket, depth, source } = self.item;
        let source = usize::from(source);
        let depth = u32::from(depth);
        Broken { source, bucket, depth, entry, at: self.at, seen: &self.seen, what }
    }

    /// Visits the record at `at`, then sets `at` to the next older record of the chain. Returns
    /// false if the visitor ended the walk. The outer error describes the record's damage. The
    /// inner error is the visitor's.
    fn step<V: Visit>(
        &mut self,
        record: Looked<'_>,
        visit: &mut V,
    ) -> std::result::Result<Result<bool>, String> {
        let image = record?;
        let item = self.item;
        let table = image.shape().table();
        let key = image.key();
        let hash = self.source.key_hash.of(table, key);
        let depth = u32::from(item.depth);
        let at_home = hash & ((1 << depth) - 1) == item.bucket;
        // A record that belongs to the bucket must match the entry's tag, which holds hash bits. A
        // chain may have records of other buckets, even at its head: a split copies an entry into
        // both buckets if its chain has records of both (`Entry::narrowed`).
        let fits = match at_home {
            true => item.entry.matches(Probe::new(hash, depth)),
            false => !item.entry.stands_alone(),
        };
        if !fits {
            return Err(format!("the record of key {key} is not one of bucket {}", item.bucket));
        }
        if image.link().is_invalid() {
            return Err("a record that never became a row".into());
        }
        // A record of another bucket, or a superseded one, may be of a table that is not there.
        if at_home && !self.seen.contains(&(table, key)) {
            let Some(entry) = self.source.table(table, self.at) else {
                return Err(STRANGER.to_owned());
            };
            self.seen.push((table, key));
            let (source, uncounted) = (usize::from(item.source), image.link().is_uncounted());
            if image.link().is_tombstone() {
                visit.tombstone(Deleted { source, table, key, uncounted });
            } else if !entry.dropped {
                let value = Source::value(entry, image)?;
                let row = Row { source, table, key, value, uncounted };
                match visit.row(row) {
                    Ok(true) => {}
                    other => return Ok(other),
                }
            }
        }
        let previous = image.link().previous().raw();
        if previous >= self.at {
            return Err("its chain does not go back".into());
        }
        self.at = previous;
        Ok(Ok(true))
    }
}
