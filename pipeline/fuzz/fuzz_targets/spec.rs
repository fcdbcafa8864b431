//! Fuzz target: reads a pipeline from JSON or from operators, and runs it.

#![no_main]

use embank_pipeline_fuzz::spec::Pipelines;

libfuzzer_sys::fuzz_target!(|pipelines: Pipelines| pipelines.run());
