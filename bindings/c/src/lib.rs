//! The C ABI: banks and tables for C, C++ and whatever speaks to C.
//!
//! This crate turns pointers and lengths into arguments of the crate `embank`, and its results into status
//! codes. It decides nothing else, with three exceptions that C asks for:
//!
//! - A lease that has ended stays a valid handle that says so, because C has no types that a call could consume
//!   (`lease`).
//! - A panic becomes a status, because unwinding into C is undefined (`status`).
//! - A forked child is kept off its parent's bank (`handle`).
//!
//! `include/embank.h` is made from these sources, comments included, so the comments speak to C; what they all have in
//! common stands in `cbindgen.toml`. It is checked in, and `tests/header.rs` holds it against the sources.
//!
//! # What may grow
//!
//! A new function, a new number of an enum and a new field at the end of a struct with a `size` are no break: a struct
//! is copied as far as both sides know it (`sized`). The structs that nest in one, of optimizers and initializers,
//! have spare room instead.
//!
//! # Safety
//!
//! Every exported function trusts its caller for the same things, which the header's preamble states, and checks
//! the rest: that a pointer is null or points to what its type says, which nobody else changes until the call
//! returns; that a `..._len` is no larger than what lies there; that text ends with a NUL; that a handle came from
//! this library and has not been freed; and that a callback is a function of its type that returns. "By the header's
//! rules" in a SAFETY comment means this. That a struct or a slice holds any bits at all is no danger: the types that
//! come in have no invalid ones.
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
