//! `models`: runs the store's models under a model checker.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::{checks, command, workspace};

/// Options of `models`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only models whose paths begin with this: `index`, `log::planted`
    name: Option<String>,
    /// Schedules tried for each model [default: 400]
    #[arg(long)]
    schedules: Option<u64>,
    /// The seed of the first schedule [default: random]; a schedule that fails prints its own
    #[arg(long)]
    seed: Option<u64>,
}

/// Builds the store for the model checker and runs its models.
///
/// # Errors
/// Returns an error if this crate is not inside a repository, if a model fails, or if a model
/// misses a planted bug.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    command::shown(&mut cargo_test(&workspace::root()?, args))?;
    Ok(ExitCode::SUCCESS)
}

fn cargo_test(root: &Path, args: &Args) -> Command {
    let mut cargo = checks::cargo(root);
    let mut flags = std::env::var_os("RUSTFLAGS").unwrap_or_default();
    flags.push(OsString::from(" --cfg embank_shuttle"));
    // The flag changes the build of every crate. With a separate target folder, the usual builds
    // stay.
    cargo.env("RUSTFLAGS", flags).args(["test", "--locked", "--target-dir", "target/models"]);
    cargo.args(["--package", "embank-kv", "--lib", "--"]);
    cargo.arg(args.name.as_deref().map_or("models::".to_owned(), |name| format!("models::{name}")));
    for (name, value) in
        [("EMBANK_MODEL_SCHEDULES", args.schedules), ("EMBANK_MODEL_SEED", args.seed)]
    {
        if let Some(value) = value {
            cargo.env(name, value.to_string());
        }
    }
    cargo
}
