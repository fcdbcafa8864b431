//! What a pipeline does, as its user says it: the fields of a row, what becomes of each column, and what comes out.
//!
//! All of it is plain data: it is written as JSON in files, and built by hand in Rust and Python.

use serde::{Deserialize, Serialize};

use crate::decode::FieldKind;
use crate::operators::{Operator, Value};

/// A field of the input's rows.
///
/// # Examples
/// ```
/// use embank_pipeline::{Field, FieldKind};
///
/// let label = Field::new("label", FieldKind::Int32).required();
/// assert_eq!(label.name, "label");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Its name, by which columns refer to it.
    pub name: String,
    /// How it is written.
    pub kind: FieldKind,
    /// Whether a missing one makes its row a bad row. Default: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// Spellings that mean missing, beside an empty field, byte by byte: `"NA"`, `"NULL"`, `"\\N"`, `"nan"`. NaN in float
    /// columns of Parquet and Arrow is missing in any case. A spelling that is a value of the field's kind, such as `"-1"`
    /// and any of text, makes reading the field slower. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Whether whole numbers may be written as floats in text: `5.0`, `1e3`. For fields of whole numbers. Doubles of Parquet
    /// and Arrow that are whole are read in any case. Default: no, they make their row a bad row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_floats: bool,
    /// What times in files of columns (timestamps, times of day, durations) are counted in, whatever unit a file has.
    /// Dates are days since 1970-01-01. Default: microseconds.
    #[serde(default, skip_serializing_if = "TimeUnit::is_default")]
    pub time_unit: TimeUnit,
}

impl Field {
    /// A field that may be empty.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: FieldKind) -> Self {
        let (missing, time_unit) = (Vec::new(), TimeUnit::default());
        Self { name: name.into(), kind, required: false, missing, whole_floats: false, time_unit }
    }

    /// The same, and these spellings mean missing too.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{Field, FieldKind};
    ///
    /// let age = Field::new("age", FieldKind::Int32).missing(["NA", "NULL"]).whole_floats();
    /// assert_eq!(age.missing, ["NA", "NULL"]);
    /// ```
    #[must_use]
    pub fn missing<S: Into<String>>(mut self, spellings: impl IntoIterator<Item = S>) -> Self {
        self.missing.extend(spellings.into_iter().map(Into::into));
        self
    }

    /// The same, and whole numbers may be written as floats.
    #[must_use]
    pub fn whole_floats(self) -> Self {
        Self { whole_floats: true, ..self }
    }

    /// The same, and it must not be empty.
    #[must_use]
    pub fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// What a time is counted in, from 1970-01-01 00:00:00 UTC on; parts of a unit are cut off, towards the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TimeUnit {
    /// `"s"`.
    #[serde(rename = "s")]
    Second,
    /// `"ms"`.
    #[serde(rename = "ms")]
    Millisecond,
    /// `"us"`.
    #[default]
    #[serde(rename = "us")]
    Microsecond,
    /// `"ns"`.
    #[serde(rename = "ns")]
    Nanosecond,
}

impl TimeUnit {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// How many of them are a second.
    #[cfg(feature = "parquet")]
    pub(crate) fn per_second(self) -> i128 {
        match self {
            Self::Second => 1,
            Self::Millisecond => 1_000,
            Self::Microsecond => 1_000_000,
            Self::Nanosecond => 1_000_000_000,
        }
    }
}

/// Where a column's values come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A field of the input.
    Field(String),
    /// A hash of two earlier columns' values as they are at their ends.
    Cross {
        /// The first column's name.
        first: String,
        /// The second's.
        second: String,
        /// Different seeds are different hashes.
        #[serde(default)]
        seed: u64,
    },
}

/// A column: where it comes from and what is done to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// By which outputs refer to it. Often the field's own.
    pub name: String,
    /// Its source.
    pub from: Source,
    /// Its operators, in order.
    #[serde(default)]
    pub operators: Vec<Operator>,
}

