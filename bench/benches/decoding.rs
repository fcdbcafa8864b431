//! Benchmarks of decoding text, and of looking values up in a vocabulary of a bank.
//!
//! ```sh
//! cargo bench --package embank-bench --bench decoding            # half a minute
//! ```
//!
//! `embank-bench pipeline` compares whole pipelines with their peers, over more rows than a cache
//! holds. `embank-bench pipeline vocabulary` measures a vocabulary larger than memory.
//!
//! Estimates, written before measuring: a row of the Criteo format has 230 bytes. Decoding it takes
//! 45 ns with AVX-512, 100 ns with AVX2 and 400 ns without vector instructions. Its operators take
//! 30 ns more. Looking a value up takes 100 ns, of which hashing takes 5 ns. A value that the
//! vocabulary does not have takes as long as one that it has.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use embank::{Bank, BankOptions, ByteBuffer, VocabularyConfig};
use embank_pipeline::{Batch, Format, Input, Level, Pipeline, RunOptions, Spec};
use fastrand::Rng;

/// Rows of the text. The text has 0.5 MiB, so the second-level cache holds it.
const ROWS: u64 = 2_000;
const MODULUS: u32 = 5_000;
/// Number of values in the vocabulary.
const VALUES: u64 = 100_000;
/// Number of values that one look-up call gets.
const BATCH: usize = 4096;

/// Makes the rows of the text. Each has a label, 13 whole numbers and 26 hexadecimal categories,
/// with tabs between them.
fn criteo_rows() -> String {
    let (mut random, mut text) = (Rng::with_seed(1), String::new());
    for _ in 0..ROWS {
        text += if random.bool() { "1" } else { "0" };
        for _ in 0..13 {
            write!(text, "\t{}", random.u32(..2_000)).expect("a string grows");
        }
        for _ in 0..26 {
            write!(text, "\t{:08x}", random.u32(..)).expect("a string grows");
        }
        text.push('\n');
    }
    text
}

fn rows(criterion: &mut Criterion) {
    let text = criteo_rows();
    let mut group = criterion.benchmark_group("decode rows of text");
    group.throughput(Throughput::Bytes(text.len() as u64));
    for level in Level::available() {
        let options =
            RunOptions { threads: 1, level, format: Format::TSV, ..RunOptions::default() };
        group.bench_function(BenchmarkId::from_parameter(format!("{level:?}")), |bencher| {
            let mut pipeline =
                Pipeline::new(&Spec::criteo(MODULUS), &options).expect("Criteo's pipeline");
            bencher.iter(|| {
                let input = [Input::memory("rows", text.as_bytes())];
                let report = pipeline.run(&input, &mut |batch: &mut Batch| {
                    black_box(batch);
                    Ok(())
                });
                assert_eq!(report.expect("no row is bad").rows, ROWS);
            });
        });
    }
    group.finish();
}

/// Makes one value of 8 to 24 bytes from each number. The first eight bytes are the number.
fn batch_of(numbers: impl Iterator<Item = u64>) -> ByteBuffer {
    let mut batch = ByteBuffer::default();
    for number in numbers {
        let mut bytes = [b'x'; 24];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        batch.push(&bytes[..8 + (number % 17) as usize]);
    }
    batch
}

fn vocabulary(criterion: &mut Criterion) {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let folder = tempfile::tempdir_in(parent).expect("a folder in target");
    let options = BankOptions { memory_budget_bytes: 64 << 20, ..BankOptions::default() };
    let bank = Bank::open(folder.path().join("bank"), options).expect("a bank");
    let words = bank.vocabulary("words", VocabularyConfig::bytes()).expect("a vocabulary");
    let mut ids = vec![0; VALUES as usize];
    words.ids_or_insert(&batch_of(0..VALUES), &mut ids).expect("room for the values");
    ids.truncate(BATCH);
    let mut random = Rng::with_seed(1);
    let mut group = criterion.benchmark_group("vocabulary of bytes");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, first, unknown) in [("known", 0, 0), ("unknown", VALUES, BATCH)] {
        let numbers: Vec<u64> = (0..BATCH).map(|_| first + random.u64(..VALUES)).collect();
        let batch = batch_of(numbers.iter().copied());
        group.bench_function(BenchmarkId::new("ids", name), |bencher| {
            bencher.iter(|| {
                let missing = words.ids(&batch, &mut ids).expect("a bank that works");
                assert_eq!(missing.len(), unknown);
            });
        });
        assert!(unknown > 0 || ids == numbers, "a value has another id");
    }
    let numbers: Vec<u64> = (0..BATCH).map(|_| random.u64(..VALUES)).collect();
    group.bench_function("values of ids", |bencher| {
        bencher.iter(|| black_box(words.values(&numbers).expect("each id has a value")));
    });
    group.finish();
}

criterion_group! {
    name = decoding;
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .sample_size(30);
    targets = rows, vocabulary
}
criterion_main!(decoding);
