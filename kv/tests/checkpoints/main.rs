//! Tests of checkpoints: their content, readers next to the writer, and copies.

#[path = "../common/mod.rs"]
mod common;

mod copying;
mod deltas;
mod directories;
mod formats;
mod lineage;
mod newer_formats;
mod opening;
mod parts;
mod read_only;
mod reopening;
mod rolling_back;
mod second_names;
mod strays;
mod under_load;
