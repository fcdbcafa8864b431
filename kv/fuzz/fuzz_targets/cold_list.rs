//! Fuzz target: decodes a checkpoint's list of parts.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::cold_list(data));
