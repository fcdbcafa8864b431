//! Fuzz target: decodes the manifest of a checkpoint.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::manifest(data));
