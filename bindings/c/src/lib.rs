//! The C ABI: banks and tables for C, C++ and languages that can call C.
//!
//! This crate turns pointers and lengths into arguments of the crate `embank`, and its results into
//! status codes. The crate adds three rules that C needs:
//!
//! - A lease that has ended stays a valid handle that returns an error, because C has no types that
//!   a call could consume (`lease`).
//! - A panic becomes a status, because unwinding into C is undefined (`status`).
//! - A forked child is refused its parent's bank (`handle`).
//!
//! `include/embank.h` is made from these sources and their doc comments, so the doc comments
//! address a C programmer. The rules that hold for all functions stand in `cbindgen.toml`. The
//! header is checked in, and `tests/header.rs` compares it with the sources.
//!
//! Where to look:
//!
//! - `bank.rs`, `table.rs`, `lease.rs`, `scan.rs`, `vocabulary.rs`: functions on handles.
//! - `options.rs`, `settings.rs`, `optimizer.rs`, `initializer.rs`, `dtype.rs`, `admission.rs`:
//!   structs and enums of settings.
//! - `eviction.rs`, `files.rs`, `checkpoints.rs`, `stats.rs`, `counters.rs`: eviction, export and
//!   import, checkpoints of a bank that is not open, counters.
//! - `handle.rs`, `memory.rs`, `sized.rs`, `callbacks.rs`, `bytes.rs`: handles, the caller's
//!   memory, structs that grow, callbacks, results of any length.
//! - `status.rs`, `refusals.rs`: status codes and messages.
//!
//! # What may grow
//!
//! A new function, a new number of an enum and a new field at the end of a struct with a `size`
//! break no program: the library copies the fields that both sides know (`sized`). The structs of
//! optimizers and initializers, which are fields of other structs, have spare room instead.
//!
//! # Safety
//!
//! The header's preamble states what every exported function relies on. A pointer is null or points
//! to a value of its type, which no other code changes until the call returns. A `..._len` is no
//! larger than the buffer. Text ends with a NUL. A handle came from this library and has not been
//! freed. A callback is a function of its type that returns. "The header's rules" in a SAFETY
//! comment means these rules; the functions check everything else. Structs and slices may hold any
//! bits, because the types that come in have no invalid values.
#![expect(non_camel_case_types, reason = "types have the names that C sees")]
#![expect(unreachable_pub, reason = "C reaches them; cbindgen takes what is `pub`")]

mod admission;
mod bags;
mod bank;
mod bytes;
mod callbacks;
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
mod scan;
mod settings;
mod sized;
mod stats;
mod status;
mod table;
mod vocabulary;
