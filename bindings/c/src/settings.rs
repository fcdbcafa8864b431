//! The settings of a table.

use bytemuck::{Pod, Zeroable};
use embank::{Adagrad, Dtype, Initializer, Optimizer, Sgd, TableConfig};

use crate::sized::{self, Growing};
use crate::status::{Failure, call, embank_status};

/// How a table's values are stored.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_dtype {
    /// IEEE 754 single precision.
    F32 = 0,
}

/// What applies gradients.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_optimizer_kind {
    /// Nothing: rows are only put.
    None = 0,
    /// torch.optim.SGD.
    Sgd = 1,
    /// torch.optim.Adagrad.
    Adagrad = 2,
}

/// An optimizer with its numbers; those that its kind does not have are not looked at. Make one with embank_sgd and so
/// on, which fill in torch's defaults, and change what you like.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_optimizer {
    /// One of embank_optimizer_kind.
    pub kind: u32,
    /// Not negative. embank_table_set_learning_rate changes it later.
    pub learning_rate: f32,
    /// Keeps a division finite.
    pub eps: f32,
    /// Where a new row's accumulators start. Part of the table's identity.
    pub initial_accumulator: f32,
    /// Zeros: room for the numbers of other optimizers.
    pub reserved: [f32; 20],
}

impl embank_optimizer {
    const NONE: Self = Self {
        kind: embank_optimizer_kind::None as u32,
        learning_rate: 0.0,
        eps: 0.0,
        initial_accumulator: 0.0,
        reserved: [0.0; 20],
    };

    fn from_rust(optimizer: Optimizer) -> Result<Self, Failure> {
        Ok(match optimizer {
            Optimizer::None => Self::NONE,
            // What has numbers that the header has no field for is left to the last arm.
            Optimizer::Sgd(sgd) if sgd == Sgd::new(sgd.lr) => Self {
                kind: embank_optimizer_kind::Sgd as u32,
                learning_rate: sgd.lr as f32,
                ..Self::NONE
            },
            Optimizer::Adagrad(Adagrad { lr, eps, initial_accumulator, .. })
                if optimizer == adagrad(lr, eps, initial_accumulator) =>
            {
                Self {
                    kind: embank_optimizer_kind::Adagrad as u32,
                    learning_rate: lr as f32,
                    eps: eps as f32,
                    initial_accumulator,
                    ..Self::NONE
                }
            }
            other => return Err(beyond_this_header("optimizer", &other)),
        })
    }

    fn to_rust(self) -> Result<Optimizer, Failure> {
        const NONE: u32 = embank_optimizer_kind::None as u32;
        const SGD: u32 = embank_optimizer_kind::Sgd as u32;
        const ADAGRAD: u32 = embank_optimizer_kind::Adagrad as u32;
        check_reserved("embank_optimizer", &self.reserved)?;
        Ok(match self.kind {
            NONE => Optimizer::None,
            SGD => Optimizer::sgd(decimal(self.learning_rate)),
            ADAGRAD => {
                adagrad(decimal(self.learning_rate), decimal(self.eps), self.initial_accumulator)
            }
            other => return Err(no_such_number("embank_optimizer_kind", other)),
        })
    }
}

fn adagrad(lr: f64, eps: f64, initial_accumulator: f32) -> Optimizer {
    Optimizer::Adagrad(Adagrad { eps, initial_accumulator, ..Adagrad::new(lr) })
}

/// The double of the fewest digits that is this float: 0.1f is meant as 0.1.
pub(crate) fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

/// torch.optim.SGD: row -= learning_rate * gradient.
#[unsafe(no_mangle)]
pub extern "C" fn embank_sgd(learning_rate: f32) -> embank_optimizer {
    embank_optimizer {
        kind: embank_optimizer_kind::Sgd as u32,
        learning_rate,
        ..embank_optimizer::NONE
    }
}

/// torch.optim.Adagrad: sum += gradient^2, row -= learning_rate * gradient / (sqrt(sum) + eps). eps is 1e-10, the
/// initial accumulator 0.
#[unsafe(no_mangle)]
pub extern "C" fn embank_adagrad(learning_rate: f32) -> embank_optimizer {
    embank_optimizer {
        kind: embank_optimizer_kind::Adagrad as u32,
        learning_rate,
        eps: 1e-10,
        ..embank_optimizer::NONE
    }
}

/// How new rows are filled.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_initializer_kind {
    /// With zeros.
    Zeros = 0,
    /// With parameters[0].
    Constant = 1,
    /// Uniformly between parameters[0] and parameters[1].
    Uniform = 2,
    /// From a normal distribution with mean parameters[0] and standard deviation parameters[1].
    Normal = 3,
}

