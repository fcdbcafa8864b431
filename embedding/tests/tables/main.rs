//! Tests of tables: rows, optimizers, admission, eviction, and disk space.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod bags;
mod batch_limit;
mod blind_puts;
mod counts;
mod dropping;
mod dtypes;
mod eviction;
mod finite_rows;
mod optimizers;
mod read_modify_write;
mod reopen;
mod scans;
mod space;
mod space_holders;
mod steps;
mod table_numbers;
mod tables;
mod threads;
mod times;
