//! Fuzz target: reads text with quotes, and compares with a decoder that works byte by byte.

#![no_main]

use embank_pipeline_fuzz::text::Text;

libfuzzer_sys::fuzz_target!(|text: Text| text.run(true));
