//! Fuzz target: reads compressed text, whole or damaged.

#![no_main]

use embank_pipeline_fuzz::compressed::Compressed;

libfuzzer_sys::fuzz_target!(|compressed: Compressed| compressed.run());
