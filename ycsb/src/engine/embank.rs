//! The engine for Embank. Every batch is one call of [`Store::execute`].

use anyhow::{Context, Result, bail, ensure};
use embank_kv::{
    Access, Clock, ColdTier, CompactionOptions, Operation, Outcome, Store, StoreOptions,
    StoreStats, TableId, memory_budget_warning,
};

use super::map::missing;
use super::{Engine, Named, Session, Settings};
use crate::content::{self, WrongAnswer};
use crate::output;

const TABLE: &str = "rows";

/// Acquires the staleness clock of a row. The store checks the bound, but no row ever reaches it.
const ACQUIRE: Clock = Clock::Acquire { bound: Some(1 << 30) };

/// The operations of Embank that serve as the workload's reads and read-modify-writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A read is a peek, and a read-modify-write is one update in place, as in a program without
    /// training.
    Peek,
    /// A read is a get, and a read-modify-write is a get and a put, as in training without
    /// staleness clocks.
    Get,
    /// A read is a get and a release; a read-modify-write is a get and a put, as in training with
    /// staleness clocks. A get acquires the row's clock, and a put releases it.
    Clock,
}

struct Embank {
    store: Store,
    table: TableId,
    value_bytes: usize,
    how: Use,
    /// True if updates and inserts are blind puts.
    puts_blindly: bool,
}

/// Opens a store with one table.
///
/// # Errors
/// Returns any error of the store, and an error if a reopened store lacks the table.
pub(super) fn open(settings: &Settings, how: Use) -> Result<Box<dyn Engine>> {
    let options = StoreOptions {
        memory_budget_bytes: settings.memory_budget_bytes,
        compaction: CompactionOptions { background: true, ..CompactionOptions::default() },
        cold_tier: if settings.cold_tier { ColdTier::Auto } else { ColdTier::Never },
        ..StoreOptions::default()
    };
    if let Some(warning) = memory_budget_warning(options.memory_budget_bytes) {
        output::warn(warning);
    }
    let store = Store::open(&settings.directory, &options)?;
    let value_bytes = u32::try_from(settings.value_bytes).context("--value-size is too large")?;
    let found = store.tables().into_iter().find(|table| table.name == TABLE);
    let table = match found {
        Some(table) => {
            ensure!(table.value_bytes == value_bytes, "values of {} bytes", table.value_bytes);
            table.id
        }
        None if settings.reopen => bail!("{} holds no rows", settings.directory.display()),
        None => store.create_table(TABLE, value_bytes, b"")?,
    };
    let Settings { value_bytes, cold_tier, .. } = *settings;
    Ok(Box::new(Embank { store, table, value_bytes, how, puts_blindly: cold_tier }))
}

impl Engine for Embank {
    fn describe(&self) -> Named<String> {
        let stats = self.store.stats();
        let how = match self.how {
            Use::Peek => "read = peek, update = put, rmw = update in one step, clocks kept",
            Use::Get => "read = get, update = put, rmw = get then put, clocks kept",
            Use::Clock => {
                "read = get that acquires, then a release; update = put that releases; rmw = get that \
                 acquires, then put that releases"
            }
        };
        let puts = if self.puts_blindly { "are blind" } else { "look up the row" };
        vec![
            ("store".into(), format!("embank-kv {}", env!("CARGO_PKG_VERSION"))),
            ("operations".into(), how.into()),
            ("updates and inserts".into(), puts.into()),
            ("tiers".into(), stats.tiers.to_string()),
            ("device".into(), device(&stats)),
            ("memory_budget_bytes".into(), stats.memory_budget_bytes.to_string()),
            ("page_size_bytes".into(), stats.page_size_bytes.to_string()),
            ("durability".into(), "none between checkpoints; none is taken while measuring".into()),
        ]
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(EmbankSession(self)))
    }

    fn atomic_rmw(&self) -> bool {
        self.how == Use::Peek
    }

    fn persist(&self) -> Result<()> {
        self.store.checkpoint(b"").map(|_| ()).context("the checkpoint after the load")
    }

    fn counters(&self) -> Named<u64> {
        store_counters(&self.store.stats())
    }
}

/// Returns the store's device and its notes as text.
pub(super) fn device(stats: &StoreStats) -> String {
    match &*stats.device_notes.join("; ") {
        "" => stats.device.to_string(),
        notes => format!("{} ({notes})", stats.device),
    }
}

/// Returns the counters of the store for the report.
pub(super) fn store_counters(stats: &StoreStats) -> Named<u64> {
    [
        ("hits_mutable", stats.hits_mutable),
        ("hits_read_only", stats.hits_read_only),
        ("hits_disk", stats.hits_disk),
        ("copied_to_tail", stats.copied_to_tail),
        ("retained", stats.retained),
        ("disk_reads", stats.disk_reads),
        ("disk_read_bytes", stats.disk_read_bytes),
        ("disk_write_bytes", stats.disk_write_bytes),
        ("cold_blocks_read", stats.cold_blocks_read),
        ("cold_false_reads", stats.cold_false_reads),
        ("page_waits", stats.page_waits),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into()
}

struct EmbankSession<'a>(&'a Embank);

