//! Checkpoints: what they hold, who reads them beside the writer, and the copies made of them.

#[path = "../common/mod.rs"]
mod common;

mod copying;
mod deltas;
mod directories;
mod formats;
mod lineage;
mod opening;
mod read_only;
mod reopening;
mod rolling_back;
mod under_load;
