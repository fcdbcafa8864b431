//! `cache`: epochs over pictures whose arrays are kept in memory or on disk.
//!
//! The pictures are JPEGs of 500 x 375 pixels at quality 90, in files that the page cache has. The
//! pipeline makes arrays of 224 x 224. Each round has a new pipeline and measures: an epoch without
//! a cache, the first and the second epoch with a cache of all arrays, the first epoch with a
//! spool, and the first epoch of another pipeline on that spool. The arrays of all epochs have one
//! checksum. A last pipeline with half the budget must have half of the arrays, to one chunk.
//!
//! Estimate, written before measuring: a picture takes 2 ms of a core. From memory it takes the
//! reading of the file, 30 us, its hash, 5 us, and the copy of 150 KiB, 15 us: 40 times less. From
//! the spool it is read and checksummed too, 60 us more. Keeping an array costs 40 us, 2%, and
//! spooling it 100 us in another thread.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use embank_pipeline::{ArrayReport, Batch, Input, Pipeline, RunOptions, SpoolOptions};

use super::images;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;

/// Bytes of an array's entry in the cache.
const ENTRY_BYTES: u64 = 64;
/// Rows of a chunk: those of 1 MiB of arrays.
const CHUNK_ROWS: u64 = (1 << 20) / images::ARRAY_BYTES as u64;

/// An epoch: its pictures a second, the checksum of its arrays, and where these came from.
struct Epoch {
    rate: f64,
    checksum: u32,
    arrays: ArrayReport,
}

/// The pictures on disk.
struct Pictures<'a> {
    root: &'a Path,
    list: &'a str,
    threads: usize,
}

impl Pictures<'_> {
    fn pipeline(&self, cache_bytes: u64, spool: Option<&Path>) -> Result<Pipeline> {
        let options = RunOptions {
            threads: self.threads,
            root: Some(self.root.to_owned()),
            cache_bytes,
            spool: spool.map(|folder| SpoolOptions::new(folder, u64::MAX)),
            ..RunOptions::default()
        };
        Ok(Pipeline::new(&images::spec(), &options)?)
    }

    fn epoch(&self, pipeline: &mut Pipeline) -> Result<Epoch> {
        let mut checksum = 0;
        let input = Input::memory("pictures", self.list.as_bytes());
        let started = Instant::now();
        let report = pipeline.run(&[input], &mut |batch: &mut Batch| {
            let arrays = batch.u8(0).expect("the output has bytes");
            checksum = crc32c::crc32c_append(checksum, arrays);
            Ok(())
        })?;
        let rate = report.rows as f64 / started.elapsed().as_secs_f64();
        Ok(Epoch { rate, checksum, arrays: report.arrays })
    }
}

/// Runs `cache`.
pub(super) fn run(mut args: images::Args) -> Result<()> {
    args.settle()?;
    ensure!(args.pictures > 1, "half of the pictures must be one at least");
    print_provenance();
    let root = tempfile::tempdir()?;
    let list = images::write_different(root.path(), args.pictures)?;
    let pictures = Pictures { root: root.path(), list: &list, threads: args.threads };
    let all = args.pictures as u64;

    let mut rates: [Vec<f64>; 5] = Default::default();
    let mut checksums = Vec::new();
    for _ in 0..args.rounds {
        let spool = tempfile::tempdir()?;
        let plain = pictures.epoch(&mut pictures.pipeline(0, None)?)?;
        let mut cached = pictures.pipeline(u64::MAX, None)?;
        let first = pictures.epoch(&mut cached)?;
        let second = pictures.epoch(&mut cached)?;
        ensure!(second.arrays.cached == all, "not all arrays came from memory");
        let spooling = pictures.epoch(&mut pictures.pipeline(0, Some(spool.path()))?)?;
        let spooled = pictures.epoch(&mut pictures.pipeline(0, Some(spool.path()))?)?;
        ensure!(spooled.arrays.spooled == all, "not all arrays came from the spool");
        for (rates, epoch) in rates.iter_mut().zip([&plain, &first, &second, &spooling, &spooled]) {
            rates.push(epoch.rate);
            checksums.push(epoch.checksum);
        }
    }
    ensure!(checksums.iter().all(|sum| *sum == checksums[0]), "the arrays of epochs differ");
    println!("checked: the arrays of {} epochs are equal", checksums.len());
    let half = all / 2;
    let mut pipeline =
        pictures.pipeline(half * (images::ARRAY_BYTES as u64 + ENTRY_BYTES), None)?;
    pictures.epoch(&mut pipeline)?;
    let hits = pictures.epoch(&mut pipeline)?.arrays.cached;
    ensure!(hits.abs_diff(half) <= CHUNK_ROWS, "{hits} arrays were cached, not {half}");
    println!("checked: a budget of {half} arrays gave {hits} hits");

    let [plain, first, second, spooling, spooled] = rates;
    let rate = |name: &str, rates| Row::of(name, "pictures/s", Spread::of(rates), 1.0);
    let plain = rate("without a cache", plain);
    let rows = [
        rate("first epoch with a cache", first).beside(&plain),
        rate("second epoch with a cache", second).beside(&plain),
        rate("first epoch with a spool", spooling).beside(&plain),
        rate("first epoch of another pipeline on the spool", spooled).beside(&plain),
        plain,
    ];
    args.output.publish("pipeline cache", &rows)
}
