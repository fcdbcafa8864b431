//! The settings of a vocabulary, as a caller gives them.

use crate::error::{Error, Result};

/// The largest `first_id`.
const FIRST_ID_MAX: u64 = 1 << 62;
/// The largest `value_bytes_max`. The bank's page size may set a lower limit.
const VALUE_BYTES_MAX: u32 = 128 << 10;
/// Longest name of a vocabulary, in bytes. The vocabulary's tables add a suffix to this name, and
/// the store limits a table's name to 1,024 bytes.
const NAME_BYTES_MAX: usize = 900;

/// The kind of a vocabulary's values.
///
/// # Examples
/// See [`VocabularyConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// Numbers.
    U64,
    /// Byte strings; the empty string is a value too.
    Bytes,
}

impl ValueKind {
    /// The name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::U64 => "u64",
            Self::Bytes => "bytes",
        }
    }
}

/// The settings of a vocabulary. All of them are fixed when the vocabulary is made.
///
/// # Examples
/// ```
/// use embank::{ValueKind, VocabularyConfig};
///
/// // 0 is padding, 1 stands for words that are not known.
/// let config = VocabularyConfig::bytes().first_id(2).unknown_id(1).counts(true);
/// assert_eq!((config.kind, config.first_id), (ValueKind::Bytes, 2));
/// config.validate("words")?;
/// assert!(VocabularyConfig::u64().unknown_id(0).validate("ids").is_err());
/// # Ok::<(), embank::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyConfig {
    /// The kind of the values: numbers or byte strings.
    pub kind: ValueKind,
    /// The id of the first value, at most 2^62. Smaller ids are free for the caller, for padding
    /// and unknown values. Default: 0.
    pub first_id: u64,
    /// The id of unknown values, below `first_id`.
    /// [`Vocabulary::lookup`](crate::Vocabulary::lookup) returns it for a value without an id, and
    /// so does [`ids_or_insert`](crate::Vocabulary::ids_or_insert) of a frozen vocabulary. Default:
    /// `None`; these two calls then fail with [`Error::UnknownValue`] for such a value.
    pub unknown_id: Option<u64>,
    /// True if the vocabulary counts the occurrences of each value. Default: false.
    pub counts: bool,
    /// Longest byte string, 1 to 131,072 bytes. The bank's page size sets a lower limit for small
    /// memory budgets: about 4,000 bytes with a budget of 1 MiB. For larger budgets this limit is
    /// more than 1/256 of the budget. Default: 1,024.
    pub value_bytes_max: u32,
}

impl VocabularyConfig {
    fn new(kind: ValueKind) -> Self {
        Self { kind, first_id: 0, unknown_id: None, counts: false, value_bytes_max: 1024 }
    }

    /// A vocabulary of numbers with every other setting at its default.
    #[must_use]
    pub fn u64() -> Self {
        Self::new(ValueKind::U64)
    }

    /// A vocabulary of byte strings with every other setting at its default.
    #[must_use]
    pub fn bytes() -> Self {
        Self::new(ValueKind::Bytes)
    }

    /// Sets the first value's id.
    #[must_use]
    pub fn first_id(mut self, first_id: u64) -> Self {
        self.first_id = first_id;
        self
    }

    /// Sets the id of unknown values.
    #[must_use]
    pub fn unknown_id(mut self, id: u64) -> Self {
        self.unknown_id = Some(id);
        self
    }

    /// Sets whether the vocabulary counts the occurrences of each value.
    #[must_use]
    pub fn counts(mut self, counts: bool) -> Self {
        self.counts = counts;
        self
    }

