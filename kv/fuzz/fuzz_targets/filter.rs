//! Fuzz target: builds a filter and asks it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::filter(data));
