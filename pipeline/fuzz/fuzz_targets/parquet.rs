//! Fuzz target: reads a Parquet file, or one with up to eight edits.

#![no_main]

use embank_pipeline_fuzz::columns::{Damaged, parquet_files};

libfuzzer_sys::fuzz_target!(
    init: embank_pipeline_fuzz::let_pass_what_is_caught(),
    |file: Damaged| file.run(parquet_files(), b"PAR1")
);
