//! One checkpoint for the tables of a bank and the variables of a `VarStore`.
//!
//! The variables are in the blob of the bank's checkpoint, so one call makes both durable at once.
//!
//! | bytes of the blob | what |
//! |---|---|
//! | 0..7 | `EMBKTCH` |
//! | 7 | the version of this layout: 1 |
//! | 8..16 | the length of the variables in bytes, little-endian |
//! | from 16 | the variables, in the format of `VarStore::save_to_stream` |
//! | the rest | the caller's bytes |
//!
//! The bank has a checksum of the blob.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

use embank::Bank;
use tch::nn::VarStore;
use tch::{Tensor, no_grad};

use crate::error::{Error, Result};

const MAGIC: &[u8; 7] = b"EMBKTCH";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
/// Number of variables that an error names.
const NAMED_MAX: usize = 3;

/// Takes a checkpoint of the bank with the variables of a model. `more` holds whatever else the
/// program needs, such as the number of the step. Returns the number of the checkpoint, which is
/// durable then.
///
/// `tch` gives no access to the state of its optimizers. So a program that resumes begins with new
/// moments of Adam, and continues exactly with SGD without momentum. The state of the tables'
/// optimizers is in the bank.
///
/// # Errors
/// [`BadVariableName`](Error::BadVariableName), the errors of [`Bank::checkpoint`], and failures of
/// PyTorch.
///
/// # Examples
/// See the [crate](crate).
pub fn save(bank: &Bank, variables: &VarStore, more: &[u8]) -> Result<u64> {
    if let Some(name) = variables.variables().into_keys().find(|name| name.contains('|')) {
        return Err(Error::BadVariableName { name });
    }
    let mut blob = [&MAGIC[..], &[VERSION], &[0; 8]].concat();
    variables.save_to_stream(&mut blob)?;
    let length = (blob.len() - HEADER_BYTES) as u64;
    blob[8..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    blob.extend_from_slice(more);
    Ok(bank.checkpoint(&blob)?)
}

/// Copies the variables of the bank's checkpoint into a model of the same variables, and returns
/// the bytes that [`save`] got. `None` if the bank has no checkpoint.
///
/// The checkpoint is the one at which the bank was opened, as the rows are. For a read-only bank it
/// is the one that the bank reads.
///
/// # Errors
/// [`NotSavedHere`](Error::NotSavedHere). [`VariablesDiffer`](Error::VariablesDiffer) if a variable
/// is missing on either side, or has another shape or type. Failures of PyTorch. After these errors
/// all variables are unchanged, except after a failure of PyTorch during the copy.
///
/// # Examples
/// See the [crate](crate).
pub fn load(bank: &Bank, variables: &mut VarStore) -> Result<Option<Vec<u8>>> {
    let reading = bank.reading();
    let Some(found) = reading.as_deref().or_else(|| bank.recovered()) else { return Ok(None) };
    let (archive, more) = parts(&found.blob)?;
    let saved =
        Tensor::load_multi_from_stream_with_device(Cursor::new(archive), variables.device())?;
    let saved: BTreeMap<String, Tensor> = saved.into_iter().collect();
    let present: BTreeMap<String, Tensor> = variables.variables().into_iter().collect();
    check(&saved, &present)?;
    no_grad(|| {
        present.into_iter().try_for_each(|(name, mut variable)| variable.f_copy_(&saved[&name]))
    })?;
    Ok(Some(more.to_vec()))
}

/// Divides a blob into the variables and the caller's bytes.
fn parts(blob: &[u8]) -> Result<(&[u8], &[u8])> {
    let refused = |what| Err(Error::NotSavedHere { what });
    let Some((header, rest)) = blob.split_first_chunk::<HEADER_BYTES>() else {
        return refused("its blob is too short");
    };
    let (mark, length) = header.split_at(8);
    if !mark.starts_with(MAGIC) {
        return refused("its blob does not begin with EMBKTCH");
    }
    if mark[7] != VERSION {
        return refused("its blob has a version that this crate does not know");
    }
    let length = u64::from_le_bytes(length.try_into().expect("a header has 8 more bytes"));
    match usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length)) {
        Some(parts) => Ok(parts),
        None => refused("its blob ends too early"),
    }
}

/// Fails if the variables of the checkpoint and of the model differ in names, shapes or types.
fn check(saved: &BTreeMap<String, Tensor>, present: &BTreeMap<String, Tensor>) -> Result<()> {
    let names: BTreeSet<&String> = saved.keys().chain(present.keys()).collect();
    let shape = |tensor: &Tensor| format!("{:?} {:?}", tensor.kind(), tensor.size());
    let mut differences = Vec::new();
    for name in names {
        match (saved.get(name).map(shape), present.get(name).map(shape)) {
            (Some(saved), Some(present)) if saved != present => differences
                .push(format!("{name:?} is {saved} in the checkpoint, {present} in the VarStore")),
            (Some(_), None) => differences.push(format!("{name:?} is only in the checkpoint")),
            (None, Some(_)) => differences.push(format!("{name:?} is only in the VarStore")),
            _ => {}
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    let others = differences.len().saturating_sub(NAMED_MAX);
    differences.truncate(NAMED_MAX);
    let mut what = differences.join("; ");
    if others > 0 {
        what += &format!("; and {others} more");
    }
    Err(Error::VariablesDiffer { what })
}
