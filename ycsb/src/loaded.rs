//! The result of a load: its store, and its settings in the file `ycsb.json` beside the store.
//!
//! A load writes the settings file last. So a directory with a store and without this file belongs
//! to an interrupted load. The values of rows depend only on their keys (see
//! [`content`](crate::content)), so a load has no seed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::engine::{EngineKind, Settings};
use crate::keyspace::KeyOrder;

const NOTE: &str = "ycsb.json";

/// The settings of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) engine: EngineKind,
    pub(crate) rows: u64,
    pub(crate) value_bytes: usize,
    pub(crate) key_order: KeyOrder,
    /// `None` in files of older versions.
    pub(crate) load_threads: Option<usize>,
    /// `None` in files of older versions.
    pub(crate) memory_budget_bytes: Option<u64>,
    /// The directory of the file.
    #[serde(skip)]
    pub(crate) directory: PathBuf,
}

impl Loaded {
    /// Writes the settings of a load to `directory`, beside its store.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(crate) fn write(kind: EngineKind, directory: &Path, settings: &Settings) -> Result<()> {
        let loaded = Loaded {
            engine: kind,
            rows: settings.rows,
            value_bytes: settings.value_bytes,
            key_order: settings.key_order,
            load_threads: Some(settings.load_threads),
            memory_budget_bytes: Some(settings.memory_budget_bytes),
            directory: PathBuf::new(),
        };
        let path = directory.join(NOTE);
        let text = serde_json::to_string_pretty(&loaded)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Returns the path of the settings file.
    pub(crate) fn note(&self) -> PathBuf {
        self.directory.join(NOTE)
    }

    /// Finds the load of the store `engine` in `parent`. If `engine` is `None`, `parent` must hold
    /// exactly one load.
    ///
    /// # Errors
    /// Returns an error if there is no load, if the load was interrupted, or if several loads exist
    /// and none is named.
    pub(crate) fn find(parent: &Path, engine: Option<EngineKind>) -> Result<Self> {
        let found = loads(parent)?;
        let names = found.join(", ");
        if let Some(kind) = engine {
            let directory = parent.join(kind.name());
            let loaded = read(&directory).with_context(|| match &*names {
                "" => format!("{} holds no load", parent.display()),
                _ => format!("{} holds loads of {names}", parent.display()),
            })?;
            ensure!(
                loaded.engine == kind,
                "{} is the load of another store: --engine: expected {}, found {}",
                directory.display(),
                kind.name(),
                loaded.engine.name()
            );
            return Ok(loaded);
        }
        match &*found {
            [] => bail!("{} holds no load; make one with `load`", parent.display()),
            [name] => read(&parent.join(name)),
            _ => bail!("{} holds loads of {names}; name one with --engine", parent.display()),
        }
    }
}

/// Returns the sorted names of the folders with a settings file.
fn loads(parent: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("reading {}", parent.display()))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("reading {}", parent.display()))?;
        if entry.path().join(NOTE).exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn read(directory: &Path) -> Result<Loaded> {
    let path = directory.join(NOTE);
    if directory.exists() && !path.exists() {
        bail!(
            "{} does not exist: the load was interrupted; remove {} and load again",
            path.display(),
            directory.display()
        );
    }
    let text = fs::read_to_string(&path)
        .with_context(|| format!("reading {}; was this loaded with `load`?", path.display()))?;
    let loaded: Loaded = serde_json::from_str(&text)
        .with_context(|| format!("{} is no note of `load`", path.display()))?;
    Ok(Loaded { directory: directory.to_owned(), ..loaded })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"engine":"embank","rows":3,"value_bytes":32,"key_order":"hashed"}"#;

    fn parent(loads: &[(&str, &str)]) -> tempfile::TempDir {
        let parent = tempfile::tempdir().unwrap();
        for (name, note) in loads {
            fs::create_dir(parent.path().join(name)).unwrap();
            fs::write(parent.path().join(name).join(NOTE), note).unwrap();
        }
        parent
    }

    fn refusal(parent: &Path, engine: Option<EngineKind>) -> String {
        format!("{:#}", Loaded::find(parent, engine).unwrap_err())
    }

    #[test]
    fn the_only_load_needs_no_name() {
        let one = parent(&[("embank", OLD)]);
        let loaded = Loaded::find(one.path(), None).unwrap();
        assert_eq!((loaded.rows, loaded.memory_budget_bytes), (3, None));
        assert_eq!(loaded.directory, one.path().join("embank"));
        let two = parent(&[("embank", OLD), ("redb", OLD)]);
        assert!(refusal(two.path(), None).contains("loads of embank, redb; name one"));
    }

    #[test]
    fn what_is_no_load_is_refused() {
        let none = parent(&[]);
        assert!(refusal(none.path(), None).contains("holds no load"));
        assert!(refusal(&none.path().join("missing"), None).contains("holds no load"));
        fs::create_dir(none.path().join("embank")).unwrap();
        assert!(refusal(none.path(), Some(EngineKind::Embank)).contains("interrupted"));
        let other = parent(&[("redb", OLD), ("map", "{}")]);
        let error = refusal(other.path(), Some(EngineKind::Redb));
        assert!(error.contains("expected redb, found embank"), "{error}");
        assert!(refusal(other.path(), Some(EngineKind::Map)).contains("no note"));
        let error = refusal(other.path(), Some(EngineKind::Lmdb));
        assert!(error.contains("holds loads of map, redb"), "{error}");
    }
}
