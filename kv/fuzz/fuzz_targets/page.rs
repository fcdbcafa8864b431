//! Fuzz target: decodes a page of the log.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::page(data));
