use proptest::prelude::*;

use super::*;

/// A row with the state of one optimizer.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    vector: Vec<f32>,
    state: Vec<f32>,
    scalars: Vec<f32>,
    step: u32,
}

impl Row {
    fn new(optimizer: &Optimizer, vector: &[f32]) -> Self {
        let shape = optimizer.state_shape();
        let accumulator = optimizer.initial_accumulator();
        let mut state = vec![0.0; shape.vectors * vector.len()];
        let accumulators = state.len().min(vector.len());
        state[..accumulators].fill(accumulator);
        Self { vector: vector.to_vec(), state, scalars: vec![accumulator; shape.scalars], step: 0 }
    }

    fn next(&mut self) -> RowState<'_> {
        self.step += 1;
        let Self { vector, state, scalars, step } = self;
        RowState { vector, state, scalars, step: *step }
    }

    fn bits(&self) -> Vec<u32> {
        let values = self.vector.iter().chain(&self.state).chain(&self.scalars);
        values.map(|value| value.to_bits()).collect()
    }
}

/// Returns every kind of optimizer, with and without each feature that has its own code path.
fn optimizers() -> Vec<Optimizer> {
    let momentum = Sgd { momentum: 0.9, ..Sgd::new(0.1) };
    let adam = Adam { betas: (0.8, 0.99), ..Adam::new(0.01) };
    [
        Optimizer::sgd(0.1),
        Optimizer::Sgd(Sgd { weight_decay: 0.01, ..Sgd::new(0.1) }),
        Optimizer::Sgd(momentum),
        Optimizer::Sgd(Sgd { dampening: 0.3, weight_decay: 0.01, ..momentum }),
        Optimizer::Sgd(Sgd { nesterov: true, weight_decay: 0.01, ..momentum }),
        Optimizer::adagrad(0.1),
        Optimizer::Adagrad(Adagrad {
            lr_decay: 0.1,
            weight_decay: 0.01,
            initial_accumulator: 0.2,
            ..Adagrad::new(0.1)
        }),
        Optimizer::row_wise_adagrad(0.1),
        Optimizer::adam(0.01),
        Optimizer::Adam(Adam { weight_decay: 0.01, ..adam }),
        Optimizer::Adam(Adam { betas: (0.3, 0.5), ..adam }),
        Optimizer::AdamW(AdamW { weight_decay: 0.1, ..AdamW::new(0.01) }),
        Optimizer::ftrl(0.1),
        Optimizer::Ftrl(Ftrl {
            beta: 1.0,
            l1: 0.5,
            l2: 0.1,
            initial_accumulator: 0.0,
            ..Ftrl::new(0.1)
        }),
    ]
    .into_iter()
    .chain(without_eps())
    .collect()
}

/// Returns optimizers that divide by a sum. Their `eps` is 0 or nearly 0, combined with zero and
/// other values of each number that may be 0.
fn without_eps() -> Vec<Optimizer> {
    let mut found = Vec::new();
    // The last two are not zero in f64, but zero or subnormal in f32.
    for eps in [0.0, 1e-300, 1e-45] {
        for weight_decay in [0.0, 0.01] {
            for lr_decay in [0.0, 0.1] {
                let adagrad = Adagrad { eps, weight_decay, lr_decay, ..Adagrad::new(0.1) };
                found.push(Optimizer::Adagrad(adagrad));
            }
            let row_wise = RowWiseAdagrad { eps, weight_decay, ..RowWiseAdagrad::new(0.1) };
            found.push(Optimizer::RowWiseAdagrad(row_wise));
            // With the last pair, the second moment fades before the first.
            for betas in [(0.9, 0.999), (0.0, 0.0), (0.999, 0.1)] {
                found.push(Optimizer::Adam(Adam { eps, weight_decay, betas, ..Adam::new(0.01) }));
                found.push(Optimizer::AdamW(AdamW {
                    eps,
                    weight_decay,
                    betas,
                    ..AdamW::new(0.01)
                }));
            }
        }
        for (lr, l1) in [(0.1, 0.0), (0.1, 0.5), (1e-30, 0.0)] {
            let nothing = Ftrl { initial_accumulator: 0.0, l1, l2: eps, ..Ftrl::new(lr) };
            found.push(Optimizer::Ftrl(nothing));
            found.push(Optimizer::Ftrl(Ftrl { beta: eps, l2: 0.0, ..nothing }));
        }
    }
    found
}

fn values(count: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(-4.0_f32..4.0, count)
}

/// Returns gradients. Some are zero, and some have squares that are too small for f32.
fn gradients(count: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![6 => -4.0_f32..4.0, 2 => Just(0.0), 1 => -1e-22_f32..1e-22];
    prop::collection::vec(value, count)
}

