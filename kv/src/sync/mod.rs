//! Names all atomics, locks, threads and thread locals of the crate, so that a model checker can
//! replace them.
//!
//! The store uses `native`: atomics and threads of the standard library, and the locks of
//! `process::locks`. With `--cfg embank_shuttle`, the store uses `modelled`, which has the same
//! names. At every operation of `modelled`, the model checker (shuttle) may switch to another
//! thread (see `testing::models`). Only the device that keeps its files in memory is modelled. The
//! other devices use the standard library's types. `planted` lists the bugs that the models must
//! find.

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
