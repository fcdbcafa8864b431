//! The files and directories of a bank: names, locks, checksums, and files that appear only when
//! they are complete.
//!
//! # Where to look
//!
//! - `directory`: directories that are held open, and names in them.
//! - `checked_stream` and `metadata`: the two checksummed formats.
//! - `output_file` and `hidden_file`: files for other programs, and what a signal removes of them.
//! - `lock` and `lock_holders`: locks on files, and the processes that hold them.
//! - `progress`: how far a long call is.

pub(crate) mod checked_stream;
pub(crate) mod directory;
pub(crate) mod hidden_file;
pub(crate) mod lock;
pub(crate) mod lock_holders;
pub mod metadata;
pub(crate) mod output_file;
pub(crate) mod progress;
