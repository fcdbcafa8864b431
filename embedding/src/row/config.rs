//! The settings of a table, as a caller gives them. The module `descriptor` describes how a bank
//! stores them.

use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::row::admission::Admission;
use crate::row::initializer::Initializer;
use crate::row::numbering::TableVocabulary;
use crate::row::tracking::Tracking;

/// Largest number of shards of a fleet, and the number of buckets into which the hash of
/// [`fleet`](crate::fleet) divides the keys.
pub(crate) const BUCKETS: u32 = 1 << 12;

/// Largest number of columns of a table. The bank's page size may set a lower limit.
pub const DIM_MAX: u32 = 1 << 20;

/// The settings of a table.
///
/// The table's identity consists of `dim`, the dtypes and rounding, the shape of the optimizer's
/// state ([`Optimizer`]), the initializer, the seed, admission, tracking, vocabulary and shard.
/// These settings are fixed when the table is created, and [`Bank::table`](crate::Bank::table)
/// fails if they differ. The learning rate and other numbers of the optimizer, `clip_row_norm` and
/// the staleness bound are not part of the identity. Each call of `Bank::table` replaces them.
///
/// In the source, `row/config.rs` has the settings, `row/descriptor.rs` their encoding,
/// `row/sections.rs` the length of a row, and `row/decoded.rs` the decoding of rows.
///
/// # Examples
/// ```
/// use embank::{Initializer, Optimizer, TableConfig};
///
/// let config = TableConfig::new(16)
///     .optimizer(Optimizer::adagrad(0.01))
///     .initializer(Initializer::Normal { mean: 0.0, std: 0.01 })
///     .seed(7)
///     .staleness_bound(Some(4));
/// assert_eq!((config.dim, config.staleness_bound), (16, Some(4)));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TableConfig {
    /// Number of values in a row, 1 to [`DIM_MAX`].
    pub dim: u32,
    /// Stored type of a row's values. Default: f32.
    pub dtype: Dtype,
    /// Stored type of the optimizer's state vectors: f32, f16 or bf16. With f16 and bf16, updates
    /// of these vectors are rounded stochastically. Single values and counts of the state keep
    /// their type. Default: f32.
    pub state_dtype: Dtype,
    /// How updates are rounded if the dtype is not f32. Default: `None`, which means stochastic for
    /// int8 and nearest for other dtypes.
    pub rounding: Option<Rounding>,
    /// The optimizer that applies gradients. Default: none.
    pub optimizer: Optimizer,
    /// The distribution of new rows' values. Default: uniform between -0.05 and 0.05.
    pub initializer: Initializer,
    /// Seed of the initial values. Default: 0.
    pub seed: u64,
    /// Decides for which keys a Get makes rows. Default: for all keys.
    pub admission: Admission,
    /// Whether rows record their last use and number of uses. Default: no.
    pub tracking: Tracking,
    /// Largest L2 norm of a row's gradient, after the gradients of a repeated key are summed. A
    /// longer gradient is scaled down to this norm. Default: `None`, no limit.
    pub clip_row_norm: Option<f32>,
    /// The vocabulary whose ids are the keys. Default: `None`, any key is valid.
    pub vocabulary: Option<TableVocabulary>,
    /// The shard of a fleet that holds all rows of the table ([`fleet`](crate::fleet)). Only the
    /// code that routes keys reads it: the bank of every shard has the table, with this setting.
    /// Default: `None`, each key's row is on the shard of the key.
    pub shard: Option<u32>,
    /// A Get waits while one of its rows has more outstanding Gets than this number. 0 means
    /// bulk-synchronous and k means stale-synchronous training. Default: `None`, asynchronous
    /// training, in which a Get never waits.
    pub staleness_bound: Option<u32>,
}

