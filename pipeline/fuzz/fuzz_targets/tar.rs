//! Fuzz target: reads tar archives with up to eight edits, also with arbitrary bytes as a header,
//! and compares with a reader of streams.

#![no_main]

use embank_pipeline_fuzz::archives::Damaged;

libfuzzer_sys::fuzz_target!(|archive: Damaged| archive.run());
