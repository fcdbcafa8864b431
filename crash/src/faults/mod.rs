//! Disks that fail, fill up or lie: every call of a bank's life goes wrong once, in every way that
//! it can.
//!
//! **Approach.** A [`script`] takes a small bank through all that a store does. It is run once to
//! count the calls of each [`Site`]: a call and the kind of file that it is about. Then it is run
//! again for each planned fault, which strikes at one call of one site, and [`judge`] looks at what
//! came of it and at what is left:
//!
//! - A call that fails: either the operation reports an error that names the file, or nothing is
//!   wrong at all. After a failed write or sync of the log the store takes no more writes. A
//!   transient failure is over when the operation is tried again. The bank opens at its newest
//!   checkpoint, whole, row by row, and works.
//! - A call that is interrupted or moves only a part of the bytes: no operation fails.
//! - A read that returns wrong bytes: an error, and the next attempt is right.
//! - A write that stores wrong bytes: every later read is right or an error that names the file. It
//!   never returns another row, and never misses one. `verify` finds the damage, or nothing is
//!   wrong.
//! - A disk that is full or dead from some call on: as a call that fails. The bank opens while the
//!   disk is full.
//!
//! So a site that is new, or behaves in a new way, shows: `crash/tests/faults.rs` keeps the list.

pub mod judge;
pub mod script;
pub mod sweep;

pub use crate::recorder::{Call, Fault, Plan, Site};
