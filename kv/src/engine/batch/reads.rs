//! How a batch splits its rows into reads of the drive.
//!
//! A read covers the blocks of the device that its records touch: of 512 or of 4,096 bytes. Two
//! reads are joined if at most 16 KiB lie between their records; the joined read then brings these
//! bytes too. A read costs the
//! thread 3 us whatever its length, so fewer reads cost less. A drive that is limited by its reads
//! a second also serves joined reads faster. The benchmarks page of the documentation has the
//! measurements.
//!
//! The more rows a stream has, the nearer they lie to each other on disk. So lookahead reads the
//! rows of one announcement, which may cover several batches, in streams of up to 4,096 rows or a
//! little more.
//!
//! No operation uses the bytes between two records. A damaged block there must not make the batch
//! fail. So if a read with such bytes fails, the batch reads its rows again, without the bytes
//! between them.

use super::disk::Found;
use super::succession::Old;
use super::{Batch, Pending, Work};
use crate::cache::Demand;
use crate::device::{Priority, ReadStream};
use crate::error::Result;
use crate::memory::cpu_hint::{self, LINE_BYTES};

/// Largest length in bytes of a read that covers several records.
pub(super) const JOINED_BYTES_MAX: u64 = 64 << 10;
/// Largest gap in bytes between two records of one read.
pub(super) const BRIDGED_BYTES_MAX: u64 = 16 << 10;
/// The batch prefetches at most this number of bytes of a record before it works on the records of
/// a finished read. Most records are shorter.
const FETCHED_OF_RECORD_MAX: usize = 1024;
/// The prefetch of a finished read stops after this many bytes, so that a group of reads fits the
/// second-level cache.
const FETCHED_OF_READ_MAX: usize = 8192;

/// Limits for joining the reads of neighbouring records, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joins {
    /// Largest length of one read.
    pub(super) joined_bytes_max: u64,
    /// Largest gap between two records of one read.
    pub(super) bridged_bytes_max: u64,
}

/// One read: its first address in the log, and the searches that need its records.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    /// Index in `Reading::pending` of the read's first search.
    first: u32,
    count: u32,
}

/// The stream of reads of a batch.
pub(super) struct Reading<'s, 'a, W, const VARIABLE: bool> {
    pub(super) batch: &'s mut Batch<'a, W, VARIABLE>,
    /// The searches of the stream, sorted by address at the start. An entry changes as its search
    /// continues.
    pending: &'s mut [Pending],
    demand: &'s mut Demand,
    joins: Joins,
    /// Block size of the device in bytes.
    block_bytes: u64,
    /// True if a read of the stream includes bytes between two requested records.
    bridged: bool,
    /// Number of entries of `pending` whose first read has begun.
    begun: usize,
    /// Indices in `pending` of the searches that need a further read.
    again: Vec<u32>,
    /// The reads that have begun; the index is the read's number.
    spans: Vec<Span>,
}

impl<'s, 'a, W: Work, const VARIABLE: bool> Reading<'s, 'a, W, VARIABLE> {
    pub(super) fn new(
        batch: &'s mut Batch<'a, W, VARIABLE>,
        pending: &'s mut [Pending],
        demand: &'s mut Demand,
        joins: Joins,
    ) -> Self {
        let again = Vec::new();
        let spans = Vec::new();
        let block_bytes = batch.core.log.device.block_bytes() as u64;
        Reading {
            batch,
            pending,
            demand,
            joins,
            block_bytes,
            bridged: false,
            begun: 0,
            again,
            spans,
        }
    }

    /// True if a read of the stream includes bytes between two requested records.
    pub(super) fn has_bridged(&self) -> bool {
        self.bridged
    }

    /// Returns the start and end in the log of the blocks that hold the record of a search.
    fn blocks(&self, pending: &Pending) -> (u64, u64) {
        let page_bytes = self.batch.core.log.page_bytes();
        let block = self.block_bytes;
        let address = pending.address.raw();
        // A record never crosses the end of its page, so the read ends there at the latest.
        let page_end = (address / page_bytes + 1) * page_bytes;
        let end = (address + pending.bytes as u64).next_multiple_of(block).min(page_end);
        (address / block * block, end)
    }

