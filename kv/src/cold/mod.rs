//! The cold tier: rows at rest, which have no entry in the index.
//!
//! # Where to look
//!
//! - `row`: one version of a row. `head`: what a part's header says, and where a part lies.
//! - `writer`: writes a part. `part`: a part in memory, and lookups in it. `cursor`: reads the rows
//!   of a part in order.
//! - `list`: the list of a checkpoint's parts.

pub(crate) mod cursor;
pub(crate) mod head;
pub(crate) mod list;
pub(crate) mod part;
pub(crate) mod row;
pub(crate) mod writer;
