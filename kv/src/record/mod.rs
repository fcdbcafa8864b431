//! Records in the log: layout, address, lock-and-clock word, and the hash of the key.

pub(crate) mod address;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod hash;
pub(crate) mod layout;
