//! `test`: everything that CI checks, as stages, with the time that each takes.
//!
//! A failed stage stops only the stages that need its result. So one run shows every failure.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::environment::{self, Lock, Python};
use crate::side_by_side::{self, Run};
use crate::test_programs::{self, Program};
use crate::{command, examples, prose, workspace};

/// Options of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only format, lints and Rust tests; needs no Python
    #[arg(long, conflicts_with = "python_only")]
    rust_only: bool,
    /// Only the wheel and the Python tests
    #[arg(long)]
    python_only: bool,
}

/// Runs the stages and prints the summary. The exit code is a failure if a stage failed.
///
/// # Errors
/// Returns an error if this crate is not inside a repository.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace::root()?;
    let mut stages = Stages::new();
    // Installing packages mostly waits for the network, so it runs beside the Rust stages.
    let environment = thread::scope(|scope| {
        let environment = (!args.rust_only).then(|| {
            let root = &root;
            scope.spawn(move || Timed::of(|| python_environment(root)))
        });
        if !args.python_only {
            rust_stages(&root, &mut stages);
        }
        environment.map(|thread| thread.join().expect("errors are returned"))
    });
    if let Some(environment) = environment {
        let python = python_stages(&root, environment, &mut stages);
        match python {
            _ if args.python_only => {}
            Some(python) => {
                stages.run(RUST_WITH_PYTORCH, || examples::check(&root, &python));
            }
            None => stages.skip(RUST_WITH_PYTORCH),
        }
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
    stages.run("prose", || prose::check(root));
    stages.run("lints", || {
        component(root, "clippy", "clippy")?;
        let strict = ["--all-targets", "--", "-D", "warnings"];
        command::shown(cargo(root).args(["clippy", "--locked", "--workspace"]).args(strict))?;
        // A build of the whole workspace turns the feature for Parquet on in every crate. The crate
        // `embank` and the C library can also be built without Parquet. This stage checks that
        // build.
        let lean =
            ["clippy", "--locked", "-p", "embank", "-p", "embank-c", "--no-default-features"];
        command::shown(cargo(root).args(lean).args(strict))
    });
    // This stage builds the default members of the workspace. The Python extension is not one of
    // them; Python tests it in a later stage.
    match stages.run("Rust test build", || test_programs::build(root)) {
        Some(programs) => {
            stages.run(RUST_TESTS, || {
                let mut all = side_by_side::run_all(rust_runs(root, &programs));
                all.retain(|ended| !ended.passed);
                let failed: Vec<_> = all.into_iter().map(|ended| ended.name).collect();
                ensure!(failed.is_empty(), "{}", failed.join(", "));
                Ok(())
            });
        }
        None => stages.skip(RUST_TESTS),
    }
    stages.run("Rust doc tests", || {
        command::shown(cargo(root).args(["test", "--locked", "--no-fail-fast", "--doc"]))
    });
}

const RUST_TESTS: &str = "Rust tests";

/// The packages whose test programs take longest. They run first, because test programs run two at
/// a time. If a long program ran last, it would run alone.
const LONGEST: [&str; 4] = ["crash", "kv", "bench", "xtask"];

/// Returns a run of every test program. The store's programs run a second time with
/// `EMBANK_PINS=portable`, which makes the store use the pins of kernels without membarrier(2). The
/// programs of `embank` run a second time with `EMBANK_TEST_PART_KEYS=64`, which makes a bank
/// divide the small batches of these tests among threads.
fn rust_runs(root: &Path, programs: &[Program]) -> Vec<Run> {
    let longest = LONGEST.map(|folder| root.join(folder));
    let turn = |program: &&Program| {
        longest.iter().position(|folder| program.is_in(folder)).unwrap_or(LONGEST.len())
    };
    let mut programs: Vec<&Program> = programs.iter().collect();
    programs.sort_by_key(turn);
    let store = root.join("kv");
    let tables = root.join("embedding");
    let mut runs = Vec::new();
    for program in programs {
        runs.push(program.run_with(&[]));
        // `forks_under_load` is left out, because each of its tests sets the variable itself, and
        // `faults`, because an error of the device takes the same way with both kinds of pins.
        let runs_once = program.is_named("forks_under_load") || program.is_named("faults");
        if program.is_in(&store) && !runs_once {
            runs.push(program.run_with(&[("EMBANK_PINS", "portable")]));
        }
        // Without the variable, batches of these tests are too small to be shared among threads.
        if program.is_in(&tables) {
            runs.push(program.run_with(&[("EMBANK_TEST_PART_KEYS", "64")]));
        }
    }
    runs
}

fn python_environment(root: &Path) -> Result<(Python, Lock)> {
    let lock = Lock::take(root)?;
    let python = environment::with_python(root, &lock)?;
    environment::with_packages(root, &python, &lock, "")?;
    Ok((python, lock))
}

/// Runs the stages of Python. Returns the Python of the environment if it has the package.
fn python_stages(
    root: &Path,
    environment: Timed<(Python, Lock)>,
    stages: &mut Stages,
) -> Option<Python> {
    let environment = stages.record("Python environment", environment);
    let python: Option<Python> = environment.and_then(|(python, lock)| {
        // The profile is not `test`: with that profile, Cargo would also build the tests of the
        // extension, and linking these needs Python.
        let built = stages
            .run("Python package", || environment::with_embank(root, &python, &lock, "release"));
        built.map(|()| python)
    });
    let program = python.as_ref().and_then(|_| stages.run("Rust programs", || program(root)));
    match (&python, &program) {
        (Some(python), Some(program)) => stages.run_side_by_side(PYTHON_STAGES.map(|stage| {
            let mut command = python.command(&root.join(stage.folder));
            command.args(stage.args).env("EMBANK_COMMAND", program);
            (stage.name, command)
        })),
        _ => PYTHON_STAGES.iter().for_each(|stage| stages.skip(stage.name)),
    }
    match &program {
        Some(program) => {
            stages.run(RAY_AND_SPARK, || ray_and_spark(root, program));
        }
        None => stages.skip(RAY_AND_SPARK),
    }
    python
}

