//! The files and directories of a bank as files: names, locks, checksums and whole writes.

pub(crate) mod checked_stream;
pub(crate) mod directory;
pub(crate) mod hidden_file;
pub(crate) mod lock;
pub(crate) mod lock_holders;
pub mod metadata;
pub(crate) mod output_file;
pub(crate) mod progress;
