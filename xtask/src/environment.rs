//! `target/venv`: the virtual environment of the demo, the Python tests and the measurements.
//! `target/venv-cluster`: that of tests and a measurement on Ray and Spark, 1.1 GB.
//!
//! The environment has three layers: the environment with its pip, the packages, and Embank's
//! wheel. Each layer has a *stamp*, a file that records what the layer was made from: the Python,
//! the text of the requirement files, or a copy of the installed wheel. The stamp is written after
//! its layer is complete. If the stamp is missing or differs, this module makes the layer again. It
//! therefore never uses an interrupted installation. A lock on a file beside the environment keeps
//! two runs from installing at the same time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command;
use crate::interpreter::Interpreter;

/// The files that pin the packages of `target/venv`.
const REQUIREMENTS: [&str; 2] = ["examples/dlrm/requirements.txt", "xtask/requirements.txt"];

/// The files that pin packages of `target/venv` which pip installs without their dependencies.
const ALONE: [&str; 1] = ["xtask/torchrec-requirements.txt"];

/// A virtual environment in `target`.
struct Environment {
    folder: &'static str,
    /// The files that pin its packages.
    requirements: &'static [&'static str],
    /// The files that pin packages which are installed after the others, without dependencies.
    alone: &'static [&'static str],
    /// What the first installation takes.
    cost: &'static str,
}

const MAIN: Environment = Environment {
    folder: "target/venv",
    requirements: &REQUIREMENTS,
    alone: &ALONE,
    cost: "one to three minutes, about 5 GB",
};

const CLUSTER: Environment = Environment {
    folder: "target/venv-cluster",
    requirements: &["xtask/cluster-requirements.txt"],
    alone: &[],
    cost: "one minute, about 1.1 GB",
};

/// The files that pin the tools that build a wheel.
const TOOLS: [&str; 2] = ["xtask/requirements.txt", "xtask/wheel-requirements.txt"];

/// The folder of the wheel that tests install.
const WHEELS: &str = "target/wheels/xtask";

/// The earliest time that a zip archive can hold, for every file of a wheel. Two builds of equal
/// sources then give wheels that are equal byte for byte.
const WHEEL_TIME: &str = "315532800";

/// A virtual environment's Python.
#[derive(Debug)]
pub(crate) struct Python {
    program: PathBuf,
}

impl Python {
    /// Returns a command that runs this Python in `folder`.
    pub(crate) fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(folder);
        command
    }
}

/// Makes the whole environment and installs Embank in it. Prints the first three of the caller's
/// four steps. `then` names the fourth step, which the caller does itself.
///
/// # Errors
/// Returns an error if there is no suitable Python or no network, or if a build fails. Each error
/// says what to do.
pub(crate) fn prepared(root: &Path, then: &str) -> Result<Python> {
    let lock = Lock::take(root)?;
    println!("[1/4] the virtual environment target/venv");
    let python = with_python(root, &lock)?;
    with_packages(root, &python, &lock, "[2/4] ")?;
    println!("[3/4] building Embank (release) ...");
    with_embank(root, &python, &lock, "release")?;
    println!("[4/4] {then}");
    Ok(python)
}

/// Makes `target/venv` as [`prepared`] does, and the environment of Ray and Spark with the same
/// wheel. Returns the Python of the second.
///
/// # Errors
/// Returns the errors of [`prepared`], and an error if Ray and Spark can't be installed.
pub(crate) fn prepared_with_engines(root: &Path, then: &str) -> Result<Python> {
    prepared(root, &format!("Ray and Spark in target/venv-cluster, and {then}"))?;
    let lock = Lock::take(root)?;
    let python = with_cluster(root, &lock)?;
    with_embank_on_cluster(root, &python, &lock)?;
    Ok(python)
}

/// A lock that its holder keeps while it makes or changes `target/venv`.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock. If another run is installing, it prints so and waits.
    ///
    /// # Errors
    /// Returns an error if the lock file cannot be made.
    pub(crate) fn take(root: &Path) -> Result<Self> {
        let path = root.join("target/venv.lock");
        fs::create_dir_all(root.join("target")).context("creating target")?;
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        if file.try_lock().is_err() {
            println!("waiting for another `cargo xtask` to finish installing ...");
            file.lock().with_context(|| format!("locking {}", path.display()))?;
        }
        Ok(Self { _file: file })
    }
}

