//! A store with loaded rows. `run` measures one, and each process of `compare` holds one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::engine::{Engine, EngineKind, Named, Settings};
use crate::keyspace::Keyspace;
use crate::loaded::Loaded;
use crate::measure::{self, Measured, Spec, Target};

/// An open store.
pub(crate) struct Stand {
    engine: Box<dyn Engine>,
    kind: EngineKind,
    keyspace: Keyspace,
    value_bytes: usize,
}

impl Stand {
    /// Opens a new store and loads it. Returns the seconds that the load took.
    ///
    /// # Errors
    /// Returns any error of the store.
    pub(crate) fn load(kind: EngineKind, settings: &Settings) -> Result<(Self, f64)> {
        fs::create_dir_all(&settings.directory)
            .with_context(|| format!("creating {}", settings.directory.display()))?;
        let stand = Stand::open(kind, settings)?;
        let progress = bar(format!("loading {}", kind.name()));
        let seconds = measure::load(stand.target(), settings.load_threads, &progress)?;
        Ok((stand, seconds))
    }

    /// Makes the store durable and writes its settings to `directory`, so that a later process can
    /// open the store.
    ///
    /// # Errors
    /// Returns any error of the store, and an error if the settings cannot be written.
    pub(crate) fn keep(&self, directory: &Path, settings: &Settings) -> Result<()> {
        self.engine.persist()?;
        Loaded::write(self.kind, directory, settings)
    }

    /// Opens a new store or the store of a load.
    ///
    /// # Errors
    /// Returns any error of the store.
    pub(crate) fn open(kind: EngineKind, settings: &Settings) -> Result<Self> {
        let engine = kind.open(settings).with_context(|| format!("opening {}", kind.name()))?;
        let keyspace = Keyspace::new(settings.key_order, settings.rows);
        Ok(Stand { engine, kind, keyspace, value_bytes: settings.value_bytes })
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

    /// Makes one measurement.
    ///
    /// # Errors
    /// Fails as [`measure::measure`] does.
    pub(crate) fn measure(&self, spec: &Spec) -> Result<Measured> {
        let progress = bar(format!("measuring {}", self.kind.name()));
        measure::measure(self.target(), spec, &progress)
            .with_context(|| format!("measuring {}", self.kind.name()))
    }

    /// Reads every row and checks every byte.
    ///
    /// # Errors
    /// Returns an error for a wrong or missing row, and any error of the store.
    pub(crate) fn check_all(&self) -> Result<()> {
        let progress = bar(format!("checking {}", self.kind.name()));
        measure::check_all(self.target(), &progress)
            .map(|_| ())
            .with_context(|| format!("checking every row of {}", self.kind.name()))
    }
}

/// Returns a progress bar on stderr. Nothing is drawn if stderr is not a terminal.
fn bar(what: String) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:24} {bar:40} {percent:>3}% {elapsed}")
        .expect("the template is well formed");
    ProgressBar::new(0).with_style(style).with_prefix(what)
}
