//! Optimizers that run in the store. The caller passes a gradient, and the store changes the row
//! and its state under the row's lock.
//!
//! **Each row is a parameter.** Momentum's first step, Adam's bias corrections and Adagrad's
//! decaying rate depend on the number of steps. Each row stores its own number of steps. Each row
//! therefore behaves like a `torch` parameter that takes a step only when it has a gradient.
//! Row-sparse training requires this. `torch.optim.Adam` over a whole table differs: rows without a
//! gradient decay too. `torch.optim.SparseAdam` skips such rows, but counts the steps of the whole
//! table.
//!
//! **Bits.** The arithmetic follows `torch.optim` on a CPU, operation by operation. Hyperparameters
//! are f64, as in Python. Values that torch derives from them as Python floats are computed in f64
//! and then rounded to f32 once. Torch fuses a product and the addition after it, with one rounding
//! instead of two. `f32::mul_add` fuses them too: with one instruction if the processor has it,
//! otherwise with an exact library function. One difference remains: torch's vector square root
//! (MKL) is not always correctly rounded, and the square root in this module is. docs/optimizers.md
//! has numbers.
//!
//! **Speed.** A step works on eight values at a time ([`lanes`]). `pulp` compiles this code a
//! second time for AVX2 and FMA, and selects a version when the program starts. The test module
//! `reference` has plain loops. Tests compare the steps with them.
//!
//! **A new optimizer** needs a file in this folder, a variant of [`Optimizer`], a row of the table
//! in `bindings/python/src/settings/optimizers.rs`, a row of the table in
//! `bindings/c/src/optimizer.rs`, and its name in Python's `embank/__init__.py`.

mod adagrad;
mod adam;
mod ftrl;
mod lanes;
pub(crate) mod numbers;
#[cfg(test)]
#[expect(clippy::needless_range_loop, reason = "plain loops over columns")]
mod reference;
mod sgd;
pub(crate) mod state;

pub use adagrad::{Adagrad, RowWiseAdagrad};
pub use adam::{Adam, AdamW};
pub use ftrl::Ftrl;
pub(crate) use lanes::sum_of_squares;
pub use sgd::Sgd;

use state::{RowState, StateShape};

/// The rule by which a table turns gradients into new values. Each row behaves like a parameter in
/// `torch.optim`. Default: [`Optimizer::None`].
///
/// The learning rate and most other numbers may differ at each open, and may change while a table
/// is open ([`Table::set_optimizer`](crate::Table::set_optimizer)). Four things are fixed when the
/// table is created: the kind of optimizer, the initial accumulator, whether there is momentum, and
/// whether Adagrad's rate decays.
///
/// # Examples
/// ```
/// use embank::{Adam, Optimizer, TableConfig};
///
/// let config = TableConfig::new(16).optimizer(Optimizer::adagrad(0.01));
/// assert_eq!(config.value_bytes(), 2 * 16 * 4);
///
/// let adam = Optimizer::Adam(Adam { weight_decay: 0.1, ..Adam::new(0.001) });
/// assert_eq!(adam.learning_rate(), Some(0.001));
/// // Two moments per value and a count of steps, in whole 8 bytes.
/// assert_eq!(TableConfig::new(16).optimizer(adam).value_bytes(), 3 * 16 * 4 + 8);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Optimizer {
    /// No optimizer. Rows can only be put; applying gradients is an error.
    #[default]
    None,
    /// `torch.optim.SGD`.
    Sgd(Sgd),
    /// `torch.optim.Adagrad`.
    Adagrad(Adagrad),
    /// Adagrad with one accumulator per row, FBGEMM's `EXACT_ROWWISE_ADAGRAD`.
    RowWiseAdagrad(RowWiseAdagrad),
    /// `torch.optim.Adam`.
    Adam(Adam),
    /// `torch.optim.AdamW`.
    AdamW(AdamW),
    /// FTRL-proximal.
    Ftrl(Ftrl),
}

/// Properties that all optimizers of one kind share.
struct Kind {
    /// The kind's number in a table's descriptor (docs/format.md). It never changes.
    number: u8,
    name: &'static str,
}

