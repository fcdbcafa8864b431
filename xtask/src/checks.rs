//! `test`: everything that CI checks, stage by stage, with what each took.
//!
//! A stage that fails does not stop the others, except those that build on it: one run shows all there
//! is to mend.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::environment::{self, Lock, Python};
use crate::{command, examples, workspace};

/// Options of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only format, lints and Rust tests; needs no Python
    #[arg(long, conflicts_with = "python_only")]
    rust_only: bool,
    /// Only the wheel and the Python tests
    #[arg(long)]
    python_only: bool,
    /// Also the models in Rust: compiling tch takes some minutes more
    #[arg(long, conflicts_with = "rust_only")]
    rust_examples: bool,
}

/// Runs the stages and prints the summary; fails if one failed.
///
/// # Errors
/// There is no repository around this crate.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace::root()?;
    let mut stages = Stages::default();
    if !args.python_only {
        rust_stages(&root, &mut stages);
    }
    if !args.rust_only {
        python_stages(&root, args.rust_examples, &mut stages);
    }
    print!("{}", stages.summary());
    Ok(if stages.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn rust_stages(root: &Path, stages: &mut Stages) {
    stages.run("format", || {
        component(root, "fmt", "rustfmt")?;
        command::shown(cargo(root).args(["fmt", "--all", "--check"]))
            .context("`cargo fmt --all` formats it")
    });
    stages.run("lints", || {
        component(root, "clippy", "clippy")?;
        let strict = ["--all-targets", "--", "-D", "warnings"];
        command::shown(cargo(root).args(["clippy", "--locked", "--workspace"]).args(strict))?;
        // In the workspace the commands turn Parquet on for all; the crate and C can be built without.
        let lean =
            ["clippy", "--locked", "-p", "embank", "-p", "embank-c", "--no-default-features"];
        command::shown(cargo(root).args(lean).args(strict))
    });
    // The default members: the Python extension is tested from Python.
    stages.run("Rust tests", || {
        command::shown(cargo(root).args(["test", "--locked", "--no-fail-fast"]))
    });
    // As on a kernel without membarrier(2). The programs are those of the stage before.
    stages.run("portable pins", || {
        let tests = ["test", "--locked", "--no-fail-fast", "-p", "embank-kv"];
        command::shown(cargo(root).args(tests).env("EMBANK_PINS", "portable"))
    });
}

fn python_stages(root: &Path, rust_examples: bool, stages: &mut Stages) {
    let environment = stages.run("Python environment", || {
        let lock = Lock::take(root)?;
        let python = environment::with_python(root, &lock)?;
        environment::with_packages(root, &python, &lock, "")?;
        Ok((python, lock))
    });
    let python: Option<Python> = environment.and_then(|(python, lock)| {
        let built = stages.run("Python package", || environment::with_embank(root, &python, &lock));
        built.map(|()| python)
    });
    for stage in PYTHON_STAGES {
        match &python {
            Some(python) => {
                stages.run(stage.name, || {
                    let mut command = python.command(&root.join(stage.folder));
                    if stage.name == PYTHON_TESTS {
                        command.env("EMBANK_COMMAND", program(root)?);
                    }
                    command::shown(command.args(stage.args))
                });
            }
            None => stages.skip(stage.name),
        }
    }
    match &python {
        _ if !rust_examples => {}
        Some(python) => {
            stages.run(RUST_EXAMPLES, || examples::check(root, python));
        }
        None => stages.skip(RUST_EXAMPLES),
    }
}

/// The program `embank`, which tests of Python start as a server. As the Rust tests build it, so there is nothing to do
/// after those.
///
/// # Errors
/// It can't be built.
fn program(root: &Path) -> Result<PathBuf> {
    let build = ["build", "--locked", "--profile", "test", "--bin", "embank"];
    command::shown(cargo(root).args(build)).context("building the program `embank`")?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(root.join(target).join("debug/embank"))
}

/// They are here for the sake of PyTorch's libraries.
const RUST_EXAMPLES: &str = "Rust examples";

const PYTHON_TESTS: &str = "Python tests";

/// A check that is one call of the environment's Python.
struct PythonStage {
    name: &'static str,
    /// Where it runs, from the root.
    folder: &'static str,
    args: &'static [&'static str],
}

