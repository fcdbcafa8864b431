//! Copies banks that earlier builds wrote, so that tests can change the copies.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs;
use std::path::Path;

/// Copies a bank without its lock file, so a test can open the copy for writing.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else if entry.file_name() != "LOCK" {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
