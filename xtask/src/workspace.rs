//! Finds the repository.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// Returns the repository's root. It is found from the path of this crate, which Cargo sets when it
/// runs the program. So a clone that was moved after the build still works.
///
/// # Errors
/// Returns an error if this crate is not inside a repository.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest.parent().context("xtask has a parent folder")?.to_owned();
    ensure!(
        root.join("xtask/Cargo.toml").is_file(),
        "{} is not the repository; run `cargo xtask` in it",
        root.display()
    );
    Ok(root)
}
