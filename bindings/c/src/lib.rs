//! The C ABI: banks and tables for C, C++ and languages that can call C.
//!
//! This crate turns pointers and lengths into arguments of the crate `embank`, and its results into
//! status codes. C needs four rules that Rust does not, and this crate adds them:
//!
//! - A lease or a get ahead that has ended stays a valid handle that returns an error, because C
//!   has no types that a call could consume (`lease`, `ahead`).
//! - A panic becomes a status, because unwinding into C is undefined (`status`).
//! - A thread can't be cancelled (`pthread_cancel`) during a call (`cancellation`).
//! - A child process made by `fork` cannot use the handles of its parent: every call on such a
//!   handle returns an error (`handle`).
//!
//! cbindgen makes `include/embank.h` from these sources and their doc comments, so the doc comments
//! address a C programmer. The rules that hold for all functions stand in `cbindgen.toml`, which
//! cbindgen copies to the top of the header. The header is checked in, and `tests/header.rs`
//! compares it with the sources.
//!
//! Where to look:
//!
//! - `bank.rs`, `table.rs`, `request.rs`, `ahead.rs`, `lease.rs`, `scan.rs`, `vocabulary.rs`:
//!   functions on handles.
//! - `options.rs`, `settings.rs`, `optimizer.rs`, `initializer.rs`, `dtype.rs`, `admission.rs`:
//!   structs and enums of settings.
//! - `eviction.rs`, `files.rs`, `checkpoints.rs`, `stats.rs`, `counters.rs`: eviction, export and
//!   import, checkpoints of a bank that is not open, counters.
//! - `handle.rs`, `memory.rs`, `sized.rs`, `callbacks.rs`, `bytes.rs`: handles, the caller's
//!   memory, structs that grow, callbacks, results of any length.
//! - `cancellation.rs`: keeps `pthread_cancel` away from calls.
//! - `status.rs`, `refusals.rs`: status codes and messages.
//!
//! # What may grow
//!
//! Three additions break no program: a new function, a new number of an enum, and a new field at
//! the end of a struct with a `size`. The library copies only the fields that both the program and
//! the library know (`sized`). The structs of optimizers and initializers are fields of other
//! structs and cannot grow, so they have unused elements for later numbers.
//!
//! # Safety
//!
//! Every exported function relies on the rules at the top of `embank.h`. The SAFETY comments of
//! this crate call them "the rules of embank.h":
//!
//! - A handle is null or *live*: a function of this library returned it, and the caller frees it
//!   only after the last call on it has returned.
//! - Another pointer is null or *valid until the call returns*: it points to a value of its type,
//!   or to as many values as the length beside it says. No other code changes the values
//!   meanwhile. For a result, no other code reads them either. Text ends with a NUL.
//! - A callback is null or a function of its type that returns.
//!
//! The functions check everything else. Structs and buffers may hold any bits, because no type that
//! the caller passes has invalid values.
#![expect(non_camel_case_types, reason = "types have the names that C sees")]
#![expect(unreachable_pub, reason = "C reaches them; cbindgen takes what is `pub`")]

mod admission;
mod ahead;
mod bags;
mod bank;
mod bytes;
mod callbacks;
mod cancellation;
mod checkpoints;
mod counters;
mod dtype;
mod eviction;
mod files;
mod handle;
mod initializer;
mod lease;
mod memory;
mod optimizer;
mod options;
mod refusals;
mod request;
mod scan;
mod settings;
mod sized;
mod stats;
mod status;
mod table;
mod vocabulary;
