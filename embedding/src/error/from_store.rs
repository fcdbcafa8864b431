//! Converts errors of the store to errors of the bank. An error keeps its fields and its message.

use embank_kv::Error as Of;

use crate::error::Error;

impl From<Of> for Error {
    fn from(error: Of) -> Self {
        match error {
            Of::Io { operation, path, source } => Self::Io { operation, path, source },
            Of::Truncated { path, offset, expected, found } => {
                Self::Truncated { path, offset, expected, found }
            }
            Of::Damaged { path, offset, what } => Self::Damaged { path, offset, what },
            Of::Locked { path, holders } => Self::Locked { path, holders },
            Of::DirectoryMoved { path, replaced } => Self::DirectoryMoved { path, replaced },
            Of::ReadOnly { path } => Self::ReadOnly { path },
            Of::BeingRead { path, checkpoint, readers } => {
                Self::BeingRead { path, checkpoint, readers }
            }
            Of::DeltaMismatch { path, what } => Self::DeltaMismatch { path, what },
            Of::BudgetTooSmall { budget_bytes, needed_bytes, what } => {
                Self::BudgetTooSmall { budget_bytes, needed_bytes, what }
            }
            Of::AddressSpaceRefused { bytes, source } => {
                Self::AddressSpaceRefused { bytes, source }
            }
            Of::ThreadRefused { thread, path, source } => {
                Self::ThreadRefused { thread, path, source }
            }
            Of::QuotaExceeded { quota_bytes, log_bytes, live_bytes, held_bytes, holders } => {
                Self::QuotaExceeded { quota_bytes, log_bytes, live_bytes, held_bytes, holders }
            }
            Of::DiskFull { path, reason } => Self::DiskFull { path, reason },
            Of::TooManyOpenFiles { operation, path, source } => {
                Self::TooManyOpenFiles { operation, path, source }
            }
            Of::Interrupted { waited } => Self::SpaceWaitInterrupted { waited },
            Of::NotABank { path, why } => Self::NotABank { path, why },
            Of::NoSuchCheckpoint { path, number, kept } => {
                Self::NoSuchCheckpoint { path, number, kept }
            }
            Of::CheckpointInUse { path, checkpoint, why } => {
                Self::CheckpointInUse { path, checkpoint, why }
            }
            Of::ChangedMeanwhile(what) => Self::ChangedMeanwhile(what),
            Of::InvalidOption { option, problem } => Self::InvalidOption { option, problem },
            Of::UnusableOutput { path, why } => Self::UnusableOutput { path, why },
            Of::WrongKind { of, why } => Self::WrongKind { of, why },
            Of::TooLong { what, bytes, bytes_max, limit } => {
                Self::TooLong { what, bytes, bytes_max, limit }
            }
            Of::Exhausted(what) => Self::Exhausted(what),
            Of::InvalidArgument(what) => Self::InvalidArgument(what),
            Of::TableMismatch { name, expected, found } => {
                Self::TableMismatch { name, expected, found }
            }
            Of::NoSuchTable(what) => Self::NoSuchTable(what),
            Of::Poisoned { reason } => Self::Poisoned { reason },
            Of::Inconsistent { what } => Self::Inconsistent { what },
            Of::DeviceUnavailable { device, reason } => Self::DeviceUnavailable { device, reason },
            other => Self::OfStore(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::time::Duration;

    use embank_kv::LockHolders;

    use super::*;

    fn of_the_store() -> Vec<Of> {
        let path = || PathBuf::from("bank");
        let text = || "text".to_owned();
        let source = || io::Error::other("refused");
        let holders = LockHolders::default;
        vec![
            Of::Io { operation: "read", path: path(), source: source() },
            Of::Truncated { path: path(), offset: 1, expected: 2, found: 3 },
            Of::Damaged { path: path(), offset: 1, what: text() },
            Of::Locked { path: path(), holders: holders() },
            Of::DirectoryMoved { path: path(), replaced: true },
            Of::DirectoryMoved { path: path(), replaced: false },
            Of::ReadOnly { path: path() },
            Of::BeingRead { path: path(), checkpoint: 4, readers: holders() },
            Of::DeltaMismatch { path: path(), what: text() },
            Of::BudgetTooSmall { budget_bytes: 1, needed_bytes: 2, what: text() },
            Of::AddressSpaceRefused { bytes: 1, source: source() },
            Of::ThreadRefused { thread: "writer", path: path(), source: source() },
            Of::QuotaExceeded {
                quota_bytes: 1,
                log_bytes: 2,
                live_bytes: 3,
                held_bytes: 4,
                holders: Vec::new(),
            },
            Of::DiskFull { path: path(), reason: text() },
            Of::TooManyOpenFiles { operation: "open", path: path(), source: source() },
            Of::Interrupted { waited: Duration::from_millis(5) },
            Of::NotABank { path: path(), why: text() },
            Of::NoSuchCheckpoint { path: path(), number: Some(3), kept: vec![1, 2] },
            Of::NoSuchCheckpoint { path: path(), number: None, kept: Vec::new() },
            Of::CheckpointInUse { path: path(), checkpoint: 4, why: "a delta has its number" },
            Of::ChangedMeanwhile(text()),
            Of::InvalidOption { option: "page_size_bytes", problem: text() },
            Of::UnusableOutput { path: path(), why: text() },
            Of::WrongKind { of: text(), why: text() },
            Of::TooLong { what: text(), bytes: 5, bytes_max: 4, limit: "a name may have" },
            Of::Exhausted(text()),
            Of::InvalidArgument(text()),
            Of::TableMismatch { name: text(), expected: text(), found: text() },
            Of::NoSuchTable(text()),
            Of::Poisoned { reason: text() },
            Of::Inconsistent { what: text() },
            Of::DeviceUnavailable { device: "io_uring", reason: text() },
        ]
    }

    #[test]
    fn the_stores_errors_keep_their_messages_and_get_names() {
        for error in of_the_store() {
            let message = error.to_string();
            let own = Error::from(error);
            assert_eq!(own.to_string(), message);
            assert!(!matches!(own, Error::OfStore(_)), "{message} has no name");
        }
    }
}
