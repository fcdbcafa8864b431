//! Optimizers: the rules by which a table turns gradients into new values of its rows.

use bytemuck::{Pod, Zeroable};
use embank::{Adagrad, Adam, AdamW, Ftrl, Optimizer, RowWiseAdagrad, Sgd};

use crate::refusals::{beyond_this_header, check_zeros, no_such_number};
use crate::sized::flag;
use crate::status::Failure;

/// The kinds of optimizers. docs/optimizers.md has the formulas.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_optimizer_kind {
    /// No optimizer: rows change only by puts.
    None = 0,
    /// torch.optim.SGD.
    Sgd = 1,
    /// torch.optim.Adagrad.
    Adagrad = 2,
    /// Adagrad with one accumulator per row.
    RowWiseAdagrad = 3,
    /// torch.optim.Adam.
    Adam = 4,
    /// torch.optim.AdamW.
    AdamW = 5,
    /// FTRL-proximal.
    Ftrl = 6,
}

/// An optimizer: its kind and its numbers. Fields that the kind does not use must be 0. Make one
/// with embank_sgd or another function of its kind, which sets the usual defaults, then change
/// fields. For a table, these never change: the kind, the initial accumulator, whether momentum is
/// 0, and whether Adagrad's lr_decay is 0. The other numbers may change.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct embank_optimizer {
    /// One of embank_optimizer_kind.
    pub kind: u32,
    /// SGD: 0 or 1. With 1, momentum is Nesterov's.
    pub nesterov: u32,
    /// The learning rate: not negative. FTRL takes 0 or at least 3e-39.
    pub learning_rate: f64,
    /// The weight decay of every kind but FTRL.
    pub weight_decay: f64,
    /// SGD: the factor of the momentum buffer at each step; 0 means no momentum.
    pub momentum: f64,
    /// SGD with momentum: the share of the gradient that is not added to the momentum buffer.
    pub dampening: f64,
    /// Adagrad: how fast the learning rate falls with the number of the row's steps. Must be 0 for
    /// row-wise Adagrad.
    pub lr_decay: f64,
    /// Adam and AdamW: the factor of the first moment at each step.
    pub beta1: f64,
    /// Adam and AdamW: the factor of the second moment at each step.
    pub beta2: f64,
    /// Adagrad, row-wise Adagrad, Adam and AdamW: a small number added to a divisor, so that it is
    /// never 0.
    pub eps: f64,
    /// Adagrad, row-wise Adagrad and FTRL: the value of a new row's accumulators.
    pub initial_accumulator: f64,
    /// FTRL: makes the first steps of a row smaller; the paper suggests 1.
    pub beta: f64,
    /// FTRL: the penalty on absolute values, which keeps values at zero.
    pub l1: f64,
    /// FTRL: the penalty on the squares of values.
    pub l2: f64,
    /// Must be zeros. Reserved for numbers of later optimizers.
    pub reserved: [f64; 5],
}

/// Defines the conversions between `embank_optimizer` and `Optimizer`. An entry begins with the
/// kind. The library's struct, its variant of `Optimizer`, and the variant of
/// `embank_optimizer_kind` all have this name. Each line of an entry names a field of the library's
/// struct, and the one or two fields of [`embank_optimizer`] that hold its value.
macro_rules! optimizers {
    ($($kind:ident { $($number:ident: $field:ident $(& $second:ident)?),* $(,)? })*) => {
        impl embank_optimizer {
            pub(crate) fn from_rust(optimizer: Optimizer) -> Result<Self, Failure> {
                let mut made = Self::zeroed();
                match optimizer {
                    Optimizer::None => made.kind = embank_optimizer_kind::None as u32,
                    $(Optimizer::$kind($kind { $($number),* }) => {
                        made.kind = embank_optimizer_kind::$kind as u32;
                        $((made.$field, $(made.$second,)?) = Number::to_c($number);)*
                    })*
                    other => return Err(beyond_this_header("optimizer", &other)),
                }
                Ok(made)
            }

            /// Converts the fields that the kind `self.kind` uses. Ignores the other fields.
            fn of_kind(&self) -> Result<Optimizer, Failure> {
                if self.kind == embank_optimizer_kind::None as u32 {
                    return Ok(Optimizer::None);
                }
                $(
                    if self.kind == embank_optimizer_kind::$kind as u32 {
                        return Ok(Optimizer::$kind($kind {
                            $($number: Number::from_c(
                                stringify!($number),
                                (self.$field, $(self.$second,)?),
                            )?,)*
                        }));
                    }
                )*
                Err(no_such_number("embank_optimizer_kind", self.kind))
            }
        }
    };
}

