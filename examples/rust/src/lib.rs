//! Parts that the three examples share: rows in a bank or in memory, batches announced ahead, and
//! the paths of the data files.
//!
//! Read `bin/kge.rs` first, the shortest of the models. The crate `embank-tch` connects PyTorch's
//! autograd and Embank.
//!
//! | program | model | data |
//! |---|---|---|
//! | `dlrm` | DLRM with a feed-forward net: clicks | a file in the format of the Criteo Kaggle set |
//! | `kge` | DistMult: links of a knowledge graph | WN18RR |
//! | `gnn` | GraphSAGE: classes of papers | Cora |

pub mod ahead;
pub mod linear;
pub mod options;
pub mod rows;
