//! The store's errors as Python exceptions.

use std::any::Any;
use std::ffi::CString;
use std::io;
use std::path::Path;

use embank::{Error, LockHolders, StoreError, Unsaved};
use pyo3::exceptions::{PyResourceWarning, PyRuntimeError, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::{IntoPyObjectExt, import_exception};

use crate::{signals, stats};

import_exception!(embank.errors, BadRow);
import_exception!(embank.errors, BudgetTooSmall);
import_exception!(embank.errors, Damaged);
import_exception!(embank.errors, DeltaMismatch);
import_exception!(embank.errors, DeviceUnavailable);
import_exception!(embank.errors, EmbankError);
import_exception!(embank.errors, FileMismatch);
import_exception!(embank.errors, LeaseExpired);
import_exception!(embank.errors, DirectoryMoved);
import_exception!(embank.errors, DiskFull);
import_exception!(embank.errors, Locked);
import_exception!(embank.errors, ReadOnly);
import_exception!(embank.errors, MissingRow);
import_exception!(embank.errors, NewerFormat);
import_exception!(embank.errors, NoSuchTable);
import_exception!(embank.errors, NoSuchVocabulary);
import_exception!(embank.errors, PipelineError);
import_exception!(embank.errors, PoisonedError);
import_exception!(embank.errors, QuotaExceeded);
import_exception!(embank.errors, SelfBlocked);
import_exception!(embank.errors, ShardMismatch);
import_exception!(embank.errors, SpecError);
import_exception!(embank.errors, StalenessTimeout);
import_exception!(embank.errors, StoreIOError);
import_exception!(embank.errors, TableMismatch);
import_exception!(embank.errors, UnknownValue);
import_exception!(embank.errors, UnreadableFile);
import_exception!(embank.errors, VocabularyMismatch);

/// Rust names that occur in messages, each with the Python name that replaces it. A name that is a
/// prefix of another name comes after that name.
const RUST_NAMES: [(&str, &str); 20] = [
    ("Missing::Initial", "missing=\"initial\""),
    ("Vocabulary::set_frozen", "vocabulary.frozen = False"),
    ("VocabularyConfig::counts", "counts=True"),
    ("Bank::vocabulary", "bank.vocabulary"),
    ("Bank::open_vocabulary", "bank.open_vocabulary"),
    ("Bank::drop_vocabulary", "bank.drop_vocabulary"),
    ("Vocabulary::verify", "`embank verify`"),
    ("Bank::open_table_unchecked", "`embank export`"),
    ("Tracking::SetTime", "tracking=\"set_time\""),
    ("DeviceChoice::Auto", "device=\"auto\""),
    ("set_frozen(false)", "vocabulary.frozen = False"),
    ("Pipeline::with_bank", "Pipeline(spec, bank=bank)"),
    ("Bank::checkpoint", "bank.checkpoint"),
    ("`bad_rows: skip`", "bad_rows=\"skip\""),
    ("`bad_rows_max: 1`", "bad_rows_max=1"),
    ("`format: csv`", "format=\"csv\""),
    ("`whole_floats: true`", "whole_floats=True"),
    ("(`whole_floats`)", "(whole_floats)"),
    ("(`none`)", "(header=\"none\")"),
    ("(`skip`)", "(header=\"skip\")"),
];

fn in_names_of_python(text: String) -> String {
    RUST_NAMES.iter().fold(text, |text, (rust, python)| text.replace(rust, python))
}

/// Rust names of operators, kinds of fields and dtypes of outputs that occur in messages about a
/// spec, each with its Python name.
const SPEC_NAMES: [(&str, &str); 26] = [
    ("Bits32", "\"bits32\""),
    ("Blob", "\"blob\""),
    ("Bucketize", "bucketize"),
    ("Bytes", "\"bytes\""),
    ("Clip", "clip"),
    ("Decode", "decode"),
    ("F32", "\"f32\""),
    ("File", "\"file\""),
    ("FillMissing", "fill_missing"),
    ("Float", "float_"),
    ("Float32", "\"float32\""),
    ("Hash", "hash_"),
    ("Hex2Int", "hex2int"),
    ("Hex32", "\"hex32\""),
    ("I32", "\"i32\""),
    ("I64", "\"i64\""),
    ("Image", "image"),
    ("Int32", "\"int32\""),
    ("Int64", "\"int64\""),
    ("Logarithm", "logarithm"),
    ("Modulus", "modulus"),
    ("Neg2Zero", "neg2zero"),
    ("Skip", "\"skip\""),
    ("U8", "\"u8\""),
    ("Uint64", "\"uint64\""),
    ("Vocabulary", "vocabulary"),
];

/// Returns a message about a spec with Python's names. Text in quotes comes from the user and stays
/// unchanged.
fn spec_in_names_of_python(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    let mut rest = text;
    let mut quoted = false;
    // The loop ends: each round takes one character or one word off the rest.
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = if quoted && first == '\\' {
            // Takes the backslash and the character after it together: an escaped quote ends no
            // text.
            1 + rest.chars().nth(1).map_or(0, char::len_utf8)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            quoted ^= first == '"';
            first.len_utf8()
        };
        let (word, after) = rest.split_at(length);
        let name = SPEC_NAMES.iter().find(|(rust, _)| !quoted && *rust == word);
        all.push_str(name.map_or(word, |(_, python)| python));
        rest = after;
    }
    all
}

