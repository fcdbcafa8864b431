//! `Shard`: the fleet's files of an open bank, and the sets of a fleet.

use std::sync::Arc;

use embank::fleet::{FleetPlan, SetRecord, Shard, ShardView, Taken};
use embank::locks::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::PyShardIdentity;
use crate::bank::PyBank;
use crate::{errors, scalars};

/// One shard of a fleet, whose bank this process has open for writing.
///
/// The processes of a fleet make the same calls, in this order: `view`, `plan_fleet` of all views,
/// `check`, `settle`; then for each set `take`, and `commit` or `abandon`. Every process tells the
/// others whether its call succeeded before it makes the next one. If a process does not learn
/// that, it closes the bank, and the fleet is opened again.
///
/// The bank is opened with `checkpoints_kept=1`: a shard keeps the checkpoints of its sets by pins.
///
/// Args:
///     bank: The open bank of this shard.
///     shard: The shard's number, from 0.
///     shards: The number of shards of the fleet, 1 to 4,096.
///     sets_kept: The number of newest sets that stay on disk, 1 or more. Default: 2.
///
/// Raises:
///     ShardMismatch: The bank's file `SHARD` names another shard or number of shards, or the bank
///         has tables or a checkpoint, and no such file. Nothing has changed.
///     Damaged: The file `SHARD` does not verify.
///     ValueError: A number is out of range.
#[pyclass(name = "Shard", module = "embank._embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyShard {
    bank: Py<PyBank>,
    shard: Mutex<Shard>,
}

impl PyShard {
    /// Calls `call` with the shard, without the GIL.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Shard, &embank::Bank) -> embank::Result<R> + Send,
    ) -> PyResult<R> {
        let cell = Arc::clone(&self.bank.get().cell);
        cell.with_bank(py, |bank| call(&mut self.shard.lock(), bank))
    }
}

#[pymethods]
impl PyShard {
    #[new]
    #[pyo3(signature = (bank, shard, shards, *, sets_kept = None))]
    fn new(
        bank: &Bound<'_, PyBank>,
        shard: &Bound<'_, PyAny>,
        shards: &Bound<'_, PyAny>,
        sets_kept: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let number = scalars::unsigned_32("shard", shard)?;
        let shards = scalars::unsigned_32("shards", shards)?;
        let kept = sets_kept.map(|kept| scalars::unsigned_32("sets_kept", kept)).transpose()?;
        let kept = kept.map_or(2, |kept| kept as usize);
        let cell = Arc::clone(&bank.get().cell);
        let shard = cell.with_bank(bank.py(), |bank| Shard::open(bank, number, shards, kept))?;
        Ok(Self { bank: bank.clone().unbind(), shard: Mutex::new(shard) })
    }

    /// The shard's number.
    #[getter]
    fn shard(&self) -> u32 {
        self.shard.lock().shard()
    }

    /// The number of shards of the fleet.
    #[getter]
    fn shards(&self) -> u32 {
        self.shard.lock().shards()
    }

    /// The shard's identity. None until `settle` has made a new fleet.
    #[getter]
    fn identity(&self) -> Option<PyShardIdentity> {
        self.shard.lock().identity().map(PyShardIdentity)
    }

    /// The set at which `settle` opened the shard. None before, and for a new fleet.
    #[getter]
    fn recovered(&self) -> Option<PyFleetSet> {
        self.shard.lock().recovered().cloned().map(PyFleetSet)
    }

    /// The number of the newest complete set that this shard knows. None before the first one.
    #[getter]
    fn newest_set(&self) -> Option<u64> {
        self.shard.lock().newest_set()
    }

