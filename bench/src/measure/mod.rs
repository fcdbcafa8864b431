//! The measurements, in one folder for each subject. The measurements of training are in
//! `bench/python/training`.

pub(crate) mod cold;
pub(crate) mod drive;
pub(crate) mod pipeline;
pub(crate) mod serving;
pub(crate) mod store;
