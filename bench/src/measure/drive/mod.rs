//! The drive: its limits, and the store with tables larger than memory.

pub(crate) mod checkpoint;
pub(crate) mod checksum_cost;
pub(crate) mod damage;
pub(crate) mod out_of_core;
pub(crate) mod recovery;
pub(crate) mod roofline;
