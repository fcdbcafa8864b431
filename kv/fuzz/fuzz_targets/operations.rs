//! Fuzz target: runs any sequence of calls on a store and compares it with a map.

#![no_main]

use embank_kv_fuzz::operations::{Life, run};

libfuzzer_sys::fuzz_target!(|life: Life| run(&life, &embank_kv_fuzz::folder()));
