//! Fuzz target: decodes a checkpoint's manifest.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::manifest(data));
