//! The open bank behind the Python objects, and how it closes.
//!
//! A Rust bank closes when its last handle goes, and tables and leases are handles. In Python those
//! live until the garbage collector or a traceback lets them go, so `close()` must not wait for
//! them: the Python objects hold no handle but a share of one [`BankCell`], which owns them all.
//! Closing takes them out of the cell: leases first (their counts return, and a get that waits for
//! one wakes up), then tables, then the bank. What other threads are doing in the store right now
//! goes on to its end, because they cloned their handle; `close` waits for them, so the bank's
//! files are closed when it returns. That wait ends, because a get waits no longer than its
//! timeout.
//!
//! Pipelines number in a bank's vocabularies with handles of their own, in threads of their own.
//! The cell knows them as dependents, and closing comes to those first: it ends runs and feeds and
//! drops the pipelines.
//!
//! Invariants: no handle is dropped while `state` is locked (a drop may write), and the GIL is
//! never taken while it is.
//!
//! A child made by `fork` shares the parent's files but has none of its threads. There the cell
//! answers every call with an error and lets its handles leak: dropping them would write to the
//! parent's files and wait for threads that do not exist. The process id is looked at before the
//! lock, which another thread may have held at the fork.

mod bank_cell;
mod dependents;
mod handles;
mod leases;
mod roll_back;
mod tables;

pub(crate) use bank_cell::{BankCell, detached};
pub(crate) use dependents::{Attached, EndsWithBank};
pub(crate) use handles::{DependentId, LeaseId, PrefetchId, ScanId, VocabularyId};
pub(crate) use leases::lease_of_another_table;
pub(crate) use tables::TableKey;
