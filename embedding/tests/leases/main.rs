//! Tests of leases: bounds, waits, timeouts, lookahead and prefetch.

#[path = "../common/mod.rs"]
mod common;

mod ahead;
mod ending_threads;
mod failed_gets;
mod leases;
mod lookahead;
mod prefetch;
mod self_blocked;
mod staleness;
mod staleness_recorded;
mod try_get;
mod waiting;
