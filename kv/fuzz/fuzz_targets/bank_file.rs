//! Fuzz target: decodes the file `BANK`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv::fuzzing::bank_file(data));