/// Makes the environment, with its own pip and no packages, unless it exists. If the machine's
/// Python has changed, makes it again.
///
/// # Errors
/// Returns an error if there is no suitable Python or if `python -m venv` fails.
pub(crate) fn with_python(root: &Path, lock: &Lock) -> Result<Python> {
    MAIN.made(root, lock)
}

/// Makes the environment of Ray and Spark with its packages.
///
/// # Errors
/// Returns an error if there is no suitable Python, or if pip fails.
pub(crate) fn with_cluster(root: &Path, lock: &Lock) -> Result<Python> {
    let python = CLUSTER.made(root, lock)?;
    CLUSTER.with_packages(root, &python, "")?;
    Ok(python)
}

/// Installs the wheel that [`with_embank`] has built into the environment of Ray and Spark.
///
/// # Errors
/// Returns an error if there is no wheel, or if pip fails.
pub(crate) fn with_embank_on_cluster(root: &Path, python: &Python, _lock: &Lock) -> Result<()> {
    CLUSTER.with_wheel(root, python)
}

impl Environment {
    fn made(&self, root: &Path, _lock: &Lock) -> Result<Python> {
        let base = Interpreter::find()?;
        let folder = root.join(self.folder);
        let python = Python { program: folder.join("bin/python") };
        let stamp = Stamp::new(&folder, "python");
        if stamp.says(base.description().as_bytes()) && python.program.exists() {
            return Ok(python);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("removing the outdated {}", folder.display()))?;
        }
        command::quiet(Command::new(&base.program).args(["-m", "venv"]).arg(&folder))
            .with_context(|| format!("making a virtual environment with {}", base.description()))?;
        stamp.write(base.description().as_bytes())?;
        Ok(python)
    }

    fn with_packages(&self, root: &Path, python: &Python, prefix: &str) -> Result<()> {
        let mut wanted = String::new();
        for file in self.requirements.iter().chain(self.alone) {
            let path = root.join(file);
            wanted += &fs::read_to_string(&path)
                .with_context(|| format!("reading {}", path.display()))?;
        }
        let names = requirement_names(&wanted);
        let stamp = Stamp::new(&root.join(self.folder), "packages");
        if stamp.says(wanted.as_bytes()) {
            println!("{prefix}{names} are installed");
            return Ok(());
        }
        stamp.remove()?;
        println!("{prefix}installing {names} (the first time: {}) ...", self.cost);
        installed(root, python, self.requirements, &[])?;
        installed(root, python, self.alone, &["--no-deps"])?;
        stamp.write(wanted.as_bytes())
    }

    /// Installs the wheel in `target/wheels/xtask` if it differs from the installed one.
    fn with_wheel(&self, root: &Path, python: &Python) -> Result<()> {
        let wheel = only_file(&root.join(WHEELS))?;
        let built = fs::read(&wheel).with_context(|| format!("reading {}", wheel.display()))?;
        let stamp = Stamp::new(&root.join(self.folder), "wheel");
        if stamp.says(&built) {
            return Ok(());
        }
        stamp.remove()?;
        let mut pip = pip(python, root, "install");
        pip.args(["--force-reinstall", "--no-deps", "--no-index"]).arg(&wheel);
        command::quiet(&mut pip).context("installing the wheel")?;
        stamp.write(&built)
    }
}

/// Installs every package of [`REQUIREMENTS`] and [`ALONE`]. Prints one line, which begins with
/// `prefix`.
///
/// # Errors
/// Returns an error with the end of pip's output if pip fails.
pub(crate) fn with_packages(
    root: &Path,
    python: &Python,
    _lock: &Lock,
    prefix: &str,
) -> Result<()> {
    MAIN.with_packages(root, python, prefix)
}

