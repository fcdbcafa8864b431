//! `book`: the pages of `docs/` as HTML.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::command;

/// The version of mdBook that is installed if there is none.
const VERSION: &str = "0.5.4";

/// Builds the book into `target/book`. Installs mdBook into `target/mdbook` the first time.
///
/// # Errors
/// mdBook can't be installed, or refuses a page.
pub(crate) fn build(root: &Path) -> Result<ExitCode> {
    let home = root.join("target/mdbook");
    let program = home.join("bin/mdbook");
    if !program.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut install = Command::new(cargo);
        install.current_dir(root).args(["install", "mdbook", "--locked", "--version", VERSION]);
        install.arg("--root").arg(&home);
        command::shown(&mut install).context("installing mdBook")?;
    }
    command::shown(Command::new(&program).current_dir(root).arg("build"))?;
    println!("{}", root.join("target/book/index.html").display());
    Ok(ExitCode::SUCCESS)
}
