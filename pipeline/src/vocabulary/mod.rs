//! Vocabularies while a pipeline runs.
//!
//! A pipeline has a [`Numbering`] of each of its vocabularies ([`open()`]). A run takes a
//! [`RunNumbering`] of it, which all of its threads look values up in. Values without an id go into
//! an [`UnseenList`] of their chunk, until it is committed.
//!
//! Where the range of the values is known, ids come from an array in memory ([`direct`]), whether
//! or not a bank keeps the vocabulary: the array is filled from the bank at the start, and what is
//! new goes there in bulk ([`memory`]). Other values are looked up in the bank's vocabulary itself
//! ([`bank`]).

mod bank;
mod counts;
mod direct;
mod memory;
mod numbering;
mod open;
mod run;
mod unseen;

pub use numbering::KeptValues;

pub(crate) use bank::{BankLookUp, check_id};
pub(crate) use counts::ValueCounts;
pub(crate) use direct::DirectTable;
pub(crate) use memory::{Kept, MemoryNumbering};
pub(crate) use numbering::Numbering;
pub(crate) use open::open;
pub(crate) use run::{BankIds, OnUnseen, RunIds, RunNumbering};
pub(crate) use unseen::{UnseenList, UnseenValues, UnseenWord};
