//! The memory budget, and the memory that is allocated under it.
//!
//! # Where to look
//!
//! - `budget`: shares the budget between the index, the buffers, the read cache, memory lent to
//!   scans and prefetches, and the log's frames.
//! - `control_group`: the memory limit of the container, and the default budget.
//! - `cpu_hint`: prefetches of cache lines, and which lines of a record a batch prefetches.
//! - `kept_words`: words that stay for long, in maps of their own.
//! - `read_buffers`: the pool of buffers for reads from disk.
//! - `region`: reserved address space, whose pages take memory when they are first used.

pub(crate) mod budget;
pub(crate) mod control_group;
pub(crate) mod cpu_hint;
pub(crate) mod kept_words;
pub(crate) mod read_buffers;
pub(crate) mod region;
