//! Stochastic gradient descent.

use super::lanes::each_value;
use super::numbers::{check_learning_rate, check_not_negative};
use super::state::RowState;

/// `torch.optim.SGD`. Without momentum a row has no state. With momentum it has one number per
/// value, and a count of steps.
///
/// ```text
/// g += weight_decay * row
/// buffer = g at the row's first step, then momentum * buffer + (1 - dampening) * g
/// row -= lr * buffer                      (nesterov: lr * (g + momentum * buffer))
/// ```
///
/// # Examples
/// ```
/// use embank::{Optimizer, Sgd};
///
/// let sgd = Sgd { momentum: 0.9, nesterov: true, ..Sgd::new(0.1) };
/// assert_eq!(Optimizer::Sgd(sgd).learning_rate(), Some(0.1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// Share of the buffer that is kept at a step, 0 or more. Default: 0. Whether it is 0 can't
    /// change after the table is created.
    pub momentum: f64,
    /// Share of the gradient that does not enter the buffer. Default: 0.
    pub dampening: f64,
    /// Whether steps look ahead by Nesterov's rule. It needs momentum and no dampening. Default:
    /// no.
    pub nesterov: bool,
    /// L2 penalty: the row times this number is added to the gradient. Default: 0.
    pub weight_decay: f64,
}

impl Sgd {
    /// Makes plain gradient descent with this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Self { lr, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_learning_rate(self.lr)?;
        check_not_negative("momentum", self.momentum)?;
        check_not_negative("weight_decay", self.weight_decay)?;
        if !(self.dampening as f32).is_finite() {
            return Err(format!("dampening must be finite, found {}", self.dampening));
        }
        if self.momentum == 0.0 && self.dampening != 0.0 {
            return Err("dampening is of momentum: set a momentum above 0 or no dampening".into());
        }
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err("nesterov needs a momentum above 0 and no dampening".into());
        }
        Ok(())
    }

    pub(super) fn stepper(&self) -> SgdStep {
        SgdStep { lr: self.lr as f32, weight_decay: self.weight_decay as f32 }
    }

    pub(super) fn momentum_stepper(&self) -> MomentumStep {
        MomentumStep {
            plain: self.stepper(),
            momentum: self.momentum as f32,
            share: (1.0 - self.dampening) as f32,
            nesterov: self.nesterov,
        }
    }
}

#[derive(Debug)]
pub(crate) struct SgdStep {
    lr: f32,
    weight_decay: f32,
}

impl SgdStep {
    #[inline(always)]
    pub(super) fn take(&self, row: RowState<'_>, gradient: &[f32]) {
        let Self { lr, weight_decay } = *self;
        if weight_decay == 0.0 {
            each_value(row.vector, [], gradient, |value, [], g| (g.mul_add(-lr, value), []));
        } else {
            each_value(row.vector, [], gradient, |value, [], g| {
                let g = value.mul_add(weight_decay, g);
                (g.mul_add(-lr, value), [])
            });
        }
    }
}

#[derive(Debug)]
pub(crate) struct MomentumStep {
    plain: SgdStep,
    momentum: f32,
    /// 1 - dampening.
    share: f32,
    nesterov: bool,
}

impl MomentumStep {
    #[inline(always)]
    pub(super) fn take(&self, row: RowState<'_>, gradient: &[f32]) {
        let Self { plain: SgdStep { lr, weight_decay }, nesterov, .. } = *self;
        // At the first step the buffer becomes the whole gradient.
        let first = row.step == 1;
        let (momentum, share) = if first { (0.0, 1.0) } else { (self.momentum, self.share) };
        // The direction is ahead * buffer + along * g.
        let (ahead, along) = if nesterov { (self.momentum, 1.0) } else { (1.0, 0.0) };
        each_value(row.vector, [row.state], gradient, |value, [buffer], g| {
            let g = value.mul_add(weight_decay, g);
            let buffer = g.mul_add(share, buffer * momentum);
            let direction = buffer.mul_add(ahead, g * along);
            (direction.mul_add(-lr, value), [buffer])
        });
    }
}
