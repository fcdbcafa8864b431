//! What a table is: the settings that a caller gives and the descriptor that the bank keeps.
//!
//! A descriptor is a framed, checksummed tuple of primitives: (kind of table, version, settings). The
//! kind stands first so that other kinds of tables can share a bank.

use embank_kv::metadata;

use crate::error::{Error, Result};
use crate::initializer::Initializer;
use crate::optimizer::Optimizer;

/// The most columns that a table may have; the bank's page size may set a lower limit.
pub const DIM_MAX: u32 = 1 << 20;

/// The descriptor's kind of table: rows of an embedding.
const EMBEDDING_TABLE: u16 = 1;
const DESCRIPTOR_VERSION: u16 = 1;

/// How a table's values are stored. Default: [`Dtype::F32`], the only one so far.
///
/// # Examples
/// ```
/// assert_eq!(embank::TableConfig::new(8).dtype, embank::Dtype::F32);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 single precision, little-endian.
    #[default]
    F32,
}

/// The settings of a table.
///
/// `dim`, `dtype`, the optimizer's kind and initial accumulator, the initializer and the seed are the
/// table's identity: they are fixed when it is created, and [`Bank::table`](crate::Bank::table) refuses
/// others. The learning rate, `eps` and the staleness bound hold from the latest call on.
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
    /// Values per row, 1 to [`DIM_MAX`].
    pub dim: u32,
    /// How values are stored. Default: f32.
    pub dtype: Dtype,
    /// What applies gradients. Default: none.
    pub optimizer: Optimizer,
    /// What fills new rows. Default: uniform between -0.05 and 0.05.
    pub initializer: Initializer,
    /// Seed of the initial values. Default: 0.
    pub seed: u64,
    /// A Get waits while more than this many Gets of its row are outstanding: 0 is bulk-synchronous, k
    /// stale-synchronous. Default: `None`, asynchronous, which never waits.
    pub staleness_bound: Option<u32>,
}

