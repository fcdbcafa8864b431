//! Adam and AdamW. Each row counts its own steps.
//!
//! The bias corrections need powers of the betas at each row's own step. For a row of 16 values, a
//! call of `pow` would take most of the step's time, so two small tables hold powers. beta^step =
//! beta^(step mod 256) * beta^(256 * (step / 256)) is a product of two rounded factors. Beyond
//! 65,535 steps, `pow` is called.

use super::lanes::{each_value, quotient_or_zero, saturated};
use super::numbers::{check_learning_rate, check_not_negative};
use super::state::RowState;

/// `torch.optim.Adam` with a count of steps per row. The state has two numbers per value, and the
/// count.
///
/// ```text
/// g += weight_decay * row
/// m += (1 - beta1) * (g - m)
/// v = beta2 * v + (1 - beta2) * g^2
/// row -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
/// ```
///
/// # Examples
/// ```
/// use embank::{Adam, Optimizer};
///
/// let adam = Adam { betas: (0.9, 0.99), ..Adam::new(0.001) };
/// assert_eq!(Optimizer::Adam(adam).name(), "Adam");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub lr: f64,
    /// Share of each moment that is kept at a step, from 0 to below 1. Default: 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the root to avoid division by zero. Default: 1e-8. May be 0: then a gradient does
    /// not move a value whose second moment is 0.
    pub eps: f64,
    /// L2 penalty: the row times this number is added to the gradient. Default: 0.
    pub weight_decay: f64,
}

impl Adam {
    /// Makes the optimizer with torch's defaults and this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Self { lr, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_learning_rate(self.lr)?;
        for (name, beta) in [("the first beta", self.betas.0), ("the second beta", self.betas.1)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(format!("{name} must be at least 0 and less than 1, found {beta}"));
            }
        }
        check_not_negative("eps", self.eps)?;
        check_not_negative("weight_decay", self.weight_decay)
    }

    pub(super) fn stepper(&self, decoupled: bool) -> AdamStep {
        let decay = self.weight_decay;
        AdamStep {
            lr: self.lr,
            powers: [Powers::new(self.betas.0), Powers::new(self.betas.1)],
            first_share: (1.0 - self.betas.0) as f32,
            first_rest: (1.0 - (1.0 - self.betas.0)) as f32,
            second_kept: self.betas.1 as f32,
            second_share: (1.0 - self.betas.1) as f32,
            eps: self.eps as f32,
            penalty: if decoupled { 0.0 } else { decay as f32 },
            kept: if decoupled { (1.0 - self.lr * decay) as f32 } else { 1.0 },
        }
    }
}

/// `torch.optim.AdamW`: Adam with weight decay that shrinks the row itself. Each row counts its own
/// steps.
///
/// ```text
/// row *= 1 - lr * weight_decay
/// then as Adam without weight decay
/// ```
///
/// # Examples
/// ```
/// assert_eq!(embank::AdamW::new(0.001).weight_decay, 0.01);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Share of each moment that is kept at a step, from 0 to below 1. Default: 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the root to avoid division by zero. Default: 1e-8. May be 0: then a gradient does
    /// not move a value whose second moment is 0.
    pub eps: f64,
    /// A step shrinks the row by this number times the learning rate. Default: 0.01.
    pub weight_decay: f64,
}

impl AdamW {
    /// Makes the optimizer with torch's defaults and this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Self { lr, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }

    pub(super) fn as_adam(&self) -> Adam {
        let Self { lr, betas, eps, weight_decay } = *self;
        Adam { lr, betas, eps, weight_decay }
    }
}

#[derive(Debug)]
pub(crate) struct AdamStep {
    lr: f64,
    powers: [Powers; 2],
    /// 1 - beta1.
    first_share: f32,
    /// 1 - (1 - beta1), rounded in this order as torch does.
    first_rest: f32,
    /// beta2.
    second_kept: f32,
    /// 1 - beta2.
    second_share: f32,
    eps: f32,
    /// Weight decay of Adam, which is added to the gradient.
    penalty: f32,
    /// Factor of the row at a step: below 1 with AdamW's weight decay.
    kept: f32,
}

impl AdamStep {
    #[inline(always)]
    pub(super) fn take(&self, row: RowState<'_>, gradient: &[f32]) {
        let [first, second] = self.powers.each_ref().map(|powers| 1.0 - powers.at(row.step));
        let rate = (-(self.lr / first)) as f32;
        let correction = second.sqrt() as f32;
        let Self { second_kept, second_share, eps, penalty, kept, .. } = *self;
        // The interpolation of two numbers has two formulas, each exact at one of the two. As in
        // torch, the code uses the formula that is exact at the nearer number.
        let near = self.first_share < 0.5;
        let mix = if near { self.first_share } else { -self.first_rest };
        let (means, squares) = row.state.split_at_mut(gradient.len());
        each_value(row.vector, [means, squares], gradient, |value, [mean, square], g| {
            let g = value.mul_add(penalty, g);
            let mean = (g - mean).mul_add(mix, if near { mean } else { g });
            let square = saturated((second_share * g).mul_add(g, square * second_kept));
            let denominator = square.sqrt() / correction + eps;
            (value * kept + quotient_or_zero(rate * mean, denominator), [mean, square])
        });
    }
}

const TABLE: usize = 256;

/// Tables with powers of `base`.
#[derive(Debug)]
struct Powers {
    base: f64,
    low: [f64; TABLE],
    high: [f64; TABLE],
}

impl Powers {
    fn new(base: f64) -> Self {
        let turn = base.powi(TABLE as i32);
        Self {
            base,
            low: std::array::from_fn(|i| base.powi(i as i32)),
            high: std::array::from_fn(|i| turn.powi(i as i32)),
        }
    }

    #[inline]
    fn at(&self, step: u32) -> f64 {
        let low = step as usize % TABLE;
        let high = step as usize / TABLE;
        match self.high.get(high) {
            Some(high) => self.low[low] * high,
            None => self.base.powf(f64::from(step)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_come_out_of_the_tables() {
        for base in [0.0, 0.5, 0.9, 0.999, 0.999_999] {
            let powers = Powers::new(base);
            for step in [1, 2, 255, 256, 257, 1000, 10_000, 65_535, 65_536, 1 << 20, u32::MAX] {
                // Compares 1 minus the power, because the formula of Adam uses this difference.
                let found = 1.0 - powers.at(step);
                let exact = 1.0 - base.powf(f64::from(step));
                let difference = (found - exact).abs();
                assert!(difference <= 1e-11 * exact, "1 - {base}^{step}: {found} for {exact}");
            }
        }
    }
}
