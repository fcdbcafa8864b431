//! `book`: builds HTML from the pages of `docs/`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::{checks, command};

/// The version of mdBook that is installed if the machine has no mdBook.
const VERSION: &str = "0.5.4";

/// Builds the book into `target/book`.
///
/// # Errors
/// Returns an error if mdBook cannot be installed or refuses a page.
pub(crate) fn build(root: &Path) -> Result<ExitCode> {
    let program = mdbook(root)?;
    command::shown(Command::new(&program).current_dir(root).arg("build"))?;
    println!("{}", root.join("target/book/index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of mdBook: the one on the `PATH`, or the one in `target/mdbook`. The first call
/// installs the latter.
fn mdbook(root: &Path) -> Result<PathBuf> {
    let on_path = PathBuf::from("mdbook");
    if command::quiet(Command::new(&on_path).arg("--version")).is_ok() {
        return Ok(on_path);
    }
    let home = root.join("target/mdbook");
    let program = home.join("bin/mdbook");
    if !program.exists() {
        let mut install = checks::cargo(root);
        install.args(["install", "--locked", "mdbook", "--version", VERSION, "--root"]).arg(&home);
        command::shown(&mut install).context("installing mdBook")?;
    }
    Ok(program)
}
