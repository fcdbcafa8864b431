//! Tests that programs in C and C++ work with the header and the libraries. `c/abi.c` tests the
//! ABI, linked statically. `../examples/train.cpp` is the tutorial, linked dynamically.
//!
//! The tests build the programs with `cc` and `c++`, or with the commands in `CC` and `CXX`.
//! Without a C++ compiler, the test of the tutorial is skipped.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use embank_kv::{Store, StoreOptions};
use tempfile::TempDir;

// This line makes Cargo build the library before this test.
use embank_c as _;

const SOURCES: &str = env!("CARGO_MANIFEST_DIR");

/// The system libraries that Rust's standard library needs on Linux.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lrt"];

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Returns the folder that contains libembank_c.a and libembank_c.so.
fn libraries() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Returns the command in the environment variable `variable`, which may include arguments. Without
/// that variable, returns `usual`.
fn compiler(variable: &str, usual: &str) -> Command {
    let named = env::var(variable).unwrap_or_default();
    let mut words = named.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or(usual));
    command.args(words);
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn include_and_source(command: &mut Command, source: &str, to: &Path) {
    command.args(WARNINGS).arg("-O1").arg("-g").arg("-I").arg(Path::new(SOURCES).join("include"));
    command.arg(Path::new(SOURCES).join(source)).arg("-o").arg(to);
}

/// Makes a bank with a table of the crate `embank-kv`. The table has no descriptor, so the crate
/// `embank` can't read it.
fn foreign_bank(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("foreign");
    let store = Store::open(&path, &StoreOptions::default()).unwrap();
    store.create_table("vocabulary", 8, b"no descriptor of Embank's").unwrap();
    store.checkpoint(b"").unwrap();
    path
}

#[test]
fn every_function_and_every_error_from_c() {
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("abi");
    let mut build = compiler("CC", "cc");
    include_and_source(build.arg("-std=c11"), "tests/c/abi.c", &program);
    build.arg(format!("-DWITH_PARQUET={}", u8::from(cfg!(feature = "parquet"))));
    run(build.arg(libraries().join("libembank_c.a")).args(SYSTEM_LIBRARIES));

    let foreign = foreign_bank(&folder);
    let output = run(Command::new(program).arg(folder.path()).arg(foreign));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all checks passed\n");
}

#[test]
fn the_tutorial_in_cpp_resumes_to_the_same_rows() {
    if compiler("CXX", "c++").arg("--version").output().is_err() {
        eprintln!("left out: there is no C++ compiler (apt install g++, or set CXX)");
        return;
    }
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("train");
    let mut build = compiler("CXX", "c++");
    include_and_source(build.arg("-std=c++17"), "examples/train.cpp", &program);
    let libraries = libraries();
    // The program loads the library by its SONAME. The build folder has no file of that name;
    // `cargo xtask install-c` would make it.
    let version = concat!(
        "libembank_c.so.",
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR")
    );
    symlink(libraries.join("libembank_c.so"), folder.path().join(version)).unwrap();
    build.arg("-L").arg(&libraries).arg("-lembank_c");
    run(build.arg(format!("-Wl,-rpath,{}", folder.path().display())));

    let bank = folder.path().join("bank");
    let first = run(Command::new(&program).arg(&bank));
    let text = String::from_utf8_lossy(&first.stdout);
    assert!(text.contains("resumed to the same rows"), "{text}");
}
