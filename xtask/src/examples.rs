//! `example`: the models in Rust, and the tests of the crates that use `tch`. They need libtorch,
//! which comes with the PyTorch of `target/venv`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::environment::{self, Lock, Python};
use crate::{checks, command};

/// Options of `example`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which model
    #[arg(value_parser = ["dlrm", "kge", "gnn"])]
    name: String,
    /// The example's own options, after `--`; `-- --help` lists them
    #[arg(last = true)]
    args: Vec<OsString>,
}

/// Installs PyTorch, builds the example, and replaces this process by it.
///
/// # Errors
/// Returns an error if there is no suitable Python or no network, or if a build fails. Each error
/// says what to do.
pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let lock = Lock::take(root)?;
    let python = environment::with_python(root, &lock)?;
    environment::with_packages(root, &python, &lock, "")?;
    drop(lock);
    let mut cargo = cargo(root, &python)?;
    cargo.args(["run", "--release", "--locked", "--manifest-path", MANIFEST]);
    cargo.args(["--package", "embank-examples", "--bin", &args.name]);
    command::become_program(cargo.arg("--").args(&args.args))
}

/// Checks the crate `embank-tch` and the examples: formatting, lints and tests. The build is not
/// optimized, because compiling takes most of the time of this check. If there is no C++ compiler,
/// which `tch` needs, the check is left out with a message.
///
/// # Errors
/// Returns the error of the first check that fails.
pub(crate) fn check(root: &Path, python: &Python) -> Result<()> {
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if command::quiet(Command::new(&compiler).arg("--version")).is_err() {
        println!("left out: there is no C++ compiler (apt install g++, or set CXX)");
        return Ok(());
    }
    let run = |words: &[&str]| {
        let (subcommand, others) = words.split_first().context("a subcommand of cargo")?;
        let mut cargo = cargo(root, python)?;
        command::shown(cargo.arg(subcommand).args(["--manifest-path", MANIFEST]).args(others))
    };
    run(&["fmt", "--all", "--check"])?;
    run(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    run(&["test", "--locked", "--workspace"])
}

/// The workspace of the crates that need libtorch.
const MANIFEST: &str = "bindings/tch/Cargo.toml";

/// Returns Cargo with the environment that the crate `tch` and its programs need. PyTorch's Python
/// is first in the path, and its libraries are in the loader's path.
fn cargo(root: &Path, python: &Python) -> Result<Command> {
    let torch = torch_folder(root, python)?;
    let mut cargo = checks::cargo(root);
    cargo
        // Any value turns it on. With the folder as its value, Cargo links another PyTorch again.
        .env("LIBTORCH_USE_PYTORCH", &torch)
        .env("CARGO_TARGET_DIR", root.join("target/examples"))
        .env("PATH", with_first(&root.join("target/venv/bin"), "PATH")?)
        .env("LD_LIBRARY_PATH", with_first(&torch.join("lib"), "LD_LIBRARY_PATH")?);
    Ok(cargo)
}

fn torch_folder(root: &Path, python: &Python) -> Result<PathBuf> {
    let ask =
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    let output = python.command(root).args(["-c", ask]).output().context("asking for PyTorch")?;
    let folder = String::from_utf8(output.stdout).context("where PyTorch is")?;
    ensure!(output.status.success(), "PyTorch is not in target/venv; remove that and try again");
    let folder = PathBuf::from(folder.trim());
    if !folder.join("lib").is_dir() {
        bail!(
            "there is no {}: this PyTorch has no libraries to link",
            folder.join("lib").display()
        );
    }
    Ok(folder)
}

/// Returns the value of a variable like `PATH`, with `folder` first.
fn with_first(folder: &Path, variable: &str) -> Result<OsString> {
    let others = env::var_os(variable).unwrap_or_default();
    let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    env::join_paths(std::iter::once(folder.to_owned()).chain(others))
        .with_context(|| format!("{} can't be in {variable}", folder.display()))
}
