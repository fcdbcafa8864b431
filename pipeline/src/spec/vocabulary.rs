//! Settings of vocabularies.

use serde::{Deserialize, Serialize};

/// How a vocabulary numbers its values. If a spec does not list a vocabulary that a bank has, the
/// vocabulary keeps its settings. Any other unlisted vocabulary has the settings of
/// [`VocabularySpec::new`].
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
    /// The vocabulary's name, as operators use it.
    pub name: String,
    /// Values that occur less often than this get `unknown_id`, which must be set. The first run
    /// with such a vocabulary reads its inputs twice and counts in the first pass. Default: 0, all
    /// values get ids.
    #[serde(default)]
    pub min_count: u64,
    /// The id for values that the vocabulary lacks and to which the run gives no id. That is so if
    /// the vocabulary is frozen, and in an [evaluation](crate::Pipeline::evaluation). The id must
    /// be below `first_id`; 0 with a `first_id` of 1 is a good choice. Can't be changed once the
    /// vocabulary is made. Default: none, and an unknown value ends the run.
    ///
    /// Older specs call this setting `out_of_vocabulary`. A pipeline still reads that name.
    #[serde(default, alias = "out_of_vocabulary")]
    pub unknown_id: Option<u64>,
    /// The id of the first value. Can't be changed once the vocabulary is made. Default: 0.
    #[serde(default)]
    pub first_id: u64,
    /// Whether [`Pipeline::generate`](crate::Pipeline::generate) counts how often values occur. If
    /// `min_count` is above 0, `generate` counts in any case. Default: false.
    #[serde(default)]
    pub counts: bool,
    /// Largest number of bytes of a byte string. A longer string makes its row bad. To a frozen
    /// vocabulary and to an evaluation, it is an unknown value. Default: the limit of the bank's
    /// vocabulary if it exists, otherwise 1,024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_bytes_max: Option<u32>,
}

impl VocabularySpec {
    /// Makes a vocabulary with the default settings.
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
