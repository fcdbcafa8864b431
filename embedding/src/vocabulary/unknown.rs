//! What stands for values without an id.

/// What [`Vocabulary::lookup`](crate::Vocabulary::lookup) gives a value that has no id, and
/// [`ids_or_insert`](crate::Vocabulary::ids_or_insert) of a frozen vocabulary too.
///
/// # Examples
/// See [`VocabularyConfig`](crate::VocabularyConfig).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unknown {
    /// The call fails with [`Error::UnknownValue`](crate::Error::UnknownValue).
    #[default]
    Error,
    /// This id, which must be below `first_id`.
    Id(u64),
}