optimizers! {
    Sgd {
        lr: learning_rate,
        momentum: momentum,
        dampening: dampening,
        nesterov: nesterov,
        weight_decay: weight_decay,
    }
    Adagrad {
        lr: learning_rate,
        lr_decay: lr_decay,
        weight_decay: weight_decay,
        initial_accumulator: initial_accumulator,
        eps: eps,
    }
    RowWiseAdagrad {
        lr: learning_rate,
        weight_decay: weight_decay,
        initial_accumulator: initial_accumulator,
        eps: eps,
    }
    Adam { lr: learning_rate, betas: beta1 & beta2, eps: eps, weight_decay: weight_decay }
    AdamW { lr: learning_rate, betas: beta1 & beta2, eps: eps, weight_decay: weight_decay }
    Ftrl {
        lr: learning_rate,
        beta: beta,
        l1: l1,
        l2: l2,
        initial_accumulator: initial_accumulator,
    }
}

/// A type of an optimizer's parameter. `C` is the tuple of the one or two C fields that hold the
/// parameter.
trait Number<C>: Sized {
    fn to_c(self) -> C;
    fn from_c(name: &str, fields: C) -> Result<Self, Failure>;
}

impl Number<(f64,)> for f64 {
    fn to_c(self) -> (f64,) {
        (self,)
    }

    fn from_c(_name: &str, (value,): (f64,)) -> Result<Self, Failure> {
        Ok(value)
    }
}

impl Number<(f64,)> for f32 {
    fn to_c(self) -> (f64,) {
        (self.into(),)
    }

    fn from_c(_name: &str, (value,): (f64,)) -> Result<Self, Failure> {
        Ok(value as f32)
    }
}

impl Number<(f64, f64)> for (f64, f64) {
    fn to_c(self) -> (f64, f64) {
        self
    }

    fn from_c(_name: &str, both: (f64, f64)) -> Result<Self, Failure> {
        Ok(both)
    }
}

impl Number<(u32,)> for bool {
    fn to_c(self) -> (u32,) {
        (self.into(),)
    }

    fn from_c(name: &str, (value,): (u32,)) -> Result<Self, Failure> {
        flag(name, value)
    }
}

/// A function that reads one field of an `embank_optimizer`.
type FieldValue = fn(&embank_optimizer) -> f64;

/// The fields that only some kinds use.
const FIELDS: [(&str, FieldValue); 12] = [
    ("nesterov", |of| of.nesterov.into()),
    ("weight_decay", |of| of.weight_decay),
    ("momentum", |of| of.momentum),
    ("dampening", |of| of.dampening),
    ("lr_decay", |of| of.lr_decay),
    ("beta1", |of| of.beta1),
    ("beta2", |of| of.beta2),
    ("eps", |of| of.eps),
    ("initial_accumulator", |of| of.initial_accumulator),
    ("beta", |of| of.beta),
    ("l1", |of| of.l1),
    ("l2", |of| of.l2),
];

impl embank_optimizer {
    pub(crate) fn to_rust(self) -> Result<Optimizer, Failure> {
        check_zeros("embank_optimizer", &self.reserved)?;
        let optimizer = self.of_kind()?;
        // `of_kind` ignores fields that the kind does not use. The call fails if such a field is
        // not 0, because otherwise the caller would not notice that its value has no effect.
        let taken = Self::from_rust(optimizer)?;
        let ignored = |value: FieldValue| value(&self) != 0.0 && value(&taken) == 0.0;
        match FIELDS.into_iter().find(|&(_, value)| ignored(value)) {
            None => Ok(optimizer),
            Some((name, _)) => Err(Failure::invalid(format!(
                "the optimizer {} has no {name}; leave that at 0",
                optimizer.name()
            ))),
        }
    }

    /// Converts an optimizer of the library. The header must be able to express it; otherwise the
    /// result is a struct of zeros.
    fn of(optimizer: Optimizer) -> Self {
        Self::from_rust(optimizer).unwrap_or(Self::zeroed())
    }
}

/// torch.optim.SGD without momentum and weight decay.
#[unsafe(no_mangle)]
pub extern "C" fn embank_sgd(learning_rate: f64) -> embank_optimizer {
    embank_optimizer::of(Optimizer::sgd(learning_rate))
}