    /// Reads what the shard has on disk, as bytes for the other processes.
    ///
    /// Raises:
    ///     ShardMismatch: A record belongs to another fleet.
    ///     Damaged: A file does not verify, or a checkpoint can't be read.
    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let view = self.with(py, |shard, _| shard.view())?;
        Ok(PyBytes::new(py, &view.to_bytes()))
    }

    /// Returns the bytes of a record of this shard, for shards that lack it.
    ///
    /// Raises:
    ///     ShardMismatch: The shard does not have the record.
    fn record<'py>(
        &self,
        py: Python<'py>,
        set: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let set = scalars::unsigned("set", set, u64::MAX)?;
        let record = self.with(py, |shard, _| shard.record(set))?;
        Ok(PyBytes::new(py, &record))
    }

    /// Checks that the shard can come to the plan's set, and changes nothing. No process settles
    /// before the checks of all have succeeded.
    ///
    /// Raises:
    ///     ShardMismatch: The plan belongs to another fleet.
    ///     Damaged, StoreIOError: The set's checkpoint does not verify.
    ///     EmbankError: Another process reads a newer checkpoint of the bank.
    fn check(&self, py: Python<'_>, plan: &Bound<'_, PyFleetPlan>) -> PyResult<()> {
        let plan = &plan.get().0;
        self.with(py, |shard, _| shard.check(plan))
    }

    /// Brings the shard to the plan's set, and takes the bank back if it is ahead.
    ///
    /// Makes the fleet's identity durable in a new fleet. The call can be repeated after an error.
    ///
    /// Args:
    ///     plan: The result of `plan_fleet`.
    ///     record: The bytes of the set's record, from the shard `plan.holder`. Needed if the shard
    ///         is one of `plan.lacking`. Default: None.
    ///
    /// Raises:
    ///     ShardMismatch: The shard lacks the record, and `record` is not given or another one. Or
    ///         the plan belongs to another fleet.
    ///     Damaged: A checkpoint of the bank can't be read. Nothing was removed.
    ///     EmbankError: Another process reads a newer checkpoint of the bank.
    ///     StoreIOError: A file can't be read or written.
    #[pyo3(signature = (plan, record = None))]
    fn settle(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, PyFleetPlan>,
        record: Option<&[u8]>,
    ) -> PyResult<()> {
        let plan = &plan.get().0;
        // The loop ends: after a roll back that succeeds, the bank is at the set's checkpoint.
        while let Some(checkpoint) =
            self.with(py, |shard, bank| shard.settle(bank, plan, record))?
        {
            self.bank.get().roll_back_to(py, checkpoint)?;
        }
        Ok(())
    }

    /// Takes the bank's checkpoint for the next set.
    ///
    /// Returns:
    ///     Bytes for the `commit` of every process.
    ///
    /// Raises:
    ///     ValueError: `settle` comes first, or the outcome of an earlier `take` is not known.
    ///     StoreIOError, PoisonedError: The checkpoint failed. Every process calls `abandon`, and
    ///         the newest set stays.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (changed, taken) = self.with(py, |shard, bank| {
            // Read before the checkpoint begins: see `Bank.checkpoint`.
            let changed = bank.state_id().changes();
            Ok((changed, shard.take(bank)?))
        })?;
        self.bank.get().took(taken.checkpoint.number, changed);
        Ok(PyBytes::new(py, &taken.to_bytes()))
    }

    /// Gives up a set, because a process could not take its checkpoint. The next `take` removes the
    /// checkpoint of this shard.
    fn abandon(&self) {
        self.shard.lock().abandon();
    }

    /// Completes a set whose checkpoints all shards have taken.
    ///
    /// Args:
    ///     taken: The results of `take` of all shards, in any order.
    ///     blob: The caller's own state, the same on all shards. Default: no bytes.
    ///
    /// Returns:
    ///     The set.
    ///
    /// Raises:
    ///     ValueError: There was no `take`, or `taken` is not one result of each shard. Nothing has
    ///         changed.
    ///     StoreIOError: A file can't be written. The set may be complete; the next `take` writes
    ///         the record first.
    #[pyo3(signature = (taken, blob = None))]
    fn commit(
        &self,
        py: Python<'_>,
        taken: Vec<Vec<u8>>,
        blob: Option<&[u8]>,
    ) -> PyResult<PyFleetSet> {
        let blob = blob.unwrap_or_default();
        let record = self.with(py, |shard, bank| {
            let taken: Vec<Taken> =
                taken.iter().map(|bytes| Taken::from_bytes(bytes)).collect::<Result<_, _>>()?;
            shard.commit(bank, &taken, blob)
        })?;
        Ok(PyFleetSet(record))
    }

    /// Returns the sets whose records this shard has, oldest first.
    ///
    /// Raises:
    ///     Damaged: A record does not verify.
    fn sets(&self, py: Python<'_>) -> PyResult<Vec<PyFleetSet>> {
        let sets = self.with(py, |shard, _| shard.sets())?;
        Ok(sets.into_iter().map(PyFleetSet).collect())
    }
}

