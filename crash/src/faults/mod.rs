//! Simulates disks that fail, fill up or lie. Each system call that a bank makes goes wrong once in
//! every possible way.
//!
//! **Approach.** A [`script`] takes a small bank through every operation of the store. A first run
//! counts the calls of each [`Site`], which is a call and the kind of file it concerns. Each
//! planned fault gets a further run and strikes at one call of one site. Then [`judge`] checks the
//! outcome and the bank:
//!
//! - If a call fails, either the operation reports an error that names the file, or the bank is
//!   right. After a failed write or sync of the log the store refuses writes. After a transient
//!   failure, a second try of the operation succeeds. The bank opens whole at its newest checkpoint
//!   and takes writes.
//! - If a call is interrupted or moves only a part of the bytes, no operation fails.
//! - If a read returns wrong bytes, the operation reports an error, and its second try is right.
//! - If a write stores wrong bytes, every later read returns the right row or an error that names
//!   the file. `verify` finds the damage, unless the bank is right.
//! - If the disk is full or dead from some call on, the bank behaves as after a failed call. The
//!   bank opens while the disk is full.
//!
//! `crash/tests/faults.rs` compares the sites with a list, so a call at a new site fails the test.

pub mod judge;
pub mod script;
pub mod sweep;

pub use crate::recorder::{Call, Fault, Plan, Site};
pub use script::Mode;