/// torch.optim.Adagrad: eps 1e-10, initial accumulator 0, no weight decay and no decay of the
/// learning rate.
#[unsafe(no_mangle)]
pub extern "C" fn embank_adagrad(learning_rate: f64) -> embank_optimizer {
    embank_optimizer::of(Optimizer::adagrad(learning_rate))
}

/// Adagrad with one accumulator per row, as FBGEMM's EXACT_ROWWISE_ADAGRAD: eps 1e-8, initial
/// accumulator 0.
#[unsafe(no_mangle)]
pub extern "C" fn embank_row_wise_adagrad(learning_rate: f64) -> embank_optimizer {
    embank_optimizer::of(Optimizer::row_wise_adagrad(learning_rate))
}

/// torch.optim.Adam: betas 0.9 and 0.999, eps 1e-8, no weight decay.
#[unsafe(no_mangle)]
pub extern "C" fn embank_adam(learning_rate: f64) -> embank_optimizer {
    embank_optimizer::of(Optimizer::adam(learning_rate))
}

/// torch.optim.AdamW: betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
#[unsafe(no_mangle)]
pub extern "C" fn embank_adam_w(learning_rate: f64) -> embank_optimizer {
    embank_optimizer::of(Optimizer::adamw(learning_rate))
}

/// FTRL-proximal as in Keras: beta, l1 and l2 0, initial accumulator 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn embank_ftrl(learning_rate: f64) -> embank_optimizer {
    embank_optimizer::of(Optimizer::ftrl(learning_rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::embank_status;

    /// Returns one optimizer of each kind. All numbers of an optimizer differ, so the test fails if
    /// a conversion exchanges two of them.
    fn all() -> [Optimizer; 7] {
        let betas = (0.5, 0.75);
        [
            Optimizer::None,
            Optimizer::Sgd(Sgd {
                lr: 0.1,
                momentum: 0.2,
                dampening: 0.0,
                nesterov: true,
                weight_decay: 0.4,
            }),
            Optimizer::Adagrad(Adagrad {
                lr: 0.1,
                lr_decay: 0.2,
                weight_decay: 0.3,
                initial_accumulator: 0.4,
                eps: 0.5,
            }),
            Optimizer::RowWiseAdagrad(RowWiseAdagrad {
                lr: 0.1,
                weight_decay: 0.2,
                initial_accumulator: 0.3,
                eps: 0.4,
            }),
            Optimizer::Adam(Adam { lr: 0.1, betas, eps: 0.2, weight_decay: 0.3 }),
            Optimizer::AdamW(AdamW { lr: 0.1, betas, eps: 0.2, weight_decay: 0.3 }),
            Optimizer::Ftrl(Ftrl {
                lr: 0.1,
                beta: 0.2,
                l1: 0.3,
                l2: 0.4,
                initial_accumulator: 0.5,
            }),
        ]
    }

    #[test]
    fn optimizers_come_back_as_they_went() {
        for (kind, optimizer) in (0..).zip(all()) {
            let for_c = embank_optimizer::from_rust(optimizer).unwrap();
            assert_eq!(for_c.kind, kind);
            assert_eq!(for_c.to_rust().unwrap(), optimizer);
        }
        for optimizer in Optimizer::each_kind(0.5) {
            let for_c = embank_optimizer::from_rust(optimizer).unwrap();
            assert_eq!(for_c.to_rust().unwrap(), optimizer);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        assert_eq!(embank_sgd(0.5).to_rust().unwrap(), Optimizer::sgd(0.5));
        assert_eq!(embank_adagrad(0.5).to_rust().unwrap(), Optimizer::adagrad(0.5));
        assert_eq!(
            embank_row_wise_adagrad(0.5).to_rust().unwrap(),
            Optimizer::row_wise_adagrad(0.5)
        );
        assert_eq!(embank_adam(0.5).to_rust().unwrap(), Optimizer::adam(0.5));
        assert_eq!(embank_adam_w(0.5).to_rust().unwrap(), Optimizer::adamw(0.5));
        assert_eq!(embank_ftrl(0.5).to_rust().unwrap(), Optimizer::ftrl(0.5));
    }

    #[test]
    fn a_number_that_would_be_ignored_is_refused() {
        let mut bad = [embank_sgd(0.5); 5];
        bad[0].l1 = 0.1;
        bad[1].initial_accumulator = f64::NAN;
        bad[2].reserved[4] = 1.0;
        bad[3].nesterov = 2;
        bad[4].kind = 7;
        for optimizer in bad {
            assert_eq!(optimizer.to_rust().unwrap_err().status, embank_status::InvalidArgument);
        }
    }
}
