//! The open bank behind the Python objects.

pub(crate) mod bank_cell;
mod roll_back;
