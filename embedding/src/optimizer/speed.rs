//! Measures the time of a step, compared with the plain loops of `reference.rs`: docs/testing.md,
//! "Optimizers".

use std::hint::black_box;
use std::time::Instant;

use super::*;

const DIMS: [usize; 3] = [16, 64, 128];
/// Rows that take steps in turn, so no step waits for the previous one. All rows fit the
/// first-level cache.
const ROWS: usize = 8;
const STEPS: u32 = 200;
/// Number of short runs. The measurement takes the fastest run, because other programs disturb the
/// machine.
const RUNS: usize = 400;

/// Returns the nanoseconds that `take` needs per row.
fn best_ns(optimizer: &Optimizer, dim: usize, take: impl Fn(RowState<'_>, &[f32])) -> f64 {
    let shape = optimizer.state_shape();
    let mut vectors = vec![0.5_f32; ROWS * dim];
    let mut states = vec![0.1_f32; ROWS * shape.vectors * dim];
    let mut scalars = vec![0.1_f32; ROWS * shape.scalars];
    let gradient: Vec<f32> = (0..dim).map(|i| (i as f32 * 0.7).sin() * 0.1).collect();
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        for step in 1..=STEPS {
            for row in 0..ROWS {
                let state_values = shape.vectors * dim;
                let row = RowState {
                    vector: &mut vectors[row * dim..][..dim],
                    state: &mut states[row * state_values..][..state_values],
                    scalars: &mut scalars[row * shape.scalars..][..shape.scalars],
                    step,
                };
                take(black_box(row), black_box(&gradient));
            }
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(STEPS) / ROWS as f64;
        best = best.min(ns);
    }
    best
}

#[test]
#[ignore = "a measurement, for a release build"]
fn ns_a_row() {
    let arch = pulp::Arch::new();
    println!("{arch:?}, best of {RUNS} runs");
    println!(
        "{:<18} {:>5} {:>10} {:>12} {:>8}",
        "optimizer", "dim", "ns a row", "plain loops", "ratio"
    );
    for optimizer in [
        Optimizer::sgd(0.01),
        Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::new(0.01) }),
        Optimizer::adagrad(0.01),
        Optimizer::row_wise_adagrad(0.01),
        Optimizer::adam(0.001),
        Optimizer::ftrl(0.01),
    ] {
        let stepper = Stepper::new(&optimizer);
        for dim in DIMS {
            let vectorised = best_ns(&optimizer, dim, |row, gradient| {
                stepper.take(arch, row, gradient);
            });
            let plain = best_ns(&optimizer, dim, |row, gradient| {
                reference::step(&optimizer, row, gradient);
            });
            let name = match optimizer {
                Optimizer::Sgd(sgd) if sgd.momentum != 0.0 => "SGD with momentum",
                _ => optimizer.name(),
            };
            let ratio = plain / vectorised;
            println!("{name:<18} {dim:>5} {vectorised:>10.1} {plain:>12.1} {ratio:>8.1}");
            assert!(ratio > 1.0, "{name} of dim {dim} is slower than the plain loops");
        }
    }
}
