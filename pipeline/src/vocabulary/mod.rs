//! The vocabularies of a pipeline.
//!
//! A pipeline has a [`Numbering`] for each of its vocabularies ([`open()`]). Each run makes a
//! [`RunNumbering`] of it, in which all threads look values up. If a value has no id, it waits in
//! its chunk's [`UnseenList`] until the chunk is committed.
//!
//! If the range of the values is known, ids come from an array in memory ([`direct`]), even if a
//! bank keeps the vocabulary. The array is filled from the bank at the start, and new values go to
//! the bank in bulk ([`memory`]). Values without a known range are looked up in the bank itself
//! ([`bank`]). A feed's run marks how far vocabularies have grown at its places ([`mark`]).

mod bank;
mod counts;
mod direct;
mod mark;
mod memory;
mod numbering;
mod open;
mod run;
mod unseen;

pub use numbering::KeptValues;

pub(crate) use bank::{BankLookUp, check_id};
pub(crate) use counts::ValueCounts;
pub(crate) use direct::DirectTable;
pub(crate) use mark::{Marker, VocabularyMark};
pub(crate) use memory::{Kept, MemoryNumbering};
pub(crate) use numbering::Numbering;
pub(crate) use open::{open, write};
pub(crate) use run::{BankIds, OnUnseen, RunIds, RunNumbering};
pub(crate) use unseen::{UnseenList, UnseenValues, UnseenWord};
