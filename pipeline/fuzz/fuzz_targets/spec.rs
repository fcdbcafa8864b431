#![no_main]

use embank_pipeline_fuzz::spec::Pipelines;

libfuzzer_sys::fuzz_target!(|pipelines: Pipelines| pipelines.run());
