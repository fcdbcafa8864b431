//! What `embank.torch.distributed` needs of a fleet's shards: routing, identities and sets.
//!
//! The processes of a fleet exchange keys, rows and decisions in Python. These functions and
//! classes read and write the files of one shard, and decide what all processes decide alike.

pub(crate) mod exchange;
pub(crate) mod shard;

use std::path::PathBuf;

use embank::fleet;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{errors, scalars};

/// Which shard of which fleet a bank is: the content of its file `SHARD`.
#[pyclass(name = "ShardIdentity", module = "embank._embank", frozen, eq)]
#[derive(Debug, PartialEq)]
pub(crate) struct PyShardIdentity(fleet::ShardIdentity);

#[pymethods]
impl PyShardIdentity {
    /// The fleet's id, 16 random bytes that all of its shards have.
    #[getter]
    fn fleet<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.fleet.0)
    }

    /// The shard's number, from 0.
    #[getter]
    fn shard(&self) -> u32 {
        self.0.shard
    }

    /// The number of shards of the fleet.
    #[getter]
    fn shards(&self) -> u32 {
        self.0.shards
    }

    fn __repr__(&self) -> String {
        let fleet::ShardIdentity { fleet, shard, shards, .. } = self.0;
        format!("<embank.ShardIdentity shard {shard} of {shards}, fleet {fleet}>")
    }
}

/// Lists the shards whose directories are in a fleet's directory on this machine.
///
/// Takes no lock and changes nothing.
///
/// Args:
///     directory: The fleet's directory. It need not exist.
///
/// Returns:
///     Pairs of the number in the directory's name and the `ShardIdentity`, by number. The identity
///     is None if the directory has no file `SHARD`: a process was killed while it made the fleet,
///     or the directory is no bank.
///
/// Raises:
///     Damaged: A file `SHARD` does not verify.
///     StoreIOError: A directory or file can't be read.
#[pyfunction]
pub(crate) fn list_shards(
    py: Python<'_>,
    directory: PathBuf,
) -> PyResult<Vec<(u32, Option<PyShardIdentity>)>> {
    let found = py.detach(|| fleet::list_shards(&directory));
    let found = found.map_err(|error| errors::to_python(py, &error))?;
    Ok(found.into_iter().map(|(shard, identity)| (shard, identity.map(PyShardIdentity))).collect())
}

/// Returns the directory of a shard's bank in a fleet's directory: `DIR/shard-00000`.
#[pyfunction]
pub(crate) fn shard_path(directory: PathBuf, shard: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let shard = scalars::unsigned("shard", shard, u64::from(fleet::BUCKETS) - 1)?;
    // At most `BUCKETS` - 1, so it fits.
    Ok(fleet::shard_path(&directory, shard as u32))
}