impl TableConfig {
    /// A table of `dim` columns with every other setting at its default.
    #[must_use]
    pub fn new(dim: u32) -> Self {
        Self {
            dim,
            dtype: Dtype::default(),
            optimizer: Optimizer::default(),
            initializer: Initializer::default(),
            seed: 0,
            staleness_bound: None,
        }
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

    /// Sets the staleness bound.
    #[must_use]
    pub fn staleness_bound(mut self, bound: Option<u32>) -> Self {
        self.staleness_bound = bound;
        self
    }

    /// Checks every setting; [`Bank::table`](crate::Bank::table) does it too.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names `table` and the first setting that is out of its range.
    pub fn validate(&self, table: &str) -> Result<()> {
        let refuse = |what: String| Err(Error::InvalidConfig { table: table.to_owned(), what });
        if !(1..=DIM_MAX).contains(&self.dim) {
            return refuse(format!("dim must be 1 to {DIM_MAX}, found {}", self.dim));
        }
        if let Some(lr) = self.optimizer.learning_rate() {
            check_learning_rate(table, lr)?;
        }
        if let Optimizer::Adagrad { eps, initial_accumulator, .. } = self.optimizer {
            for (name, value) in [("eps", eps), ("the initial accumulator", initial_accumulator)] {
                if !(value.is_finite() && value >= 0.0) {
                    return refuse(format!(
                        "{name} must be finite and not negative, found {value}"
                    ));
                }
            }
        }
        match self.initializer {
            Initializer::Zeros => Ok(()),
            Initializer::Constant(value) if value.is_finite() => Ok(()),
            Initializer::Constant(value) => {
                refuse(format!("the initial constant must be finite, found {value}"))
            }
            Initializer::Uniform { low, high } if low <= high && (high - low).is_finite() => Ok(()),
            Initializer::Uniform { low, high } => refuse(format!(
                "the initializer's low must not be above its high, and both finite, found {low} and {high}"
            )),
            Initializer::Normal { mean, std }
                if mean.is_finite() && std.is_finite() && std >= 0.0 =>
            {
                Ok(())
            }
            Initializer::Normal { mean, std } => refuse(format!(
                "the initializer's mean must be finite and its std finite and not negative, found \
                 {mean} and {std}"
            )),
        }
    }

    /// Bytes of a row's value in the store: the vector, then the optimizer's state, then zeros up to a
    /// multiple of 8.
    pub(crate) fn value_bytes(&self) -> u32 {
        let dim = self.dim as usize;
        (4 * (dim + self.optimizer.state_values(dim))).next_multiple_of(8) as u32
    }

    /// Refuses a config whose identity differs from this one's.
    pub(crate) fn check_same_table(&self, table: &str, asked: &TableConfig) -> Result<()> {
        let (mut expected, mut found) = (Vec::new(), Vec::new());
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

    /// The identity, setting by setting, as error messages print it. Two settings are equal exactly
    /// when they print alike: Rust prints the shortest digits that tell an f32 from all others.
    fn identity(&self) -> [String; 5] {
        let optimizer = match self.optimizer {
            Optimizer::None => "no optimizer".to_owned(),
            Optimizer::Sgd { .. } => "optimizer SGD".to_owned(),
            Optimizer::Adagrad { initial_accumulator, .. } => {
                format!("optimizer Adagrad with initial accumulator {initial_accumulator}")
            }
        };
        [
            format!("dim {}", self.dim),
            format!("dtype {:?}", self.dtype),
            optimizer,
            format!("initializer {:?}", self.initializer),
            format!("seed {}", self.seed),
        ]
    }

    /// The bytes that the bank keeps with the table.
    pub(crate) fn to_descriptor(&self) -> Vec<u8> {
        let Dtype::F32 = self.dtype;
        let optimizer = match self.optimizer {
            Optimizer::None => (0_u8, [0.0; 3]),
            Optimizer::Sgd { lr } => (1, [lr, 0.0, 0.0]),
            Optimizer::Adagrad { lr, eps, initial_accumulator } => {
                (2, [lr, eps, initial_accumulator])
            }
        };
        let initializer = match self.initializer {
            Initializer::Zeros => (0_u8, [0.0; 2]),
            Initializer::Constant(value) => (1, [value, 0.0]),
            Initializer::Uniform { low, high } => (2, [low, high]),
            Initializer::Normal { mean, std } => (3, [mean, std]),
        };
        let settings: Settings =
            (self.dim, 0, optimizer, initializer, self.seed, self.staleness_bound);
        metadata::encode(&(EMBEDDING_TABLE, DESCRIPTOR_VERSION, metadata::encode(&settings)))
    }

    /// The settings of `table` from the descriptor that the store keeps with it, for whoever looks at a
    /// bank without opening it ([`embank_kv::inspect`]). Learning rate, eps and staleness bound are those of the
    /// table's creation.
    ///
    /// # Errors
    /// [`Error::UnreadableTable`] for a table that is no embedding table, or a newer program's.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// use embank::{Bank, BankOptions, TableConfig};
    ///
    /// let bank = Bank::open(dir.path(), BankOptions::default())?;
    /// bank.table("user", TableConfig::new(2).seed(7))?;
    /// bank.checkpoint(b"")?;
    ///
    /// let summary = embank_kv::inspect::summary(dir.path())?;
    /// let table = &summary.checkpoints[0].tables[0];
    /// assert_eq!(TableConfig::from_descriptor(&table.name, &table.descriptor)?.seed, 7);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn from_descriptor(table: &str, descriptor: &[u8]) -> Result<Self> {
        let unreadable = |reason| Error::UnreadableTable { table: table.to_owned(), reason };
        let (kind, version, settings): (u16, u16, Vec<u8>) =
            metadata::decode(descriptor).map_err(unreadable)?;
        if (kind, version) != (EMBEDDING_TABLE, DESCRIPTOR_VERSION) {
            return Err(unreadable(format!(
                "its descriptor has kind {kind} version {version}, this program reads kind \
                 {EMBEDDING_TABLE} version {DESCRIPTOR_VERSION}; use a newer Embank"
            )));
        }
        let (dim, dtype, optimizer, initializer, seed, staleness_bound): Settings =
            metadata::decode(&settings).map_err(unreadable)?;
        let config = Self {
            dim,
            dtype: match dtype {
                0 => Dtype::F32,
                other => return Err(unreadable(format!("its dtype is number {other}"))),
            },
            optimizer: match optimizer {
                (0, _) => Optimizer::None,
                (1, [lr, ..]) => Optimizer::Sgd { lr },
                (2, [lr, eps, initial_accumulator]) => {
                    Optimizer::Adagrad { lr, eps, initial_accumulator }
                }
                (other, _) => return Err(unreadable(format!("its optimizer is number {other}"))),
            },
            initializer: match initializer {
                (0, _) => Initializer::Zeros,
                (1, [value, _]) => Initializer::Constant(value),
                (2, [low, high]) => Initializer::Uniform { low, high },
                (3, [mean, std]) => Initializer::Normal { mean, std },
                (other, _) => return Err(unreadable(format!("its initializer is number {other}"))),
            },
            seed,
            staleness_bound,
        };
        config.validate(table)?;
        Ok(config)
    }
}

/// dim, dtype, optimizer and its numbers, initializer and its numbers, seed, staleness bound.
type Settings = (u32, u8, (u8, [f32; 3]), (u8, [f32; 2]), u64, Option<u32>);

/// Refuses a learning rate that is negative, NaN or infinite.
pub(crate) fn check_learning_rate(table: &str, lr: f32) -> Result<()> {
    if lr.is_finite() && lr >= 0.0 {
        return Ok(());
    }
    Err(Error::InvalidConfig {
        table: table.to_owned(),
        what: format!("the learning rate must be finite and not negative, found {lr}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adagrad(initial_accumulator: f32) -> Optimizer {
        Optimizer::Adagrad { lr: 0.1, eps: 1e-8, initial_accumulator }
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
    fn learning_rate_eps_and_bound_are_no_identity() {
        let held = TableConfig::new(16).optimizer(adagrad(0.5));
        let asked = TableConfig::new(16)
            .optimizer(Optimizer::Adagrad { lr: 9.0, eps: 0.0, initial_accumulator: 0.5 })
            .staleness_bound(Some(0));
        held.check_same_table("t", &asked).unwrap();
        for other in [
            held.clone().optimizer(adagrad(0.25)),
            held.clone().seed(1),
            held.clone().initializer(Initializer::Zeros),
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
            good.clone().optimizer(Optimizer::sgd(f32::NAN)),
            good.clone().optimizer(adagrad(-1.0)),
            good.clone().initializer(Initializer::Constant(f32::INFINITY)),
            good.clone().initializer(Initializer::Uniform { low: 1.0, high: 0.0 }),
            good.clone().initializer(Initializer::Uniform { low: f32::MIN, high: f32::MAX }),
            good.clone().initializer(Initializer::Normal { mean: 0.0, std: -1.0 }),
        ] {
            assert!(matches!(bad.validate("t"), Err(Error::InvalidConfig { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_descriptor_comes_back_as_it_was_written() {
        for optimizer in [Optimizer::None, Optimizer::sgd(0.5), adagrad(0.1)] {
            for initializer in [
                Initializer::Zeros,
                Initializer::Constant(1.5),
                Initializer::default(),
                Initializer::Normal { mean: 1.0, std: 2.0 },
            ] {
                let config = TableConfig::new(24)
                    .optimizer(optimizer)
                    .initializer(initializer)
                    .seed(u64::MAX)
                    .staleness_bound(Some(3));
                let read = TableConfig::from_descriptor("t", &config.to_descriptor()).unwrap();
                assert_eq!(read, config);
            }
        }
    }

    #[test]
    fn a_damaged_or_foreign_descriptor_is_refused() {
        let mut damaged = TableConfig::new(24).to_descriptor();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        let foreign = metadata::encode(&(99_u16, 1_u16, Vec::<u8>::new()));
        for descriptor in [damaged, foreign, Vec::new()] {
            let error = TableConfig::from_descriptor("t", &descriptor).unwrap_err();
            assert!(matches!(error, Error::UnreadableTable { .. }), "{error}");
        }
    }
}
