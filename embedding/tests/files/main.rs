//! Tests of files: exports, imports, and banks and vocabularies in every on-disk format.

#[path = "../common/mod.rs"]
mod common;

mod exported_life;
mod files;
mod fixture;
mod formats;
mod fuzz_corpus;
mod imported_state;
mod imports;
mod parquet;
mod vocabulary_format;
mod vocabulary_histories;
mod vocabulary_keys;
