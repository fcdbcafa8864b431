//! What the measurements share: data, bare loops, contenders, rounds, and reports.

pub(crate) mod contenders;
pub(crate) mod content;
pub(crate) mod device_limit;
pub(crate) mod gather;
pub(crate) mod index_loop;
pub(crate) mod kv_contenders;
pub(crate) mod loading;
pub(crate) mod options;
pub(crate) mod page_cost;
pub(crate) mod plot;
pub(crate) mod policies;
pub(crate) mod report;
pub(crate) mod rounds;
