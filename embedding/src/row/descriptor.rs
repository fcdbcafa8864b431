//! The descriptor: the encoding of a table's settings that a bank stores with the table.
//!
//! A descriptor is a tuple (kind of table, version, settings), in a frame with a checksum. The kind
//! stands first, so that a program can recognise a table that is not an embedding table. In version
//! 2 the settings are a list of (tag, bytes), so a later program can add settings. A program that
//! does not know a tag does not open the table, because the setting may change the layout of its
//! rows. If the tag's highest bit is set, the program may skip the setting instead. Some settings
//! are newer than the first program that wrote version 2. Such a setting is omitted if it has its
//! default, so that this first program can still open tables that do not use the setting. Version
//! 1, a fixed tuple for SGD and Adagrad in f32, is still read but no longer written.
//!
//! Version 1 stored numbers as f32. A reader turns such a number into the shortest decimal that
//! rounds to it. A learning rate of 0.1 is therefore 0.1 as f64 too.

use embank_kv::metadata;

use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};
use crate::optimizer::{Adagrad, Number, Optimizer};
use crate::row::admission::Admission;
use crate::row::config::TableConfig;
use crate::row::initializer::{Fans, Initializer};
use crate::row::numbering::TableVocabulary;
use crate::row::tracking::Tracking;

/// Kind of a table with rows of an embedding.
const EMBEDDING_TABLE: u16 = 1;
/// Kind of a separate table of 8-byte rows: for admission (`table::admission`), or for the times of
/// tables (`times`).
const COUNTS_TABLE: u16 = 2;
const VERSION: u16 = 2;

/// Tags of the settings. If the highest bit is set, a program may skip the setting if it does not
/// know the tag.
mod tag {
    pub(crate) const DIM: u16 = 1;
    pub(crate) const DTYPE: u16 = 2;
    pub(crate) const OPTIMIZER: u16 = 3;
    pub(crate) const INITIALIZER: u16 = 4;
    pub(crate) const SEED: u16 = 5;
    pub(crate) const STATE_DTYPE: u16 = 10;
    pub(crate) const ROUNDING: u16 = 11;
    /// The bound may differ at each open, so an older program can skip it.
    pub(crate) const STALENESS_BOUND: u16 = MAY_BE_SKIPPED | 6;
    pub(crate) const CLIP_ROW_NORM: u16 = MAY_BE_SKIPPED | 7;
    pub(crate) const TRACKING: u16 = 8;
    pub(crate) const ADMISSION: u16 = 9;
    /// Must not be skipped. A program that ignored this setting could use the row of one value for
    /// another value.
    pub(crate) const VOCABULARY: u16 = 12;
    /// Must not be skipped. A program that ignored this setting would ask another shard for the
    /// table's rows.
    pub(crate) const SHARD: u16 = 13;
    pub(crate) const MAY_BE_SKIPPED: u16 = 1 << 15;
}

type Parsed<T> = std::result::Result<T, String>;

impl TableConfig {
    /// Encodes the settings as a descriptor.
    pub(crate) fn to_descriptor(&self) -> Vec<u8> {
        let mut settings: Vec<(u16, Vec<u8>)> = vec![
            (tag::DIM, self.dim.to_le_bytes().to_vec()),
            (tag::DTYPE, vec![self.dtype.number()]),
            (tag::OPTIMIZER, optimizer_bytes(self.optimizer)),
            (tag::INITIALIZER, initializer_bytes(&self.initializer)),
            (tag::SEED, self.seed.to_le_bytes().to_vec()),
        ];
        if self.state_dtype != Dtype::F32 {
            settings.push((tag::STATE_DTYPE, vec![self.state_dtype.number()]));
        }
        if let Some(rounding) = self.rounding {
            settings.push((tag::ROUNDING, vec![rounding_number(rounding)]));
        }
        if let Some(bound) = self.staleness_bound {
            settings.push((tag::STALENESS_BOUND, bound.to_le_bytes().to_vec()));
        }
        if let Some(norm) = self.clip_row_norm {
            settings.push((tag::CLIP_ROW_NORM, norm.to_le_bytes().to_vec()));
        }
        if self.tracking != Tracking::None {
            settings.push((tag::TRACKING, vec![tracking_number(self.tracking)]));
        }
        if let Some(vocabulary) = &self.vocabulary {
            settings.push((tag::VOCABULARY, vocabulary.to_bytes()));
        }
        if let Some(shard) = self.shard {
            settings.push((tag::SHARD, shard.to_le_bytes().to_vec()));
        }
        match self.admission {
            Admission::Always => {}
            Admission::AfterGets(gets) => {
                settings.push((tag::ADMISSION, [&[1][..], &gets.to_le_bytes()].concat()));
            }
            Admission::Probability(chance) => {
                settings.push((tag::ADMISSION, [&[2][..], &chance.to_le_bytes()].concat()));
            }
        }
        metadata::encode(&(EMBEDDING_TABLE, VERSION, metadata::encode(&settings)))
    }

