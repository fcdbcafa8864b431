//! A store with its rows loaded: what `run` measures, and what each process of `compare` holds.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::engine::{Engine, EngineKind, Named, Settings};
use crate::keyspace::{KeyOrder, Keyspace};
use crate::measure::{self, Measured, Spec, Target};

/// What a directory of `load` holds, in the file `ycsb.json` beside the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Loaded {
    engine: EngineKind,
    rows: u64,
    value_bytes: usize,
    key_order: KeyOrder,
}

const LOADED: &str = "ycsb.json";

/// An open store.
pub(crate) struct Stand {
    engine: Box<dyn Engine>,
    kind: EngineKind,
    keyspace: Keyspace,
    value_bytes: usize,
    key_order: KeyOrder,
}

impl Stand {
    /// Opens a new store and loads it; the seconds that the load took.
    ///
    /// # Errors
    /// What the store reports.
    pub(crate) fn load(
        kind: EngineKind,
        settings: &Settings,
        key_order: KeyOrder,
        threads: usize,
    ) -> Result<(Self, f64)> {
        fs::create_dir_all(&settings.directory)
            .with_context(|| format!("creating {}", settings.directory.display()))?;
        let engine = kind.open(settings).with_context(|| format!("opening {}", kind.name()))?;
        let keyspace = Keyspace::new(key_order, settings.rows);
        let stand = Stand { engine, kind, keyspace, value_bytes: settings.value_bytes, key_order };
        let progress = bar(format!("loading {}", kind.name()));
        let seconds = measure::load(stand.target(), threads, &progress)?;
        Ok((stand, seconds))
    }

    /// Makes the store durable and notes what it holds, for `reopen`.
    ///
    /// # Errors
    /// What the store reports; the note can't be written.
    pub(crate) fn keep(&self, directory: &Path) -> Result<()> {
        self.engine.persist()?;
        let loaded = Loaded {
            engine: self.kind,
            rows: self.keyspace.rows(),
            value_bytes: self.value_bytes,
            key_order: self.key_order,
        };
        let path = directory.join(LOADED);
        let text = serde_json::to_string_pretty(&loaded)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Opens a store that an earlier process loaded and kept. The rows are those that it noted.
    ///
    /// # Errors
    /// Nothing was kept there, or something else; what the store reports.
    pub(crate) fn reopen(kind: EngineKind, directory: &Path, settings: &Settings) -> Result<Self> {
        let path = directory.join(LOADED);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("reading {}; was this loaded with `load`?", path.display()))?;
        let loaded: Loaded = serde_json::from_str(&text)
            .with_context(|| format!("{} is no note of `load`", path.display()))?;
        ensure!(
            loaded.engine == kind && loaded.value_bytes == settings.value_bytes,
            "{} holds {} rows of {} bytes by {}; ask for those",
            directory.display(),
            loaded.rows,
            loaded.value_bytes,
            loaded.engine.name()
        );
        let settings = Settings { reopen: true, rows: loaded.rows, ..settings.clone() };
        let engine = kind.open(&settings).with_context(|| format!("opening {}", kind.name()))?;
        let keyspace = Keyspace::new(loaded.key_order, loaded.rows);
        let (value_bytes, key_order) = (loaded.value_bytes, loaded.key_order);
        Ok(Stand { engine, kind, keyspace, value_bytes, key_order })
    }

    fn target(&self) -> Target<'_> {
        Target { engine: &*self.engine, keyspace: &self.keyspace, value_bytes: self.value_bytes }
    }

    pub(crate) fn describe(&self) -> Named<String> {
        let rmw = if self.engine.atomic_rmw() {
            "one step: no addition gets lost"
        } else {
            "a read, then a write: of two at the same time one may be lost, as in YCSB itself"
        };
        let mut settings = self.engine.describe();
        settings.push(("read-modify-write".into(), rmw.into()));
        settings
    }

    /// Why the store can't do this, if it can't.
    pub(crate) fn refuses(&self, spec: &Spec) -> Option<&'static str> {
        if spec.mix.scan > 0.0 { self.engine.no_scan() } else { None }
    }

    /// One measurement.
    ///
    /// # Errors
    /// As [`measure::measure`].
    pub(crate) fn measure(&self, spec: &Spec) -> Result<Measured> {
        let progress = bar(format!("measuring {}", self.kind.name()));
        measure::measure(self.target(), spec, &progress)
            .with_context(|| format!("measuring {}", self.kind.name()))
    }

    /// Reads every row and looks at every byte.
    ///
    /// # Errors
    /// A wrong or missing row; what the store reports.
    pub(crate) fn check_all(&self) -> Result<()> {
        let progress = bar(format!("checking {}", self.kind.name()));
        measure::check_all(self.target(), &progress)
            .map(|_| ())
            .with_context(|| format!("checking every row of {}", self.kind.name()))
    }
}

/// A bar on stderr; nothing is drawn where stderr is not a terminal.
fn bar(what: String) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:24} {bar:40} {percent:>3}% {elapsed}")
        .expect("the template is well formed");
    ProgressBar::new(0).with_style(style).with_prefix(what)
}
