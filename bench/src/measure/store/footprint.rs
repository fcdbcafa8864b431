//! `footprint`: the index memory of a row, and the bytes written to disk for each row that is
//! loaded or updated.
//!
//! The store's budget holds its index and a quarter of its log. The program loads all rows and
//! takes a checkpoint. Then it updates rows in uniform batches and after that in Zipf batches: a
//! get, then a put of the negated row. It takes a checkpoint after the uniform and after the Zipf
//! batches.
//!
//! Estimate, written before measuring. A bucket of the index has seven entries in 64 bytes and is
//! filled to 0.6 to 0.65. So the index takes 14 to 15 bytes for each row, with any number of rows.
//! A row of 8 bytes has a record of 40 bytes. Loading writes each record once: 40 bytes, and a page
//! header for each 16,000 records. An update in a uniform batch writes a new record of 40 bytes,
//! because the row's page is already on disk. A second update of a row rarely needs another record.
//! That gives 38 to 40 bytes for each update. Under Zipf most updated rows are in mutable memory
//! already: 10 to 15 bytes for each update.

use anyhow::{Result, ensure};
use embank_kv::{Clock, StoreStats};

use crate::ground::content::{self, KeyStream, Popularity};
use crate::ground::index_loop::record_bytes;
use crate::ground::kv_contenders::KvRows;
use crate::ground::loading::bar;
use crate::ground::options::{Common, Skew};
use crate::ground::report::{Row, print_provenance};
use crate::measure::store::in_memory::scratch_in;

/// Keys of a batch.
const BATCH_KEYS: usize = 4096;
/// Largest number of rows that are checked at the end.
const CHECKED_ROWS_MAX: usize = 1 << 20;

/// Options of `footprint`.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --quick, within a minute: 1 and 10 million rows, 200,000 updates")]
pub(crate) struct Args {
    /// Numbers of rows, each measured by itself
    #[arg(long, value_delimiter = ',', default_value = "10000000,100000000")]
    rows: Vec<u64>,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 2)]
    dim: usize,
    /// Largest number of updates of each phase; a quarter of the rows if that is less
    #[arg(long, default_value_t = 2_000_000)]
    updates: u64,
    #[command(flatten)]
    skew: Skew,
    #[command(flatten)]
    common: Common,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the store fails, or an answer is wrong.
pub(crate) fn run(mut args: Args) -> Result<()> {
    ensure!(args.dim > 0 && args.rows.iter().all(|&rows| rows > 0), "sizes must be positive");
    ensure!((0.0..1.0).contains(&args.skew.zipf), "--zipf must be at least 0 and below 1");
    if args.common.quick {
        args.rows = vec![1_000_000, 10_000_000];
        args.updates = args.updates.min(200_000);
    }
    print_provenance();
    let mut figures = Vec::new();
    for &rows in &args.rows {
        footprint(&args, rows, &mut figures)?;
    }
    args.common.output.publish("Footprint", &figures)
}

fn footprint(args: &Args, rows: u64, figures: &mut Vec<Row>) -> Result<()> {
    let directory = scratch_in(&args.common.directory)?;
    let row_bytes = args.dim * size_of::<f32>();
    let record = record_bytes(row_bytes);
    let budget_bytes = rows * 16 + rows * record as u64 / 4 + (64 << 20);
    let kv = KvRows::load(&directory.path().join("kv"), rows, args.dim, budget_bytes)?;
    kv.store.checkpoint(&[])?;
    let label = format!("{rows} rows of {row_bytes} B");
    let mut push = |what: &str, unit, value| {
        figures.push(Row::count(format!("{label}: {what}"), unit, value));
    };
    let loaded = kv.store.stats();
    push("index memory", "bytes/row", loaded.memory_index_bytes as f64 / rows as f64);
    push("written to load", "bytes/row", loaded.disk_write_bytes as f64 / rows as f64);
    let mut before = loaded;
    for popularity in [Popularity::Uniform, Popularity::Zipf(args.skew.zipf)] {
        let updates = update(args, &kv, popularity)?;
        kv.store.checkpoint(&[])?;
        let after = kv.store.stats();
        let written = (after.disk_write_bytes - before.disk_write_bytes) as f64;
        push(&format!("written, {popularity}"), "bytes/update", written / updates as f64);
        push(
            &format!("read, {popularity}"),
            "disk reads/update",
            (after.disk_reads - before.disk_reads) as f64 / updates as f64,
        );
        before = after;
    }
    let resident = |stats: &StoreStats| {
        stats.memory_frames_bytes + stats.memory_index_bytes + stats.memory_buffers_bytes
    };
    push("memory in use", "of the budget", resident(&before) as f64 / budget_bytes as f64);
    let mut stream = KeyStream::new(args.common.seed ^ 7, 0, 1, rows);
    let checked = CHECKED_ROWS_MAX.min(rows as usize);
    let mut values = vec![0.0; BATCH_KEYS * args.dim];
    for _ in 0..checked.div_ceil(BATCH_KEYS) {
        let keys = stream.draw(BATCH_KEYS);
        kv.peek(&keys, &mut values)?;
        check(&keys, &values, args.dim)?;
    }
    Ok(())
}

/// Gets rows, puts the negated rows, and returns the number of updates.
fn update(args: &Args, kv: &KvRows, popularity: Popularity) -> Result<u64> {
    let updates = args.updates.min(kv.rows / 4).max(1);
    let batches = updates.div_ceil(BATCH_KEYS as u64);
    let mut stream = KeyStream::of(popularity, args.common.seed, kv.rows);
    let mut values = vec![0.0; BATCH_KEYS * args.dim];
    let progress = bar("updating", batches);
    for _ in 0..batches {
        let keys = stream.draw(BATCH_KEYS);
        kv.read(&keys, Clock::Keep, &mut values)?;
        check(&keys, &values, args.dim)?;
        values.iter_mut().for_each(|cell| *cell = -*cell);
        kv.write(&keys, Clock::Keep, &values)?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(batches * BATCH_KEYS as u64)
}

fn check(keys: &[u64], values: &[f32], dim: usize) -> Result<()> {
    for (&key, row) in keys.iter().zip(values.chunks_exact(dim)) {
        content::sign(key, row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_stays_within_the_limits_that_are_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("rows.json");
        let args = Args {
            rows: vec![100_000],
            dim: 2,
            updates: 10_000,
            skew: Skew { zipf: 0.99 },
            common: Common::of_test(2, directory.path()),
        };
        run(args).unwrap();
        let text = std::fs::read_to_string(json).unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(rows[0]["name"], "100000 rows of 8 B: index memory");
        assert!(rows[0]["value"].as_f64().unwrap() <= 16.0, "{}", rows[0]);
        assert!(rows[1]["value"].as_f64().unwrap() < 48.0, "{}", rows[1]);
    }
}
