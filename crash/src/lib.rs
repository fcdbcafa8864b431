//! Tests of the store against power cuts, kills and failing disks.
//!
//! - [`recorder`] records the system calls by which the store changes or syncs its directory. A
//!   [`journal`] holds the recorded calls.
//! - [`disk`] builds the possible contents of the disk after a power cut (*images*) from a journal.
//! - [`settings`] draws the settings of a bank. [`parts`] tells which parts of a cold tier it has.
//! - [`workload`] runs a bank under the recorder through many operations (the bank's *life*).
//!   [`images`] checks the bank in each image.
//! - [`faults`] makes one system call of a bank fail or lie, as on a disk that fails or fills up.
//! - [`kills`] kills a writer that runs the steps of [`program`], and checks its bank.
//! - [`fleet_kills`] kills the processes of a fleet, and checks where the fleet opens.
//! - [`strangers`] replaces directories and files of a bank by those of another bank.
//! - [`strays`] puts files of other programs into the folders of a bank.
//!
//! `docs/testing.md` has the commands.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

pub mod content;
pub mod disk;
pub mod faults;
pub mod fleet_kills;
pub mod images;
pub mod journal;
pub mod kills;
pub mod parts;
pub mod program;
pub mod recorder;
pub mod rows;
pub mod settings;
pub mod strangers;
pub mod strays;
pub mod workload;
