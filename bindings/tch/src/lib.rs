//! Embank tables in models of `tch`, PyTorch from Rust.
//!
//! An [`Embedding`] replaces `tch::nn::embedding`, and an [`EmbeddingBag`] pools the rows of a bag.
//! Their rows are in a bank, so they may need more space than there is memory. A
//! [`SparseOptimizer`] takes the step of their tables after the backward pass. [`save`] and
//! [`load`] keep the variables of a `VarStore` in the checkpoints of the bank.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! use embank::{Bank, BankOptions, Optimizer, TableConfig};
//! use embank_tch::{Embedding, SparseOptimizer};
//! use tch::nn::{self, Module, OptimizerConfig};
//! use tch::{Device, Kind, Tensor, no_grad};
//!
//! let bank = Bank::open(dir.path().join("bank"), BankOptions::default())?;
//! let users = bank.table("user", TableConfig::new(8).optimizer(Optimizer::adagrad(0.05)))?;
//! let tables = SparseOptimizer::new();
//! let users = Embedding::new(users, &tables);
//!
//! let mut variables = nn::VarStore::new(Device::Cpu);
//! let top = nn::linear(variables.root() / "top", 8, 1, Default::default());
//! let mut dense = nn::Sgd::default().build(&variables, 0.1)?;
//! embank_tch::load(&bank, &mut variables)?; // the newest checkpoint, if there is one
//!
//! for _ in 0..3 {
//!     let keys = Tensor::from_slice(&[7_i64, 3, 7]);
//!     let loss = top.forward(&users.forward(&keys)?).square().mean(Kind::Float);
//!     dense.zero_grad();
//!     loss.backward();
//!     tables.step()?; // the optimizers of the tables, which refuse a NaN
//!     dense.step();
//! }
//! embank_tch::save(&bank, &variables, b"step 3")?;
//! let rows = no_grad(|| users.forward(&Tensor::from_slice(&[7_i64])))?; // for evaluation
//! assert_eq!(rows.size(), [1, 8]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How autograd and the store meet
//!
//! `tch` 0.24 has no autograd functions of a program's own. So a forward pass makes a *leaf* of the
//! autograd graph: a tensor that holds the rows of the distinct keys, or one pooled row per bag.
//! `backward` leaves the gradient of each row in the leaf. Then [`SparseOptimizer::step`] passes
//! the gradients to the leases of the forward passes, and the optimizers run in the store.
//!
//! The output of a module is on the device of its keys. The leaf and the store are in host memory,
//! and autograd moves the gradient there. The tests of this crate run on the CPU alone.

mod checkpoint;
mod error;
mod modules;
mod optimizer;
mod tensors;

pub use checkpoint::{load, save};
pub use error::{Error, Result};
pub use modules::{Embedding, EmbeddingBag};
pub use optimizer::SparseOptimizer;
