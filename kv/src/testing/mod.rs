//! Code for tests and benchmarks: replacements of product parts, switches, and access to internals.
//!
//! # Where to look
//!
//! - `faulty`: a device whose calls fail on request.
//! - `cold_bank`: a bank with parts, and the rows that it must have.
//! - `parts`: adds hand-made parts to the cold tier of a store.
//! - `models`: runs the store's concurrent code under a model checker.
//! - `fuzzing`: the decoders that the fuzz targets call.
//! - `mechanisms`: switches of the tuning mechanisms, for measurements.
//! - `bench`: internals that the micro-benchmarks call.

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(test)]
pub(crate) mod cold_bank;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod faulty;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod mechanisms;
#[cfg(all(test, embank_shuttle))]
mod models;
#[cfg(any(test, feature = "testing"))]
pub mod parts;
