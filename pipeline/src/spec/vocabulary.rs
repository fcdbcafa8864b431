//! How a vocabulary numbers.

use serde::{Deserialize, Serialize};

/// How a vocabulary of the pipeline numbers its values. A vocabulary without these settings is as
/// [`VocabularySpec::new`] makes it, or, in a bank, as the bank has it.
///
/// # Examples
/// ```
/// use embank_pipeline::VocabularySpec;
///
/// // What comes fewer than ten times gets id 0.
/// let new = VocabularySpec::new("word");
/// let words = VocabularySpec { min_count: 10, unknown_id: Some(0), first_id: 1, ..new };
/// assert!(!words.counts); // a threshold counts anyway
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VocabularySpec {
    /// Its name, as operators have it.
    pub name: String,
    /// Values that come less often get the id `unknown_id`, which must be set then. A run goes
    /// over its inputs twice: it counts first. Default: 0, all values get ids.
    #[serde(default)]
    pub min_count: u64,
    /// The id of values that the vocabulary lacks when it is frozen, or looked up only
    /// ([`Pipeline::evaluation`](crate::Pipeline::evaluation)); below `first_id`. Can't be changed
    /// once the vocabulary is made; 0, with a `first_id` of 1, is a good one. Default: none,
    /// they end the run.
    ///
    /// Specs written before this setting had its name call it `out_of_vocabulary`; they are still
    /// read.
    #[serde(default, alias = "out_of_vocabulary")]
    pub unknown_id: Option<u64>,
    /// The first value's id. Can't be changed once the vocabulary is made. Default: 0.
    #[serde(default)]
    pub first_id: u64,
    /// Whether [`Pipeline::generate`](crate::Pipeline::generate) counts how often values come.
    /// Default: no, but where there is a threshold.
    #[serde(default)]
    pub counts: bool,
    /// The longest byte string that it takes. Default: that of a bank's vocabulary that is there,
    /// or 1,024.
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
            unknown_id: None,
            first_id: 0,
            counts: false,
            value_bytes_max: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_id_is_read_by_its_old_name_too_and_written_by_its_own() {
        let old = r#"{"name": "word", "out_of_vocabulary": 0, "first_id": 1}"#;
        let found: VocabularySpec = serde_json::from_str(old).unwrap();
        let wanted =
            VocabularySpec { unknown_id: Some(0), first_id: 1, ..VocabularySpec::new("word") };
        assert_eq!(found, wanted);
        let written = serde_json::to_string(&found).unwrap();
        assert!(written.contains(r#""unknown_id":0"#), "{written}");
        assert!(!written.contains("out_of_vocabulary"), "{written}");
        let both = r#"{"name": "word", "out_of_vocabulary": 0, "unknown_id": 0}"#;
        assert!(serde_json::from_str::<VocabularySpec>(both).is_err());
    }
}