/// One checkpoint of all shards of a fleet.
#[pyclass(name = "FleetSet", module = "embank._embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyFleetSet(SetRecord);

#[pymethods]
impl PyFleetSet {
    /// The set's number. Set 0 is taken when the fleet is made, and has no rows.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    /// A random number of 64 bits that identifies the set's content. A fleet that `embank reshard`
    /// makes has the id of the set that it was made of.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    /// The number of each shard's checkpoint, by shard.
    #[getter]
    fn checkpoints(&self) -> Vec<u64> {
        self.0.checkpoints.iter().map(|held| held.number).collect()
    }

    /// The bytes that were passed to `commit`.
    #[getter]
    fn blob<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.blob)
    }

    fn __repr__(&self) -> String {
        let shards = self.0.checkpoints.len();
        let bytes = self.0.blob.len();
        format!("<embank.FleetSet {} of {shards} shards, blob of {bytes} bytes>", self.0.number)
    }
}

/// What all shards of a fleet do when they are opened. Every process has an equal plan.
#[pyclass(name = "FleetPlan", module = "embank._embank", frozen)]
#[derive(Debug)]
pub(crate) struct PyFleetPlan(FleetPlan);

#[pymethods]
impl PyFleetPlan {
    /// The fleet's id, 16 random bytes.
    #[getter]
    fn fleet<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.fleet.0)
    }

    /// The number of the set that the fleet opens at. None for a new fleet: then every process
    /// takes set 0 after `settle`.
    #[getter]
    fn set(&self) -> Option<u64> {
        self.0.newest.as_ref().map(|set| set.number)
    }

    /// The first shard that has the record of the set.
    #[getter]
    fn holder(&self) -> Option<u32> {
        self.0.newest.as_ref().map(|set| set.holder)
    }

    /// The shards that lack the record. If there is one, the holder sends its `record` to all.
    #[getter]
    fn lacking(&self) -> Vec<u32> {
        self.0.newest.as_ref().map_or(Vec::new(), |set| set.lacking.clone())
    }

    /// Why newer sets are not complete, the newest first. `settle` removes them. Empty if a set was
    /// asked for.
    #[getter]
    fn passed_over(&self) -> Vec<String> {
        self.0.passed_over.clone()
    }
}

/// Decides what all shards of a fleet do when they are opened: a pure function of all views.
///
/// Args:
///     views: The result of `Shard.view` of every process, in any order.
///     set: The number of a set to go back to. Default: the newest complete set.
///     id: The id that this set must have. Default: any.
///
/// Returns:
///     A `FleetPlan` for `Shard.settle`. Equal views give equal plans.
///
/// Raises:
///     ShardMismatch: The shards are not those of one whole fleet. The text names the shard that
///         does not fit, and the cure.
///     ValueError: The bytes are no views, or `set` is no complete set, or has another id; the text
///         names the complete ones, or both ids.
#[pyfunction]
#[pyo3(signature = (views, set = None, id = None))]
pub(crate) fn plan_fleet(
    py: Python<'_>,
    views: Vec<Vec<u8>>,
    set: Option<&Bound<'_, PyAny>>,
    id: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyFleetPlan> {
    let set = set.map(|set| scalars::unsigned("set", set, u64::MAX)).transpose()?;
    let id = id.map(|id| scalars::unsigned("id", id, u64::MAX)).transpose()?;
    let plan = || {
        let views: Vec<ShardView> =
            views.iter().map(|bytes| ShardView::from_bytes(bytes)).collect::<Result<_, _>>()?;
        match set {
            Some(set) => FleetPlan::at(&views, set, id),
            None => FleetPlan::of(&views),
        }
    };
    plan().map(PyFleetPlan).map_err(|error| errors::to_python(py, &error))
}