/// Builds the wheel with this Cargo profile, and installs it if it differs from the installed one.
///
/// # Errors
/// Returns an error if the build or the installation fails.
pub(crate) fn with_embank(root: &Path, python: &Python, _lock: &Lock, profile: &str) -> Result<()> {
    let wheels = root.join(WHEELS);
    if wheels.exists() {
        fs::remove_dir_all(&wheels).with_context(|| format!("emptying {}", wheels.display()))?;
    }
    let mut build = python.command(root);
    build
        .args([
            "-m",
            "maturin",
            "build",
            "--profile",
            profile,
            "--locked",
            "--compatibility",
            "linux",
        ])
        .args(["--manifest-path", "bindings/python/Cargo.toml", "--interpreter"])
        .arg(&python.program)
        .arg("--out")
        .arg(&wheels)
        .env("SOURCE_DATE_EPOCH", WHEEL_TIME);
    command::quiet(&mut build).context("building the wheel (it needs a C compiler)")?;
    MAIN.with_wheel(root, python)
}

/// `target/tools`: an environment of a few pinned tools, without PyTorch.
#[derive(Debug)]
pub(crate) struct Tools(Python);

impl Tools {
    /// Installs the named packages, in the versions that [`TOOLS`] pin.
    ///
    /// # Errors
    /// Returns an error if there is no suitable Python, if [`TOOLS`] do not pin a name, or if pip
    /// fails.
    pub(crate) fn with(root: &Path, _lock: &Lock, names: &[&str]) -> Result<Self> {
        let base = Interpreter::find()?;
        let mut pinned = String::new();
        for file in TOOLS {
            let path = root.join(file);
            pinned += &fs::read_to_string(&path)
                .with_context(|| format!("reading {}", path.display()))?;
        }
        let wanted = pinned_as(&pinned, names)?;
        let folder = root.join("target/tools");
        let python = Python { program: folder.join("bin/python") };
        if !python.program.exists() {
            command::quiet(Command::new(&base.program).args(["-m", "venv"]).arg(&folder))
                .with_context(|| format!("making an environment with {}", base.description()))?;
        }
        command::quiet(pip(&python, root, "install").args(wanted))
            .context("installing the tools that build a wheel")?;
        Ok(Self(python))
    }

    /// Returns a command that runs the tools' Python in `folder`.
    pub(crate) fn command(&self, folder: &Path) -> Command {
        self.0.command(folder)
    }
}

/// Returns the requirement lines of the named packages, without comments.
fn pinned_as(requirements: &str, names: &[&str]) -> Result<Vec<String>> {
    let lines: Vec<&str> = requirements
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .collect();
    let find = |name: &&str| {
        let line = lines.iter().find(|line| line.split("==").next() == Some(name));
        line.map(|line| (*line).to_owned())
            .with_context(|| format!("{} pin no {name}", TOOLS.join(" and ")))
    };
    names.iter().map(find).collect()
}

fn pip(python: &Python, root: &Path, action: &str) -> Command {
    let mut pip = python.command(root);
    pip.args(["-m", "pip", action, "--quiet", "--disable-pip-version-check", "--no-input"]);
    pip
}

/// Installs the packages that the files pin, with these options of pip.
fn installed(root: &Path, python: &Python, files: &[&str], options: &[&str]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let mut pip = pip(python, root, "install");
    pip.args(options);
    for file in files {
        pip.arg("-r").arg(file);
    }
    command::quiet(&mut pip).context("installing Python packages")
}

/// Returns the only file in a folder.
pub(crate) fn only_file(folder: &Path) -> Result<PathBuf> {
    let entries: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("listing {}", folder.display()))?
        .collect::<std::io::Result<_>>()?;
    ensure!(entries.len() == 1, "{} holds {} files, not one", folder.display(), entries.len());
    Ok(entries[0].path())
}

/// Returns the names and versions of requirement lines: `torch==2.11.0 # why` becomes "torch
/// 2.11.0".
fn requirement_names(text: &str) -> String {
    let mut names: Vec<(&str, String)> = Vec::new();
    let lines = text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default().trim());
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('-')) {
        let (name, version) = line.split_once("==").unwrap_or((line, ""));
        match names.last_mut() {
            Some((last, versions)) if *last == name => *versions += &format!(" or {version}"),
            _ => names.push((name, version.to_owned())),
        }
    }
    let shown = names.iter().map(|(name, versions)| format!("{name} {versions}").trim().to_owned());
    shown.collect::<Vec<_>>().join(", ")
}

