//! Tests of space: compaction and the disk quota.

#[path = "../common/mod.rs"]
mod common;

mod compaction;
mod failures;
mod quota;
mod races;
mod tiers;