impl Column {
    /// The field of this name, under the same name.
    #[must_use]
    pub fn field(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { from: Source::Field(name.clone()), name, operators: Vec::new() }
    }

    /// A hash of two columns together.
    #[must_use]
    pub fn cross(
        name: impl Into<String>,
        first: impl Into<String>,
        second: impl Into<String>,
    ) -> Self {
        let from = Source::Cross { first: first.into(), second: second.into(), seed: 0 };
        Self { name: name.into(), from, operators: Vec::new() }
    }

    /// The same with one more operator at its end.
    #[must_use]
    pub fn then(mut self, operator: Operator) -> Self {
        self.operators.push(operator);
        self
    }
}

/// What the values of an output are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Dtype {
    /// f32. Whole numbers are converted.
    F32,
    /// i32. Numbers that may not fit are refused when the pipeline is made.
    I32,
    /// i64, as PyTorch takes ids.
    I64,
    /// The 32 bits of each value, whatever its type: PIPER's packed rows.
    Bits32,
}

/// A matrix of rows by columns: PIPER's Concatenate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// By which consumers refer to it.
    pub name: String,
    /// The columns' names, from left to right.
    pub columns: Vec<String>,
    /// What its values are.
    pub dtype: Dtype,
}

impl Output {
    /// A matrix of these columns.
    pub fn new<C: Into<String>>(
        name: impl Into<String>,
        dtype: Dtype,
        columns: impl IntoIterator<Item = C>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { name: name.into(), columns, dtype }
    }
}

/// What becomes of a run that meets a row that can't be used: with another number of fields, or a bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRows {
    /// It ends with an error that names file, line and column of the first.
    #[default]
    Fail,
    /// It leaves them out, counts them and reports the first few.
    Skip,
}

/// How a vocabulary of the pipeline numbers. One that has none of these is as [`VocabularySpec::new`] makes it, or, in
/// a bank, as it is there.
///
/// # Examples
/// ```
/// use embank_pipeline::VocabularySpec;
///
/// // What comes fewer than ten times gets id 0.
/// let new = VocabularySpec::new("word");
/// let words = VocabularySpec { min_count: 10, out_of_vocabulary: Some(0), first_id: 1, ..new };
/// assert!(!words.counts); // a threshold counts anyway
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VocabularySpec {
    /// Its name, as operators have it.
    pub name: String,
    /// Values that come less often get the id `out_of_vocabulary`, which must be set then. A run goes over its inputs
    /// twice: it counts first. Default: 0, all values get ids.
    #[serde(default)]
    pub min_count: u64,
    /// The id of values that the vocabulary lacks when it is frozen, or looked up only
    /// ([`Pipeline::evaluation`](crate::Pipeline::evaluation)); below `first_id`. Can't be changed once the vocabulary is
    /// made; 0, with a `first_id` of 1, is a good one. Default: none, they end the run.
    #[serde(default)]
    pub out_of_vocabulary: Option<u64>,
    /// The first value's id. Can't be changed once the vocabulary is made. Default: 0.
    #[serde(default)]
    pub first_id: u64,
    /// Whether [`Pipeline::generate`](crate::Pipeline::generate) counts how often values come. Default: no, but where
    /// there is a threshold.
    #[serde(default)]
    pub counts: bool,
    /// The longest byte string that it takes. Default: that of a bank's vocabulary that is there, or 1,024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_bytes_max: Option<u32>,
}

impl VocabularySpec {
    /// A vocabulary with every setting at its default.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            min_count: 0,
            out_of_vocabulary: None,
            first_id: 0,
            counts: false,
            value_bytes_max: None,
        }
    }
}