/// The stamp of a layer.
#[derive(Debug)]
struct Stamp {
    path: PathBuf,
}

impl Stamp {
    fn new(environment: &Path, layer: &str) -> Self {
        Self { path: environment.join(format!("embank-{layer}.stamp")) }
    }

    fn says(&self, wanted: &[u8]) -> bool {
        fs::read(&self.path).is_ok_and(|found| found == wanted)
    }

    fn write(&self, made_from: &[u8]) -> Result<()> {
        fs::write(&self.path, made_from).with_context(|| format!("writing {}", self.path.display()))
    }

    fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_without_comments_markers_and_options() {
        let text =
            "# why\ntorch==2.11.0   # net\n\n--extra x\nnumpy==2.2.6 ; python_version < '3.14'\n";
        assert_eq!(requirement_names(text), "torch 2.11.0, numpy 2.2.6");
        let two = "numpy==2.2.6; python_version < '3.14'\nnumpy==2.4.6; python_version >= '3.14'\n";
        assert_eq!(requirement_names(two), "numpy 2.2.6 or 2.4.6");
    }

    #[test]
    fn tools_are_pinned_where_the_tests_packages_are() {
        let text = "# why\nmaturin==1.9.6   # builds\nabi3audit==0.0.26\n";
        assert_eq!(
            pinned_as(text, &["abi3audit", "maturin"]).unwrap(),
            ["abi3audit==0.0.26", "maturin==1.9.6"]
        );
        let error = pinned_as(text, &["ziglang"]).unwrap_err().to_string();
        assert!(error.contains("ziglang"), "{error}");
    }

    #[test]
    fn a_stamp_says_only_what_it_was_written_with() {
        let folder = tempfile::tempdir().unwrap();
        let stamp = Stamp::new(folder.path(), "layer");
        stamp.remove().unwrap();
        assert!(!stamp.says(b"a"));
        stamp.write(b"a").unwrap();
        assert!(stamp.says(b"a") && !stamp.says(b"ab"));
        stamp.remove().unwrap();
        assert!(!stamp.says(b"a"));
    }

    /// Makes a root whose requirement files have only comments, so pip fetches nothing.
    fn root_without_requirements() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in REQUIREMENTS.iter().chain(&ALONE) {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "# nothing\n").unwrap();
        }
        root
    }

    #[test]
    fn an_environment_is_made_once_and_made_again_when_it_was_cut_off() {
        if Interpreter::find().is_err() {
            return; // `cargo test` may run without Python; `cargo xtask test` has one
        }
        let root = root_without_requirements();
        let lock = Lock::take(root.path()).unwrap();
        let python = with_python(root.path(), &lock).unwrap();
        with_packages(root.path(), &python, &lock, "").unwrap();
        command::quiet(python.command(root.path()).args(["-c", "import pip"])).unwrap();

        let mark = root.path().join("target/venv/mark");
        fs::write(&mark, "").unwrap();
        with_python(root.path(), &lock).unwrap();
        assert!(mark.exists(), "a whole environment is kept");
        fs::remove_file(root.path().join("target/venv/embank-python.stamp")).unwrap();
        with_python(root.path(), &lock).unwrap();
        assert!(!mark.exists(), "one without its stamp is made again");
    }

    #[test]
    fn a_package_that_does_not_exist_is_an_error_and_leaves_no_stamp() {
        if Interpreter::find().is_err() {
            return; // `cargo test` may run without Python; `cargo xtask test` has one
        }
        let root = root_without_requirements();
        fs::write(root.path().join(REQUIREMENTS[0]), "./no-such-folder\n").unwrap();
        let lock = Lock::take(root.path()).unwrap();
        let python = with_python(root.path(), &lock).unwrap();
        let error = with_packages(root.path(), &python, &lock, "").unwrap_err();
        assert!(format!("{error:#}").contains("no-such-folder"), "{error:#}");
        assert!(!root.path().join("target/venv/embank-packages.stamp").exists());
    }
}
