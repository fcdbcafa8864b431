#![no_main]

use embank_pipeline_fuzz::text::Text;

libfuzzer_sys::fuzz_target!(|text: Text| text.run(true));