/// Returns the exception for `error`. Its attributes are those that the exception class documents.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let text = in_names_of_python(error.to_string());
    match error {
        Error::Store(cause) | Error::LookaheadFailed(cause) => store_to_python(py, cause, text),
        Error::StalenessTimeout { .. } | Error::SelfBlocked { .. } | Error::LeaseExpired { .. } => {
            lease_to_python(py, error, text)
        }
        Error::Interrupted { .. } => signals::take_raised(text),
        Error::MissingRow { table, key, count } => with_attributes(
            py,
            MissingRow::new_err(text),
            [
                ("table", table.into_py_any(py)),
                ("key", key.into_py_any(py)),
                ("count", count.into_py_any(py)),
            ],
        ),
        Error::TableDropped { .. } => NoSuchTable::new_err(text),
        Error::UnreadableFile { path, .. } => with_attributes(
            py,
            UnreadableFile::new_err(text),
            [("path", path.to_string_lossy().into_py_any(py))],
        ),
        Error::FileMismatch { path, .. } => with_attributes(
            py,
            FileMismatch::new_err(text),
            [("path", path.to_string_lossy().into_py_any(py))],
        ),
        Error::ShardMismatch { path, found, expected, .. } => with_attributes(
            py,
            ShardMismatch::new_err(text),
            [
                ("path", path.to_string_lossy().into_py_any(py)),
                ("found", found.into_py_any(py)),
                ("expected", expected.into_py_any(py)),
            ],
        ),
        Error::ConfigMismatch { .. } | Error::OtherVocabulary { .. } => {
            TableMismatch::new_err(text)
        }
        Error::NoSuchVocabulary { vocabulary } => NoSuchVocabulary::new_err(format!(
            "there is no vocabulary {vocabulary:?} in this bank: make it first, with bank.vocabulary({vocabulary:?}, \
             \"bytes\", first_id=1, unknown_id=0) or by Pipeline(spec, bank=bank)"
        )),
        Error::VocabularyDropped { .. } => NoSuchVocabulary::new_err(text),
        Error::VocabularyMismatch { .. } => VocabularyMismatch::new_err(text),
        Error::UnknownValue { .. } | Error::UnknownId { .. } | Error::KeyIsNoId { .. } => {
            UnknownValue::new_err(text)
        }
        Error::InvalidConfig { .. }
        | Error::InvalidVocabulary { .. }
        | Error::ValueTooLong { .. }
        | Error::NoCounts { .. }
        | Error::VocabularyFrozen { .. }
        | Error::BadBags { .. }
        | Error::ShapeMismatch { .. }
        | Error::NoOptimizer { .. }
        | Error::NonFiniteGradient { .. }
        | Error::NonFiniteRow { .. }
        | Error::RowOverflow { .. }
        | Error::LengthMismatch { .. }
        | Error::NotDense { .. } => PyValueError::new_err(text),
        _ => EmbankError::new_err(text),
    }
}

/// The exception for an error of leases and staleness bounds.
fn lease_to_python(py: Python<'_>, error: &Error, text: String) -> PyErr {
    match error {
        Error::StalenessTimeout { table, key, outstanding, bound, waited, .. } => with_attributes(
            py,
            StalenessTimeout::new_err(text),
            [
                ("table", table.into_py_any(py)),
                ("key", key.into_py_any(py)),
                ("outstanding", outstanding.into_py_any(py)),
                ("bound", bound.into_py_any(py)),
                ("waited_seconds", waited.as_secs_f64().into_py_any(py)),
            ],
        ),
        Error::SelfBlocked { table, key, held, bound, .. } => with_attributes(
            py,
            SelfBlocked::new_err(text),
            [
                ("table", table.into_py_any(py)),
                ("key", key.into_py_any(py)),
                ("held", held.into_py_any(py)),
                ("outstanding", held.into_py_any(py)),
                ("bound", bound.into_py_any(py)),
                ("waited_seconds", 0.0.into_py_any(py)),
            ],
        ),
        Error::LeaseExpired { table, keys, age, .. } => with_attributes(
            py,
            LeaseExpired::new_err(text),
            [
                ("table", table.into_py_any(py)),
                ("keys", keys.into_py_any(py)),
                ("age_seconds", age.as_secs_f64().into_py_any(py)),
            ],
        ),
        _ => EmbankError::new_err(text),
    }
}

