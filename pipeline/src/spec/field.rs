//! Fields of a row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decode::FieldKind;

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
    /// The name by which columns refer to the field.
    pub name: String,
    /// The field's type and how it is written.
    pub kind: FieldKind,
    /// True if a row without this field is a bad row. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// Spellings that mean a missing value, besides an empty field: `"NA"`, `"NULL"`, `"\\N"`,
    /// `"nan"`. They match byte by byte. NaN in a float column of Parquet and Arrow is always a
    /// missing value. A spelling that is also a value of the field's kind, such as `"-1"`, makes
    /// reading slower. In a text field, every spelling is such a value. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// True if text may write whole numbers as floats: `5.0`, `1e3`. Only for fields of whole
    /// numbers. In Parquet and Arrow files, doubles without a fraction are always read as whole
    /// numbers. Default: false, which makes a row with such a float in text a bad row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_floats: bool,
    /// Words that stand for whole numbers in text: `{"true": 1, "false": 0}`. They match byte by
    /// byte. Only for fields of decimal numbers. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub words: BTreeMap<String, i64>,
    /// Unit in which timestamps, times of day and durations of Parquet and Arrow files are read.
    /// The file may have another unit. Dates are always days since 1970-01-01. Default:
    /// microseconds.
    #[serde(default, skip_serializing_if = "TimeUnit::is_default")]
    pub time_unit: TimeUnit,
}

impl Field {
    /// Makes a field that may be empty.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: FieldKind) -> Self {
        Self {
            name: name.into(),
            kind,
            required: false,
            missing: Vec::new(),
            whole_floats: false,
            words: BTreeMap::new(),
            time_unit: TimeUnit::default(),
        }
    }

    /// Adds spellings that mean missing.
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

    /// Allows text to write whole numbers as floats.
    #[must_use]
    pub fn whole_floats(self) -> Self {
        Self { whole_floats: true, ..self }
    }

    /// Adds words that stand for numbers in text.
    ///
    /// # Examples
    /// ```
    /// use embank_pipeline::{Field, FieldKind};
    ///
    /// let label = Field::new("label", FieldKind::Int32).words([("yes", 1), ("no", 0)]);
    /// assert_eq!(label.words["yes"], 1);
    /// ```
    #[must_use]
    pub fn words<W: Into<String>>(mut self, words: impl IntoIterator<Item = (W, i64)>) -> Self {
        self.words.extend(words.into_iter().map(|(word, number)| (word.into(), number)));
        self
    }

    /// Makes the field required: a row without it is a bad row.
    #[must_use]
    pub fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// Unit of times since 1970-01-01 00:00:00 UTC. Fractions of a unit are rounded down, towards the
/// past.
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

    /// Units per second.
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
