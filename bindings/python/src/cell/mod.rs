//! The open bank behind the Python objects, and how it closes.
//!
//! A Rust bank closes when its last handle is dropped, and tables and leases are handles. Python
//! objects live until the garbage collector or a traceback releases them, and `close()` must not
//! wait for that. So a Python object has no handle. It has a share of a [`BankCell`], which owns
//! all handles.
//!
//! Closing takes the handles out of the cell: first the leases, then the tables, then the bank.
//! A queue of gets ahead ends in between, and with it the waits for its gets.
//! Dropping a lease lowers the staleness clocks of its rows, and a get that waits for the lease
//! wakes up. A call of another thread that is in the store has cloned its handle and finishes.
//! `close` waits for such calls, so the bank's files are closed when it returns. The wait ends,
//! because a get waits at most for its timeout.
//!
//! A pipeline on a bank gives out ids of the bank's vocabularies. It has its own handles and
//! threads. The cell knows the pipelines as dependents. Closing ends their runs and feeds and drops
//! the pipelines before it takes the cell's handles.
//!
//! Invariants: while `state` is locked, no handle is dropped, because a drop may write, and no
//! thread takes the GIL.
//!
//! A child made by `fork` shares the parent's files but has no thread of the parent. In a child the
//! cell answers every call with an error and leaks its handles: a drop would write to the parent's
//! files and wait for threads that do not exist. The cell checks the process id before it takes the
//! lock, because another thread of the parent may have held the lock at the fork.

mod bank_cell;
mod dependents;
mod handles;
mod leases;
mod roll_back;
mod tables;

pub(crate) use bank_cell::{BankCell, decoding, detached, ended};
pub(crate) use dependents::{Attached, EndsWithBank};
pub(crate) use handles::{
    AheadQueueId, DependentId, LeaseId, PendingId, PrefetchId, ScanId, VocabularyId,
};
pub(crate) use leases::lease_of_another_table;
pub(crate) use tables::TableKey;
