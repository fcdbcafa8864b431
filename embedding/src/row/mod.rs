//! The settings of a table, and the layout of its rows.

pub(crate) mod admission;
pub(crate) mod config;
pub(crate) mod decoded;
pub(crate) mod descriptor;
pub(crate) mod initializer;
pub(crate) mod layout;
pub(crate) mod live;
pub(crate) mod numbering;
pub(crate) mod quantile;
pub(crate) mod sections;
pub(crate) mod times;
pub(crate) mod tracking;