    /// Returns the settings of `table` from its descriptor, for programs that read a bank without
    /// opening it ([`inspect`](crate::inspect)). The learning rate and other settings that a
    /// program can change later have the values with which the table was made.
    ///
    /// # Errors
    /// [`Error::UnreadableTable`] if the table is not an embedding table, or if a newer program
    /// made it.
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
    /// let summary = embank::inspect::summary(dir.path())?;
    /// let table = &summary.checkpoints[0].tables[0];
    /// assert_eq!(TableConfig::from_descriptor(&table.name, &table.descriptor)?.seed, 7);
    /// # Ok::<(), embank::Error>(())
    /// ```
    pub fn from_descriptor(table: &str, descriptor: &[u8]) -> Result<Self> {
        let unreadable = |reason| Error::UnreadableTable { table: table.to_owned(), reason };
        let (kind, version, settings): (u16, u16, Vec<u8>) =
            metadata::decode(descriptor).map_err(|error| unreadable(error.to_string()))?;
        let config = match (kind, version) {
            (EMBEDDING_TABLE, 1) => from_version_1(&settings),
            (EMBEDDING_TABLE, VERSION) => from_settings(&settings),
            _ => Err(format!(
                "its descriptor has kind {kind} version {version}, this program reads kind \
                 {EMBEDDING_TABLE} versions 1 and {VERSION}; use a newer Embank"
            )),
        };
        let config = config.map_err(unreadable)?;
        config.validate(table)?;
        Ok(config)
    }
}

fn from_settings(bytes: &[u8]) -> Parsed<TableConfig> {
    let settings: Vec<(u16, Vec<u8>)> =
        metadata::decode(bytes).map_err(|error| error.to_string())?;
    let mut config = TableConfig::new(0);
    // The tags that every table must have. A tag is removed once it was read.
    let mut needed = vec![tag::DIM, tag::DTYPE, tag::OPTIMIZER, tag::INITIALIZER, tag::SEED];
    for (tag, bytes) in &settings {
        let mut bytes = Bytes(bytes);
        match *tag {
            tag::DIM => config.dim = u32::from_le_bytes(bytes.take()?),
            tag::DTYPE => config.dtype = dtype_of(bytes.take::<1>()?[0])?,
            tag::OPTIMIZER => config.optimizer = optimizer_of(&mut bytes)?,
            tag::INITIALIZER => config.initializer = initializer_of(&mut bytes)?,
            tag::SEED => config.seed = u64::from_le_bytes(bytes.take()?),
            tag::STATE_DTYPE => config.state_dtype = dtype_of(bytes.take::<1>()?[0])?,
            tag::ROUNDING => config.rounding = Some(rounding_of(bytes.take::<1>()?[0])?),
            tag::STALENESS_BOUND => {
                config.staleness_bound = Some(u32::from_le_bytes(bytes.take()?));
            }
            tag::CLIP_ROW_NORM => config.clip_row_norm = Some(f32::from_le_bytes(bytes.take()?)),
            tag::TRACKING => config.tracking = tracking_of(bytes.take::<1>()?[0])?,
            tag::ADMISSION => config.admission = admission_of(&mut bytes)?,
            tag::VOCABULARY => {
                let vocabulary = TableVocabulary::from_bytes(bytes.take_all());
                config.vocabulary =
                    Some(vocabulary.ok_or("its vocabulary's name or identity is cut short")?);
            }
            tag::SHARD => config.shard = Some(u32::from_le_bytes(bytes.take()?)),
            unknown if unknown & tag::MAY_BE_SKIPPED != 0 => continue,
            unknown => {
                return Err(format!(
                    "it has setting number {unknown}, which this program does not know and must; use a \
                     newer Embank"
                ));
            }
        }
        bytes.end(*tag)?;
        needed.retain(|needed| needed != tag);
    }
    match needed.first() {
        None => Ok(config),
        Some(missing) => Err(format!("its setting number {missing} is missing")),
    }
}

