//! A row as it lies in the log: its layout, its address, its clock and the hash of its key.

pub(crate) mod address;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod hash;
pub(crate) mod layout;