const PYTHON_STAGES: [PythonStage; 6] = [
    PythonStage {
        name: "Python types",
        folder: "bindings/python",
        args: &["-m", "mypy", "--strict", "--cache-dir", "../../target/mypy", "python/embank"],
    },
    PythonStage {
        name: PYTHON_TESTS,
        folder: "",
        args: &[
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "bindings/python/tests",
            "bench/python/tests",
        ],
    },
    PythonStage { name: "Python doc tests", folder: "", args: &["xtask/doctests.py"] },
    PythonStage {
        name: "dlrm tests",
        folder: "",
        args: &["-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/dlrm/tests"],
    },
    PythonStage {
        name: "kge tests",
        folder: "",
        args: &["-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/kge/tests"],
    },
    PythonStage {
        name: "gnn tests",
        folder: "",
        args: &["-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/gnn/tests"],
    },
];

pub(crate) fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Refuses with the cure where a part of the toolchain is not installed.
fn component(root: &Path, subcommand: &str, name: &str) -> Result<()> {
    if command::quiet(cargo(root).args([subcommand, "--version"])).is_err() {
        bail!("`cargo {subcommand}` is missing; install it with `rustup component add {name}`");
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    /// What it builds on failed.
    Skipped,
}

/// What ran, and how it went.
#[derive(Debug, Default)]
struct Stages {
    done: Vec<(&'static str, Verdict, Duration)>,
}

impl Stages {
    /// Runs one stage; `None` if it failed, which is printed here.
    fn run<T>(&mut self, name: &'static str, stage: impl FnOnce() -> Result<T>) -> Option<T> {
        println!("\n== {name}");
        let started = Instant::now();
        let result = stage();
        let verdict = if result.is_ok() { Verdict::Passed } else { Verdict::Failed };
        self.done.push((name, verdict, started.elapsed()));
        result.inspect_err(|error| println!("{name} failed: {error:#}")).ok()
    }

    fn skip(&mut self, name: &'static str) {
        self.done.push((name, Verdict::Skipped, Duration::ZERO));
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.done.iter().filter(|(_, found, _)| *found == verdict).count()
    }

    fn all_passed(&self) -> bool {
        self.count(Verdict::Passed) == self.done.len()
    }

    fn summary(&self) -> String {
        let mut text = format!("\n{:20} {:8} {:>8}\n", "stage", "result", "seconds");
        for (name, verdict, spent) in &self.done {
            let verdict = match verdict {
                Verdict::Passed => "passed",
                Verdict::Failed => "FAILED",
                Verdict::Skipped => "skipped",
            };
            text += &format!("{name:20} {verdict:8} {:>8.1}\n", spent.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, _, spent)| *spent).sum();
        text += &format!("{:20} {:8} {:>8.1}\n", "total", "", total.as_secs_f64());
        text += &format!(
            "{} passed, {} failed, {} skipped\n",
            self.count(Verdict::Passed),
            self.count(Verdict::Failed),
            self.count(Verdict::Skipped)
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_counted_and_what_builds_on_it_is_skipped() {
        let mut stages = Stages::default();
        assert_eq!(stages.run("one", || Ok(7)), Some(7));
        assert!(stages.all_passed());
        assert_eq!(stages.run("two", || -> Result<()> { bail!("no") }), None);
        stages.skip("three");
        assert!(!stages.all_passed());
        let summary = stages.summary();
        assert!(summary.ends_with("1 passed, 1 failed, 1 skipped\n"), "{summary}");
        assert!(summary.contains("FAILED"), "{summary}");
    }

    #[test]
    fn a_skipped_stage_is_not_a_pass() {
        let mut stages = Stages::default();
        stages.skip("one");
        assert!(!stages.all_passed());
    }
}
