//! Tables and the store below them: throughput, latency, memory, cache, and the soak.

pub(crate) mod batch_get;
pub(crate) mod cache_policy;
pub(crate) mod footprint;
pub(crate) mod growth;
pub(crate) mod in_memory;
pub(crate) mod mechanisms;
pub(crate) mod scaling;
pub(crate) mod single_op;
pub(crate) mod soak;
pub(crate) mod staleness_cost;
pub(crate) mod threads_a_batch;
