//! The fields of a row.

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
    /// Its name, by which columns refer to it.
    pub name: String,
    /// How it is written.
    pub kind: FieldKind,
    /// Whether a missing one makes its row a bad row. Default: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// Spellings that mean missing, beside an empty field, byte by byte: `"NA"`, `"NULL"`,
    /// `"\\N"`, `"nan"`. NaN in float columns of Parquet and Arrow is missing in any case. A
    /// spelling that is a value of the field's kind, such as `"-1"` and any of text, makes
    /// reading the field slower. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Whether whole numbers may be written as floats in text: `5.0`, `1e3`. For fields of whole
    /// numbers. Doubles of Parquet and Arrow that are whole are read in any case. Default: no,
    /// they make their row a bad row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_floats: bool,
    /// What times in files of columns (timestamps, times of day, durations) are counted in,
    /// whatever unit a file has. Dates are days since 1970-01-01. Default: microseconds.
    #[serde(default, skip_serializing_if = "TimeUnit::is_default")]
    pub time_unit: TimeUnit,
}

impl Field {
    /// A field that may be empty.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: FieldKind) -> Self {
        Self {
            name: name.into(),
            kind,
            required: false,
            missing: Vec::new(),
            whole_floats: false,
            time_unit: TimeUnit::default(),
        }
    }

    /// This field; these spellings mean missing too.
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

    /// This field; its whole numbers may be written as floats.
    #[must_use]
    pub fn whole_floats(self) -> Self {
        Self { whole_floats: true, ..self }
    }

    /// This field; it must not be empty.
    #[must_use]
    pub fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// What a time is counted in, from 1970-01-01 00:00:00 UTC on; parts of a unit are cut off, towards
/// the past.
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
