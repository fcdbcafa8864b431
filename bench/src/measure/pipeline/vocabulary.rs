//! `pipeline vocabulary`: a bank's vocabulary of byte strings that is larger than memory, compared
//! with one that fits.
//!
//! The strings have 8 to 24 bytes, 16 on average, and are all different. They are inserted in
//! batches, looked up with uniform and Zipf popularity, looked up by id, and verified. Every answer
//! is checked: value `i` has id `i`. A second vocabulary with a tenth of the values then runs under
//! the same budget. It runs last, so that the process's peak of resident memory belongs to the
//! large vocabulary.
//!
//! Estimate, written before measuring, for two cores and a budget of 40 bytes for each value.
//! Building inserts 1 million values/s in memory, and half of that while pages are written to disk.
//! In memory, 3 million values/s are looked up. If three of four strings are on disk, a look-up is
//! as fast as the drive reads: 0.3 to 0.5 million values/s uniform, 1 million Zipf.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use embank::{Bank, BankOptions, ByteBuffer, OwnedValues, Vocabulary, VocabularyConfig};

use crate::ground::content::{KeyStream, Popularity};
use crate::ground::report::{Output, Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::in_memory::scratch_in;

/// Values of a batch.
const BATCH_VALUES: usize = 1 << 16;
/// Largest number of values that are looked up by each kind of look-up.
const LOOKED_UP_MAX: u64 = 10_000_000;

/// Options of `vocabulary`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Values of the vocabulary
    #[arg(long, default_value_t = 100_000_000)]
    values: u64,
    /// The bank's memory budget in MiB
    #[arg(long, default_value_t = 4096)]
    budget_mib: u64,
    /// Exponent of the Zipf distribution, below 1
    #[arg(long, default_value_t = 0.99)]
    zipf: f64,
    /// Seed of the look-ups
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the banks, on the drive to measure
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// A rough answer within a minute: 2 million values, 82 MiB
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// Runs the subcommand.
pub(super) fn run(mut args: Args) -> Result<()> {
    if args.quick {
        (args.values, args.budget_mib) = (args.values.min(2_000_000), args.budget_mib.min(82));
    }
    ensure!(args.values >= 100, "--values must be at least 100");
    ensure!((0.0..1.0).contains(&args.zipf), "--zipf must be at least 0 and below 1");
    print_provenance();
    let mut figures = Vec::new();
    let large = measure(&args, args.values)?;
    let peak = peak_resident_bytes()?;
    let small = measure(&args, args.values / 10)?;
    for (large, small) in large.rates.into_iter().zip(&small.rates) {
        figures.push(large.beside(small));
    }
    figures.extend(small.rates);
    let budget = Row::count("memory: the budget", "MiB", args.budget_mib as f64);
    let peak = Row::count("memory: peak resident, all of the process", "MiB", mib(peak));
    figures.push(peak.beside(&budget));
    let bytes_a_value = large.disk_bytes as f64 / args.values as f64;
    figures.push(Row::count(
        format!("{}: on disk", values(args.values)),
        "MiB",
        mib(large.disk_bytes),
    ));
    figures.push(Row::count(
        format!("{}: on disk", each(args.values)),
        "bytes/value",
        bytes_a_value,
    ));
    args.output.publish("Pipeline, a vocabulary larger than memory", &figures)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn values(count: u64) -> String {
    format!("{count} values")
}

fn each(count: u64) -> String {
    format!("{count} values, each")
}

struct Measured {
    rates: Vec<Row>,
    disk_bytes: u64,
}

/// Appends string `i`. Its first eight bytes are a one-to-one function of `i`, so all strings
/// differ.
fn push_value(i: u64, batch: &mut ByteBuffer) {
    let mut x = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 32;
    let mut bytes = [b'x'; 24];
    bytes[..8].copy_from_slice(&x.to_le_bytes());
    batch.push(&bytes[..8 + (x % 17) as usize]);
}

fn measure(args: &Args, count: u64) -> Result<Measured> {
    let folder = scratch_in(&args.directory)?;
    let path = folder.path().join("bank");
    let memory_budget_bytes = args.budget_mib << 20;
    let bank = Bank::open(&path, BankOptions { memory_budget_bytes, ..BankOptions::default() })?;
    let vocabulary = bank.vocabulary("value", VocabularyConfig::bytes())?;
    let mut rates = Vec::new();
    let mut push = |what: String, done: u64, seconds: f64| {
        println!("{count} values, {what}: {:.3} million/s", done as f64 / seconds * 1e-6);
        let rate = done as f64 / seconds;
        let spread = Spread { median: rate, min: rate, max: rate };
        rates.push(Row::of(format!("{}: {what}", values(count)), "million values/s", spread, 1e-6));
    };
    push("build".to_owned(), count, build(&vocabulary, count)?);
    let started = Instant::now();
    bank.checkpoint(b"built")?;
    println!("{count} values, checkpoint: {:.1} s", started.elapsed().as_secs_f64());
    let wanted = count.min(LOOKED_UP_MAX);
    for popularity in [Popularity::Uniform, Popularity::Zipf(args.zipf)] {
        let mut stream = KeyStream::of(popularity, args.seed, count);
        let seconds = look_up(&vocabulary, &mut stream, wanted)?;
        push(format!("look up, {popularity}"), wanted, seconds);
        let mut stream = KeyStream::of(popularity, args.seed ^ 9, count);
        let seconds = reverse(&vocabulary, &mut stream, wanted)?;
        push(format!("reverse, {popularity}"), wanted, seconds);
    }
    let started = Instant::now();
    let whole = vocabulary.verify()?;
    ensure!(whole.values == count, "{} values were verified, not {count}", whole.values);
    push("verify".to_owned(), count, started.elapsed().as_secs_f64());
    let disk_bytes = bytes_below(&path)?;
    Ok(Measured { rates, disk_bytes })
}

/// Inserts all values. Returns the seconds of the inserts alone, without the time to make and check
/// the values.
fn build(vocabulary: &Vocabulary, count: u64) -> Result<f64> {
    let (mut batch, mut ids, mut seconds) = (ByteBuffer::default(), Vec::new(), 0.0);
    let mut first = 0;
    while first < count {
        let end = count.min(first + BATCH_VALUES as u64);
        batch.clear();
        (first..end).for_each(|i| push_value(i, &mut batch));
        ids.resize(batch.len(), 0);
        let started = Instant::now();
        vocabulary.ids_or_insert(&batch, &mut ids)?;
        seconds += started.elapsed().as_secs_f64();
        ensure!(
            ids.iter().copied().eq(first..end),
            "ids from {first} on are not those of their values"
        );
        first = end;
    }
    Ok(seconds)
}

fn look_up(vocabulary: &Vocabulary, stream: &mut KeyStream, wanted: u64) -> Result<f64> {
    let (mut batch, mut ids, mut seconds) = (ByteBuffer::default(), Vec::new(), 0.0);
    let mut done = 0;
    while done < wanted {
        let expected = stream.draw(BATCH_VALUES.min((wanted - done) as usize));
        batch.clear();
        expected.iter().for_each(|&i| push_value(i, &mut batch));
        ids.resize(batch.len(), 0);
        let started = Instant::now();
        let unknown = vocabulary.ids(&batch, &mut ids)?;
        seconds += started.elapsed().as_secs_f64();
        ensure!(unknown.is_empty() && ids == expected, "a value was given another id");
        done += expected.len() as u64;
    }
    Ok(seconds)
}

fn reverse(vocabulary: &Vocabulary, stream: &mut KeyStream, wanted: u64) -> Result<f64> {
    let (mut batch, mut seconds, mut done) = (ByteBuffer::default(), 0.0, 0);
    while done < wanted {
        let ids = stream.draw(BATCH_VALUES.min((wanted - done) as usize));
        batch.clear();
        ids.iter().for_each(|&i| push_value(i, &mut batch));
        let started = Instant::now();
        let found = vocabulary.values(&ids)?;
        seconds += started.elapsed().as_secs_f64();
        let OwnedValues::Bytes(found) = found else { unreachable!("it has byte strings") };
        ensure!(found == batch, "an id was given another value");
        done += ids.len() as u64;
    }
    Ok(seconds)
}

/// Returns the peak of this process's resident memory so far, as the kernel counts it.
fn peak_resident_bytes() -> Result<u64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM there")?;
    Ok(kib.parse::<u64>()? << 10)
}

fn bytes_below(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        // Counts the blocks that a file has on the drive. Its length would be too much: a segment's
        // file is as long as the segment from the start, and may have holes.
        bytes +=
            if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_checks_out() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("rows.json");
        let args = Args {
            values: 50_000,
            budget_mib: 2,
            zipf: 0.99,
            seed: 3,
            directory: directory.path().to_owned(),
            quick: false,
            output: Output { json: Some(json.clone()), ..Output::default() },
        };
        run(args).unwrap();
        let text = std::fs::read_to_string(json).unwrap();
        assert!(text.contains("50000 values: verify") && text.contains("5000 values: build"));
    }
}
