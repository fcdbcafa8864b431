//! The files and directories of a bank: names, locks, checksums, and files that appear only when
//! complete.
//!
//! # Where to look
//!
//! - `directory`: open directories, and names in them.
//! - `checked_stream` and `metadata`: two file formats with checksums, for long and for short
//!   content.
//! - `output_file` and `hidden_file`: files for other programs, and the removal of incomplete files
//!   if a signal ends the process.
//! - `lock` and `lock_holders`: file locks, and the processes that hold a lock.
//! - `progress`: the progress of a long call.

pub(crate) mod checked_stream;
pub(crate) mod directory;
pub(crate) mod held_file;
pub(crate) mod hidden_file;
pub(crate) mod lock;
pub(crate) mod lock_holders;
pub mod metadata;
pub(crate) mod output_file;
pub(crate) mod progress;
