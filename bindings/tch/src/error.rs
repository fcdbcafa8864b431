//! The errors of this crate.

use tch::TchError;

/// The result of a fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Every way in which a call of this crate can fail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on a bank or a table failed.
    #[error(transparent)]
    Bank(#[from] embank::Error),
    /// A call of PyTorch failed.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// A tensor that the caller passed does not fit the call.
    #[error("table {table:?}: {what}")]
    BadTensor {
        /// The name of the module's table.
        table: String,
        /// Which tensor, what is wrong with it, and the cure.
        what: String,
    },
    /// The name of a variable contains `|`. The format of PyTorch would store it as `.`.
    #[error("the variable {name:?} can't be saved: give it a name without '|'")]
    BadVariableName {
        /// The name in the `VarStore`.
        name: String,
    },
    /// The blob of the bank's checkpoint was not written by [`save`](crate::save).
    #[error(
        "the bank's checkpoint holds no variables that embank_tch::save wrote: {what}; read its blob \
         with Bank::recovered, or roll the bank back to a checkpoint of embank_tch::save"
    )]
    NotSavedHere {
        /// What is wrong with the blob.
        what: &'static str,
    },
    /// The variables of the checkpoint are not those of the `VarStore`, which stays unchanged.
    #[error(
        "the checkpoint's variables are not those of the VarStore: {what}; build the model that was \
         saved"
    )]
    VariablesDiffer {
        /// The variables that differ.
        what: String,
    },
}
