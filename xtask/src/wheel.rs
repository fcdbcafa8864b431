//! `wheel`: builds the wheel to publish, for every CPython from 3.9 on, and tries it.
//!
//! The wheel has a manylinux tag, which says which machines can install it. maturin checks the tag:
//! it compares the extension's symbols with the manylinux policies, and refuses libraries that
//! other machines may lack. With `--zig`, Zig's linker links the extension against an old glibc.
//! Otherwise the extension is linked against this machine's glibc, and the tag says so. `abi3audit`
//! checks that the extension uses only Python's stable ABI. Each CPython on the PATH installs the
//! wheel and NumPy into a new environment, and runs `wheel_smoke.py` there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::environment::{Lock, Tools, only_file};
use crate::interpreter::Interpreter;
use crate::{command, workspace};

/// Options of `wheel`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the wheel; files in it are removed
    #[arg(long, value_name = "DIR", default_value = "target/wheels/manylinux")]
    out: PathBuf,
    /// Link against glibc 2.17 (manylinux2014), with Zig from the package index
    #[arg(long)]
    zig: bool,
}

/// Builds, checks and tries the wheel.
///
/// # Errors
/// Returns an error if the build fails, if the wheel does not match its tag, or if it does not
/// work.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = workspace::root()?;
    let lock = Lock::take(&root)?;
    let zig: &[&str] = if args.zig { &["ziglang"] } else { &[] };
    let tools = Tools::with(&root, &lock, &[&["maturin", "abi3audit"], zig].concat())?;
    let wheel = build(&root, &tools, args)?;
    let name = wheel.file_name().context("a wheel has a name")?.to_string_lossy().into_owned();
    ensure!(
        name.contains("-cp39-abi3-manylinux"),
        "{name} is not for every CPython from 3.9 on any recent Linux"
    );
    command::shown(tools.command(&root).args(["-m", "abi3audit", "--strict"]).arg(&wheel))
        .context("it uses what is not in Python's stable ABI")?;
    let tried = Interpreter::every_for_the_wheel();
    ensure!(
        !tried.is_empty(),
        "there is no CPython 3.9 or newer that can make environments to try it with"
    );
    for python in &tried {
        try_out(&root, &wheel, python)?;
    }
    let bytes = fs::metadata(&wheel)?.len();
    println!("\n{} ({bytes} bytes)", wheel.display());
    for python in &tried {
        println!("works on {}", python.description());
    }
    Ok(ExitCode::SUCCESS)
}

fn build(root: &Path, tools: &Tools, args: &Args) -> Result<PathBuf> {
    let out = root.join(&args.out);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("emptying {}", out.display()))?;
    }
    let mut build = tools.command(root);
    build
        .args(["-m", "maturin", "build", "--release", "--locked", "--auditwheel", "check"])
        .args(["--manifest-path", "bindings/python/Cargo.toml", "--out"])
        .arg(&out);
    if args.zig {
        build.args(["--zig", "--compatibility", "manylinux2014"]);
    }
    command::shown(&mut build).context("building the wheel")?;
    only_file(&out)
}

/// Installs the wheel into a new environment and uses it there.
fn try_out(root: &Path, wheel: &Path, python: &Interpreter) -> Result<()> {
    let (major, minor, _) = python.version;
    let folder = root.join(format!("target/wheel-{major}.{minor}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    command::quiet(Command::new(&python.program).args(["-m", "venv"]).arg(&folder))?;
    let program = folder.join("bin/python");
    let mut pip = Command::new(&program);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
    command::quiet(pip.arg(wheel)).context("installing the wheel with NumPy")?;
    command::shown(Command::new(&program).arg("-I").arg(root.join("xtask/wheel_smoke.py")))
        .with_context(|| format!("it does not work on {}", python.description()))?;
    fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))
}
