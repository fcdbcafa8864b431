//! Tests that `include/embank.h` equals cbindgen's output for the sources, and that
//! `src/counters.rs` has all counters of the library that C structs must have.

use std::path::Path;
use std::{env, fs};

/// The source files, in the order in which their items stand in the header.
const SOURCES: [&str; 22] = [
    "status.rs",
    "options.rs",
    "optimizer.rs",
    "initializer.rs",
    "dtype.rs",
    "admission.rs",
    "settings.rs",
    "bank.rs",
    "table.rs",
    "vocabulary.rs",
    "lease.rs",
    "bags.rs",
    "request.rs",
    "ahead.rs",
    "scan.rs",
    "callbacks.rs",
    "eviction.rs",
    "files.rs",
    "checkpoints.rs",
    "counters.rs",
    "stats.rs",
    "bytes.rs",
];

mod counters;

#[test]
fn the_counters_and_the_header_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // `src/counters.rs` is checked before the header, because cbindgen reads it.
    let path = root.join("src/counters.rs");
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_or_bless(&path, &counters::source(&found));

    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in SOURCES {
        builder = builder.with_src(root.join("src").join(file));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();

    assert_or_bless(&root.join("include/embank.h"), &made);
}

/// Fails unless the file's text equals `made`. With EMBANK_BLESS=1, first writes `made` to the
/// file.
fn assert_or_bless(path: &Path, made: &str) {
    if env::var_os("EMBANK_BLESS").is_some() {
        fs::write(path, made).expect("the file can be written");
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == made,
        "{} is not what it should be: `EMBANK_BLESS=1 cargo test -p embank-c --test header` makes it again, \
         then look at the difference, for the header is a promise",
        path.display()
    );
}
