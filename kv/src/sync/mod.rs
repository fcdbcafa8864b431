//! Names all atomics, locks, threads and thread locals of the crate, so that a model checker can
//! replace them.
//!
//! The store uses `native`: atomics and threads of the standard library, and the locks of
//! `process::locks`. With `--cfg embank_shuttle`, it uses `modelled`, which has the same names. At
//! every operation of `modelled`, the checker (shuttle) may switch to another thread (see
//! `models`). Devices other than memory use the system's own types and are not modelled. `planted`
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
