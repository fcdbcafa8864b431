//! The only place that names atomics, locks, threads and thread locals, so that a model checker can
//! replace them.
//!
//! `native` is what the store runs with: atomics and threads of the standard library, and the locks
//! of `process::locks`. With `--cfg embank_shuttle`, `modelled` has the same names. Every operation
//! of `modelled` is a point at which the checker (shuttle) may switch to another thread: see
//! `models`. Devices other than memory use the system's own types and are not modelled. `planted`
//! lists the bugs that the models must find.

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
