//! Optimizers and initializers: values that say what a table is to do.

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
