//! The settings of a run's rows. They come from options, from properties, and from the settings
//! file of an earlier load.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use embank_kv::default_memory_budget_bytes;

use crate::content::VALUE_BYTES_MIN;
use crate::core_properties::{Asked, Core, VALUE_BYTES};
use crate::engine::{EngineKind, Settings};
use crate::keyspace::KeyOrder;
use crate::loaded::Loaded;
use crate::process;
use crate::quantity::{bytes, count};
use crate::work::{NamedSpec, THREADS_MAX};

const ROWS: u64 = 1_000_000;
const VALUE_BYTES_PLAIN: u64 = 64;

/// The options for the rows. An option that is not given has a default. With `run --loaded` it has
/// the setting of the load.
#[derive(Debug, Clone, Args)]
pub(crate) struct Data {
    /// Rows to load: a number, or one with k, M or G (thousands) [default: 1M]
    #[arg(long, value_parser = count)]
    pub(crate) rows: Option<u64>,
    /// Bytes of a value [default: 64, or 1000 with properties]
    #[arg(long, value_parser = bytes)]
    value_size: Option<u64>,
    /// Memory of each store, for all its caches and buffers together: bytes, or with K, M, G, KiB,
    /// MiB, GiB (of 1,024) or kB, MB, GB (of 1,000) [default: 1GiB, or a quarter of the memory
    /// limit of the process's control group, if that is less]
    #[arg(long, value_parser = bytes)]
    memory_budget: Option<u64>,
    /// Directory of the stores
    #[arg(long, value_name = "DIR", default_value = "target/ycsb")]
    pub(crate) directory: PathBuf,
    /// How a row's number becomes its key [default: hashed]
    #[arg(long, value_enum)]
    key_order: Option<KeyOrder>,
    /// Threads of the load [default: 1, or the threadcount of properties]
    #[arg(long)]
    load_threads: Option<usize>,
    /// Measure Embank with its staleness clocks: the name `embank` then means `embank-clock`
    #[arg(long)]
    pub(crate) embank_clock: bool,
    /// Let Embank move rows at rest to its cold tier, and put blindly in updates and inserts, as
    /// RocksDB does. An update of a missing row is then not noticed
    #[arg(long)]
    embank_cold_tier: bool,
}

impl Data {
    /// Returns the settings for an engine in `directory`.
    ///
    /// # Errors
    /// Returns an error for a size or a number of threads that is too small or too large.
    pub(crate) fn settings(&self, core: &Core, directory: PathBuf) -> Result<Settings> {
        let value_size = named(self.value_size, &core.value_bytes);
        let value_size =
            value_size.unwrap_or(if core.given { VALUE_BYTES } else { VALUE_BYTES_PLAIN });
        let value_bytes = usize::try_from(value_size).context("--value-size is too large")?;
        ensure!(
            value_bytes >= VALUE_BYTES_MIN,
            "--value-size {value_bytes}: a value that can be checked has {VALUE_BYTES_MIN} bytes or more"
        );
        let rows = named(self.rows, &core.rows).unwrap_or(ROWS);
        let load_threads = self.load_threads.or(core.threads).unwrap_or(1);
        ensure!(rows > 0 && load_threads > 0, "--rows and --load-threads must be positive");
        ensure!(
            load_threads <= THREADS_MAX,
            "--load-threads {load_threads}: at most {THREADS_MAX} can be started"
        );
        Ok(Settings {
            directory,
            value_bytes,
            rows,
            key_order: named(self.key_order, &core.key_order).unwrap_or(KeyOrder::Hashed),
            load_threads,
            memory_budget_bytes: self.memory_budget.unwrap_or_else(default_memory_budget_bytes),
            reopen: false,
            counts_writes: false,
            cold_tier: self.embank_cold_tier,
        })
    }

