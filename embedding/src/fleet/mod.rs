//! Fleets: tables whose rows are divided over many banks, the *shards*.
//!
//! One process writes a bank. A program that outgrows one machine runs many processes, and each of
//! them opens the bank of one shard. A shard has a number of its own, because the ranks of a
//! process group change between restarts. The bank of shard 7 stands in `DIR/shard-00007`, and its
//! file `SHARD` names the fleet, the shard's number and the number of shards.
//!
//! This module has what must be durable: which shard a bank is, and which shard a key belongs to.
//! It sends nothing: the caller exchanges keys, rows and decisions between the processes.
//!
//! - `routing`: which shard holds the row of a key.
//! - `identity`: the file `SHARD`.
//! - `files`: how the files of a fleet are made and read.

mod files;
mod identity;
mod routing;

pub use identity::{FleetId, ShardIdentity, list_shards, shard_path};
pub use routing::{BUCKETS, Routed, Routing};