/// The bytes of a setting that the decoder has not read yet.
struct Bytes<'b>(&'b [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let Some((first, rest)) = self.0.split_first_chunk() else {
            return Err("one of its settings is cut short".into());
        };
        self.0 = rest;
        Ok(*first)
    }

    fn take_all(&mut self) -> &[u8] {
        std::mem::take(&mut self.0)
    }

    fn f64(&mut self) -> Parsed<f64> {
        self.take().map(f64::from_le_bytes)
    }

    fn f32(&mut self) -> Parsed<f32> {
        self.take().map(f32::from_le_bytes)
    }

    fn flag(&mut self) -> Parsed<bool> {
        match self.take::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(format!("one of its settings is {other} where 0 or 1 must stand")),
        }
    }

    fn end(&self, tag: u16) -> Parsed<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(format!(
            "its setting number {tag} is longer than this program knows; use a newer Embank"
        ))
    }
}

fn admission_of(bytes: &mut Bytes<'_>) -> Parsed<Admission> {
    match bytes.take::<1>()?[0] {
        1 => Ok(Admission::AfterGets(u32::from_le_bytes(bytes.take()?))),
        2 => Ok(Admission::Probability(bytes.f32()?)),
        other => Err(format!("its admission is number {other}; use a newer Embank")),
    }
}

/// Returns the descriptor of a table of kind [`COUNTS_TABLE`].
pub(crate) fn counts_descriptor() -> Vec<u8> {
    metadata::encode(&(COUNTS_TABLE, 1_u16, Vec::<u8>::new()))
}

/// True if the descriptor belongs to a table of kind [`COUNTS_TABLE`].
pub(crate) fn is_counts_descriptor(descriptor: &[u8]) -> bool {
    let kind: std::result::Result<(u16, u16, Vec<u8>), _> = metadata::decode(descriptor);
    kind.is_ok_and(|(kind, version, _)| (kind, version) == (COUNTS_TABLE, 1))
}

fn tracking_number(tracking: Tracking) -> u8 {
    match tracking {
        Tracking::None => 0,
        Tracking::Minutes => 1,
        Tracking::SetTime => 2,
    }
}

fn tracking_of(number: u8) -> Parsed<Tracking> {
    match number {
        0 => Ok(Tracking::None),
        1 => Ok(Tracking::Minutes),
        2 => Ok(Tracking::SetTime),
        other => Err(format!("its tracking is number {other}; use a newer Embank")),
    }
}

fn rounding_number(rounding: Rounding) -> u8 {
    match rounding {
        Rounding::Nearest => 0,
        Rounding::Stochastic => 1,
    }
}

fn rounding_of(number: u8) -> Parsed<Rounding> {
    match number {
        0 => Ok(Rounding::Nearest),
        1 => Ok(Rounding::Stochastic),
        other => Err(format!("its rounding is number {other}; use a newer Embank")),
    }
}

fn dtype_of(number: u8) -> Parsed<Dtype> {
    Dtype::of_number(number)
        .ok_or_else(|| format!("its dtype is number {number}; use a newer Embank"))
}

/// Encodes the number of the optimizer's kind, followed by its hyperparameters.
fn optimizer_bytes(mut optimizer: Optimizer) -> Vec<u8> {
    let mut bytes = vec![optimizer.kind_number()];
    for number in optimizer.numbers() {
        match number {
            Number::F64(number) => bytes.extend(number.to_le_bytes()),
            Number::F32(number) => bytes.extend(number.to_le_bytes()),
            Number::Flag(flag) => bytes.push(u8::from(*flag)),
        }
    }
    bytes
}

