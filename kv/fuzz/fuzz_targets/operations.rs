//! Fuzz target: runs a sequence of calls on a store and compares the store with a map.

#![no_main]

use embank_kv_fuzz::operations::{Life, run};

libfuzzer_sys::fuzz_target!(|life: Life| run(&life, &embank_kv_fuzz::folder()));
