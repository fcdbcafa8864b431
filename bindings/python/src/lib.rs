//! The extension module `embank._embank`: Embank's banks, tables and pipelines for Python.
//!
//! This crate turns Python objects into arguments of the crates `embank` and `embank-pipeline` and
//! their results into Python objects. It decides nothing else, with two exceptions that a language
//! with exceptions and a garbage collector asks for: a bank can be closed while tables and leases
//! of it are alive (`cell`), and a forked child is kept off its parent's bank.
//!
//! # Arrays and the GIL
//!
//! Every call into the store runs with the GIL released, so other Python threads run meanwhile.
//! Three rules keep that sound:
//!
//! - Rows go out into an array that this crate has just allocated and that no Python code has seen;
//!   it is handed over when the store is done.
//! - Keys, rows and gradients that come in are borrowed where they are C-contiguous, aligned and of
//!   the right dtype, and converted once otherwise. The borrow is registered with rust-numpy, so no
//!   extension built on it can take the same memory for writing.
//! - Python code in another thread could still write to such an array, as it could during any NumPy
//!   call that releases the GIL. The package's documentation forbids it. The store reads each
//!   element through bounds-checked safe code, so the damage is a wrong row, not wild memory.
//!
//! There is no `unsafe` in this crate but for one block, where memory goes to libraries of Arrow
//! (`pipeline::arrow`).
#![deny(unsafe_code)]

mod arrays;
mod bank;
mod cell;
mod checkpoints;
mod errors;
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
    use crate::checkpoints::{
        apply_delta, checkpoint_id, copy_checkpoint, export_delta, list_checkpoints, roll_back,
    };
    #[pymodule_export]
    use crate::lease::{PyDistinctLease, PyLease};
    #[pymodule_export]
    use crate::pipeline::PyPipeline;
    #[pymodule_export]
    use crate::pipeline::arrow::PyArrowBatch;
    #[pymodule_export]
    use crate::pipeline::feed::PyFeed;
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
    use crate::table::many::{apply_many, get_many};
    #[pymodule_export]
    use crate::table::prefetch::PyPrefetch;
    #[pymodule_export]
    use crate::table::scan::PyScan;
    #[pymodule_export]
    use crate::vocabulary::PyVocabulary;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::signals::handle_while_waiting();
        crate::settings::add_optimizers(module)
    }
}