/// A hyperparameter, with the type of its field.
pub(crate) enum Number<'o> {
    F64(&'o mut f64),
    F32(&'o mut f32),
    Flag(&'o mut bool),
}

impl Optimizer {
    /// Returns one optimizer of every kind, with this learning rate and default values otherwise.
    ///
    /// # Examples
    /// ```
    /// use embank::Optimizer;
    ///
    /// let names: Vec<&str> = Optimizer::each_kind(0.1).map(|optimizer| optimizer.name()).collect();
    /// assert_eq!(names[..3], ["none", "SGD", "Adagrad"]);
    /// ```
    pub fn each_kind(lr: f64) -> impl Iterator<Item = Self> {
        // Every kind must be in this list: a table can't be opened if its descriptor has a kind
        // that is missing here.
        [
            Self::None,
            Self::sgd(lr),
            Self::adagrad(lr),
            Self::row_wise_adagrad(lr),
            Self::adam(lr),
            Self::adamw(lr),
            Self::ftrl(lr),
        ]
        .into_iter()
    }

    fn kind(&self) -> Kind {
        match self {
            Optimizer::None => Kind { number: 0, name: "none" },
            Optimizer::Sgd(_) => Kind { number: 1, name: "SGD" },
            Optimizer::Adagrad(_) => Kind { number: 2, name: "Adagrad" },
            Optimizer::RowWiseAdagrad(_) => Kind { number: 3, name: "row-wise Adagrad" },
            Optimizer::Adam(_) => Kind { number: 4, name: "Adam" },
            Optimizer::AdamW(_) => Kind { number: 5, name: "AdamW" },
            Optimizer::Ftrl(_) => Kind { number: 6, name: "FTRL" },
        }
    }

    /// The number of the optimizer's kind in a table's descriptor.
    pub(crate) fn kind_number(&self) -> u8 {
        self.kind().number
    }

    /// Returns an optimizer of the kind with this number, with default values.
    pub(crate) fn of_kind_number(number: u8) -> Option<Self> {
        Self::each_kind(0.0).find(|optimizer| optimizer.kind_number() == number)
    }

    /// Returns the hyperparameters in the order of a table's descriptor. The order never changes.
    pub(crate) fn numbers(&mut self) -> Vec<Number<'_>> {
        use Number::{F32, F64, Flag};
        match self {
            Optimizer::None => Vec::new(),
            Optimizer::Sgd(Sgd { lr, momentum, dampening, nesterov, weight_decay }) => {
                vec![F64(lr), F64(momentum), F64(dampening), F64(weight_decay), Flag(nesterov)]
            }
            Optimizer::Adagrad(Adagrad {
                lr,
                lr_decay,
                weight_decay,
                initial_accumulator,
                eps,
            }) => {
                vec![F64(lr), F64(lr_decay), F64(weight_decay), F64(eps), F32(initial_accumulator)]
            }
            Optimizer::RowWiseAdagrad(RowWiseAdagrad {
                lr,
                weight_decay,
                initial_accumulator,
                eps,
            }) => vec![F64(lr), F64(weight_decay), F64(eps), F32(initial_accumulator)],
            Optimizer::Adam(Adam { lr, betas: (first, second), eps, weight_decay })
            | Optimizer::AdamW(AdamW { lr, betas: (first, second), eps, weight_decay }) => {
                vec![F64(lr), F64(first), F64(second), F64(eps), F64(weight_decay)]
            }
            Optimizer::Ftrl(Ftrl { lr, beta, l1, l2, initial_accumulator }) => {
                vec![F64(lr), F64(beta), F64(l1), F64(l2), F32(initial_accumulator)]
            }
        }
    }

    /// Makes SGD with this learning rate.
    #[must_use]
    pub fn sgd(lr: f64) -> Self {
        Optimizer::Sgd(Sgd::new(lr))
    }

    /// Makes Adagrad with this learning rate and torch's defaults.
    #[must_use]
    pub fn adagrad(lr: f64) -> Self {
        Optimizer::Adagrad(Adagrad::new(lr))
    }

    /// Makes row-wise Adagrad with this learning rate and FBGEMM's defaults.
    #[must_use]
    pub fn row_wise_adagrad(lr: f64) -> Self {
        Optimizer::RowWiseAdagrad(RowWiseAdagrad::new(lr))
    }

    /// Makes Adam with this learning rate and torch's defaults.
    #[must_use]
    pub fn adam(lr: f64) -> Self {
        Optimizer::Adam(Adam::new(lr))
    }

    /// Makes AdamW with this learning rate and torch's defaults.
    #[must_use]
    pub fn adamw(lr: f64) -> Self {
        Optimizer::AdamW(AdamW::new(lr))
    }

    /// Makes FTRL-proximal with this learning rate and Keras' defaults.
    #[must_use]
    pub fn ftrl(lr: f64) -> Self {
        Optimizer::Ftrl(Ftrl::new(lr))
    }

    /// The optimizer's common name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind().name
    }

    /// The learning rate, if this optimizer has one.
    #[must_use]
    pub fn learning_rate(&self) -> Option<f64> {
        let mut own = *self;
        own.learning_rate_mut().copied()
    }

    /// Returns this optimizer with another learning rate. [`Optimizer::None`] stays unchanged.
    #[must_use]
    pub fn with_learning_rate(mut self, lr: f64) -> Self {
        if let Some(own) = self.learning_rate_mut() {
            *own = lr;
        }
        self
    }

    fn learning_rate_mut(&mut self) -> Option<&mut f64> {
        match self {
            Optimizer::None => None,
            Optimizer::Sgd(sgd) => Some(&mut sgd.lr),
            Optimizer::Adagrad(adagrad) => Some(&mut adagrad.lr),
            Optimizer::RowWiseAdagrad(adagrad) => Some(&mut adagrad.lr),
            Optimizer::Adam(adam) => Some(&mut adam.lr),
            Optimizer::AdamW(adam) => Some(&mut adam.lr),
            Optimizer::Ftrl(ftrl) => Some(&mut ftrl.lr),
        }
    }

    /// True if the state of `other` has the same meaning and shape as this optimizer's state.
    pub(crate) fn is_kind_of(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.state_shape() == other.state_shape()
    }

    /// Fails if a number is out of range; the message names it.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        match self {
            Optimizer::None => Ok(()),
            Optimizer::Sgd(sgd) => sgd.check(),
            Optimizer::Adagrad(adagrad) => adagrad.check(),
            Optimizer::RowWiseAdagrad(adagrad) => adagrad.check(),
            Optimizer::Adam(adam) => adam.check(),
            Optimizer::AdamW(adam) => adam.as_adam().check(),
            Optimizer::Ftrl(ftrl) => ftrl.check(),
        }
    }

    /// True if a gradient below 2^50 moves a value by less than 2^103 with these hyperparameters. A
    /// step in f32 then never makes a finite value infinite. For optimizers where this is false, a
    /// step works on a copy of the row, and keeps the copy only if it is finite.
    pub(crate) fn is_ordinary(&self) -> bool {
        const LR_MAX: f64 = 1e9;
        let (lr, weight_decay, momentum) = match *self {
            Optimizer::None => return true,
            Optimizer::Sgd(Sgd { lr, weight_decay, momentum, .. }) => (lr, weight_decay, momentum),
            Optimizer::Adagrad(Adagrad { lr, weight_decay, .. })
            | Optimizer::RowWiseAdagrad(RowWiseAdagrad { lr, weight_decay, .. })
            | Optimizer::Adam(Adam { lr, weight_decay, .. })
            | Optimizer::AdamW(AdamW { lr, weight_decay, .. }) => (lr, weight_decay, 0.0),
            Optimizer::Ftrl(Ftrl { lr, .. }) => return (1.0 / LR_MAX..=LR_MAX).contains(&lr),
        };
        // Weight decay changes a value by at most the value itself. A momentum buffer may be large
        // even if this gradient is small.
        lr <= LR_MAX && weight_decay <= 1.0 && lr * weight_decay <= 1.0 && momentum == 0.0
    }

    /// Describes the part of the optimizer that is fixed when the table is created.
    pub(crate) fn identity(&self) -> String {
        let with = |addition: String| format!("optimizer {} with {addition}", self.name());
        let accumulator = |value: f32| with(format!("initial accumulator {value}"));
        match self {
            Optimizer::None => "no optimizer".to_owned(),
            Optimizer::Sgd(sgd) if sgd.momentum != 0.0 => with("momentum".to_owned()),
            Optimizer::Adagrad(adagrad) if adagrad.lr_decay != 0.0 => {
                accumulator(adagrad.initial_accumulator) + " and a decaying rate"
            }
            Optimizer::Adagrad(adagrad) => accumulator(adagrad.initial_accumulator),
            Optimizer::RowWiseAdagrad(adagrad) => accumulator(adagrad.initial_accumulator),
            Optimizer::Ftrl(ftrl) => accumulator(ftrl.initial_accumulator),
            Optimizer::Sgd(_) | Optimizer::Adam(_) | Optimizer::AdamW(_) => {
                format!("optimizer {}", self.name())
            }
        }
    }

    pub(crate) fn state_shape(&self) -> StateShape {
        let shape = |vectors, squares, scalars, counts_steps| StateShape {
            vectors,
            scalars,
            squares,
            counts_steps,
        };
        match self {
            Optimizer::None => shape(0, None, 0, false),
            Optimizer::Sgd(sgd) if sgd.momentum == 0.0 => shape(0, None, 0, false),
            Optimizer::Sgd(_) => shape(1, None, 0, true),
            Optimizer::Adagrad(adagrad) => shape(1, Some(0), 0, adagrad.lr_decay != 0.0),
            Optimizer::RowWiseAdagrad(_) => shape(0, None, 1, false),
            Optimizer::Adam(_) | Optimizer::AdamW(_) => shape(2, Some(1), 0, true),
            Optimizer::Ftrl(_) => shape(2, Some(0), 0, false),
        }
    }

    /// Initial value of a new row's first state vector and of its single state values. All other
    /// state begins at zero.
    pub(crate) fn initial_accumulator(&self) -> f32 {
        match self {
            Optimizer::Adagrad(adagrad) => adagrad.initial_accumulator,
            Optimizer::RowWiseAdagrad(adagrad) => adagrad.initial_accumulator,
            Optimizer::Ftrl(ftrl) => ftrl.initial_accumulator,
            Optimizer::None | Optimizer::Sgd(_) | Optimizer::Adam(_) | Optimizer::AdamW(_) => 0.0,
        }
    }
}

