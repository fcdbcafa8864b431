//! Describes a pipeline: the fields of a row, the operators on each column, and the outputs.
//!
//! A spec is plain data. It is stored as JSON, or built in Rust or Python. The module
//! [`operators`](crate::operators) has the operators on columns.

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

/// What a run does with bad rows: rows with a wrong number of fields, or with a field that can't be
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRows {
    /// The run fails. The error names the file, line and column of the first bad row.
    #[default]
    Fail,
    /// The run leaves bad rows out, counts them and reports the first few.
    Skip,
}

/// Description of a pipeline.
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
    /// The fields of a row, in the row's order.
    pub fields: Vec<Field>,
    /// The columns. A column may only use columns before it.
    pub columns: Vec<Column>,
    /// The matrices of each batch.
    pub outputs: Vec<Output>,
    /// What a run does with bad rows. Default: [`BadRows::Fail`].
    #[serde(default)]
    pub bad_rows: BadRows,
    /// With [`BadRows::Skip`], the largest allowed share of bad lines among all lines, from 0 to 1.
    /// A bad row counts as the number of lines that it spans. The run checks the share from 10,000
    /// lines on, and at its end if every row is bad. If the share is larger, the run fails with
    /// [`Error::TooManyBadRows`](crate::Error::TooManyBadRows). 1 means no limit. Default: 0.01.
    #[serde(default = "bad_rows_max")]
    pub bad_rows_max: f64,
    /// Settings of vocabularies. A vocabulary that is not listed has the default settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vocabularies: Vec<VocabularySpec>,
}

/// Default limit: one line in 100. If more are bad, the fields probably do not fit the files.
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
    /// Returns the pipeline of PIPER's evaluation on the Criteo Kaggle set. A row has a label, 13
    /// integers and 26 categories. A missing value becomes 0. An integer below 0 becomes 0, and
    /// then log(x + 1) is taken. A category is taken modulo `modulus`, and each category has a
    /// vocabulary. The only output, `row`, has 40 values of 32 bits: the label, 13 floats and 26
    /// ids.
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

    /// Writes the spec as JSON, which [`from_json`](Self::from_json) reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers have a JSON form")
    }

    /// Reads a spec from JSON.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::Error::Spec) with the fault and its place in the JSON.
    pub fn from_json(json: &str) -> crate::Result<Self> {
        serde_json::from_str(json).map_err(|error| crate::Error::Spec(error.to_string()))
    }
}
