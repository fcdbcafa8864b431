//! Fuzz target: decodes JPEGs and PNGs with up to eight edits, or arbitrary bytes.

#![no_main]

use embank_pipeline_fuzz::pictures::Damaged;

libfuzzer_sys::fuzz_target!(
    init: embank_pipeline_fuzz::let_pass_what_is_caught(),
    |picture: Damaged| picture.run()
);
