//! FTRL (follow the regularised leader), with L1 and L2 penalties.

use super::lanes::{each_value, quotient_or_zero, saturated};
use super::numbers::{check_learning_rate, check_not_negative};
use super::state::RowState;

/// FTRL-proximal (McMahan et al., "Ad click prediction: a view from the trenches", 2013, algorithm
/// 1). The state has two numbers per value: the sum of squares `n` and the leader's gradient `z`.
///
/// ```text
/// sigma = (sqrt(n + g^2) - sqrt(n)) / lr
/// z += g - sigma * row
/// n += g^2
/// row = 0 where |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2)
/// ```
///
/// Equals `tf.keras.optimizers.Ftrl` with `learning_rate_power=-0.5`, if this `l2` is twice
/// `l2_regularization_strength`. The first step replaces the row's initial values by values of the
/// formula, so use [`Initializer::Zeros`](crate::Initializer::Zeros).
///
/// # Examples
/// ```
/// use embank::{Ftrl, Initializer, Optimizer, TableConfig};
///
/// let ftrl = Ftrl { l1: 1.0, beta: 1.0, ..Ftrl::new(0.1) };
/// let config = TableConfig::new(1).optimizer(Optimizer::Ftrl(ftrl)).initializer(Initializer::Zeros);
/// assert_eq!(config.value_bytes(), 16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ftrl {
    /// Learning rate, alpha in the paper. With 0, as at the start of a warm-up, a step changes
    /// neither row nor state.
    pub lr: f64,
    /// Added to the root of the sum of squares, which makes the first steps smaller. Default: 0.
    /// The paper suggests 1.
    pub beta: f64,
    /// L1 penalty: makes rows sparse. Default: 0.
    pub l1: f64,
    /// L2 penalty. Default: 0.
    pub l2: f64,
    /// Initial value of a new row's sums of squares. Default: 0.1, as in Keras; the paper uses 0.
    /// It can't change after the table is created.
    pub initial_accumulator: f32,
}

impl Ftrl {
    /// Makes an FTRL with Keras' defaults and this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Self { lr, beta: 0.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.1 }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_learning_rate(self.lr)?;
        // A step divides by the rate unless it is 0, so the reciprocal must be finite.
        if self.lr != 0.0 && !(1.0 / self.lr as f32).is_finite() {
            return Err(format!(
                "FTRL's learning rate must be 0 or at least 3e-39, the smallest rate that f32 can divide by, found {}",
                self.lr
            ));
        }
        check_not_negative("beta", self.beta)?;
        check_not_negative("l1", self.l1)?;
        check_not_negative("l2", self.l2)?;
        check_not_negative("the initial accumulator", f64::from(self.initial_accumulator))
    }

    pub(super) fn stepper(&self) -> FtrlStep {
        FtrlStep {
            lr: self.lr as f32,
            beta: self.beta as f32,
            l1: self.l1 as f32,
            l2: self.l2 as f32,
        }
    }
}

#[derive(Debug)]
pub(crate) struct FtrlStep {
    lr: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

impl FtrlStep {
    #[inline(always)]
    pub(super) fn take(&self, row: RowState<'_>, gradient: &[f32]) {
        let Self { lr, beta, l1, l2 } = *self;
        if lr == 0.0 {
            return;
        }
        let (sums, leaders) = row.state.split_at_mut(gradient.len());
        each_value(row.vector, [sums, leaders], gradient, |value, [sum, leader], g| {
            let square = saturated(g * g);
            let next = saturated(sum + square);
            let root = sum.sqrt();
            let next_root = next.sqrt();
            // sigma is the difference of the roots, computed without cancellation. The plain
            // difference would lose its digits for a large sum.
            let roots = root + next_root;
            let sigma = quotient_or_zero(square, roots * lr);
            let leader = (-sigma).mul_add(value, leader + g);
            let strength = (beta + next_root) / lr + l2;
            let excess = leader - leader.clamp(-l1, l1);
            // The strength is 0 if all gradients so far had squares too small for f32. The row then
            // does not move.
            let new = if strength < f32::MIN_POSITIVE { value } else { -excess / strength };
            (new, [next, leader])
        });
    }
}