/// An optimizer with all numbers that do not depend on the row computed in advance. It is made when
/// the hyperparameters change and not for each batch, because Adam's tables of powers take time to
/// compute.
#[derive(Debug)]
pub(crate) enum Stepper {
    None,
    Sgd(sgd::SgdStep),
    Momentum(sgd::MomentumStep),
    Adagrad(adagrad::AdagradStep),
    RowWiseAdagrad(adagrad::RowWiseStep),
    Adam(Box<adam::AdamStep>),
    Ftrl(ftrl::FtrlStep),
}

impl Stepper {
    pub(crate) fn new(optimizer: &Optimizer) -> Self {
        match optimizer {
            Optimizer::None => Stepper::None,
            Optimizer::Sgd(sgd) if sgd.momentum == 0.0 => Stepper::Sgd(sgd.stepper()),
            Optimizer::Sgd(sgd) => Stepper::Momentum(sgd.momentum_stepper()),
            Optimizer::Adagrad(adagrad) => Stepper::Adagrad(adagrad.stepper()),
            Optimizer::RowWiseAdagrad(adagrad) => Stepper::RowWiseAdagrad(adagrad.stepper()),
            Optimizer::Adam(adam) => Stepper::Adam(Box::new(adam.stepper(false))),
            Optimizer::AdamW(adam) => Stepper::Adam(Box::new(adam.as_adam().stepper(true))),
            Optimizer::Ftrl(ftrl) => Stepper::Ftrl(ftrl.stepper()),
        }
    }

    /// Takes one step with the instructions of this processor. `gradient` has dim values.
    #[inline]
    pub(crate) fn take(&self, arch: pulp::Arch, row: RowState<'_>, gradient: &[f32]) {
        arch.dispatch(Take { stepper: self, row, gradient });
    }

    /// Must be inlined into its caller, which selects the processor's instructions.
    #[inline(always)]
    fn take_here(&self, row: RowState<'_>, gradient: &[f32]) {
        match self {
            Stepper::None => {}
            Stepper::Sgd(step) => step.take(row, gradient),
            Stepper::Momentum(step) => step.take(row, gradient),
            Stepper::Adagrad(step) => step.take(row, gradient),
            Stepper::RowWiseAdagrad(step) => step.take(row, gradient),
            Stepper::Adam(step) => step.take(row, gradient),
            Stepper::Ftrl(step) => step.take(row, gradient),
        }
    }
}

struct Take<'a> {
    stepper: &'a Stepper,
    row: RowState<'a>,
    gradient: &'a [f32],
}

impl pulp::NullaryFnOnce for Take<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.stepper.take_here(self.row, self.gradient);
    }
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