    /// Sets the longest byte string.
    #[must_use]
    pub fn value_bytes_max(mut self, value_bytes_max: u32) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }

    /// The number of values that a pass over all values handles at a time, from 64 to 4,096. Within
    /// these limits, values of the largest length take about 16 MiB.
    pub(crate) fn values_at_once(&self) -> u64 {
        let longest = match self.kind {
            ValueKind::U64 => 8,
            ValueKind::Bytes => u64::from(self.value_bytes_max.max(1)),
        };
        ((16 << 20) / longest).clamp(64, 4096)
    }

    /// Checks every setting. [`Bank::vocabulary`](crate::Bank::vocabulary) makes this check too.
    ///
    /// # Errors
    /// [`Error::InvalidVocabulary`] names `vocabulary` and the first setting that is out of its
    /// range.
    pub fn validate(&self, vocabulary: &str) -> Result<()> {
        let refuse =
            |what| Err(Error::InvalidVocabulary { vocabulary: vocabulary.to_owned(), what });
        if vocabulary.len() > NAME_BYTES_MAX {
            let found = vocabulary.len();
            return refuse(format!("its name may have {NAME_BYTES_MAX} bytes, found {found}"));
        }
        if self.first_id > FIRST_ID_MAX {
            return refuse(format!("first_id may be 2^62 at most, found {}", self.first_id));
        }
        if !(1..=VALUE_BYTES_MAX).contains(&self.value_bytes_max) {
            let found = self.value_bytes_max;
            return refuse(format!(
                "value_bytes_max must be 1 to {VALUE_BYTES_MAX}, found {found}"
            ));
        }
        match self.unknown_id {
            Some(id) if id >= self.first_id => refuse(format!(
                "unknown_id must be below first_id, because ids from first_id on belong to values: unknown_id is {id}, \
                 first_id is {}",
                self.first_id
            )),
            _ => Ok(()),
        }
    }

    /// Fails if `asked` differs from this config.
    pub(crate) fn check_same(&self, vocabulary: &str, asked: &Self) -> Result<()> {
        let mut expected = Vec::new();
        let mut found = Vec::new();
        for (asked, held) in asked.settings().into_iter().zip(self.settings()) {
            if asked != held {
                expected.extend(asked);
                found.extend(held);
            }
        }
        if expected.is_empty() {
            return Ok(());
        }
        Err(Error::VocabularyMismatch {
            vocabulary: vocabulary.to_owned(),
            expected: expected.join(", "),
            found: found.join(", "),
        })
    }

    /// Returns each setting as text. The text is `None` for a setting that this kind of values does
    /// not have.
    fn settings(&self) -> [Option<String>; 5] {
        [
            Some(format!("{} values", self.kind.name())),
            Some(format!("first_id {}", self.first_id)),
            Some(match self.unknown_id {
                Some(id) => format!("unknown_id {id}"),
                None => "no unknown_id".to_owned(),
            }),
            Some(format!("counts {}", self.counts)),
            match self.kind {
                // Numbers have no length.
                ValueKind::U64 => None,
                ValueKind::Bytes => Some(format!("value_bytes_max {}", self.value_bytes_max)),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused() {
        VocabularyConfig::bytes().first_id(FIRST_ID_MAX).validate("v").unwrap();
        for bad in [
            VocabularyConfig::bytes().first_id(FIRST_ID_MAX + 1),
            VocabularyConfig::bytes().value_bytes_max(0),
            VocabularyConfig::bytes().value_bytes_max(VALUE_BYTES_MAX + 1),
            VocabularyConfig::u64().unknown_id(0),
            VocabularyConfig::u64().first_id(2).unknown_id(2),
        ] {
            let refused = bad.validate("v");
            assert!(matches!(refused, Err(Error::InvalidVocabulary { .. })), "{bad:?}");
        }
        let name = "n".repeat(NAME_BYTES_MAX + 1);
        assert!(VocabularyConfig::u64().validate(&name).is_err());
    }

    #[test]
    fn a_mismatch_names_both() {
        let held = VocabularyConfig::bytes().counts(true);
        match held.check_same("v", &VocabularyConfig::u64().first_id(1).counts(true)) {
            Err(Error::VocabularyMismatch { expected, found, .. }) => {
                assert_eq!(expected, "u64 values, first_id 1");
                assert_eq!(found, "bytes values, first_id 0, value_bytes_max 1024");
            }
            other => panic!("{other:?}"),
        }
        held.check_same("v", &held.clone()).unwrap();
    }
}