/// What a pipeline does.
///
/// # Examples
/// ```
/// use embank_pipeline::{Dtype, Field, FieldKind, Operator, Output, Spec, Column};
///
/// let spec = Spec {
///     fields: vec![
///         Field::new("clicked", FieldKind::Int32).required(),
///         Field::new("age", FieldKind::Int32),
///         Field::new("site", FieldKind::Hex32),
///     ],
///     columns: vec![
///         Column::field("clicked"),
///         Column::field("age").then(Operator::FillMissing(0.into())).then(Operator::Neg2Zero),
///         Column::field("site")
///             .then(Operator::FillMissing(0.into()))
///             .then(Operator::Modulus(5000))
///             .then(Operator::Vocabulary("site".to_owned())),
///     ],
///     outputs: vec![
///         Output::new("dense", Dtype::F32, ["clicked", "age"]),
///         Output::new("sparse", Dtype::I64, ["site"]),
///     ],
///     ..Spec::default()
/// };
/// let json = spec.to_json();
/// assert_eq!(Spec::from_json(&json)?, spec);
/// # Ok::<(), embank_pipeline::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The fields of a row, in the order in which they stand in it.
    pub fields: Vec<Field>,
    /// What is made of them, in an order in which each is made of what comes before it.
    pub columns: Vec<Column>,
    /// What comes out.
    pub outputs: Vec<Output>,
    /// Default: [`BadRows::Fail`].
    #[serde(default)]
    pub bad_rows: BadRows,
    /// The share of bad rows with which a run ends though it leaves them out ([`BadRows::Skip`]), once it has met 10,000
    /// rows: [`Error::TooManyBadRows`](crate::Error::TooManyBadRows) shows the first ones. A bad row counts as the lines
    /// that it spans. From 0 to 1, which is no limit. Default: 0.01.
    #[serde(default = "bad_rows_max")]
    pub bad_rows_max: f64,
    /// Settings of vocabularies. Those that are not named have the defaults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vocabularies: Vec<VocabularySpec>,
}

/// One row in 100: more are a sign that the fields say something else than the files.
fn bad_rows_max() -> f64 {
    0.01
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fields: Vec::new(),
            columns: Vec::new(),
            outputs: Vec::new(),
            bad_rows: BadRows::default(),
            bad_rows_max: bad_rows_max(),
            vocabularies: Vec::new(),
        }
    }
}

impl Spec {
    /// The pipeline of PIPER's evaluation over rows of the Criteo Kaggle set: a label, 13 integers (missing to 0,
    /// negative to 0, log(x + 1)) and 26 categories (missing to 0, modulo `modulus`, numbered by a vocabulary each).
    /// Its one output, `row`, has the 40 values of 32 bits side by side: label, 13 floats, 26 ids.
    #[must_use]
    pub fn criteo(modulus: u32) -> Self {
        let label = Field::new("label", FieldKind::Int32).required();
        let integer = |i| format!("I{i}");
        let category = |i| format!("C{i}");
        let integers = (1..=13).map(integer).map(|name| Field::new(name, FieldKind::Int32));
        let categories = (1..=26).map(category).map(|name| Field::new(name, FieldKind::Hex32));
        let fields: Vec<_> = [label].into_iter().chain(integers).chain(categories).collect();
        let dense = (1..=13).map(|i| {
            Column::field(integer(i))
                .then(Operator::FillMissing(Value::Int(0)))
                .then(Operator::Neg2Zero)
                .then(Operator::Logarithm)
        });
        let sparse = (1..=26).map(|i| {
            Column::field(category(i))
                .then(Operator::FillMissing(Value::Int(0)))
                .then(Operator::Modulus(modulus))
                .then(Operator::Vocabulary(category(i)))
        });
        let columns: Vec<_> =
            [Column::field("label")].into_iter().chain(dense).chain(sparse).collect();
        let names: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
        let outputs = vec![Output::new("row", Dtype::Bits32, names)];
        Self { fields, columns, outputs, ..Self::default() }
    }

    /// The pipeline as JSON, to be read by [`from_json`](Self::from_json).
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers have a JSON form")
    }

    /// Reads a pipeline from JSON.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) with the place of what is wrong.
    pub fn from_json(json: &str) -> crate::Result<Self> {
        serde_json::from_str(json).map_err(|error| crate::Error::Spec(error.to_string()))
    }
}
