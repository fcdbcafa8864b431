//! All shards of a fleet in one process.

use std::fs;
use std::path::Path;

use embank::fleet::{FleetPlan, Routing, SetRecord, Shard, ShardView, Taken, shard_path};
use embank::{Bank, BankOptions, Missing, Result, TableConfig};

use embank_kv::{Store, StoreOptions};

use crate::common::small_options;

pub(crate) const SHARDS: u32 = 3;
pub(crate) const KEYS: u64 = 64;

/// All shards of an open fleet.
pub(crate) struct Fleet {
    pub(crate) shards: Vec<(Bank, Shard)>,
    pub(crate) passed_over: Vec<String>,
}

impl Fleet {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        Self::open_at(dir, None)
    }

    /// Opens the fleet at the set `set`, or at its newest complete one.
    pub(crate) fn open_at(dir: &Path, set: Option<u64>) -> Result<Self> {
        let shards = look(dir, SHARDS)?;
        let plan = plan_at(&shards, set)?;
        let newest = plan.newest.as_ref();
        let record = newest.map(|set| shards[set.holder as usize].1.record(set.number));
        let record = record.transpose()?;
        shards.iter().try_for_each(|(_, shard)| shard.check(&plan))?;
        let settle = |shard| settle(shard, &plan, record.as_deref());
        let shards = shards.into_iter().map(settle).collect::<Result<Vec<_>>>()?;
        let mut fleet = Fleet { shards, passed_over: plan.passed_over.clone() };
        if newest.is_none() {
            fleet.checkpoint(b"")?;
        }
        Ok(fleet)
    }

    /// Puts `value` into the row of each key, on the key's shard.
    pub(crate) fn put(&self, value: f32) {
        let routing = Routing::new("user", SHARDS).unwrap();
        for key in 0..KEYS {
            let (bank, _) = &self.shards[routing.shard_of(key) as usize];
            bank.table("user", TableConfig::new(1)).unwrap().put(&[key], &[value]).unwrap();
        }
    }

    /// Returns the one value that all rows have. `None` if there are no rows.
    pub(crate) fn value(&self) -> Option<f32> {
        let mut found = Vec::new();
        let mut rows = 0;
        for (number, (bank, _)) in (0..).zip(&self.shards) {
            let routing = Routing::new("user", SHARDS).unwrap();
            let Ok(table) = bank.open_table("user") else { continue };
            let keys: Vec<u64> = (0..KEYS).filter(|&key| routing.shard_of(key) == number).collect();
            let mut values = vec![0.0; keys.len()];
            table.peek(&keys, &mut values, Missing::Error).unwrap();
            rows += keys.len() as u64;
            found.extend(values);
        }
        assert!(rows == 0 || rows == KEYS, "{rows} rows");
        found.dedup();
        assert!(found.len() < 2, "the shards are at different sets: {found:?}");
        found.first().copied()
    }

    pub(crate) fn take(&mut self) -> Result<Vec<Taken>> {
        self.shards.iter_mut().map(|(bank, shard)| shard.take(bank)).collect()
    }

    pub(crate) fn commit(
        &mut self,
        number: usize,
        taken: &[Taken],
        blob: &[u8],
    ) -> Result<SetRecord> {
        let (bank, shard) = &mut self.shards[number];
        shard.commit(bank, taken, blob)
    }

    pub(crate) fn checkpoint(&mut self, blob: &[u8]) -> Result<SetRecord> {
        let taken = self.take()?;
        let done: Vec<SetRecord> = (0..self.shards.len())
            .map(|number| self.commit(number, &taken, blob))
            .collect::<Result<_>>()?;
        assert!(done.iter().all(|record| *record == done[0]), "the same bytes on all shards");
        Ok(done[0].clone())
    }

    pub(crate) fn recovered(&self) -> &SetRecord {
        let first = self.shards[0].1.recovered().unwrap();
        assert!(self.shards.iter().all(|(_, shard)| shard.recovered() == Some(first)));
        first
    }
}

