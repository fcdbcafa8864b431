//! Compares what a field's values mean in the Parquet and Arrow files of a run.

use std::collections::HashMap;

use crate::columns::FieldMeaning;
use crate::error::{Error, Result};

/// What each field's values mean in the inputs so far, and the first input that shows it.
#[derive(Debug, Default)]
pub(super) struct Meanings(HashMap<String, (FieldMeaning, String)>);

impl Meanings {
    /// Fails if a field's values mean another thing in `input` than in an earlier input.
    pub(super) fn add(&mut self, input: &str, of_input: &[FieldMeaning]) -> Result<()> {
        for new in of_input {
            let Some((first, first_input)) = self.0.get(&new.field) else {
                self.0.insert(new.field.clone(), (new.clone(), input.to_owned()));
                continue;
            };
            if first.meaning != new.meaning {
                let what = new.differs(first, first_input);
                return Err(Error::Columns { input: input.to_owned(), what });
            }
        }
        Ok(())
    }
}
