//! Vocabularies while a pipeline runs.

mod direct;

pub(crate) use direct::{DirectTable, Growing, Pending};
