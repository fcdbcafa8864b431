//! Tensors in and out: keys, rows and gradients.

use tch::{Device, Kind, Tensor};

use crate::error::Result;

/// True if autograd records the operations of this thread, that is outside of `tch::no_grad`.
/// `tch` has no call for it, so this function looks at the result of an operation.
pub(crate) fn is_recording() -> bool {
    let leaf = Tensor::zeros([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    leaf.neg().requires_grad()
}

/// Makes a tensor (rows, dim) from rows one after the other.
pub(crate) fn matrix(rows: &[f32], dim: usize) -> Result<Tensor> {
    let shape = [(rows.len() / dim) as i64, dim as i64];
    Ok(Tensor::f_from_slice(rows)?.f_view(shape)?)
}

/// Returns the values of an int64 tensor, of any shape, as unsigned numbers of the same bits.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<u64>> {
    let mut values = vec![0_i64; tensor.numel()];
    tensor.f_copy_data(&mut values, tensor.numel())?;
    Ok(values.into_iter().map(|value| value as u64).collect())
}

/// Returns the values of a float32 tensor.
pub(crate) fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    let mut values = vec![0.0; tensor.numel()];
    tensor.f_copy_data(&mut values, tensor.numel())?;
    Ok(values)
}
