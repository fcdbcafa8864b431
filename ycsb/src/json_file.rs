//! The file of `--json`. The program checks before a run that it can write the file, and writes it
//! after the run.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

/// The path of a report that can be written.
#[derive(Debug)]
pub(crate) struct JsonFile(PathBuf);

impl JsonFile {
    /// Checks that a report can be written to `path`. Creates nothing and changes nothing.
    ///
    /// # Errors
    /// Returns an error if `path` is a directory, a read-only file or one of `inputs`, or if no
    /// file can be made there.
    pub(crate) fn check(path: &Path, inputs: &[PathBuf]) -> Result<Self> {
        let context = || format!("--json {} can't be written", path.display());
        check(path, inputs).with_context(context)?;
        Ok(JsonFile(path.to_owned()))
    }

    /// Writes a document.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(crate) fn write(&self, document: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_string_pretty(document).context("the report to JSON")?;
        text.push('\n');
        File::create(&self.0)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("writing {}", self.0.display()))
    }
}

/// Checks a path. If it is a link to a missing file, checks the path to which the link leads. This
/// recursion ends, because `fs::metadata` has already followed the chain of links to its end.
fn check(path: &Path, inputs: &[PathBuf]) -> Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => bail!("it is a directory"),
        Ok(metadata) if metadata.is_file() => {
            let identity = (metadata.dev(), metadata.ino());
            for input in inputs {
                let same = fs::metadata(input).is_ok_and(|i| (i.dev(), i.ino()) == identity);
                ensure!(!same, "it is the input {}", input.display());
            }
            OpenOptions::new().write(true).open(path)?;
            Ok(())
        }
        // A pipe or a device is not opened here, because that could disturb its reader.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            ensure!(path.file_name().is_some(), "it names no file");
            let parent = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            if let Ok(target) = fs::read_link(path) {
                return check(&parent.join(target), inputs);
            }
            let trailing = path.as_os_str().as_encoded_bytes().ends_with(b"/");
            ensure!(!trailing, "it names a directory");
            tempfile::tempfile_in(parent)
                .with_context(|| format!("no file can be made in {}", parent.display()))?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_is_checked_without_a_trace() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("old"), "old").unwrap();
        symlink(at("new"), at("link")).unwrap();
        symlink(at("missing/new"), at("dangling")).unwrap();
        symlink(at("loop"), at("loop")).unwrap();
        for good in ["new", "old", "link"] {
            JsonFile::check(&at(good), &[]).unwrap();
        }
        for bad in ["missing/new", "dangling", "loop", "", "old/new", "new/"] {
            assert!(JsonFile::check(&at(bad), &[]).is_err(), "{bad:?}");
        }
        assert!(JsonFile::check(&at(&"x".repeat(300)), &[]).is_err(), "a long name");
        assert!(JsonFile::check(&at("old"), &[at("old")]).is_err(), "an input");
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 4, "nothing is left");
    }
}
