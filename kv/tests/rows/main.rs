//! Tests of rows: operations, clocks, caches and scans, in each region and with many threads.

#[path = "../common/mod.rs"]
mod common;

mod callbacks;
mod callers;
mod concurrency;
mod conditional_deletion;
mod destination;
mod hints;
mod index_growth;
mod larger_budget;
mod model;
mod priorities;
mod read_cache;
mod regions;
mod repeats;
mod retention;
mod scans;
mod staleness;
mod table_numbers;
mod table_numbers_model;
mod variable_width;
