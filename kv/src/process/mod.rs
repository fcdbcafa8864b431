//! The process that the store is part of: its forks, locks, threads, signals and descriptors.

pub(crate) mod cpu_time;
pub(crate) mod descriptors;
pub(crate) mod fork;
pub mod interrupt;
pub mod locks;
pub(crate) mod new_id;
pub(crate) mod thread_start;