pub(crate) fn options() -> BankOptions {
    BankOptions { checkpoints_kept: 1, ..small_options() }
}

/// Opens the banks and looks at them as shards.
pub(crate) fn look(dir: &Path, shards: u32) -> Result<Vec<(Bank, Shard)>> {
    let look = |number| {
        let bank = Bank::open(shard_path(dir, number), options())?;
        let shard = Shard::open(&bank, number, shards, 2)?;
        Ok((bank, shard))
    };
    (0..shards).map(look).collect()
}

pub(crate) fn plan(shards: &[(Bank, Shard)]) -> Result<FleetPlan> {
    plan_at(shards, None)
}

pub(crate) fn plan_at(shards: &[(Bank, Shard)], set: Option<u64>) -> Result<FleetPlan> {
    // The views go through bytes, as between processes.
    let view = |(_, shard): &(Bank, Shard)| ShardView::from_bytes(&shard.view()?.to_bytes());
    let views = shards.iter().map(view).collect::<Result<Vec<_>>>()?;
    match set {
        Some(set) => FleetPlan::at(&views, set, None),
        None => FleetPlan::of(&views),
    }
}

/// Settles one shard at the plan's set.
pub(crate) fn settle(
    (bank, mut shard): (Bank, Shard),
    plan: &FleetPlan,
    record: Option<&[u8]>,
) -> Result<(Bank, Shard)> {
    let Some(back) = shard.settle(&bank, plan, record)? else { return Ok((bank, shard)) };
    assert!(shard.take(&bank).is_err(), "the bank is ahead of the set");
    drop(bank);
    Bank::roll_back(shard.path(), back)?;
    let bank = Bank::open(shard.path(), options())?;
    assert_eq!(shard.settle(&bank, plan, record)?, None);
    Ok((bank, shard))
}

pub(crate) fn checkpoints(dir: &Path, shard: u32) -> Vec<u64> {
    let found = Bank::checkpoints(shard_path(dir, shard)).unwrap();
    found.iter().map(|checkpoint| checkpoint.number).collect()
}

pub(crate) fn sets(dir: &Path, shard: u32) -> Vec<String> {
    let folder = fs::read_dir(shard_path(dir, shard).join("sets")).unwrap();
    let mut names: Vec<String> =
        folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Takes a checkpoint of one shard alone, which `Bank::checkpoint` refuses.
pub(crate) fn checkpoint_alone(bank: &Path) -> u64 {
    store(bank).checkpoint(b"alone").unwrap()
}

/// Opens the store below a bank, which knows no fleets.
pub(crate) fn store(bank: &Path) -> Store {
    let options = StoreOptions {
        memory_budget_bytes: options().memory_budget_bytes,
        checkpoints_kept: 1,
        ..StoreOptions::default()
    };
    Store::open(bank, &options).unwrap()
}

/// Returns the checkpoints of a shard that are pinned.
pub(crate) fn pinned(dir: &Path, shard: u32) -> Vec<u64> {
    let there = Bank::checkpoints(shard_path(dir, shard)).unwrap();
    there.iter().filter(|of| of.pinned).map(|of| of.number).collect()
}

/// Moves a shard's directory away, so that its bank refuses to write; `put_back` moves it back.
pub(crate) fn take_away(dir: &Path, shard: u32) {
    fs::rename(shard_path(dir, shard), dir.join("away")).unwrap();
}

pub(crate) fn put_back(dir: &Path, shard: u32) {
    fs::rename(dir.join("away"), shard_path(dir, shard)).unwrap();
}

pub(crate) fn refusal(dir: &Path) -> String {
    let error = Fleet::open(dir).err().unwrap();
    error.to_string()
}

pub(crate) fn two_sets(dir: &Path) -> Fleet {
    let mut fleet = Fleet::open(dir).unwrap();
    for step in 1..=2 {
        fleet.put(step as f32);
        fleet.checkpoint(b"").unwrap();
    }
    fleet
}
