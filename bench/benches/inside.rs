//! Benchmarks of the store's inner parts, each alone.
//!
//! ```sh
//! cargo bench --package embank-bench              # a minute
//! cargo bench --package embank-bench -- --quick   # a rough answer in seconds
//! ```
//!
//! Estimates, written before measuring. Hashing a key and probing its bucket take 3 ns if the
//! bucket is in the cache; matching the seven tags takes 1 ns of them. If the buckets are in
//! memory, a key takes 15 to 20 ns, because the misses of several keys overlap. Moving a clock up
//! and down is two locked instructions, 12 ns. Appending a record of 96 bytes takes 10 ns. The
//! image of a page is made at 3 GB/s (a copy and two checksums). A burst of 128 direct reads takes
//! 1 ms on a drive with 130,000 reads a second.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use embank_kv::bench::{Clock, FirstPage, Probing};
use embank_kv::device::{self, AlignedBuffer, DeviceChoice, DeviceOptions, MemoryDevice, Read};

/// Keys of a group, the number that the store probes at a time.
const GROUP: usize = 32;
const PAGE_BITS: u32 = 20;
const VALUE_BYTES: usize = 64;

/// Draws `count` pseudo-random keys below `below`.
fn keys(count: usize, below: u64) -> Vec<u64> {
    (1..=count as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % below).collect()
}

fn index(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index");
    group.throughput(Throughput::Elements(GROUP as u64));
    for (name, entries) in [("tag match, in cache", 512), ("hash and probe, 4M entries", 4 << 20)] {
        let probing = Probing::new(entries).expect("memory for an index");
        let keys = keys(1 << 20, entries);
        let mut groups = keys.chunks_exact(GROUP).cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let found = probing.probe(groups.next().expect("a cycle does not end"));
                assert_eq!(found, GROUP, "every key is there");
            });
        });
    }
    group.finish();
}

fn clock(criterion: &mut Criterion) {
    let word = Clock::default();
    criterion.bench_function("clock word, up and down", |bencher| {
        bencher.iter(|| black_box(&word).up_and_down());
    });
    assert_eq!(word.outstanding(), 0, "what went up came down");
}

fn log(criterion: &mut Criterion) {
    let memory = || {
        let options = DeviceOptions { segment_size_bytes: 1 << 28, ..DeviceOptions::default() };
        Arc::new(MemoryDevice::new(&options).expect("a device in memory"))
    };
    let page = || FirstPage::new(memory(), PAGE_BITS, VALUE_BYTES).expect("memory for a log");
    let records = page().fill();
    let mut group = criterion.benchmark_group("log");
    group.throughput(Throughput::Elements(records));
    group.bench_function("append a page of 64-byte rows", |bencher| {
        bencher.iter_batched(
            page,
            |mut page| assert_eq!(page.fill(), records),
            BatchSize::PerIteration,
        );
    });
    group.throughput(Throughput::Bytes(1 << PAGE_BITS));
    let mut filled = page();
    assert_eq!(filled.fill(), records);
    let mut image = AlignedBuffer::zeroed(1 << PAGE_BITS);
    group.bench_function("flush a page to memory", |bencher| {
        bencher.iter(|| filled.flush(&mut image).expect("memory takes it"));
    });
    group.finish();
}

fn drive(criterion: &mut Criterion) {
    const FILE_BYTES: u64 = 64 << 20;
    const READS: usize = 128;
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let directory = tempfile::tempdir_in(parent).expect("a directory in target");
    let device = device::open(directory.path(), DeviceChoice::Auto, &DeviceOptions::default())
        .expect("a device");
    let mut block = AlignedBuffer::zeroed(1 << 20);
    for offset in (0..FILE_BYTES).step_by(1 << 20) {
        block.fill((offset >> 20) as u8);
        device.write(offset, &block).expect("the drive takes it");
    }
    let mut buffer = AlignedBuffer::zeroed(READS * 4096);
    let places = keys(1 << 16, FILE_BYTES / 4096);
    let mut bursts = places.chunks_exact(READS).cycle();
    let mut group = criterion.benchmark_group("device");
    group.throughput(Throughput::Elements(READS as u64));
    group.bench_function(
        format!("burst of {READS} reads of 4 KiB, {}", device.name()),
        |bencher| {
            bencher.iter(|| {
                let burst = bursts.next().expect("a cycle does not end");
                let mut reads: Vec<Read<'_>> = burst
                    .iter()
                    .zip(buffer.chunks_exact_mut(4096))
                    .map(|(place, buffer)| Read { offset: place * 4096, buffer })
                    .collect();
                device.read_many(&mut reads).expect("the drive reads");
                assert_eq!(
                    u64::from(reads[0].buffer[0]),
                    (burst[0] * 4096) >> 20,
                    "the block asked for"
                );
            });
        },
    );
    group.finish();
}

criterion_group! {
    name = inside;
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .sample_size(30);
    targets = index, clock, log, drive
}
criterion_main!(inside);
