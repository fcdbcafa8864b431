//! Builds the test programs of the workspace once.
//!
//! `cargo test` of one package turns on fewer features than a build of the whole workspace, so
//! Cargo would build the store a second time. Here Cargo builds every program of the default
//! members in one build, and prints the path of each as JSON. A test program can then run several
//! times, with different environment variables, without another build.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::checks::cargo;
use crate::side_by_side::Run;

/// The test program of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The package's folder. The program runs in it, as under `cargo test`.
    folder: PathBuf,
    /// The target's name.
    target: String,
    executable: PathBuf,
}

impl Program {
    /// True if the program belongs to the package in this folder.
    pub(crate) fn is_in(&self, folder: &Path) -> bool {
        self.folder == folder
    }

    /// True if the target has this name.
    pub(crate) fn is_named(&self, target: &str) -> bool {
        self.target == target
    }

    /// Returns a run of this program with these variables set.
    pub(crate) fn run_with(&self, variables: &[(&str, &str)]) -> Run {
        let folder = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let shown: String =
            variables.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).envs(variables.iter().copied());
        Run { name: format!("{folder} {}{shown}", self.target), command }
    }
}

/// Builds every test program of the default members.
///
/// # Errors
/// Returns an error if a program cannot be built.
pub(crate) fn build(root: &Path) -> Result<Vec<Program>> {
    let mut command = cargo(root);
    command.args(["test", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]);
    println!("$ cargo test --locked --no-run");
    let mut building = command.stdout(Stdio::piped()).spawn().context("starting cargo")?;
    let stdout = building.stdout.take().context("its output is piped")?;
    let mut programs = Vec::new();
    for line in BufReader::new(stdout).lines() {
        programs.extend(program(&line.context("reading what cargo says")?));
    }
    if !building.wait().context("waiting for cargo")?.success() {
        bail!("the tests can't be built");
    }
    Ok(programs)
}

/// A line of Cargo's JSON that describes an artifact.
#[derive(Debug, Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// Returns the test program that a line of Cargo's JSON describes. `None` if the line describes
/// something else.
fn program(line: &str) -> Option<Program> {
    let Artifact { manifest_path, target, profile, executable } =
        serde_json::from_str(line).ok()?;
    let folder = manifest_path.parent()?.to_owned();
    executable.filter(|_| profile.test).map(|executable| Program {
        folder,
        target: target.name,
        executable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARTIFACT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///r/kv#1",
        "manifest_path":"/r/kv/Cargo.toml","target":{"kind":["test"],"name":"rows"},
        "profile":{"opt_level":"1","test":true},"executable":"/r/target/debug/deps/rows-1"}"#;

    #[test]
    fn a_test_program_is_found_in_what_cargo_says() {
        let found = program(ARTIFACT).unwrap();
        assert!(found.is_in(Path::new("/r/kv")) && !found.is_in(Path::new("/r")));
        assert!(found.is_named("rows") && !found.is_named("row"));
        let run = found.run_with(&[("A", "b")]);
        assert_eq!(run.name, "kv rows A=b");
        assert_eq!(run.command.get_current_dir(), Some(Path::new("/r/kv")));
    }

    #[test]
    fn libraries_and_other_messages_are_no_test_programs() {
        assert_eq!(program(&ARTIFACT.replace("true", "false")), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(program("warning: text"), None);
    }
}
