//! What the tests of the program share.

use std::path::Path;
use std::process::{Command, Output};

/// The program with arguments that are separated by spaces.
pub(crate) fn command(directory: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embank-ycsb"));
    command.args(arguments.split_whitespace()).arg("--directory").arg(directory);
    command
}

/// Runs the program.
pub(crate) fn ycsb(directory: &Path, arguments: &str) -> Output {
    command(directory, arguments).output().expect("the program starts")
}

/// All that the program wrote.
pub(crate) fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}