impl EmbankSession<'_> {
    #[inline]
    fn execute<O: Operation>(
        &self,
        keys: &[u64],
        clock: Clock,
        operation: &mut O,
    ) -> Result<Outcome> {
        let outcome = self.0.store.execute(self.0.table, keys, clock, operation)?;
        if let Some(&place) = outcome.missing.first() {
            bail!(missing(keys[place as usize]));
        }
        ensure!(outcome.blocked.is_empty(), "a row is blocked by more Gets than were ever made");
        Ok(outcome)
    }

    #[inline]
    fn put(&self, keys: &[u64], values: &[u8], inserts: bool) -> Result<()> {
        let clock = if self.0.how == Use::Clock { Clock::Release } else { Clock::Keep };
        let mut put = PutRows { values, value_bytes: self.0.value_bytes, inserts };
        self.execute(keys, clock, &mut put).map(|_| ())
    }

    /// Puts rows, and does not look for the rows that they replace. So a missing row is no error.
    #[inline]
    fn put_blind(&self, keys: &[u64], values: &[u8]) -> Result<()> {
        let clock = if self.0.how == Use::Clock { Clock::Release } else { Clock::Keep };
        let put = PutRows { values, value_bytes: self.0.value_bytes, inserts: true };
        self.execute(keys, clock, &mut PutBlind(put)).map(|_| ())
    }

    #[inline]
    fn get(&self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        let clock = if self.0.how == Use::Clock { ACQUIRE } else { Clock::Keep };
        let mut get = GetRows { values, value_bytes: self.0.value_bytes };
        self.execute(keys, clock, &mut get).map(|_| ())
    }
}

impl Session for EmbankSession<'_> {
    fn read(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        match self.0.how {
            Use::Peek => {
                let mut peek = PeekRows { values, value_bytes: self.0.value_bytes };
                self.execute(keys, Clock::Keep, &mut peek).map(|_| ())
            }
            Use::Get => self.get(keys, values),
            Use::Clock => {
                self.get(keys, values)?;
                self.execute(keys, Clock::Release, &mut TouchClocks).map(|_| ())
            }
        }
    }

    fn update(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        match self.0.puts_blindly {
            true => self.put_blind(keys, values),
            false => self.put(keys, values, false),
        }
    }

    fn insert(&mut self, keys: &[u64], values: &[u8]) -> Result<()> {
        match self.0.puts_blindly {
            true => self.put_blind(keys, values),
            false => self.put(keys, values, true),
        }
    }

    fn read_modify_write(&mut self, keys: &[u64], values: &mut [u8]) -> Result<()> {
        if self.0.how == Use::Peek {
            let mut advance = AdvanceRows { keys, wrong: None };
            self.execute(keys, Clock::Keep, &mut advance)?;
            return advance.wrong.map_or(Ok(()), |wrong| Err(wrong.into()));
        }
        self.get(keys, values)?;
        content::advance_all(keys, values)?;
        self.put(keys, values, false)
    }
}

struct PeekRows<'a> {
    values: &'a mut [u8],
    value_bytes: usize,
}

impl Operation for PeekRows<'_> {
    const ACCESS: Access = Access::Peek;

    #[inline]
    fn destination(&mut self, i: usize) -> Option<&mut [u8]> {
        Some(&mut self.values[i * self.value_bytes..][..self.value_bytes])
    }
}

struct GetRows<'a> {
    values: &'a mut [u8],
    value_bytes: usize,
}

impl Operation for GetRows<'_> {
    const ACCESS: Access = Access::Get;

    #[inline]
    fn read(&mut self, i: usize, value: &[u8]) {
        self.values[i * self.value_bytes..][..self.value_bytes].copy_from_slice(value);
    }
}

struct PutRows<'a> {
    values: &'a [u8],
    value_bytes: usize,
    inserts: bool,
}

impl Operation for PutRows<'_> {
    const ACCESS: Access = Access::Put;

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.values[i * self.value_bytes..][..self.value_bytes]);
    }

    #[inline]
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        if self.inserts {
            self.update(i, value);
        }
        self.inserts
    }
}

/// Puts rows as [`PutRows`] does, blindly.
struct PutBlind<'a>(PutRows<'a>);

impl Operation for PutBlind<'_> {
    const ACCESS: Access = Access::Put;
    const BLIND: bool = true;

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        self.0.update(i, value);
    }

    #[inline]
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.0.insert(i, value)
    }
}

struct AdvanceRows<'a> {
    keys: &'a [u64],
    wrong: Option<WrongAnswer>,
}

impl Operation for AdvanceRows<'_> {
    const ACCESS: Access = Access::Update;

    #[inline]
    fn update(&mut self, i: usize, value: &mut [u8]) {
        if let Err(wrong) = content::advance(self.keys[i], value) {
            self.wrong = Some(wrong);
        }
    }
}

/// An operation that changes only the clocks of rows, not their values.
struct TouchClocks;

impl Operation for TouchClocks {
    const ACCESS: Access = Access::Touch;
}
