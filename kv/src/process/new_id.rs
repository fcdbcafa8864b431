//! Random numbers that name a bank, a checkpoint or an opening.

use rustix::rand::{GetRandomFlags, getrandom};

/// A random number, not 0, that no other bank, checkpoint or opening has.
///
/// From the system's random numbers. Where there are none yet (early in a machine's start), from the seed of the standard
/// library's hash maps, with the process id because a forked child has its parent's seed.
pub(crate) fn new_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let mut bytes = [0; 8];
    let id = match getrandom(&mut bytes, GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => RandomState::new().hash_one(std::process::id()),
    };
    id.max(1)
}
