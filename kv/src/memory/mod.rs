//! The memory budget, and the memory that is allocated under it.
//!
//! # Where to look
//!
//! - `budget`: shares the budget between index, buffers, row cache, loans and the log's frames.
//! - `control_group`: the memory limit of the container, and the default budget.
//! - `cpu_hint`: prefetches of cache lines.
//! - `read_buffers`: the pool of buffers for reads from disk.
//! - `region`: reserved address space that takes memory when it is touched.

pub(crate) mod budget;
pub(crate) mod control_group;
pub(crate) mod cpu_hint;
pub(crate) mod read_buffers;
pub(crate) mod region;
