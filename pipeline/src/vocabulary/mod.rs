//! Vocabularies while a pipeline runs.
//!
//! Where the range of the values is known, ids come from an array in memory ([`direct`]), whether or not a bank keeps
//! the vocabulary: the array is filled from the bank at the start, and what is new goes there in bulk ([`growing`]).
//! Other values are looked up in the bank's vocabulary itself.

mod direct;
mod growing;
mod numbering;
mod unknown;

pub use growing::KeptValues;

pub(crate) use direct::{DirectTable, Pending};
pub(crate) use growing::{Growing, ValueCounts};
pub(crate) use numbering::{Ids, Numbering, RunNumbering, Unseen, open};
pub(crate) use unknown::{BankLookUp, Unknown, check_id};