    fn record(&mut self, i: usize, span: Span, bytes: &[u8]) -> Result<()> {
        let Reading { batch, pending, demand, again, .. } = self;
        let pending = &mut pending[i];
        let address = pending.address;
        let place = (address.raw() - span.start) as usize;
        let image = match batch.check(pending, &bytes[place..]) {
            Ok(Some(image)) => image,
            Ok(None) => {
                again.push(i as u32);
                return Ok(());
            }
            // Compaction has moved the row and has then given back this part of the log. The batch
            // searches for the key again.
            Err(_) if address.raw() < batch.core.log.begin() => {
                pending.done = true;
                batch.scratch.redo.push(pending.i);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let superseded = match batch.follow(pending, image)? {
            Found::Row => {
                let superseded = batch.use_row(pending, image, Old::OnDisk)?;
                pending.done = true;
                superseded
            }
            Found::Missing => {
                batch.use_missing(pending)?;
                pending.done = true;
                false
            }
            Found::Further => {
                let mut cached = std::mem::take(&mut batch.scratch.cached);
                if batch.served(pending, &mut cached, demand)? {
                    pending.done = true;
                } else {
                    again.push(i as u32);
                }
                batch.scratch.cached = cached;
                false
            }
        };
        if !superseded && W::FILLS_CACHE {
            batch.core.cache.insert(address, image.bytes(), demand);
        }
        Ok(())
    }
}

impl<W: Work, const VARIABLE: bool> ReadStream for Reading<'_, '_, W, VARIABLE> {
    fn priority(&self) -> Priority {
        if W::AHEAD { Priority::Background } else { Priority::Foreground }
    }

    fn next(&mut self) -> Option<(u64, usize)> {
        // Only first reads are joined, because they come in order of address. A search that
        // continues may lead anywhere in the log.
        let (first, in_order) = match self.again.pop() {
            Some(i) => (i as usize, false),
            None if self.begun < self.pending.len() && !self.batch.owes_wait => {
                self.begun += 1;
                (self.begun - 1, true)
            }
            None => return None,
        };
        let (start, mut end) = self.blocks(&self.pending[first]);
        let mut count = 1;
        while in_order && self.begun < self.pending.len() {
            let (next_start, next_end) = self.blocks(&self.pending[self.begun]);
            let page_bytes = self.batch.core.log.page_bytes();
            let joins = next_start <= end + self.joins.bridged_bytes_max
                && next_start / page_bytes == start / page_bytes
                && next_end.max(end) - start <= self.joins.joined_bytes_max;
            if !joins {
                break;
            }
            self.bridged |= next_start > end;
            end = end.max(next_end);
            count += 1;
            self.begun += 1;
        }
        self.spans.push(Span { start, first: first as u32, count: count as u32 });
        let tally = &mut self.batch.tally;
        tally.disk_reads += 1;
        tally.disk_reads_joined += count as u64 - 1;
        tally.disk_read_bytes += end - start;
        Some((start, (end - start) as usize))
    }

    fn arrived(&mut self, number: u64, bytes: &[u8]) {
        let span = self.spans[number as usize];
        let index = self.batch.core.index.outline();
        let mut fetched = 0;
        for pending in &self.pending[span.first as usize..][..span.count as usize] {
            let place = (pending.address.raw() - span.start) as usize;
            let end = bytes.len().min(place + pending.bytes.min(FETCHED_OF_RECORD_MAX));
            if fetched < FETCHED_OF_READ_MAX {
                for line in (place / LINE_BYTES * LINE_BYTES..end).step_by(LINE_BYTES) {
                    cpu_hint::line(&raw const bytes[line]);
                }
                fetched += end - place;
            }
            // Prefetches the key's bucket, which `publish` will lock.
            if W::APPENDS {
                index.prefetch(pending.hash);
            }
        }
    }

    fn done(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        let span = self.spans[number as usize];
        for i in span.first..span.first + span.count {
            self.record(i as usize, span, bytes)?;
        }
        Ok(())
    }
}
