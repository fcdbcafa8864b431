//! Fuzz target: reads rows of 32-bit numbers.

#![no_main]

use embank_pipeline_fuzz::packed::Packed;

libfuzzer_sys::fuzz_target!(|packed: Packed| packed.run());