fn bad_row(py: Python<'_>, text: String, report: &embank_pipeline::BadRowReport) -> PyErr {
    with_attributes(
        py,
        BadRow::new_err(text),
        [
            ("input", report.input.as_str().into_py_any(py)),
            ("line", report.line.into_py_any(py)),
            ("lines", report.lines.into_py_any(py)),
            ("column", report.column.into_py_any(py)),
        ],
    )
}

/// The exception for a pipeline's error.
pub(crate) fn pipeline_to_python(py: Python<'_>, error: &embank_pipeline::Error) -> PyErr {
    use embank_pipeline::Error;
    let text = in_names_of_python(error.to_string());
    match error {
        Error::Spec(_) => SpecError::new_err(spec_in_names_of_python(&text)),
        Error::Inputs(_) | Error::OtherInputs { .. } => SpecError::new_err(text),
        Error::Bank(error) => to_python(py, error),
        Error::UnknownValue { .. } => UnknownValue::new_err(text),
        Error::ValueTooLong { .. } => PyValueError::new_err(text),
        Error::BadRow(report) => bad_row(py, text, report),
        Error::TooManyBadRows { first, .. } if !first.is_empty() => bad_row(py, text, &first[0]),
        Error::Io { path, source, .. } => {
            io_error(source, text, Some(path.to_string_lossy().into_owned()))
        }
        Error::ThreadRefused { source, .. } => io_error(source, text, None),
        _ => PipelineError::new_err(text),
    }
}

/// The exception for an error of the store, with the message `text`.
fn store_to_python(py: Python<'_>, error: &StoreError, text: String) -> PyErr {
    match error {
        StoreError::Io { path, source, .. } | StoreError::TooManyOpenFiles { path, source, .. } => {
            io_error(source, text, Some(path.to_string_lossy().into_owned()))
        }
        StoreError::DiskFull { path, .. } => {
            let path = path.to_string_lossy().into_owned();
            DiskFull::new_err((rustix::io::Errno::NOSPC.raw_os_error(), text, path))
        }
        StoreError::AddressSpaceRefused { source, .. }
        | StoreError::ThreadRefused { source, .. } => io_error(source, text, None),
        StoreError::Truncated { path, offset, .. } | StoreError::Damaged { path, offset, .. } => {
            with_attributes(
                py,
                Damaged::new_err(text),
                [
                    ("path", path.to_string_lossy().into_py_any(py)),
                    ("offset", offset.into_py_any(py)),
                ],
            )
        }
        StoreError::NewerFormat { path, found, oldest, newest, .. } => with_attributes(
            py,
            NewerFormat::new_err(text),
            [
                ("path", path.to_string_lossy().into_py_any(py)),
                ("found", found.into_py_any(py)),
                ("oldest", oldest.into_py_any(py)),
                ("newest", newest.into_py_any(py)),
            ],
        ),
        StoreError::DirectoryMoved { path, replaced } => with_attributes(
            py,
            DirectoryMoved::new_err(text),
            [
                ("path", path.to_string_lossy().into_py_any(py)),
                ("replaced", replaced.into_py_any(py)),
            ],
        ),
        StoreError::Locked { path, holders } => Locked::new_err(locked(path, holders)),
        StoreError::ReadOnly { .. } => ReadOnly::new_err(text),
        StoreError::BudgetTooSmall { budget_bytes, needed_bytes, .. } => with_attributes(
            py,
            BudgetTooSmall::new_err(match budget_bytes {
                // A user who passes a number this small probably means MiB or GiB.
                0..65_536 => format!(
                    "{text}; memory_budget counts bytes: write \"{budget_bytes}MiB\" for {budget_bytes} MiB"
                ),
                _ => text,
            }),
            [
                ("budget_bytes", budget_bytes.into_py_any(py)),
                ("needed_bytes", needed_bytes.into_py_any(py)),
            ],
        ),
        StoreError::QuotaExceeded { quota_bytes, log_bytes, live_bytes, held_bytes, holders } => {
            with_attributes(
                py,
                QuotaExceeded::new_err(text),
                [
                    ("quota_bytes", quota_bytes.into_py_any(py)),
                    ("log_bytes", log_bytes.into_py_any(py)),
                    ("live_bytes", live_bytes.into_py_any(py)),
                    ("held_bytes", held_bytes.into_py_any(py)),
                    ("space_holders", stats::space_holders(py, holders)),
                ],
            )
        }
        StoreError::Interrupted { .. } => signals::take_raised(text),
        StoreError::NotABank { .. }
        | StoreError::NoSuchCheckpoint { .. }
        | StoreError::CheckpointInUse { .. }
        | StoreError::ChangedMeanwhile(_)
        | StoreError::InvalidOption { .. }
        | StoreError::UnusableOutput { .. }
        | StoreError::WrongKind { .. }
        | StoreError::TooLong { .. }
        | StoreError::Exhausted(_)
        | StoreError::InvalidArgument(_) => PyValueError::new_err(text),
        StoreError::TableMismatch { .. } => TableMismatch::new_err(text),
        StoreError::NoSuchTable(_) => NoSuchTable::new_err(text),
        StoreError::Poisoned { .. } => PoisonedError::new_err(text),
        StoreError::DeltaMismatch { .. } => DeltaMismatch::new_err(text),
        StoreError::DeviceUnavailable { .. } => DeviceUnavailable::new_err(text),
        _ => EmbankError::new_err(text),
    }
}

