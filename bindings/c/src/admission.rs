//! Admission: the keys for which a get inserts a row.

use embank::Admission;

use crate::refusals::{beyond_this_header, no_such_number};
use crate::status::Failure;

/// The keys for which a get inserts a row. For every other key without a row, the get returns the
/// initial values, and the key's gradient is dropped.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum embank_admission {
    /// A key gets its row at its first get.
    Always = 0,
    /// Get number admission_gets of a key makes the key's row. Until then the table counts the
    /// key's gets. The table forgets this count after it has counted enough other keys: as many as
    /// the table has rows, and at least 65,536.
    AfterGets = 1,
    /// Each get of a key without a row inserts the row with the probability admission_probability.
    Probability = 2,
}

/// Returns the values of the fields `admission`, `admission_gets` and `admission_probability` of
/// `embank_table_settings`.
pub(crate) fn from_rust(admission: Admission) -> Result<(u32, u32, f32), Failure> {
    match admission {
        Admission::Always => Ok((embank_admission::Always as u32, 0, 0.0)),
        Admission::AfterGets(gets) => Ok((embank_admission::AfterGets as u32, gets, 0.0)),
        Admission::Probability(chance) => Ok((embank_admission::Probability as u32, 0, chance)),
        other => Err(beyond_this_header("admission", &other)),
    }
}

pub(crate) fn to_rust(kind: u32, gets: u32, probability: f32) -> Result<Admission, Failure> {
    const ALWAYS: u32 = embank_admission::Always as u32;
    const AFTER_GETS: u32 = embank_admission::AfterGets as u32;
    const PROBABILITY: u32 = embank_admission::Probability as u32;
    let ignored = |what: &str| {
        Err(Failure::invalid(format!(
            "{what} is set, which the admission does not use; set the kind that does, or 0"
        )))
    };
    if kind != AFTER_GETS && gets != 0 {
        return ignored("admission_gets");
    }
    if kind != PROBABILITY && probability != 0.0 {
        return ignored("admission_probability");
    }
    match kind {
        ALWAYS => Ok(Admission::Always),
        AFTER_GETS => Ok(Admission::AfterGets(gets)),
        PROBABILITY => Ok(Admission::Probability(probability)),
        other => Err(no_such_number("embank_admission", other)),
    }
}
