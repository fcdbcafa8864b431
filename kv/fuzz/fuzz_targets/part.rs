//! Fuzz target: decodes a part of a cold tier.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::part(data));
