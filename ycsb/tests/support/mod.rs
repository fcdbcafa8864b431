//! Helpers that the tests of the program share.

use std::path::Path;
use std::process::{Command, Output};

/// Returns a command of the program. Spaces separate the arguments.
pub(crate) fn command(directory: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank-ycsb"));
    command.args(arguments.split_whitespace()).arg("--directory").arg(directory);
    command
}

/// Runs the program.
pub(crate) fn ycsb(directory: &Path, arguments: &str) -> Output {
    command(directory, arguments).output().expect("the program starts")
}

/// Returns everything that the program wrote.
pub(crate) fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}
