//! Settings of a table: optimizers, initializers, dtypes, admission and tracking.

mod dtypes;
mod initializers;
mod optimizers;
mod row_life;

pub(crate) use dtypes::{dtype, rounding};
pub(crate) use initializers::{
    PyConstant, PyNormal, PyTruncatedNormal, PyUniform, PyXavierNormal, PyXavierUniform, PyZeros,
    initializer,
};
pub(crate) use optimizers::{add_optimizers, optimizer, optimizer_object};
pub(crate) use row_life::{admission, tracking};

/// Joins the names for a message: `a, b or c`.
fn one_of<S: std::borrow::Borrow<str>>(names: &[S]) -> String {
    let Some((last, others)) = names.split_last() else { return String::new() };
    format!("{} or {}", others.join(", "), last.borrow())
}
