//! Parts that concern the whole process: its forks, locks, threads, signals and descriptors.
//!
//! # Where to look
//!
//! - `fork`: resets state of the parent's threads in a forked child.
//! - `float_state`: how a thread computes with numbers near zero.
//! - `home`: the process that made a value, for drops in a forked child.
//! - `locks`: locks that also work in a forked child.
//! - `interrupt`: lets the program end a call that waits.
//! - `running_time`: time without the suspensions of the process, for deadlines.
//! - `descriptors`: keeps the bank's files away from the descriptor numbers of the standard
//!   streams.
//! - `crew`: threads that help a calling thread.
//! - `thread_start`, `cpu_time`, `new_id`: threads, processor time, random ids.

pub(crate) mod cpu_time;
pub mod crew;
pub(crate) mod descriptors;
pub(crate) mod float_state;
pub(crate) mod fork;
pub(crate) mod home;
pub mod interrupt;
pub mod locks;
pub(crate) mod new_id;
pub(crate) mod running_time;
pub(crate) mod thread_start;