impl TableConfig {
    /// Makes the settings of a table with `dim` columns. All other settings have their defaults.
    #[must_use]
    pub fn new(dim: u32) -> Self {
        Self {
            dim,
            dtype: Dtype::default(),
            state_dtype: Dtype::default(),
            rounding: None,
            optimizer: Optimizer::default(),
            initializer: Initializer::default(),
            seed: 0,
            admission: Admission::Always,
            tracking: Tracking::None,
            clip_row_norm: None,
            vocabulary: None,
            shard: None,
            staleness_bound: None,
        }
    }

    /// Sets the stored type of a row's values.
    #[must_use]
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets the stored type of the optimizer's state vectors.
    #[must_use]
    pub fn state_dtype(mut self, dtype: Dtype) -> Self {
        self.state_dtype = dtype;
        self
    }

    /// Sets how updates are rounded.
    #[must_use]
    pub fn rounding(mut self, rounding: Option<Rounding>) -> Self {
        self.rounding = rounding;
        self
    }

    /// The rounding of updates: as set, or the default of the dtype.
    pub(crate) fn rounds(&self) -> Rounding {
        let by_dtype =
            if self.dtype == Dtype::Int8 { Rounding::Stochastic } else { Rounding::Nearest };
        self.rounding.unwrap_or(by_dtype)
    }

