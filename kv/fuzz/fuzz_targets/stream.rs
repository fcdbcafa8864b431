//! Fuzz target: reads a checksummed stream.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::stream(data));
