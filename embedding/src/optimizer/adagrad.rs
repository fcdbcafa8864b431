//! Adagrad, with one accumulator per value or per row.

use super::lanes::{each_value, quotient_or_zero, saturated, sum_of_squares};
use super::numbers::{check_learning_rate, check_not_negative};
use super::state::RowState;

/// `torch.optim.Adagrad`. A row has one accumulator per value, and a count of steps if the learning
/// rate decays.
///
/// ```text
/// g += weight_decay * row
/// sum += g^2
/// row -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum) + eps)
/// ```
///
/// # Examples
/// ```
/// use embank::{Adagrad, Optimizer};
///
/// let adagrad = Adagrad { initial_accumulator: 0.1, ..Adagrad::new(0.05) };
/// assert_eq!(adagrad.eps, 1e-10);
/// assert_eq!(Optimizer::Adagrad(adagrad).with_learning_rate(0.1).learning_rate(), Some(0.1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adagrad {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the learning rate with the row's number of steps. Default: 0. Whether it is 0 can't
    /// change after the table is created.
    pub lr_decay: f64,
    /// L2 penalty: the row times this number is added to the gradient. Default: 0.
    pub weight_decay: f64,
    /// Initial value of a new row's accumulators. Default: 0. It can't change after the table is
    /// created.
    pub initial_accumulator: f32,
    /// Added to the root to avoid division by zero. Default: 1e-10. May be 0: then a value whose
    /// sum is 0 does not move.
    pub eps: f64,
}

impl Adagrad {
    /// Makes an Adagrad with torch's defaults and this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Self { lr, lr_decay: 0.0, weight_decay: 0.0, initial_accumulator: 0.0, eps: 1e-10 }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_learning_rate(self.lr)?;
        check_not_negative("lr_decay", self.lr_decay)?;
        check_not_negative("weight_decay", self.weight_decay)?;
        check_not_negative("the initial accumulator", f64::from(self.initial_accumulator))?;
        check_not_negative("eps", self.eps)
    }

    pub(super) fn stepper(&self) -> AdagradStep {
        AdagradStep {
            lr: self.lr,
            lr_decay: self.lr_decay,
            weight_decay: self.weight_decay as f32,
            eps: self.eps as f32,
        }
    }
}

#[derive(Debug)]
pub(crate) struct AdagradStep {
    lr: f64,
    lr_decay: f64,
    weight_decay: f32,
    eps: f32,
}

impl AdagradStep {
    #[inline(always)]
    pub(super) fn take(&self, row: RowState<'_>, gradient: &[f32]) {
        let Self { weight_decay, eps, .. } = *self;
        // A row counts its steps only if the rate decays.
        let lr = if self.lr_decay == 0.0 {
            self.lr as f32
        } else {
            (self.lr / (1.0 + f64::from(row.step - 1) * self.lr_decay)) as f32
        };
        each_value(row.vector, [row.state], gradient, |value, [sum], g| {
            let g = value.mul_add(weight_decay, g);
            let sum = saturated(g.mul_add(g, sum));
            (value + quotient_or_zero(-lr * g, sum.sqrt() + eps), [sum])
        });
    }
}

/// Adagrad with one accumulator per row. Each step adds the mean of the gradient's squares to it.
/// This optimizer equals `EXACT_ROWWISE_ADAGRAD` of FBGEMM and TorchRec. The state of a row is 4
/// bytes.
///
/// ```text
/// g += weight_decay * row
/// sum += mean(g^2)
/// row -= lr * g / (sqrt(sum) + eps)
/// ```
///
/// # Examples
/// ```
/// use embank::{Optimizer, TableConfig};
///
/// let config = TableConfig::new(16).optimizer(Optimizer::row_wise_adagrad(0.05));
/// assert_eq!(config.value_bytes(), 16 * 4 + 8);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowWiseAdagrad {
    /// Learning rate.
    pub lr: f64,
    /// L2 penalty: the row times this number is added to the gradient. Default: 0.
    pub weight_decay: f64,
    /// Initial value of a new row's accumulator. Default: 0. It can't change after the table is
    /// created.
    pub initial_accumulator: f32,
    /// Added to the root to avoid division by zero. Default: 1e-8. May be 0: then a row whose sum
    /// is 0 does not move.
    pub eps: f64,
}

impl RowWiseAdagrad {
    /// Makes a row-wise Adagrad with FBGEMM's defaults and this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Self { lr, weight_decay: 0.0, initial_accumulator: 0.0, eps: 1e-8 }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_learning_rate(self.lr)?;
        check_not_negative("weight_decay", self.weight_decay)?;
        check_not_negative("the initial accumulator", f64::from(self.initial_accumulator))?;
        check_not_negative("eps", self.eps)
    }

    pub(super) fn stepper(&self) -> RowWiseStep {
        RowWiseStep {
            lr: self.lr as f32,
            weight_decay: self.weight_decay as f32,
            eps: self.eps as f32,
        }
    }
}

#[derive(Debug)]
pub(crate) struct RowWiseStep {
    lr: f32,
    weight_decay: f32,
    eps: f32,
}

impl RowWiseStep {
    #[inline(always)]
    pub(super) fn take(&self, row: RowState<'_>, gradient: &[f32]) {
        let Self { lr, weight_decay, eps } = *self;
        let squares = if weight_decay == 0.0 {
            sum_of_squares(gradient)
        } else {
            decayed_sum_of_squares(row.vector, weight_decay, gradient)
        };
        let sum = saturated(row.scalars[0] + (squares / gradient.len() as f64) as f32);
        row.scalars[0] = sum;
        let root = sum.sqrt() + eps;
        // The rate is infinite if all gradients so far were zero or had squares too small for f32.
        // The row then does not move: an infinite rate would turn a zero gradient into NaN.
        let rate = Some(lr / root).filter(|rate| rate.is_finite()).unwrap_or(0.0);
        each_value(row.vector, [], gradient, |value, [], g| {
            let g = value.mul_add(weight_decay, g);
            (g.mul_add(-rate, value), [])
        });
    }
}

/// Returns the [`sum_of_squares`] of the gradient after weight decay.
#[inline(always)]
fn decayed_sum_of_squares(vector: &[f32], weight_decay: f32, gradient: &[f32]) -> f64 {
    vector
        .iter()
        .zip(gradient)
        .map(|(&value, &g)| f64::from(value.mul_add(weight_decay, g)))
        .fold(0.0, |sum, g| sum + g * g)
}
