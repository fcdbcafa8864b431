//! What tests and benchmarks put in a product part's place, or reach of the store's inside.

#[cfg(feature = "bench")]
pub mod bench;
pub(crate) mod faulty;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod mechanisms;
pub(crate) mod memory_device;
#[cfg(all(test, embank_shuttle))]
mod models;
