//! The extension module `embank._embank`: Embank's banks, tables and pipelines for Python.
//!
//! This crate turns Python objects into arguments of the crates `embank` and `embank-pipeline`, and
//! the results of these crates into Python objects. It adds two rules that Python needs. A bank can
//! be closed while its tables and leases are alive (`cell`). A call on a bank fails in a forked
//! child of the process that opened the bank.
//!
//! # Arrays and the GIL
//!
//! Every call into the store runs with the GIL released, so that other Python threads run. Three
//! rules keep that sound:
//!
//! - The store writes rows into a fresh array, which no Python code sees until the call ends, or
//!   into the caller's `out`, which rust-numpy has borrowed for writing.
//! - Keys, rows and gradients are borrowed if the array is C-contiguous, aligned and of the right
//!   dtype. Otherwise they are converted once. The borrow is registered with rust-numpy, so no
//!   extension that uses it can borrow the memory for writing.
//! - Python code in another thread could still write to a borrowed array, as it could during any
//!   NumPy call that releases the GIL. The package's documentation forbids that. The store reads
//!   each element through bounds-checked safe code, so such a write makes a wrong row, not invalid
//!   memory access.
//!
//! The only two `unsafe` blocks of this crate show memory to other libraries in place:
//! `pipeline::array_memory` to NumPy, and `pipeline::arrow` to libraries of Arrow.
//!
//! Where to look:
//!
//! - `bank/`, `table/`, `lease.rs`, `vocabulary.rs`, `pipeline/`: the classes of these names.
//! - `settings/`: optimizers, initializers, dtypes and other settings of a table.
//! - `fleet/`: the files and the routing of a fleet's shards.
//! - `checkpoints.rs`: functions on the checkpoints of a bank that is not open.
//! - `copies.rs`: copies and pickles of objects of a bank.
//! - `cell/`: the handles behind the Python objects, and how a bank closes.
//! - `arrays.rs`, `scalars.rs`: arguments from NumPy arrays, integers and sizes.
//! - `errors.rs`: the Python exception for each error.
//! - `signals.rs`, `stats.rs`: Ctrl-C during waits, and counters as dictionaries.
#![deny(unsafe_code)]

mod arrays;
mod bank;
mod cell;
mod checkpoints;
mod copies;
mod errors;
mod fleet;
mod lease;
mod pipeline;
mod scalars;
mod settings;
mod signals;
mod stats;
mod table;
mod vocabulary;

use pyo3::prelude::*;

/// The compiled half of the package `embank`.
#[pymodule]
mod _embank {
    use pyo3::prelude::{Bound, PyModule, PyResult};

    #[pymodule_export]
    use crate::bank::PyBank;
    #[pymodule_export]
    use crate::bank::auto_depth::PyAutoDepth;
    #[pymodule_export]
    use crate::bank::recovered::PyRecovered;
    #[pymodule_export]
    use crate::bank::stats::prometheus;
    #[pymodule_export]
    use crate::bank::tables::table_handles;
    #[pymodule_export]
    use crate::checkpoints::{
        apply_delta, checkpoint_id, copy_checkpoint, export_delta, list_checkpoints, roll_back,
    };
    #[pymodule_export]
    use crate::fleet::exchange::{place_rows, route_keys, sum_rows, take_rows};
    #[pymodule_export]
    use crate::fleet::shard::{PyFleetPlan, PyFleetSet, PyShard, plan_fleet};
    #[pymodule_export]
    use crate::fleet::{PyShardIdentity, list_shards, shard_path};
    #[pymodule_export]
    use crate::lease::PyLease;
    #[pymodule_export]
    use crate::pipeline::PyPipeline;
    #[pymodule_export]
    use crate::pipeline::arrow::PyArrowBatch;
    #[pymodule_export]
    use crate::pipeline::decoders::end_feeds_with_callables;
    #[pymodule_export]
    use crate::pipeline::feed::PyFeed;
    #[pymodule_export]
    use crate::pipeline::parts::{PyPartPipeline, split_files};
    #[pymodule_export]
    use crate::pipeline::report::PyRunReport;
    #[pymodule_export]
    use crate::settings::{
        PyConstant, PyNormal, PyTruncatedNormal, PyUniform, PyXavierNormal, PyXavierUniform,
        PyZeros,
    };
    #[pymodule_export]
    use crate::table::PyTable;
    #[pymodule_export]
    use crate::table::ahead::{PyAheadQueue, PyPending};
    #[pymodule_export]
    use crate::table::gets::{get_bags_many, get_many};
    #[pymodule_export]
    use crate::table::prefetch::PyPrefetch;
    #[pymodule_export]
    use crate::table::scan::PyScan;
    #[pymodule_export]
    use crate::table::writing::apply_many;
    #[pymodule_export]
    use crate::vocabulary::PyVocabulary;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::arrays::load_numpy(module.py())?;
        crate::signals::handle_while_waiting();
        crate::settings::add_optimizers(module)
    }
}
