//! Benchmarks of a table's operations in memory, in batches, over row lengths, value types and
//! optimizers.
//!
//! ```sh
//! cargo bench --package embank-bench --bench tables              # six minutes
//! cargo bench --package embank-bench --bench tables -- 'peek/'   # one operation
//! ```
//!
//! `embank-bench in-memory` runs these operations and bare loops over the same memory by turns, and
//! compares them. Here each operation runs alone, so a change in the speed of one operation is
//! visible.
//!
//! Estimates, written before measuring, for a row of 16 f32. A peek takes 25 ns; the copy takes 2
//! ns of them. A get with its release takes 80 ns, because a clock moves up and down. A put takes
//! 60 ns. Half floats take 5 ns more for each row that is read or written, int8 10 ns more, for the
//! row's scale. A gradient takes as long as a get, plus 10 ns for its sum in a sorted batch, plus
//! the time to move the optimizer's state at 5 GB/s.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use embank::{Bank, BankOptions, Dtype, Missing, Optimizer, Table, TableConfig};
use tempfile::TempDir;

const ROWS: u64 = 50_000;
/// Keys of a batch.
const BATCH: usize = 4096;
/// Number of different batches. With 32 batches, the rows of a batch have left the processor's
/// cache before the batch is used again.
const BATCHES: usize = 32;
const DIMS: [usize; 2] = [16, 128];
/// Memory budget, more than the rows and states of any table here need.
const MEMORY_BUDGET_BYTES: u64 = 256 << 20;

/// A table whose rows are all in memory, with batches of uniform keys.
struct Rows {
    table: Table,
    batches: Vec<Vec<u64>>,
    next: usize,
    values: Vec<f32>,
    _bank: Bank,
    _folder: TempDir,
}

impl Rows {
    fn new(dim: usize, config: TableConfig) -> Self {
        let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let folder = tempfile::tempdir_in(parent).expect("a folder in target");
        let options =
            BankOptions { memory_budget_bytes: MEMORY_BUDGET_BYTES, ..BankOptions::default() };
        let bank = Bank::open(folder.path().join("bank"), options).expect("a bank");
        let table = bank.table("rows", config).expect("a table");
        let mut random = fastrand::Rng::with_seed(1);
        let batches: Vec<Vec<u64>> =
            (0..BATCHES).map(|_| (0..BATCH).map(|_| random.u64(..ROWS)).collect()).collect();
        let mut values = vec![0.0; BATCH * dim];
        // Inserts each row, reads it back and checks that it is the row that was put.
        for batch in &batches {
            let mut wanted = vec![0.0; BATCH * dim];
            table.initial(batch, &mut wanted).expect("initial rows");
            table.put(batch, &wanted).expect("a put in memory");
            table.peek(batch, &mut values, Missing::Error).expect("every row is there");
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.02 * a.abs().max(0.01);
            assert!(wanted.iter().zip(&values).all(near), "a row came back as another");
        }
        Self { table, batches, next: 0, values, _bank: bank, _folder: folder }
    }

    /// Returns the table, the keys of the next batch, and a buffer for the batch's rows.
    fn turn(&mut self) -> (&Table, &[u64], &mut [f32]) {
        self.next = (self.next + 1) % BATCHES;
        (&self.table, &self.batches[self.next], &mut self.values)
    }
}

fn peek((table, keys, values): (&Table, &[u64], &mut [f32])) {
    black_box(table.peek(keys, values, Missing::Error).expect("every row is there"));
}

fn get_and_release((table, keys, values): (&Table, &[u64], &mut [f32])) {
    table.get(keys, values).and_then(embank::Lease::release).expect("no one else has a lease");
}

fn put((table, keys, values): (&Table, &[u64], &mut [f32])) {
    table.put(keys, values).expect("a put in memory");
}

fn gradients((table, keys, values): (&Table, &[u64], &mut [f32])) {
    values.fill(1e-3);
    table.apply_gradients(keys, values).expect("finite gradients");
}

type Operation = fn((&Table, &[u64], &mut [f32]));

/// Measures every operation over row lengths and value types.
fn value_types(criterion: &mut Criterion) {
    let operations: [(&str, Operation); 4] = [
        ("peek", peek),
        ("get and release", get_and_release),
        ("put", put),
        ("gradients, sgd", gradients),
    ];
    for dim in DIMS {
        for &dtype in Dtype::ALL {
            let config = TableConfig::new(dim as u32).dtype(dtype).optimizer(Optimizer::sgd(1e-3));
            let mut rows = Rows::new(dim, config);
            for (name, operation) in operations {
                measure(
                    criterion,
                    name,
                    &format!("{dim} x {}", dtype.name()),
                    &mut rows,
                    operation,
                );
            }
        }
    }
}

/// Measures gradients with every optimizer. Each optimizer has its own kernel and its own state.
fn optimizers(criterion: &mut Criterion) {
    for dim in DIMS {
        for optimizer in [
            Optimizer::adagrad(1e-3),
            Optimizer::row_wise_adagrad(1e-3),
            Optimizer::adam(1e-3),
            Optimizer::adamw(1e-3),
            Optimizer::ftrl(1e-3),
        ] {
            let name = format!("gradients, {}", optimizer.name());
            let mut rows = Rows::new(dim, TableConfig::new(dim as u32).optimizer(optimizer));
            measure(criterion, &name, &format!("{dim} x f32"), &mut rows, gradients);
        }
    }
}

fn measure(
    criterion: &mut Criterion,
    name: &str,
    row: &str,
    rows: &mut Rows,
    operation: Operation,
) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(BenchmarkId::from_parameter(row), |bencher| {
        bencher.iter(|| operation(rows.turn()));
    });
    group.finish();
}

criterion_group! {
    name = tables;
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .sample_size(30);
    targets = value_types, optimizers
}
criterion_main!(tables);