/// How new rows are filled, with its numbers. Make one with embank_uniform and so on; zeros are one, too.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_initializer {
    /// One of embank_initializer_kind.
    pub kind: u32,
    /// As the kind says; the others are zeros.
    pub parameters: [f32; 7],
}

impl embank_initializer {
    fn new(kind: embank_initializer_kind, numbers: [f32; 2]) -> Self {
        let [first, second] = numbers;
        Self { kind: kind as u32, parameters: [first, second, 0.0, 0.0, 0.0, 0.0, 0.0] }
    }

    fn from_rust(initializer: &Initializer) -> Result<Self, Failure> {
        use embank_initializer_kind as Kind;
        Ok(match *initializer {
            Initializer::Zeros => Self::new(Kind::Zeros, [0.0, 0.0]),
            Initializer::Constant(value) => Self::new(Kind::Constant, [value, 0.0]),
            Initializer::Uniform { low, high } => Self::new(Kind::Uniform, [low, high]),
            Initializer::Normal { mean, std } => Self::new(Kind::Normal, [mean, std]),
            _ => return Err(beyond_this_header("initializer", initializer)),
        })
    }

    fn to_rust(self) -> Result<Initializer, Failure> {
        const ZEROS: u32 = embank_initializer_kind::Zeros as u32;
        const CONSTANT: u32 = embank_initializer_kind::Constant as u32;
        const UNIFORM: u32 = embank_initializer_kind::Uniform as u32;
        const NORMAL: u32 = embank_initializer_kind::Normal as u32;
        let [first, second, others @ ..] = self.parameters;
        check_reserved("embank_initializer", &others)?;
        Ok(match self.kind {
            ZEROS => Initializer::Zeros,
            CONSTANT => Initializer::Constant(first),
            UNIFORM => Initializer::Uniform { low: first, high: second },
            NORMAL => Initializer::Normal { mean: first, std: second },
            other => return Err(no_such_number("embank_initializer_kind", other)),
        })
    }
}

/// New rows are all `value`.
#[unsafe(no_mangle)]
pub extern "C" fn embank_constant(value: f32) -> embank_initializer {
    embank_initializer::new(embank_initializer_kind::Constant, [value, 0.0])
}

/// New rows are uniform between `low` and `high`.
#[unsafe(no_mangle)]
pub extern "C" fn embank_uniform(low: f32, high: f32) -> embank_initializer {
    embank_initializer::new(embank_initializer_kind::Uniform, [low, high])
}

/// New rows are normal (Gaussian).
#[unsafe(no_mangle)]
pub extern "C" fn embank_normal(mean: f32, std: f32) -> embank_initializer {
    embank_initializer::new(embank_initializer_kind::Normal, [mean, std])
}

/// The settings of a table. Call embank_table_settings_init, set the dim, then change what you like. dim, dtype, the
/// optimizer's kind and initial accumulator, the initializer and the seed are the table's for good; a table that exists
/// is only given out if they are the same. The others hold from the latest call on.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct embank_table_settings {
    /// Set by embank_table_settings_init.
    pub size: usize,
    /// Seed of the initial values. 0.
    pub seed: u64,
    /// A get waits while more than this many gets of its row are outstanding: 0 is bulk-synchronous, k
    /// stale-synchronous, negative: asynchronous, which never waits. -1.
    pub staleness_bound: i64,
    /// Values per row. 0, which has to be changed.
    pub dim: u32,
    /// One of embank_dtype. EMBANK_DTYPE_F32.
    pub dtype: u32,
    /// What applies gradients. None.
    pub optimizer: embank_optimizer,
    /// How new rows are filled. Uniformly between -0.05 and 0.05.
    pub initializer: embank_initializer,
}

impl Growing for embank_table_settings {
    const NAME: &'static str = "embank_table_settings";
    const FILLED_BY: &'static str = "embank_table_settings_init";
    const SIZE_MIN: usize = 160;

    fn defaults() -> Self {
        Self {
            size: size_of::<Self>(),
            seed: 0,
            staleness_bound: -1,
            dim: 0,
            dtype: embank_dtype::F32 as u32,
            optimizer: embank_optimizer::NONE,
            initializer: embank_initializer::new(embank_initializer_kind::Uniform, [-0.05, 0.05]),
        }
    }
}