    /// Sets the optimizer.
    #[must_use]
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        self.optimizer = optimizer;
        self
    }

    /// Sets the initializer.
    #[must_use]
    pub fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }

    /// Sets the seed of the initial values.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets which keys get a row at a Get.
    #[must_use]
    pub fn admission(mut self, admission: Admission) -> Self {
        self.admission = admission;
        self
    }

    /// Sets whether rows record their uses.
    #[must_use]
    pub fn tracking(mut self, tracking: Tracking) -> Self {
        self.tracking = tracking;
        self
    }

    /// Sets the largest norm of a row's gradient.
    #[must_use]
    pub fn clip_row_norm(mut self, norm: Option<f32>) -> Self {
        self.clip_row_norm = norm;
        self
    }

    /// Declares that the keys are ids of this vocabulary of the bank. The table remembers the
    /// vocabulary's numbering. If the vocabulary is later renumbered, or dropped and made again,
    /// [`Bank::table`](crate::Bank::table) and [`Bank::open_table`](crate::Bank::open_table) fail
    /// with [`Error::OtherVocabulary`].
    #[must_use]
    pub fn vocabulary(mut self, name: impl Into<String>) -> Self {
        self.vocabulary = Some(TableVocabulary::new(name));
        self
    }

    /// Puts all rows of the table on one shard of a fleet.
    #[must_use]
    pub fn shard(mut self, shard: Option<u32>) -> Self {
        self.shard = shard;
        self
    }

    /// Sets the staleness bound.
    #[must_use]
    pub fn staleness_bound(mut self, bound: Option<u32>) -> Self {
        self.staleness_bound = bound;
        self
    }

    /// Checks every setting. [`Bank::table`](crate::Bank::table) makes this check too.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with `table` and the first setting that is out of range.
    pub fn validate(&self, table: &str) -> Result<()> {
        let refuse = |what: String| Err(Error::InvalidConfig { table: table.to_owned(), what });
        if !(1..=DIM_MAX).contains(&self.dim) {
            return refuse(format!("dim must be 1 to {DIM_MAX}, found {}", self.dim));
        }
        if self.state_dtype == Dtype::Int8 {
            return refuse("state_dtype must be float32, float16 or bfloat16, found int8".into());
        }
        if self.dtype == Dtype::F32 && self.rounding == Some(Rounding::Stochastic) {
            return refuse("float32 is not rounded: take another dtype or no rounding".into());
        }
        if let Some(shard) = self.shard.filter(|&shard| shard >= BUCKETS) {
            return refuse(format!("shard must be below {BUCKETS}, found {shard}"));
        }
        self.optimizer.check().or_else(refuse)?;
        self.initializer.check().or_else(refuse)?;
        self.check_ranges().or_else(refuse)?;
        self.admission.check().or_else(refuse)?;
        check_clip_row_norm(self.clip_row_norm).or_else(refuse)
    }

    /// Fails if a value of a new row would become infinite in its dtype.
    fn check_ranges(&self) -> std::result::Result<(), String> {
        let check = |what: &str, value: f32, dtype: Dtype| {
            let cure = "take another dtype or a smaller value";
            if dtype.range().holds(&[value]) {
                Ok(())
            } else {
                Err(format!("{what} must be finite as {}, found {value}: {cure}", dtype.name()))
            }
        };
        let accumulator = self.optimizer.initial_accumulator();
        if self.optimizer.state_shape().vectors > 0 {
            check("the initial accumulator", accumulator, self.state_dtype)?;
        }
        match self.initializer {
            Initializer::Constant(value) => check("the initial constant", value, self.dtype),
            Initializer::Uniform { low, high } => {
                check("the initializer's low", low, self.dtype)?;
                check("the initializer's high", high, self.dtype)
            }
            Initializer::Normal { mean, .. } | Initializer::TruncatedNormal { mean, .. } => {
                check("the initializer's mean", mean, self.dtype)
            }
            Initializer::Zeros
            | Initializer::XavierUniform { .. }
            | Initializer::XavierNormal { .. } => Ok(()),
        }
    }

    /// Fails if the identity of `asked` differs from the identity of this config. Identity means
    /// the settings that never change for a table.
    pub(crate) fn check_same_table(&self, table: &str, asked: &TableConfig) -> Result<()> {
        let mut expected = Vec::new();
        let mut found = Vec::new();
        for (asked, held) in asked.identity().into_iter().zip(self.identity()) {
            if asked != held {
                expected.push(asked);
                found.push(held);
            }
        }
        if expected.is_empty() {
            return Ok(());
        }
        Err(Error::ConfigMismatch {
            table: table.to_owned(),
            expected: expected.join(", "),
            found: found.join(", "),
        })
    }

    /// Returns the text of each identity setting, for error messages. Two settings are equal
    /// exactly if their texts are equal, because Rust prints enough digits to tell any two f32
    /// apart.
    fn identity(&self) -> [String; 11] {
        [
            format!("dim {}", self.dim),
            format!("dtype {}", self.dtype.name()),
            format!("state dtype {}", self.state_dtype.name()),
            format!("rounding {:?}", self.rounds()),
            self.optimizer.identity(),
            format!("initializer {:?}", self.initializer),
            format!("seed {}", self.seed),
            format!("tracking {:?}", self.tracking),
            format!("admission {:?}", self.admission),
            match &self.vocabulary {
                Some(vocabulary) => format!("vocabulary {:?}", vocabulary.name),
                None => "no vocabulary".to_owned(),
            },
            match self.shard {
                Some(shard) => format!("all rows on shard {shard}"),
                None => "each row on the shard of its key".to_owned(),
            },
        ]
    }
}