proptest! {
    /// Shows that the vectorised steps equal the plain loops in every bit. The rows fill whole
    /// vector registers, a part of a register, or both.
    #[test]
    fn steps_equal_the_plain_loops_in_every_bit(
        start in values(19),
        gradients in prop::collection::vec(gradients(19), 1..12),
        dim in 1_usize..=19,
    ) {
        for optimizer in optimizers() {
            let stepper = Stepper::new(&optimizer);
            let mut found = Row::new(&optimizer, &start[..dim]);
            let mut unvectorised = found.clone();
            let mut expected = found.clone();
            for gradient in &gradients {
                stepper.take(pulp::Arch::new(), found.next(), &gradient[..dim]);
                stepper.take(pulp::Arch::Scalar, unvectorised.next(), &gradient[..dim]);
                reference::step(&optimizer, expected.next(), &gradient[..dim]);
            }
            if let Optimizer::RowWiseAdagrad(_) = optimizer {
                // The plain loop adds the squares in another order, so the bits may differ.
                for (found, expected) in found.vector.iter().zip(&expected.vector) {
                    prop_assert!((found - expected).abs() <= 1e-6 * (1.0 + expected.abs()));
                }
                expected = found.clone();
            }
            prop_assert_eq!(found.bits(), expected.bits(), "{:?}", optimizer);
            prop_assert_eq!(found.bits(), unvectorised.bits(), "{:?}", optimizer);
        }
    }
}

#[test]
fn gradients_of_zero_leave_new_rows_finite() {
    for optimizer in optimizers() {
        let mut row = Row::new(&optimizer, &[1.5; 9]);
        let stepper = Stepper::new(&optimizer);
        for _ in 0..3 {
            stepper.take(pulp::Arch::new(), row.next(), &[0.0; 9]);
        }
        assert!(row.vector.iter().all(|value| value.is_finite()), "{optimizer:?}");
        if let Optimizer::Adagrad(Adagrad { weight_decay: 0.0, .. })
        | Optimizer::RowWiseAdagrad(RowWiseAdagrad { weight_decay: 0.0, .. })
        | Optimizer::Adam(Adam { weight_decay: 0.0, .. }) = optimizer
        {
            assert_eq!(row.vector, [1.5; 9], "{optimizer:?}");
        }
    }
}

/// Shows that no step divides by zero if `eps` is 0. Rows stay finite in every code path, wherever
/// zero gradients occur.
#[test]
fn without_eps_gradients_of_zero_make_no_nan() {
    let sequences: [&[f32]; 6] = [
        &[0.0; 4],
        &[0.0, 1.0, 0.0, 0.0],
        &[1.0, 0.0, 0.0, 0.0],
        // The squares of these gradients are 0 in f32.
        &[1e-30, 0.0, -1e-25, 1e-30],
        &[2e-23, 0.0, 2e-23, 0.0],
        &[0.0, 1e-30, 0.5, 0.0],
    ];
    for optimizer in without_eps() {
        let stepper = Stepper::new(&optimizer);
        for sequence in sequences {
            for start in [0.0, 1.5, -0.3] {
                let mut rows = [(); 3].map(|()| Row::new(&optimizer, &[start; 9]));
                let [vectorised, scalar, plain] = &mut rows;
                for &g in sequence {
                    // Nine values: a whole register and a single value.
                    let gradient = [g; 9];
                    stepper.take(pulp::Arch::new(), vectorised.next(), &gradient);
                    stepper.take(pulp::Arch::Scalar, scalar.next(), &gradient);
                    reference::step(&optimizer, plain.next(), &gradient);
                }
                for row in &rows {
                    let all = row.vector.iter().chain(&row.state).chain(&row.scalars);
                    let what = format!("{optimizer:?}, {start} after {sequence:?}: {row:?}");
                    assert!(all.clone().all(|value| value.is_finite()), "{what}");
                    // No step is much longer than the learning rate allows.
                    assert!(row.vector.iter().all(|value| value.abs() < 1e3), "{what}");
                }
            }
        }
    }
}

/// Shows that a value with a second moment of 0 does not move if `eps` is 0, because the step has
/// no scale.
#[test]
fn without_eps_a_second_moment_of_zero_moves_nothing() {
    let adam = Optimizer::Adam(Adam { betas: (0.999, 0.1), eps: 0.0, ..Adam::new(0.01) });
    let stepper = Stepper::new(&adam);
    let mut row = Row::new(&adam, &[1.0; 9]);
    row.state[..9].fill(1.0);
    stepper.take(pulp::Arch::new(), row.next(), &[0.0; 9]);
    assert_eq!(row.vector, [1.0; 9]);
    assert!(row.state[0] > 0.9, "the moments go on as ever");
}

/// Shows that FTRL keeps a row that never had a gradient. Without penalties, the formula would
/// divide by zero.
#[test]
fn ftrl_without_any_gradient_keeps_the_row() {
    let ftrl = Optimizer::Ftrl(Ftrl { initial_accumulator: 0.0, ..Ftrl::new(0.1) });
    let mut row = Row::new(&ftrl, &[1.5]);
    Stepper::new(&ftrl).take(pulp::Arch::new(), row.next(), &[0.0]);
    assert_eq!(row.vector, [1.5]);
}

