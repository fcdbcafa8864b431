//! The one place that names atomics, locks, threads and their locals, so that a model checker can take their place.
//!
//! `native` is what the store runs with: the standard library's, its locks by way of `locks`. With
//! `--cfg embank_shuttle`, `modelled` has the same names, and every operation on them is a point at which the
//! checker (shuttle) may let another thread go on: see `models`. Devices other than memory keep to the
//! system's own: they are not modelled.

#[cfg(embank_shuttle)]
mod modelled;
#[cfg(not(embank_shuttle))]
mod native;
mod planted;

#[cfg(embank_shuttle)]
pub(crate) use modelled::*;
#[cfg(not(embank_shuttle))]
pub(crate) use native::*;
#[cfg(all(test, embank_shuttle))]
pub(crate) use planted::plant;
pub(crate) use planted::{Planted, planted};