/// A `StoreIOError`. An `OSError` takes (errno, text, file name), and its `str()` shows all three.
fn io_error(source: &io::Error, text: String, path: Option<String>) -> PyErr {
    match (source.raw_os_error(), path) {
        (Some(errno), Some(path)) => StoreIOError::new_err((errno, text, path)),
        (Some(errno), None) => StoreIOError::new_err((errno, text)),
        (None, _) => StoreIOError::new_err(text),
    }
}

fn with_attributes<const N: usize>(
    py: Python<'_>,
    error: PyErr,
    attributes: [(&str, PyResult<Py<PyAny>>); N],
) -> PyErr {
    for (name, value) in attributes {
        if let Err(failure) = value.and_then(|value| error.value(py).setattr(name, value)) {
            return failure;
        }
    }
    error
}

/// The exception for a panic of the store, which is a bug of Embank. Python never sees a panic.
pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> PyErr {
    let what = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    EmbankError::new_err(format!(
        "a bug in Embank, please report it: {what}; reopen the bank from its last checkpoint"
    ))
}

/// Warns of changes that were lost when the bank at `path` closed. Fails if Python turns the
/// warning into an error.
pub(crate) fn warn_unsaved(py: Python<'_>, path: &Path, unsaved: Unsaved) -> PyResult<()> {
    let text = format!(
        "{}, or close it with close(checkpoint=...); a run that embank.torch.resume continues needs embank.torch.save",
        unsaved.describe(path)
    );
    // The text has no NUL, because a path has none.
    let text = CString::new(text).unwrap_or_default();
    PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1)
}

/// Shows a `UserWarning` at the caller's line. Fails if Python turns the warning into an error.
pub(crate) fn warn_user(py: Python<'_>, text: &str) -> PyResult<()> {
    // The texts have no NUL.
    let text = CString::new(text).unwrap_or_default();
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)
}

/// The exception for a call on a table or vocabulary that the checkpoint of a roll back does not
/// have.
pub(crate) fn not_in_checkpoint() -> PyErr {
    NoSuchTable::new_err(
        "the bank was taken back to a checkpoint that does not have this table or vocabulary: create it again",
    )
}

/// The exception for a call on a bank after its `close()`.
pub(crate) fn bank_closed() -> PyErr {
    PyValueError::new_err("bank is closed")
}

/// The text of `Locked`. If this process holds the bank, names what may still refer to it, because
/// `del bank` does not close a bank to which another object refers.
fn locked(path: &Path, holders: &LockHolders) -> String {
    let here = std::process::id();
    let may_be_here = holders.0.is_empty() || holders.0.iter().any(|of| of.process == here);
    if !may_be_here {
        return format!(
            "bank {path:?} is open for writing in {holders}. Close it there, or open it here with read_only=True."
        );
    }
    format!(
        "bank {path:?} is open for writing in {holders}: a Bank object of it is not closed. Call bank.close() on it, or \
         open it as `with embank.Bank(...) as bank:`. `del bank` closes it only if no other object refers to it: a \
         table, a module or an optimizer that has the table, a lease, a vocabulary, a pipeline, the traceback of an \
         exception (sys.last_traceback), or a reference cycle until gc.collect(). Or open it here with read_only=True."
    )
}

/// The exception for `close()` inside a call on the bank. `close()` would wait for this call, and
/// the call for `close()`.
pub(crate) fn closed_within_call() -> PyErr {
    PyRuntimeError::new_err(
        "close() was called inside another call on this bank, as by a progress function: close it when that call has \
         returned; what the function raises ends the call",
    )
}

/// The exception for a call in a forked child on a bank of the parent.
pub(crate) fn forked(opened_in: u32, here: u32) -> PyErr {
    PyRuntimeError::new_err(format!(
        "this bank was opened in process {opened_in} and does not survive the fork into process \
         {here}: open it here with read_only=True while that process has it open for writing, or start \
         processes with the \"spawn\" method and give each a bank of its own"
    ))
}
