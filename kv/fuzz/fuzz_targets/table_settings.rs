//! Fuzz target: decodes the settings of an embedding table.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| embank_kv_fuzz::settings::table_settings(data));