/// Fails if the norm is not finite and above 0.
pub(crate) fn check_clip_row_norm(norm: Option<f32>) -> std::result::Result<(), String> {
    match norm {
        Some(norm) if !(norm.is_finite() && norm > 0.0) => {
            Err(format!("clip_row_norm must be finite and above 0, found {norm}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{Adagrad, Adam, Ftrl, Sgd};
    use crate::row::initializer::Fans;

    fn adagrad(initial_accumulator: f32) -> Optimizer {
        Optimizer::Adagrad(Adagrad { initial_accumulator, ..Adagrad::new(0.1) })
    }

    #[test]
    fn a_value_holds_vector_and_state_in_whole_words() {
        assert_eq!(TableConfig::new(1).value_bytes(), 8);
        assert_eq!(TableConfig::new(16).optimizer(Optimizer::sgd(0.1)).value_bytes(), 64);
        assert_eq!(TableConfig::new(16).optimizer(adagrad(0.0)).value_bytes(), 128);
        assert_eq!(TableConfig::new(3).optimizer(adagrad(0.0)).value_bytes(), 24);
    }

    #[test]
    fn a_mismatch_names_what_was_asked_for_and_what_is_there() {
        let held = TableConfig::new(16).optimizer(adagrad(0.0)).seed(3);
        let asked = TableConfig::new(8).optimizer(Optimizer::sgd(0.1)).seed(3);
        match held.check_same_table("user", &asked) {
            Err(Error::ConfigMismatch { table, expected, found }) => {
                assert_eq!(table, "user");
                assert_eq!(expected, "dim 8, optimizer SGD");
                assert_eq!(found, "dim 16, optimizer Adagrad with initial accumulator 0");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rates_decay_clipping_and_bound_are_no_identity() {
        let held = TableConfig::new(16).optimizer(adagrad(0.5));
        let asked = TableConfig::new(16)
            .optimizer(Optimizer::Adagrad(Adagrad {
                eps: 0.0,
                weight_decay: 0.1,
                initial_accumulator: 0.5,
                ..Adagrad::new(9.0)
            }))
            .clip_row_norm(Some(1.0))
            .staleness_bound(Some(0));
        held.check_same_table("t", &asked).unwrap();
        for other in [
            held.clone().optimizer(adagrad(0.25)),
            held.clone().optimizer(Optimizer::Adagrad(Adagrad {
                lr_decay: 0.1,
                initial_accumulator: 0.5,
                ..Adagrad::new(0.1)
            })),
            held.clone().seed(1),
            held.clone().initializer(Initializer::Zeros),
            held.clone().shard(Some(0)),
        ] {
            assert!(held.check_same_table("t", &other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let good = TableConfig::new(4);
        good.validate("t").unwrap();
        for bad in [
            TableConfig::new(0),
            TableConfig::new(DIM_MAX + 1),
            good.clone().optimizer(Optimizer::sgd(-0.1)),
            good.clone().optimizer(Optimizer::sgd(f64::NAN)),
            good.clone().optimizer(Optimizer::sgd(1e300)),
            good.clone().optimizer(Optimizer::Sgd(Sgd { nesterov: true, ..Sgd::new(0.1) })),
            good.clone().optimizer(Optimizer::Sgd(Sgd { dampening: 0.5, ..Sgd::new(0.1) })),
            good.clone().optimizer(Optimizer::Sgd(Sgd { momentum: f64::NAN, ..Sgd::new(0.1) })),
            good.clone().optimizer(Optimizer::Adam(Adam { betas: (0.9, 1.0), ..Adam::new(0.1) })),
            good.clone().optimizer(Optimizer::Adam(Adam { betas: (-0.1, 0.9), ..Adam::new(0.1) })),
            good.clone().optimizer(Optimizer::ftrl(1e-40)),
            good.clone().optimizer(Optimizer::Ftrl(Ftrl { l1: -1.0, ..Ftrl::new(0.1) })),
            good.clone().optimizer(adagrad(-1.0)),
            good.clone().clip_row_norm(Some(0.0)),
            good.clone().clip_row_norm(Some(f32::NAN)),
            good.clone().shard(Some(BUCKETS)),
            good.clone().initializer(Initializer::TruncatedNormal {
                mean: 0.0,
                std: 1.0,
                low: 7.0,
                high: 8.0,
            }),
            good.clone().initializer(Initializer::XavierUniform {
                gain: 1.0,
                fans: Fans { fan_in: Some(0), fan_out: None },
            }),
            good.clone().initializer(Initializer::Constant(f32::INFINITY)),
            good.clone().initializer(Initializer::Uniform { low: 1.0, high: 0.0 }),
            good.clone().initializer(Initializer::Uniform { low: f32::MIN, high: f32::MAX }),
            good.clone().initializer(Initializer::Normal { mean: 0.0, std: -1.0 }),
        ] {
            assert!(matches!(bad.validate("t"), Err(Error::InvalidConfig { .. })), "{bad:?}");
        }
    }
}
