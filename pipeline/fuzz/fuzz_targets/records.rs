//! Fuzz target: reads record files with up to eight edits, also with arbitrary bytes in a part.

#![no_main]

use embank_pipeline_fuzz::records::Damaged;

libfuzzer_sys::fuzz_target!(|file: Damaged| file.run());