impl embank_table_settings {
    pub(crate) fn from_rust(config: &TableConfig) -> Result<Self, Failure> {
        Ok(Self {
            size: size_of::<Self>(),
            seed: config.seed,
            staleness_bound: bound_from_rust(config.staleness_bound),
            dim: config.dim,
            dtype: match config.dtype {
                Dtype::F32 => embank_dtype::F32 as u32,
                other => return Err(beyond_this_header("dtype", &other)),
            },
            optimizer: embank_optimizer::from_rust(config.optimizer)?,
            initializer: embank_initializer::from_rust(&config.initializer)?,
        })
    }

    pub(crate) fn to_rust(self) -> Result<TableConfig, Failure> {
        const F32: u32 = embank_dtype::F32 as u32;
        let mut config = TableConfig::new(self.dim)
            .optimizer(self.optimizer.to_rust()?)
            .initializer(self.initializer.to_rust()?)
            .seed(self.seed)
            .staleness_bound(bound_to_rust(self.staleness_bound)?);
        config.dtype = match self.dtype {
            F32 => Dtype::F32,
            other => return Err(no_such_number("embank_dtype", other)),
        };
        Ok(config)
    }
}

pub(crate) fn bound_from_rust(bound: Option<u32>) -> i64 {
    bound.map_or(-1, i64::from)
}

pub(crate) fn bound_to_rust(bound: i64) -> Result<Option<u32>, Failure> {
    if bound < 0 {
        return Ok(None);
    }
    match u32::try_from(bound) {
        Ok(bound) => Ok(Some(bound)),
        Err(_) => Err(Failure::invalid(format!(
            "a staleness bound is at most {}, found {bound}; negative is none",
            u32::MAX
        ))),
    }
}

fn no_such_number(name: &str, number: u32) -> Failure {
    Failure::invalid(format!("there is no {name} {number} in Embank {}", env!("CARGO_PKG_VERSION")))
}

fn check_reserved(name: &str, reserved: &[f32]) -> Result<(), Failure> {
    if reserved.iter().all(|value| value.to_bits() == 0) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "an {name} has numbers where zeros must be; make it with one of the functions of the header"
    )))
}

/// A table that some other program made with what C has no name for yet.
fn beyond_this_header(what: &str, value: &dyn std::fmt::Debug) -> Failure {
    Failure {
        status: embank_status::Other,
        message: format!("the table has {what} {value:?}, which the C ABI can't tell of"),
    }
}

/// Sets every setting to its default, the dim to 0. `size` is sizeof(embank_table_settings).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embank_table_settings_init(
    settings: *mut embank_table_settings,
    size: usize,
) -> embank_status {
    // SAFETY: by the header's rules.
    call(|| unsafe { sized::write(settings, size, &embank_table_settings::defaults()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let mut settings = embank_table_settings::defaults();
        settings.dim = 3;
        assert_eq!(settings.to_rust().unwrap(), TableConfig::new(3));
        assert_eq!(embank_sgd(0.5).to_rust().unwrap(), Optimizer::sgd(0.5));
        assert_eq!(embank_adagrad(0.5).to_rust().unwrap(), Optimizer::adagrad(0.5));
    }

    #[test]
    fn settings_come_back_as_they_went() {
        let optimizers = [Optimizer::None, Optimizer::sgd(0.5), adagrad(0.5, 0.1, 2.0)];
        let initializers = [
            Initializer::Zeros,
            Initializer::Constant(1.5),
            Initializer::Uniform { low: -1.0, high: 2.0 },
            Initializer::Normal { mean: 1.0, std: 2.0 },
        ];
        for optimizer in optimizers {
            for initializer in initializers.clone() {
                for bound in [None, Some(0), Some(u32::MAX)] {
                    let config = TableConfig::new(7)
                        .optimizer(optimizer)
                        .initializer(initializer.clone())
                        .seed(u64::MAX)
                        .staleness_bound(bound);
                    let settings = embank_table_settings::from_rust(&config).unwrap();
                    assert_eq!(settings.to_rust().unwrap(), config);
                }
            }
        }
    }

    #[test]
    fn numbers_without_a_meaning_are_refused() {
        let good = embank_table_settings::defaults();
        let mut bad = [good; 6];
        bad[0].dtype = 99;
        bad[1].optimizer.kind = 99;
        bad[2].optimizer.reserved[19] = 1.0;
        bad[3].initializer.kind = 99;
        bad[4].initializer.parameters[6] = f32::NAN;
        bad[5].staleness_bound = 1 << 32;
        for settings in bad {
            assert_eq!(settings.to_rust().unwrap_err().status, embank_status::InvalidArgument);
        }
    }
}