/// Name of the stage that runs pipelines on Ray and Spark. It runs alone: both engines take all
/// cores.
const RAY_AND_SPARK: &str = "Ray and Spark";

/// Runs the tests on Ray and Spark. If their packages can't be installed, the stage prints why and
/// is left out; in continuous integration (`CI` is set) that is a failure. The tests on Spark apply
/// this rule to Java. `program` is that of [`program`].
fn ray_and_spark(root: &Path, program: &Path) -> Result<()> {
    let lock = Lock::take(root)?;
    let python = match environment::with_cluster(root, &lock) {
        Err(error) if env::var_os("CI").is_none() => {
            println!("left out, because Ray and Spark can't be installed: {error:#}");
            return Ok(());
        }
        made => made?,
    };
    environment::with_embank_on_cluster(root, &python, &lock)?;
    let tests = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"];
    command::shown(
        python
            .command(root)
            .env("EMBANK_COMMAND", program)
            .args(tests)
            .arg("bindings/python/cluster_tests"),
    )
}

/// Builds the programs `embank` and `embank-bench`, which Python tests start. Returns the path of
/// `embank`; `embank-bench` is beside it.
///
/// The command builds a test of each program, and Cargo builds the program with it. The command
/// turns on the features of the Rust tests, so Cargo does not compile the other crates a second
/// time.
///
/// # Errors
/// Fails if a program can't be built.
fn program(root: &Path) -> Result<PathBuf> {
    let build = ["test", "--locked", "--no-run", "--test", "outputs", "--test", "serving"];
    command::shown(cargo(root).args(build)).context("building the Rust programs")?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(root.join(target).join("debug/embank"))
}

/// Name of the last stage. It runs alone after the Python stages, because it needs the libraries of
/// PyTorch.
const RUST_WITH_PYTORCH: &str = "Rust with PyTorch";

/// A stage that is one command of the environment's Python.
struct PythonStage {
    name: &'static str,
    /// The working folder, from the root of the repository.
    folder: &'static str,
    args: &'static [&'static str],
}

/// The stages run side by side, so the longest begins first.
const PYTHON_STAGES: [PythonStage; 8] = [
    PythonStage {
        name: "Python tests",
        folder: "",
        args: &["-m", "pytest", "-q", "-p", "no:cacheprovider", "bindings/python/tests"],
    },
    PythonStage {
        name: "measurements",
        folder: "",
        // `-rs` prints why a measurement was left out.
        args: &["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "bench/python/tests"],
    },
    PythonStage {
        name: "Python types",
        folder: "bindings/python",
        args: &["-m", "mypy", "--strict", "--cache-dir", "../../target/mypy", "python/embank"],
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
    PythonStage {
        name: "small examples",
        folder: "",
        args: &["-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/python/tests"],
    },
];

pub(crate) fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Fails with the command to install a part of the toolchain if that part is missing.
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
    /// The stage did not run, because a stage that it needs failed.
    Skipped,
}

/// The result of a stage, and its time.
#[derive(Debug)]
struct Timed<T> {
    result: Result<T>,
    took: Duration,
}

impl<T> Timed<T> {
    fn of(stage: impl FnOnce() -> Result<T>) -> Self {
        let started = Instant::now();
        let result = stage();
        Self { result, took: started.elapsed() }
    }
}

/// The stages that ran, with their results.
#[derive(Debug)]
struct Stages {
    began: Instant,
    done: Vec<(&'static str, Verdict, Duration)>,
}

impl Stages {
    fn new() -> Self {
        Self { began: Instant::now(), done: Vec::new() }
    }

    /// Runs one stage; `None` if it failed, which is printed here.
    fn run<T>(&mut self, name: &'static str, stage: impl FnOnce() -> Result<T>) -> Option<T> {
        println!("\n== {name}");
        self.record(name, Timed::of(stage))
    }

    /// Adds a stage that has run; `None` if it failed, which is printed here.
    fn record<T>(&mut self, name: &'static str, Timed { result, took }: Timed<T>) -> Option<T> {
        let verdict = if result.is_ok() { Verdict::Passed } else { Verdict::Failed };
        self.done.push((name, verdict, took));
        result.inspect_err(|error| println!("{name} failed: {error:#}")).ok()
    }

    /// Runs these programs side by side, each as a stage. Their times overlap.
    fn run_side_by_side<const N: usize>(&mut self, stages: [(&'static str, Command); N]) {
        println!("\n== {}", stages.each_ref().map(|(name, _)| *name).join(", "));
        let names = stages.each_ref().map(|(name, _)| *name);
        let runs = stages.map(|(name, command)| Run { name: name.to_owned(), command });
        let all = side_by_side::run_all(runs.into());
        for name in names {
            // `run_all` returns every run, so each name is found.
            for ended in all.iter().filter(|ended| ended.name == name) {
                let verdict = if ended.passed { Verdict::Passed } else { Verdict::Failed };
                self.done.push((name, verdict, ended.took));
            }
        }
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
        let total = self.began.elapsed();
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
        let mut stages = Stages::new();
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
        let mut stages = Stages::new();
        stages.skip("one");
        assert!(!stages.all_passed());
    }
}
