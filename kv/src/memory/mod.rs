//! The memory budget and what is allocated under it.

pub(crate) mod budget;
pub(crate) mod control_group;
pub(crate) mod cpu_hint;
pub(crate) mod read_buffers;
pub(crate) mod region;
