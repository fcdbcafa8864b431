//! Fuzz target: decodes the files of an index.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::index_image(data));
