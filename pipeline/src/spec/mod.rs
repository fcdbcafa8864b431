//! What a pipeline does, as its user says it: the fields of a row, what becomes of each column, and
//! what comes out.
//!
//! All of it is plain data: it is written as JSON in files, and built by hand in Rust and Python.
//! What can be done to a column is in [`operators`](crate::operators).

mod column;
mod field;
mod output;
mod vocabulary;

use serde::{Deserialize, Serialize};

use crate::decode::FieldKind;
use crate::operators::{Operator, Value};

pub use column::{Column, Source};
pub use field::{Field, TimeUnit};
pub use output::{Dtype, Output};
pub use vocabulary::VocabularySpec;

/// What becomes of a run that meets a row that can't be used: with another number of fields, or a
/// bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRows {
    /// It ends with an error that names file, line and column of the first.
    #[default]
    Fail,
    /// It leaves them out, counts them and reports the first few.
    Skip,
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
    /// The share of bad rows with which a run ends though it leaves them out ([`BadRows::Skip`]),
    /// once it has met 10,000 rows: [`Error::TooManyBadRows`](crate::Error::TooManyBadRows)
    /// shows the first ones. A bad row counts as the lines that it spans. From 0 to 1, which
    /// is no limit. Default: 0.01.
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
    /// The pipeline of PIPER's evaluation over rows of the Criteo Kaggle set: a label, 13 integers
    /// (missing to 0, negative to 0, log(x + 1)) and 26 categories (missing to 0, modulo
    /// `modulus`, numbered by a vocabulary each). Its one output, `row`, has the 40 values of
    /// 32 bits side by side: label, 13 floats, 26 ids.
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
