//! Tests of the sets of a fleet.
//!
//! A test has all shards of a fleet in one process. A crash is the end of all handles at a step of
//! the protocol: what a shard has on disk then is what its calls have made durable. `embank-crash`
//! kills real processes.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod fleet;
mod going_back;
mod reshard;
mod sets;
mod unfit_shards;
