//! The cold tier: rows at rest, which have no entry in the index.
//!
//! **Problem.** The index takes 8 to 16 bytes of memory for each row, wherever the row lies. A bank
//! with a hundred times as many rows as memory spends all of it on the index.
//!
//! **Approach.** Rows at rest lie in *parts*: immutable files of rows in the order of their hashes.
//! Memory has a *fence* of two bytes for each block of a part, and a filter of some bits for each
//! row. The filter says whether a part may have a row, and the fences say in which block. So most
//! lookups cost one read of one block. Parts come in *runs*, which leave the log, and in a *base*,
//! into which runs are merged: lazy levelling (Dayan and Idreos, "Dostoevsky", SIGMOD 2018) over
//! the order of SILT (Lim et al., SOSP 2011).
//!
//! **Invariants.**
//! - A part never changes after `PartWriter::finish`. It is removed as a whole.
//! - A part has each row at most once. Rows ascend by hash, then table, then key.
//! - No damage looks like a row or like a missing row. A row's checksum covers the place of its
//!   block and the salt of its part. An answer "missing" comes from a filter or a fence whose
//!   section was checked as the part was loaded, or from a block that was checked as a whole.
//!
//! # Where to look
//!
//! - `row`: one version of a row. `block`: rows with checksums. `fence`: which block may have a
//!   hash. `filter`: whether a part may have a hash.
//! - `head`: what a part's header says, and where a part lies. `trailer`: how long its pieces are.
//!   `writer`: writes a part.
//! - `part`: a part in memory, and lookups in it. `loading`: loads a part. `keep`: how much of it
//!   stays in memory. `range`: looks for a row among several blocks. `cursor`: reads the rows of a
//!   part in order.
//! - `newest`: merges parts to the newest version of each row. `slice`: notes which rows of the log
//!   hide rows of parts. `survey`: reads what is sound of a damaged part.
//! - `merge`: runs become one, or part of the base. `list`: the list of a checkpoint's parts.

pub(crate) mod block;
pub(crate) mod cursor;
mod fence;
pub(crate) mod filter;
pub(crate) mod head;
pub(crate) mod keep;
pub(crate) mod list;
pub(crate) mod loading;
pub(crate) mod merge;
pub(crate) mod newest;
pub(crate) mod part;
mod range;
pub(crate) mod row;
pub(crate) mod slice;
pub(crate) mod survey;
#[cfg(test)]
mod tests;
mod trailer;
pub(crate) mod writer;