    /// Returns the settings to open the store of an earlier load. The memory budget may differ from
    /// that of the load.
    ///
    /// # Errors
    /// Returns an error if other settings differ from those of the load. The error gives the
    /// expected and the found value of each.
    pub(crate) fn settings_of(&self, core: &Core, loaded: &Loaded) -> Result<Settings> {
        let mut others = Vec::new();
        other(&mut others, "--rows", self.rows, &core.rows, loaded.rows);
        let value_bytes = loaded.value_bytes as u64;
        other(&mut others, "--value-size", self.value_size, &core.value_bytes, value_bytes);
        other(&mut others, "--key-order", self.key_order, &core.key_order, loaded.key_order);
        if let Some(threads) = loaded.load_threads {
            other(&mut others, "--load-threads", self.load_threads, &None, threads);
        }
        ensure!(
            others.is_empty(),
            "{} holds {} rows of {} bytes by {}, and these settings do not fit it: {}. Leave them out, or remove \
             the directory and load anew",
            loaded.directory.display(),
            loaded.rows,
            loaded.value_bytes,
            loaded.engine.name(),
            others.join("; ")
        );
        let budget = self.memory_budget.or(loaded.memory_budget_bytes);
        Ok(Settings {
            directory: loaded.directory.join("store"),
            value_bytes: loaded.value_bytes,
            rows: loaded.rows,
            key_order: loaded.key_order,
            load_threads: loaded.load_threads.unwrap_or(1),
            memory_budget_bytes: budget.unwrap_or_else(default_memory_budget_bytes),
            reopen: true,
            counts_writes: false,
            cold_tier: self.embank_cold_tier,
        })
    }

    /// Returns the engine for a name on the command line. `--embank-clock` changes the meaning of
    /// `embank`.
    pub(crate) fn engine(&self, kind: EngineKind) -> EngineKind {
        if self.embank_clock && kind == EngineKind::Embank { EngineKind::EmbankClock } else { kind }
    }
}

/// Returns the option's value, or else the property's value.
fn named<T: Copy>(option: Option<T>, property: &Option<Asked<T>>) -> Option<T> {
    option.or(property.as_ref().map(|asked| asked.value))
}

/// Adds an error text if a setting is given and differs from the load's.
fn other<T: Copy + PartialEq + std::fmt::Debug>(
    others: &mut Vec<String>,
    name: &str,
    option: Option<T>,
    property: &Option<Asked<T>>,
    found: T,
) {
    let asked = option.map(|value| (value, name)).or(property.as_ref().map(|p| (p.value, &*p.by)));
    if let Some((expected, by)) = asked.filter(|(expected, _)| *expected != found) {
        let text = |value: T| format!("{value:?}").to_lowercase();
        others.push(format!("{by}: expected {}, found {}", text(expected), text(found)));
    }
}

/// Checks before the load that the stores can hold the values, and that rows and batches fit into
/// memory. A load sorts the keys of all rows in memory, which takes 8 bytes a row. The `map` store
/// also keeps all rows in memory.
///
/// # Errors
/// Returns an error that names the option to change. If memory is short, the error has the needed
/// and the available bytes.
pub(crate) fn ensure_fits(
    kinds: &[EngineKind],
    settings: &Settings,
    specs: &[NamedSpec],
) -> Result<()> {
    kinds.iter().try_for_each(|kind| kind.ensure_value_bytes(settings.value_bytes))?;
    let Some(available) = process::memory_available_bytes() else { return Ok(()) };
    let (rows, value_bytes) = (settings.rows, settings.value_bytes as u64);
    if !settings.reopen {
        let held = if kinds.contains(&EngineKind::Map) { value_bytes.saturating_add(8) } else { 0 };
        let needed = rows.saturating_mul(held.saturating_add(8));
        ensure!(
            needed <= available,
            "{rows} rows do not fit: loading them needs {needed} bytes of memory, and {available} are \
             available; lower --rows (recordcount)"
        );
    }
    for NamedSpec { name, spec } in specs {
        let values = (spec.batch as u64).saturating_mul(spec.threads as u64);
        let needed = values.saturating_mul(value_bytes);
        ensure!(
            needed <= available,
            "{name}: the batches of all threads need {needed} bytes of memory, and {available} are available; \
             lower --batch, --threads or --value-size"
        );
    }
    Ok(())
}
