//! Fuzz target: reads Arrow files with up to eight edits, or arbitrary bytes.

#![no_main]

use embank_pipeline_fuzz::columns::{Damaged, arrow_files};

libfuzzer_sys::fuzz_target!(
    init: embank_pipeline_fuzz::let_pass_what_is_caught(),
    |file: Damaged| file.run(arrow_files(), b"")
);
