//! What tests and benchmarks put in a product part's place, or reach of the store's inside.

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod faulty;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod mechanisms;
#[cfg(all(test, embank_shuttle))]
mod models;
