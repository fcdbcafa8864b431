//! The models: their tables, and the keys of each batch.
//!
//! A model's batches are a pure function of a seed, so every case trains and evaluates with equal
//! batches.

use embank::{Optimizer, TableConfig};

use crate::ground::content::{KeyStream, Popularity};
use crate::ground::index_loop::record_bytes;

/// Seed of the training batches. The seed of the evaluation batches is one more.
const SEED: u64 = 11;

/// A kind of model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// DLRM: eight tables; a sample has one value of each; Zipf 0.95
    Clicks,
    /// Knowledge graph: triples whose entities follow Zipf 0.9, with as many uniform negatives
    Triples,
    /// GNN: two hops of sampled neighbours in a power-law graph, the features trained
    Neighbours,
    /// Mostly peeks at the batches of `clicks`; one batch in eleven is trained
    Serving,
    /// Only peeks at the batches of `clicks`, after some training
    Reading,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Clicks => "DLRM",
            Kind::Triples => "KGE",
            Kind::Neighbours => "GNN",
            Kind::Serving => "serving",
            Kind::Reading => "reading",
        }
    }

    /// Returns two numbers: how many batches in a row are trained, and how many batches after them
    /// are only read. Then the next block begins.
    pub(super) fn blocks(self) -> (usize, usize) {
        match self {
            Kind::Clicks | Kind::Triples | Kind::Neighbours => (40, 8),
            Kind::Serving => (4, 40),
            // The 48 trained batches are the warm-up.
            Kind::Reading => (48, usize::MAX - 48),
        }
    }

    fn dim(self) -> usize {
        if matches!(self, Kind::Triples | Kind::Neighbours) { 128 } else { 64 }
    }

    /// For each table, its part of all rows.
    fn parts(self) -> &'static [f64] {
        match self {
            Kind::Clicks | Kind::Serving | Kind::Reading => {
                &[0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005]
            }
            Kind::Triples => &[0.995, 0.005],
            Kind::Neighbours => &[1.0],
        }
    }
}

/// The size of one table of a model.
#[derive(Debug, Clone)]
pub(super) struct TablePlan {
    pub(super) name: String,
    pub(super) rows: u64,
}

/// A model of a kind, at a size.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) kind: Kind,
    pub(super) dim: usize,
    pub(super) tables: Vec<TablePlan>,
}

impl Model {
    /// A model whose records have `bytes` bytes in all.
    pub(super) fn new(kind: Kind, bytes: u64) -> Self {
        let dim = kind.dim();
        let rows = bytes / record_bytes_of(dim);
        let tables = kind.parts().iter().enumerate();
        let tables = tables.map(|(number, part)| TablePlan {
            name: format!("table {number}"),
            rows: ((rows as f64 * part) as u64).max(16),
        });
        Self { kind, dim, tables: tables.collect() }
    }

    pub(super) fn config(&self) -> TableConfig {
        TableConfig::new(self.dim as u32).optimizer(Optimizer::adagrad(0.01))
    }

    /// Bytes of a row's record.
    pub(super) fn record_bytes(&self) -> u64 {
        record_bytes_of(self.dim)
    }

    /// The batches to train with.
    pub(super) fn training(&self) -> Batches {
        Batches::new(self, SEED)
    }

    /// The batches to evaluate with.
    pub(super) fn evaluation(&self) -> Batches {
        Batches::new(self, SEED + 1)
    }
}

/// Bytes of a record: the header, the values, and Adagrad's sum for each value.
fn record_bytes_of(dim: usize) -> u64 {
    record_bytes(2 * dim * size_of::<f32>()) as u64
}

/// The keys of a batch, by table.
pub(super) type Keys = Vec<Vec<u64>>;

/// An endless stream of batches.
#[derive(Debug)]
pub(super) struct Batches {
    kind: Kind,
    /// The Zipf stream of each table.
    popular: Vec<KeyStream>,
    /// A uniform stream of the largest table's keys.
    uniform: KeyStream,
}

impl Batches {
    fn new(model: &Model, seed: u64) -> Self {
        let theta = if matches!(model.kind, Kind::Triples | Kind::Neighbours) { 0.9 } else { 0.95 };
        let stream = |(number, table): (usize, &TablePlan)| {
            KeyStream::of(Popularity::Zipf(theta), seed * 100 + number as u64, table.rows)
        };
        Self {
            kind: model.kind,
            popular: model.tables.iter().enumerate().map(stream).collect(),
            uniform: KeyStream::new(seed, 0, 1, model.tables[0].rows),
        }
    }

    pub(super) fn next(&mut self) -> Keys {
        match self.kind {
            Kind::Clicks | Kind::Serving | Kind::Reading => {
                self.popular.iter_mut().map(|stream| stream.draw(256)).collect()
            }
            Kind::Triples => {
                let mut entities = self.popular[0].draw(512);
                entities.extend(self.uniform.draw(512));
                vec![entities, self.popular[1].draw(256)]
            }
            Kind::Neighbours => vec![self.neighbourhood()],
        }
    }

    /// Draws some nodes, up to 8 neighbours of each node, and up to 4 neighbours of each neighbour.
    fn neighbourhood(&mut self) -> Vec<u64> {
        let mut nodes = self.uniform.draw(32);
        let mut from = 0;
        for fanout in [8, 4] {
            let hop = from..nodes.len();
            from = nodes.len();
            for place in hop {
                for _ in 0..fanout {
                    let neighbour = self.neighbour(nodes[place]);
                    nodes.push(neighbour);
                }
            }
        }
        nodes
    }

    /// Draws a neighbour of `node`. A node is drawn by its popularity, so both the in-degrees and
    /// the out-degrees follow a power law.
    fn neighbour(&mut self, node: u64) -> u64 {
        let uniform = KeyStream::new(node, 0, 1, 1 << 20).next_key() as f64 / f64::from(1 << 20);
        let degree = (3.0 * (1.0 - uniform).powf(-0.7)).min(200.0) as u64;
        let edge = node * 256 + self.uniform.below(degree);
        self.popular[0].reseeded(edge).next_key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_replay_and_keep_to_their_tables() {
        for kind in [Kind::Clicks, Kind::Triples, Kind::Neighbours, Kind::Serving, Kind::Reading] {
            let model = Model::new(kind, 4 << 20);
            let (mut first, mut second) = (model.training(), model.training());
            let mut other = model.evaluation();
            for _ in 0..20 {
                let keys = first.next();
                assert_eq!(keys, second.next());
                assert_ne!(keys, other.next());
                for (keys, table) in keys.iter().zip(&model.tables) {
                    assert!(!keys.is_empty() && keys.iter().all(|&key| key < table.rows));
                }
            }
        }
    }
}
