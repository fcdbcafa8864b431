//! Space: compaction and the quota.

#[path = "../common/mod.rs"]
mod common;

mod compaction;
mod failures;
mod quota;
mod races;
