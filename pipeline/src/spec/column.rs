//! The columns that are made of fields.

use serde::{Deserialize, Serialize};

use crate::operators::Operator;

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

    /// This column with one more operator at its end.
    #[must_use]
    pub fn then(mut self, operator: Operator) -> Self {
        self.operators.push(operator);
        self
    }
}
