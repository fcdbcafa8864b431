//! The machine's limits for the requests of `serving`, without a store: gathers from memory and
//! bursts of reads from the drive.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Kind;
use super::percentiles::{Percentiles, histogram};
use crate::ground::content::KeyStream;
use crate::ground::device_limit::{DriveFile, Load};
use crate::ground::gather::{Gather, Ground};
use crate::ground::report::Row;
use crate::ground::rounds::Contender;

/// Largest size of the drive's file.
const DRIVE_BYTES_MAX: u64 = 2 << 30;
/// Bytes of a read. A row lies in one block of this size, or in two.
const READ_BYTES: u64 = 4096;

/// The memory and the drive to measure, and their figures so far.
#[derive(Debug)]
pub(super) struct Limits<'a> {
    gathers: Vec<(Kind, Gather<'a>, KeyStream, Percentiles)>,
    reads: Vec<(Load, Percentiles)>,
    drive: Option<DriveFile>,
    rounds: u64,
}

impl<'a> Limits<'a> {
    /// Prepares the limits for each kind of request. In memory, a gather reads from rows of `dim`
    /// columns that fill `ground`, as many rows at once as the request has keys. On the drive, the
    /// same number of simultaneous reads goes to a file in `directory`. If the drive can't be
    /// measured, this prints a message, and the drive's figures are left out.
    pub(super) fn new(
        ground: &'a Ground,
        kinds: &[(Kind, KeyStream)],
        dim: usize,
        directory: &Path,
    ) -> Self {
        let row_bytes = dim * size_of::<f32>();
        let rows = (ground.bytes().len() / row_bytes) as u64;
        let drive_bytes = (ground.bytes().len() as u64).min(DRIVE_BYTES_MAX);
        let drive = match DriveFile::filled(&directory.join("drive"), drive_bytes) {
            Ok(drive) => Some(drive),
            Err(refused) => {
                eprintln!("the drive's own latency is left out: {refused:#}");
                None
            }
        };
        let gather = |(kind, keys): &(Kind, KeyStream)| {
            let gather = Gather::tuned(ground, rows, row_bytes, kind.keys);
            (*kind, gather, keys.clone(), Percentiles::default())
        };
        let mut depths: Vec<u32> = kinds.iter().map(|(kind, _)| kind.keys as u32).collect();
        depths.sort_unstable();
        depths.dedup();
        let read = |depth| Load {
            random: true,
            write: false,
            request_bytes: READ_BYTES,
            depth,
            threads: 1,
        };
        Self {
            gathers: kinds.iter().map(gather).collect(),
            reads: depths.into_iter().map(|depth| (read(depth), Percentiles::default())).collect(),
            drive,
            rounds: 0,
        }
    }

    /// Measures each kind for about `duration`.
    ///
    /// # Errors
    /// Fails if an answer is wrong or a read fails.
    pub(super) fn round(&mut self, dim: usize, duration: Duration) -> Result<()> {
        for (kind, gather, keys, percentiles) in &mut self.gathers {
            let mut rows = vec![0.0; kind.keys * dim];
            let mut took = histogram()?;
            let began = Instant::now();
            while took.is_empty() || began.elapsed() < duration {
                let keys = keys.draw(kind.keys);
                rows.fill(0.0);
                let nanoseconds = gather.batch(&keys, &mut rows)?.as_nanos() as u64;
                took.record(nanoseconds).context("a gather of years")?;
                for (&key, row) in keys.iter().zip(rows.chunks_exact(dim)) {
                    gather.check(key, row)?;
                }
            }
            percentiles.note(&took);
        }
        self.rounds += 1;
        for (load, percentiles) in &mut self.reads {
            let Some(drive) = &self.drive else { break };
            percentiles.note(&drive.bursts(*load, duration, self.rounds)?);
        }
        Ok(())
    }

    /// The figures, of memory and of the drive.
    ///
    /// # Panics
    /// Fails if no round was measured.
    pub(super) fn figures(&self) -> Vec<Row> {
        let gathers = self.gathers.iter();
        let mut figures: Vec<Row> = gathers
            .flat_map(|(kind, .., percentiles)| percentiles.figures(&format!("gather: {kind}")))
            .collect();
        let reads = self.reads.iter().filter(|_| self.drive.is_some());
        figures.extend(reads.flat_map(|(load, took)| took.figures(&reads_name(load.depth))));
        figures
    }

    /// Returns the figures that peeks of this kind are compared with. They are the drive's figures
    /// if `drive` is set and the drive was measured, otherwise the gather's.
    ///
    /// # Panics
    /// Fails if no round was measured.
    pub(super) fn beside(&self, kind: Kind, drive: bool) -> Vec<Row> {
        let (load, read) = &self.reads[self.place_of_reads(kind)];
        if drive && self.drive.is_some() {
            return read.figures(&reads_name(load.depth));
        }
        let found = self.gathers.iter().find(|(gathered, ..)| *gathered == kind);
        found.map_or(Vec::new(), |(kind, .., took)| took.figures(&format!("gather: {kind}")))
    }

    fn place_of_reads(&self, kind: Kind) -> usize {
        let found = self.reads.iter().position(|(load, _)| load.depth == kind.keys as u32);
        found.expect("each kind has its reads")
    }
}

fn reads_name(depth: u32) -> String {
    match depth {
        1 => "the drive: a random read of 4 KiB".to_owned(),
        _ => format!("the drive: {depth} random reads of 4 KiB at once"),
    }
}
