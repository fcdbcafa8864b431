//! How a bank is opened.

use std::path::PathBuf;
use std::sync::Arc;

use embank::locks::Mutex;
use embank::{BankOptions, ColdTier, CompactionOptions, DeviceChoice};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::recovered::PyRecovered;
use super::{Position, PyBank};
use crate::cell::BankCell;
use crate::{errors, scalars};

// The signature below repeats the default of `wait_timeout` as a number, because `help()` and the
// type stub show the text of the signature.
const _: () = assert!(embank::WAIT_TIMEOUT_DEFAULT.as_millis() == 60_000, "wait_timeout = 60.0");

#[pymethods]
impl PyBank {
    #[new]
    #[pyo3(signature = (
        path, *, memory_budget = None, device = "auto", checkpoints_kept = None, wait_timeout = 60.0,
        lease_timeout = None, compaction = None, space_amplification_target = 1.4, compaction_throttle = None,
        disk_quota = None, read_only = false, checkpoint = None, create = true, threads = None,
        cold_tier = "never"
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        memory_budget: Option<&Bound<'_, PyAny>>,
        device: &str,
        checkpoints_kept: Option<&Bound<'_, PyAny>>,
        wait_timeout: f64,
        lease_timeout: Option<f64>,
        compaction: Option<bool>,
        space_amplification_target: f64,
        compaction_throttle: Option<&Bound<'_, PyAny>>,
        disk_quota: Option<&Bound<'_, PyAny>>,
        read_only: bool,
        checkpoint: Option<&Bound<'_, PyAny>>,
        create: bool,
        threads: Option<&Bound<'_, PyAny>>,
        cold_tier: &str,
    ) -> PyResult<Self> {
        let mut options = BankOptions { create, ..BankOptions::default() };
        if let Some(budget) = memory_budget {
            options.memory_budget_bytes = scalars::size_bytes("memory_budget", budget)?;
        }
        if let Some(kept) = checkpoints_kept {
            options.checkpoints_kept = scalars::unsigned_32("checkpoints_kept", kept)? as usize;
        }
        if let Some(threads) = threads {
            options.threads = scalars::unsigned_32("threads", threads)? as usize;
            if options.threads == 0 {
                return Err(PyValueError::new_err("threads must be 1 or more"));
            }
        }
        options.device = device_choice(device)?;
        options.wait_timeout = scalars::seconds("wait_timeout", wait_timeout)?;
        options.lease_timeout =
            lease_timeout.map(|seconds| scalars::seconds("lease_timeout", seconds)).transpose()?;
        options.compaction = CompactionOptions {
            background: compaction.unwrap_or(disk_quota.is_some()),
            space_amplification_target,
            throttle_bytes_per_s: compaction_throttle.map(throttle).transpose()?,
        };
        options.cold_tier = cold_tier_choice(cold_tier, compaction)?;
        options.disk_quota_bytes =
            disk_quota.map(|quota| scalars::size_bytes("disk_quota", quota)).transpose()?;
        let number = checkpoint
            .map(|number| scalars::unsigned("checkpoint", number, u64::MAX))
            .transpose()?;
        if number.is_some() && !read_only {
            return Err(PyValueError::new_err(
                "checkpoint goes with read_only=True: for writing, a bank opens at its newest checkpoint",
            ));
        }
        // The warning comes before the bank is created, because Python may turn it into an error.
        if let Some(warning) = embank::memory_budget_warning(options.memory_budget_bytes) {
            errors::warn_user(py, &warning)?;
        }
        Self::open(py, path, options, if read_only { Access::Read(number) } else { Access::Write })
    }
}

/// How a bank is opened.
#[derive(Clone, Copy)]
enum Access {
    Write,
    /// Without writing, at the checkpoint with this number, or at the newest one.
    Read(Option<u64>),
}

impl PyBank {
    fn open(py: Python<'_>, path: PathBuf, options: BankOptions, access: Access) -> PyResult<Self> {
        let options_kept = matches!(access, Access::Write).then(|| options.clone());
        let opened = py.detach(|| match access {
            Access::Write => embank::Bank::open(path, options),
            Access::Read(checkpoint) => embank::Bank::open_read_only(path, options, checkpoint),
        });
        let bank = opened.map_err(|error| errors::to_python(py, &error))?;
        let reading = bank.reading();
        let found = reading.as_deref().or(bank.recovered());
        let recovered = PyRecovered::of(py, found)?;
        let checkpoint = found.map(|found| found.checkpoint);
        Ok(Self {
            cell: Arc::new(BankCell::new(bank)),
            recovered: Mutex::new(recovered),
            position: Mutex::new(Position { checkpoint, changed: 0 }),
            options: options_kept,
        })
    }
}

fn throttle(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    match scalars::size_bytes("compaction_throttle", value)? {
        0 => Err(PyValueError::new_err(
            "compaction_throttle must be 1 byte a second or more; compaction=False turns it off",
        )),
        bytes_per_s => Ok(bytes_per_s),
    }
}

/// Returns when rows move to the cold tier. A program that asks for no compaction gets no thread
/// for it.
fn cold_tier_choice(name: &str, compaction: Option<bool>) -> PyResult<ColdTier> {
    match name {
        "auto" if compaction == Some(false) => Ok(ColdTier::OnCompact),
        "auto" => Ok(ColdTier::Auto),
        "never" => Ok(ColdTier::Never),
        _ => Err(PyValueError::new_err(format!(
            "cold_tier must be \"auto\" or \"never\", not {name:?}"
        ))),
    }
}

fn device_choice(name: &str) -> PyResult<DeviceChoice> {
    match name {
        "auto" => Ok(DeviceChoice::Auto),
        "io_uring" => Ok(DeviceChoice::IoUring),
        "threads" => Ok(DeviceChoice::Threads),
        _ => Err(PyValueError::new_err(format!(
            "device must be \"auto\", \"io_uring\" or \"threads\", not {name:?}"
        ))),
    }
}
