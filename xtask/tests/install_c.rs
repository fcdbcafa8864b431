//! Tests that `install-c` puts the C library where compilers, pkg-config and CMake find it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

// Naming the crate here makes Cargo build its libraries before this test.
use embank_c as _;

const PROGRAM: &str = r#"
#include <embank.h>
#include <stdio.h>
int main(int count, char **arguments) {
    embank_bank *bank;
    if (count != 2 || embank_bank_open(arguments[1], NULL, &bank) != EMBANK_STATUS_OK) {
        fprintf(stderr, "%s\n", embank_last_error_message());
        return 1;
    }
    embank_bank_close(bank);
    puts(embank_version());
    return 0;
}
"#;

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("left out: there is no {program} (apt install {program})");
    }
    there
}

/// Installs the libraries that were built with this test.
fn install(prefix: &Path) {
    let libraries = env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    run(command.arg("install-c").arg(prefix).arg("--libraries").arg(libraries));
}

/// Runs a program that was built against the installed library: it makes a bank and prints the
/// version.
fn check_program(program: &Path, folder: &Path) {
    let bank = folder.join(format!("{}.bank", program.file_name().unwrap().to_string_lossy()));
    assert_eq!(text(&run(Command::new(program).arg(bank))), env!("CARGO_PKG_VERSION"));
}

#[test]
fn programs_build_against_the_installed_library() {
    let folder = tempfile::tempdir().unwrap();
    let (prefix, source) = (folder.path().join("prefix"), folder.path().join("program.c"));
    fs::write(&source, PROGRAM).unwrap();
    install(&prefix);
    // The second call installs over the first installation.
    install(&prefix);
    let lib = prefix.canonicalize().unwrap().join("lib");
    let so_name = fs::read_link(lib.join("libembank_c.so")).unwrap();
    assert!(lib.join(&so_name).is_file(), "{}", so_name.display());

    let built = |name: &str, arguments: &[String]| -> PathBuf {
        let program = folder.path().join(name);
        let rpath = format!("-Wl,-rpath,{}", lib.display());
        run(Command::new("cc").arg(&source).arg("-o").arg(&program).args(arguments).arg(rpath));
        check_program(&program, folder.path());
        program
    };
    let include = format!("-I{}", prefix.join("include").display());
    let program = built("plain", &[include, format!("-L{}", lib.display()), "-lembank_c".into()]);
    if is_there("readelf") {
        let needed = text(&run(Command::new("readelf").arg("-d").arg(program)));
        assert!(needed.contains(&format!("[{}]", so_name.display())), "{needed}");
    }
    if is_there("pkg-config") {
        let flags = |arguments: &[&str]| -> Vec<String> {
            let mut command = Command::new("pkg-config");
            command.env("PKG_CONFIG_PATH", lib.join("pkgconfig")).args(arguments).arg("embank");
            text(&run(&mut command)).split_whitespace().map(str::to_owned).collect()
        };
        built("found", &flags(&["--cflags", "--libs"]));
        assert_eq!(flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    }
    if is_there("cmake") {
        cmake(folder.path(), &prefix);
    }
}

fn cmake(folder: &Path, prefix: &Path) {
    let lists = "cmake_minimum_required(VERSION 3.13)
project(program C)
find_package(embank 0.1 REQUIRED CONFIG)
add_executable(shared program.c)
target_link_libraries(shared embank::embank)
add_executable(static program.c)
target_link_libraries(static embank::embank_static)
";
    fs::write(folder.join("CMakeLists.txt"), lists).unwrap();
    let build = folder.join("build");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    run(Command::new("cmake").arg("-S").arg(folder).arg("-B").arg(&build).arg(prefix));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["shared", "static"] {
        check_program(&build.join(program), folder);
    }
}
