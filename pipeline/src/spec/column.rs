//! Columns, which are made of fields.

use serde::{Deserialize, Serialize};

use crate::operators::Operator;

/// The origin of a column's values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A field of the input.
    Field(String),
    /// A hash of the values of two earlier columns, as they are after all operators of these
    /// columns.
    Cross {
        /// The first column's name.
        first: String,
        /// The second column's name.
        second: String,
        /// Seed of the hash.
        #[serde(default)]
        seed: u64,
    },
}

/// A column: its source and its operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The name by which outputs refer to the column. Often the name of its field.
    pub name: String,
    /// The origin of the column's values.
    pub from: Source,
    /// The operators on the column, in order.
    #[serde(default)]
    pub operators: Vec<Operator>,
}

impl Column {
    /// Makes a column of the field `name`, with the same name.
    #[must_use]
    pub fn field(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { from: Source::Field(name.clone()), name, operators: Vec::new() }
    }

    /// Makes a column that hashes two columns together.
    #[must_use]
    pub fn cross(
        name: impl Into<String>,
        first: impl Into<String>,
        second: impl Into<String>,
    ) -> Self {
        let from = Source::Cross { first: first.into(), second: second.into(), seed: 0 };
        Self { name: name.into(), from, operators: Vec::new() }
    }

    /// Appends an operator.
    #[must_use]
    pub fn then(mut self, operator: Operator) -> Self {
        self.operators.push(operator);
        self
    }
}
