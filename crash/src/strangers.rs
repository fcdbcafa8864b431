//! Replaces directories and files of a bank by those of another bank or of a diverged copy.
//!
//! In the tests a user makes these changes, not the store. So [`exchange`] calls the kernel
//! directly, and the recorder does not see the call.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail, ensure};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{Error, Store};
use fastrand::Rng;

use crate::images::work_on;
use crate::rows::{self, Model};
use crate::settings::Settings;

/// Exchanges two directories atomically.
///
/// # Errors
/// Returns the kernel's errors.
pub fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let [a, b] = [a, b].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (a, b) = (a?, b?);
    let (here, how) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    // SAFETY: both paths are valid C strings that live for the call.
    let done =
        unsafe { libc::syscall(libc::SYS_renameat2, here, a.as_ptr(), here, b.as_ptr(), how) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns every file below a directory with its content.
///
/// # Errors
/// Returns any error of the file system.
pub fn files(dir: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.insert(path.clone(), fs::read(&path)?);
        }
    }
    Ok(found)
}

/// Copies a bank whose rows are `model`, and changes the bank and the copy differently. Then
/// replaces the bank's segments by the copy's segments. Now `verify` must report damage, and each
/// row of the bank must be right or unreadable.
///
/// # Errors
/// Returns an error if the bank serves a row of the copy, or if `verify` finds nothing.
pub fn check_restored_segments(
    bank: &Path,
    settings: &Settings,
    model: &Model,
    keys_end: u64,
    random: &mut Rng,
) -> Result<()> {
    let copy = bank.with_file_name("diverged");
    Store::copy_checkpoint(bank, None, &copy).context("copying it")?;
    let mut went_on = |dir: &Path| -> Result<Model> {
        let store = settings.open(dir)?;
        let model = work_on(&store, model, keys_end, random)?;
        store.checkpoint(b"went on")?;
        Ok(model)
    };
    let model = went_on(bank).context("going on")?;
    went_on(&copy).context("the copy's going on")?;
    for (from, bytes) in files(&copy.join("log"))? {
        let name = from.file_name().context("a file's name")?;
        let to = bank.join("log").join(name);
        if fs::read(&to).is_ok_and(|own| own != bytes) {
            fs::remove_file(&to)?;
            fs::write(&to, bytes)?;
        }
    }
    let report = verify(bank, &VerifyOptions::default(), &mut |_| {}).context("verifying it")?;
    ensure!(!report.is_clean(), "verify takes segments of a copy that has gone on for the bank's");
    let store = match settings.open(bank) {
        Ok(store) => store,
        Err(Error::Damaged { .. } | Error::Truncated { .. }) => return Ok(()),
        Err(error) => return Err(error).context("opening it with the copy's segments"),
    };
    for (name, expected) in &model {
        let table = rows::table(&store, name)?;
        for key in 0..keys_end {
            match rows::peek(&store, &table, &[key]) {
                Ok(found) => {
                    let same = found[0].as_ref() == expected.rows.get(&key);
                    ensure!(same, "table {name}, key {key} is of a copy that has gone on");
                }
                Err(Error::Damaged { .. } | Error::Truncated { .. }) => {}
                Err(error) => bail!("table {name}, key {key}: {error}"),
            }
        }
    }
    Ok(())
}
