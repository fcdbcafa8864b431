//! Inputs that own their rows, so that a thread can keep them.

use std::path::Path;
use std::sync::Arc;

use crate::input::Input;

/// Rows for a feed, in shared memory or in a file.
///
/// # Examples
/// ```
/// use embank_pipeline::FeedInput;
///
/// let inputs = vec![FeedInput::file("day_0.tsv"), FeedInput::memory("one row", b"1\t2\n".to_vec())];
/// assert_eq!(inputs[1].name(), "one row");
/// ```
#[derive(Debug, Clone)]
pub struct FeedInput(Owned);

#[derive(Debug, Clone)]
enum Owned {
    Memory(String, Arc<[u8]>),
    Other(Input<'static>),
}

impl FeedInput {
    /// Makes an input of rows in memory. Errors show `name`.
    #[must_use]
    pub fn memory(name: impl Into<String>, text: impl Into<Arc<[u8]>>) -> Self {
        Self(Owned::Memory(name.into(), text.into()))
    }

    /// Makes an input of a file.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        Input::file(path).into()
    }

    /// The input's name in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Owned::Memory(name, _) => name,
            Owned::Other(input) => input.name(),
        }
    }

    /// Borrows the input for a run.
    #[must_use]
    pub fn input(&self) -> Input<'_> {
        match &self.0 {
            Owned::Memory(name, text) => Input::memory(name.clone(), text),
            Owned::Other(input) => input.clone(),
        }
    }
}

impl From<Input<'static>> for FeedInput {
    fn from(input: Input<'static>) -> Self {
        Self(Owned::Other(input))
    }
}
