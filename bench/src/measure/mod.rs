//! The measurements, in folders by what they measure. Those of training are in
//! `bench/python/training`.

pub(crate) mod drive;
pub(crate) mod pipeline;
pub(crate) mod serving;
pub(crate) mod store;
