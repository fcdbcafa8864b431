//! What the three examples share: rows that live in a bank or in memory, batches announced ahead,
//! and where data lie.
//!
//! Read [`rows`] first: it is all that stands between PyTorch's autograd and Embank. Then
//! `bin/kge.rs`, the shortest of the models.
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