/// Shows that a step with a learning rate of 0, as at the start of a warm-up, changes nothing. The
/// formula would divide by the rate.
#[test]
fn ftrl_at_a_rate_of_zero_changes_nothing() {
    let ftrl = Optimizer::Ftrl(Ftrl::new(0.0));
    ftrl.check().unwrap();
    let mut row = Row::new(&ftrl, &[1.5]);
    let state = row.state.clone();
    Stepper::new(&ftrl).take(pulp::Arch::new(), row.next(), &[3.0]);
    assert_eq!((row.vector, row.state), (vec![1.5], state));
    assert!(Optimizer::Ftrl(Ftrl::new(1e-40)).check().is_err());
}

#[test]
fn ftrl_makes_rows_sparse() {
    let ftrl = Optimizer::Ftrl(Ftrl { l1: 1.0, ..Ftrl::new(0.1) });
    let mut row = Row::new(&ftrl, &[0.0, 0.0]);
    Stepper::new(&ftrl).take(pulp::Arch::new(), row.next(), &[0.9, 1.1]);
    assert_eq!(row.vector[0], 0.0);
    assert!(row.vector[1] < 0.0);
}

/// Compares with torch 2.11.0 on a CPU: three steps in single precision. The parameter held 8
/// copies of these values, so torch used its vector loops. The last bits may differ because of
/// torch's square root.
#[test]
fn torch_agrees() {
    let start = [1.0, -2.0, 0.5, 0.1, 3.0];
    let gradients =
        [[0.1, -0.3, 0.7, 1e-3, 2.0], [-0.2, 0.25, 0.7, 5.0, -1e-4], [1.0, -0.5, 1e-3, -2.0, 0.3]];
    for (optimizer, expected) in torch_results() {
        let stepper = Stepper::new(&optimizer);
        let mut row = Row::new(&optimizer, &start);
        for gradient in &gradients {
            stepper.take(pulp::Arch::new(), row.next(), gradient);
        }
        let has_root = !matches!(optimizer, Optimizer::Sgd(_));
        for (found, expected) in row.vector.iter().zip(expected.map(f32::from_bits)) {
            let apart = (found - expected).abs();
            let most = if has_root { 1.2e-7 * expected.abs() + 3e-9 } else { 0.0 };
            assert!(apart <= most, "{optimizer:?}: {found} for {expected}");
        }
    }
}

fn torch_results() -> [(Optimizer, [u32; 5]); 9] {
    let momentum = Sgd { momentum: 0.9, weight_decay: 0.01, ..Sgd::new(0.05) };
    [
        (Optimizer::sgd(0.05), [0x3f74_7ae1, 0xbffc_7ae2, 0x3edc_2268, 0xbd4d_013a, 0x4038_a3ec]),
        (
            Optimizer::Sgd(Sgd { dampening: 0.3, ..momentum }),
            [0x3f76_5edd, 0xbffa_1497, 0x3eb7_01ca, 0xbe26_b7f3, 0x402d_89bd],
        ),
        (
            Optimizer::Sgd(Sgd { nesterov: true, ..momentum }),
            [0x3f69_3031, 0xbff6_a177, 0x3e90_db43, 0xbec6_7676, 0x4027_6d9c],
        ),
        (
            Optimizer::adagrad(0.05),
            [0x3f72_283b, 0xbff8_a73e, 0x3ed4_45af, 0x3c98_1f26, 0x403c_5352],
        ),
        (
            Optimizer::Adagrad(Adagrad {
                lr_decay: 0.1,
                weight_decay: 0.01,
                initial_accumulator: 0.2,
                ..Adagrad::new(0.05)
            }),
            [0x3f77_d11b, 0xbffb_0497, 0x3edb_4504, 0x3d8f_310d, 0x403c_6a94],
        ),
        (Optimizer::adam(0.05), [0x3f70_b238, 0xbff6_0454, 0x3eb8_fe9e, 0xbb06_8030, 0x4038_b6a1]),
        (
            Optimizer::Adam(Adam { betas: (0.8, 0.99), weight_decay: 0.01, ..Adam::new(0.05) }),
            [0x3f6f_c2fa, 0xbff5_8580, 0x3eba_28fa, 0xbb1c_0d78, 0x4038_ea05],
        ),
        (
            Optimizer::Adam(Adam { betas: (0.3, 0.5), ..Adam::new(0.05) }),
            [0x3f71_6e67, 0xbff7_8c0b, 0x3ec1_c9bb, 0x3c0f_557e, 0x403a_1eff],
        ),
        (
            Optimizer::AdamW(AdamW { weight_decay: 0.1, ..AdamW::new(0.05) }),
            [0x3f6c_fac7, 0xbff2_42da, 0x3eb5_8ea0, 0xbb3b_6f20, 0x4035_e3f3],
        ),
    ]
}