fn optimizer_of(bytes: &mut Bytes<'_>) -> Parsed<Optimizer> {
    let kind = bytes.take::<1>()?[0];
    let mut optimizer = Optimizer::of_kind_number(kind)
        .ok_or_else(|| format!("its optimizer is number {kind}; use a newer Embank"))?;
    for number in optimizer.numbers() {
        match number {
            Number::F64(number) => *number = bytes.f64()?,
            Number::F32(number) => *number = bytes.f32()?,
            Number::Flag(flag) => *flag = bytes.flag()?,
        }
    }
    Ok(optimizer)
}

fn initializer_bytes(initializer: &Initializer) -> Vec<u8> {
    let (kind, numbers): (u8, &[f32]) = match *initializer {
        Initializer::Zeros => (0, &[]),
        Initializer::Constant(value) => (1, &[value]),
        Initializer::Uniform { low, high } => (2, &[low, high]),
        Initializer::Normal { mean, std } => (3, &[mean, std]),
        Initializer::TruncatedNormal { mean, std, low, high } => (4, &[mean, std, low, high]),
        Initializer::XavierUniform { gain, .. } => (5, &[gain]),
        Initializer::XavierNormal { gain, .. } => (6, &[gain]),
    };
    let mut bytes = vec![kind];
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    if let Initializer::XavierUniform { fans, .. } | Initializer::XavierNormal { fans, .. } =
        initializer
    {
        for fan in [fans.fan_in, fans.fan_out] {
            bytes.extend(fan.unwrap_or(0).to_le_bytes());
        }
    }
    bytes
}

fn initializer_of(bytes: &mut Bytes<'_>) -> Parsed<Initializer> {
    let kind = bytes.take::<1>()?[0];
    Ok(match kind {
        0 => Initializer::Zeros,
        1 => Initializer::Constant(bytes.f32()?),
        2 => Initializer::Uniform { low: bytes.f32()?, high: bytes.f32()? },
        3 => Initializer::Normal { mean: bytes.f32()?, std: bytes.f32()? },
        4 => Initializer::TruncatedNormal {
            mean: bytes.f32()?,
            std: bytes.f32()?,
            low: bytes.f32()?,
            high: bytes.f32()?,
        },
        5 => Initializer::XavierUniform { gain: bytes.f32()?, fans: fans_of(bytes)? },
        6 => Initializer::XavierNormal { gain: bytes.f32()?, fans: fans_of(bytes)? },
        other => return Err(format!("its initializer is number {other}; use a newer Embank")),
    })
}

/// Decodes fans. 0 stands for the table's dim.
fn fans_of(bytes: &mut Bytes<'_>) -> Parsed<Fans> {
    let mut fan = || {
        let fan = u64::from_le_bytes(bytes.take()?);
        Ok::<_, String>((fan != 0).then_some(fan))
    };
    Ok(Fans { fan_in: fan()?, fan_out: fan()? })
}

/// Settings of version 1: dim, dtype, optimizer and its numbers, initializer and its numbers, seed,
/// staleness bound.
type SettingsOfVersion1 = (u32, u8, (u8, [f32; 3]), (u8, [f32; 2]), u64, Option<u32>);

fn from_version_1(bytes: &[u8]) -> Parsed<TableConfig> {
    let (dim, dtype, optimizer, initializer, seed, staleness_bound): SettingsOfVersion1 =
        metadata::decode(bytes).map_err(|error| error.to_string())?;
    let mut config = TableConfig::new(dim).seed(seed).staleness_bound(staleness_bound);
    config.dtype = dtype_of(dtype)?;
    config.optimizer = match optimizer {
        (0, _) => Optimizer::None,
        (1, [lr, ..]) => Optimizer::sgd(shortest(lr)),
        (2, [lr, eps, initial_accumulator]) => Optimizer::Adagrad(Adagrad {
            eps: shortest(eps),
            initial_accumulator,
            ..Adagrad::new(shortest(lr))
        }),
        (other, _) => return Err(format!("its optimizer is number {other}")),
    };
    config.initializer = match initializer {
        (0, _) => Initializer::Zeros,
        (1, [value, _]) => Initializer::Constant(value),
        (2, [low, high]) => Initializer::Uniform { low, high },
        (3, [mean, std]) => Initializer::Normal { mean, std },
        (other, _) => return Err(format!("its initializer is number {other}")),
    };
    Ok(config)
}

/// Returns the f64 of the shortest decimal that rounds to this f32.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

#[cfg(test)]
mod tests;
