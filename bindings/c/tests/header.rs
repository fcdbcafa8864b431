//! Is `include/embank.h` what the sources say?

use std::path::Path;
use std::{env, fs};

/// In the order in which the header tells of them.
const SOURCES: [&str; 18] = [
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
    "scan.rs",
    "callbacks.rs",
    "eviction.rs",
    "files.rs",
    "checkpoints.rs",
    "stats.rs",
    "bytes.rs",
];

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in SOURCES {
        builder = builder.with_src(root.join("src").join(file));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();

    let path = root.join("include/embank.h");
    if env::var_os("EMBANK_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "{} is not what src says: `EMBANK_BLESS=1 cargo test -p embank-c --test header` makes it anew, \
         then look at the difference, for the header is a promise",
        path.display()
    );
}
