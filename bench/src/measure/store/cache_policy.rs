//! `cache-policy`: the share of peeks that the read cache serves, compared with an ideal cache and
//! with LRU, CLOCK, S3-FIFO and SIEVE.
//!
//! The rows of the store take several times its memory. A trace of keys peeks at them: Zipf with
//! three exponents, a hotspot, and a hotspot before and after a scan over all rows. Simple policies
//! run through the same trace. Each has room for the number of records that fit into the store's
//! memory without its index, buffers and other overhead. If the store finds a row in the frames of
//! its log, the row counts as served from memory.
//!
//! Estimate, written before measuring: the store is within 3 points of the ideal at Zipf 0.99 and
//! 1.2, and 5 to 10 points above LRU at 0.8 and 0.99. After a scan the hotspot is still in the
//! store's memory, while LRU has lost it.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use embank_kv::mechanisms::turn_off;

use crate::ground::content::{KeyStream, scattered};
use crate::ground::index_loop::record_bytes;
use crate::ground::kv_contenders::KvRows;
use crate::ground::policies::{Clock, Ideal, Lru, Policy, S3Fifo, Sieve};
use crate::ground::report::{Output, Row, print_provenance};
use crate::measure::store::in_memory::scratch_in;
use crate::measure::store::mechanisms::Case;

const BATCH_KEYS: usize = 4096;

/// Options of `cache-policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Columns (f32) of a row
    #[arg(long, default_value_t = 16)]
    dim: usize,
    /// Memory for rows, as a part of all rows
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.25")]
    share: Vec<f64>,
    /// Peeks of each trace; the second half counts
    #[arg(long, default_value_t = 4_000_000)]
    peeks: usize,
    /// Turn these mechanisms of the store off: names as in `kv/src/testing/mechanisms.rs`, joined
    /// by +
    #[arg(long, value_name = "NAME+NAME")]
    without: Option<String>,
    /// Seed of the traces
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the store; it is removed at the end
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// The requested keys. Requests from index `counted_from` on count.
struct Trace {
    name: String,
    keys: Vec<u64>,
    counted_from: usize,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if options conflict, the store fails, or an answer is wrong.
pub(crate) fn run(args: Args) -> Result<()> {
    ensure!(args.rows > 0 && args.dim > 0 && args.peeks > 1, "sizes must be positive");
    ensure!(args.share.iter().all(|share| (0.01..1.0).contains(share)), "--share is a part of 1");
    if let Some(names) = &args.without {
        turn_off(&Case::without(names)?.off);
    }
    print_provenance();
    let mut figures = Vec::new();
    for trace in traces(&args) {
        for &share in &args.share {
            measure(&args, share, &trace, &mut figures)?;
        }
    }
    args.output.publish("Cache policy", &figures)
}

fn traces(args: &Args) -> Vec<Trace> {
    let counted_from = args.peeks / 2;
    let mut traces: Vec<Trace> = [0.8, 0.99, 1.2]
        .into_iter()
        .map(|theta| {
            let keys = zipf(args, theta, args.peeks);
            Trace { name: format!("Zipf {theta}"), keys, counted_from }
        })
        .collect();
    let hotspot = |seed, count| hotspot(args.rows, seed, count);
    traces.push(Trace {
        name: "hotspot".into(),
        keys: hotspot(args.seed, args.peeks),
        counted_from,
    });
    let mut keys = hotspot(args.seed, args.peeks);
    keys.extend(0..args.rows);
    let counted_from = keys.len();
    // Few requests follow the scan. A policy that lost the hotspot in the scan can't load much of
    // it again within them.
    keys.extend(hotspot(args.seed + 1, (args.rows / 8) as usize));
    traces.push(Trace { name: "hotspot after a scan".into(), keys, counted_from });
    traces
}

/// Draws keys from a Zipf distribution, by its cumulative sums. This works for any exponent.
fn zipf(args: &Args, theta: f64, count: usize) -> Vec<u64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=args.rows)
        .map(|rank| {
            sum += (rank as f64).powf(-theta);
            sum
        })
        .collect();
    let mut random = KeyStream::new(args.seed, 0, 1, args.rows);
    (0..count)
        .map(|_| {
            let uniform = random.below(1 << 53) as f64 / (1_u64 << 53) as f64;
            let rank = sums.partition_point(|&below| below <= uniform * sum) as u64;
            scattered(rank.min(args.rows - 1), args.rows)
        })
        .collect()
}

/// Draws keys from `0..rows`. Nine of ten requests go to a twentieth of the keys, the hotspot.
fn hotspot(rows: u64, seed: u64, count: usize) -> Vec<u64> {
    let mut random = KeyStream::new(seed, 0, 1, rows);
    (0..count)
        .map(|_| {
            let end = if random.below(10) < 9 { (rows / 20).max(1) } else { rows };
            scattered(random.below(end), rows)
        })
        .collect()
}

fn measure(args: &Args, share: f64, trace: &Trace, figures: &mut Vec<Row>) -> Result<()> {
    let record = record_bytes(args.dim * size_of::<f32>());
    let for_rows = (args.rows * record as u64) as f64 * share;
    // The budget covers the rows' records, 15 bytes of index for each row, and a tenth more for
    // read and write buffers.
    let budget_bytes = ((for_rows + args.rows as f64 * 15.0) * 1.1) as u64;
    let scratch = scratch_in(&args.directory)?;
    let kv = KvRows::load(&scratch.path().join("kv"), args.rows, args.dim, budget_bytes)?;
    kv.store.checkpoint(&[])?;
    let loaded = kv.store.stats();
    let peek = |keys: &[u64]| {
        let mut rows = vec![0.0; BATCH_KEYS * args.dim];
        keys.chunks(BATCH_KEYS)
            .try_for_each(|keys| kv.peek(keys, &mut rows[..keys.len() * args.dim]))
    };
    peek(&trace.keys[..trace.counted_from])?;
    let before = kv.store.stats();
    let counted = &trace.keys[trace.counted_from..];
    peek(counted)?;
    let after = kv.store.stats();
    ensure!(after.records_appended == loaded.records_appended, "a peek has written");
    ensure!(after.disk_write_bytes == loaded.disk_write_bytes, "a peek has written");
    let missed = (after.hits_disk - before.hits_disk) as f64 / counted.len() as f64;

    let label = format!("{}, memory for {share}", trace.name);
    let memory = after.memory_frames_bytes + after.memory_cache_bytes;
    let capacity = (memory / record as u64) as usize;
    let store = Row::count(format!("{label}: store"), "hits/peek", 1.0 - missed);
    let mut policies: [Box<dyn Policy>; 5] = [
        Box::new(Ideal::new(args.rows, capacity, counted)),
        Box::new(Lru::new(capacity)),
        Box::new(Clock::new(capacity)),
        Box::new(S3Fifo::new(capacity)),
        Box::new(Sieve::new(capacity)),
    ];
    let mut rows: Vec<Row> = policies
        .iter_mut()
        .map(|policy| {
            for &key in &trace.keys[..trace.counted_from] {
                policy.ask(key);
            }
            let hits = counted.iter().filter(|&&key| policy.ask(key)).count();
            let name = format!("{label}: {}", policy.name());
            Row::count(name, "hits/peek", hits as f64 / counted.len() as f64)
        })
        .collect();
    figures.push(store.beside(&rows[0]));
    figures.append(&mut rows);
    let cache = after.memory_cache_bytes as f64 / memory as f64;
    figures.push(Row::count(format!("{label}: the cache's part of the memory"), "of 1", cache));
    Ok(())
}
