//! How the store is tested against loss of power and kills.
//!
//! - [`recorder`] records what the store does to its directory, system call by system call, into a
//!   [`journal`].
//! - [`disk`] builds from a journal what a power cut may have left.
//! - [`workload`] is the life of a bank that is recorded, and [`images`] says what must come back
//!   from its images.
//! - [`faults`] has the calls of a bank go wrong one by one, as those of a disk that fails, fills
//!   up or lies.
//! - [`kills`] kills a writer, which does the steps of [`program`], and looks at what it left.
//! - [`strangers`] puts directories and files of another bank in the place of its own.
//!
//! `docs/testing.md` has the commands.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

pub mod content;
pub mod disk;
pub mod faults;
pub mod images;
pub mod journal;
pub mod kills;
pub mod program;
pub mod recorder;
pub mod rows;
pub mod strangers;
pub mod workload;
