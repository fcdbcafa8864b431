//! Fuzz target: decodes a record.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::record(data));
