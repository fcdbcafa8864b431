//! Random numbers that identify a bank, a checkpoint or an opening.

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a random number other than 0. Another bank, checkpoint or opening is very unlikely to
/// have the same number.
///
/// The number comes from the system's random source. Soon after a machine's start, that source may
/// not be ready. The number is then a hash of the process id, with the seed that the standard
/// library uses for hash maps. The process id is included because a forked child has the same seed
/// as its parent.
pub(crate) fn new_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let mut bytes = [0; 8];
    let id = match getrandom(&mut bytes, GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => RandomState::new().hash_one(std::process::id()),
    };
    id.max(1)
}
