//! Trains GraphSAGE (Hamilton et al., 2017) by neighbour sampling, with node embeddings and
//! features in a bank on disk.
//!
//! ```sh
//! cargo xtask example gnn                  # a quarter of the tables in memory
//! cargo xtask example gnn -- --in-memory   # plain tensors, no bank
//! ```
//!
//! The data are Cora's two files. The program reports the accuracy on the test nodes, at the epoch
//! that was best on the validation nodes. `examples/gnn` is this model in Python, and has GAT and a
//! generated graph too.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use embank::{Initializer, Optimizer, TableConfig, UniqueKeys};
use embank_examples::ahead::announced;
use embank_examples::linear::linear;
use embank_examples::options::{ADAGRAD_BYTES_PER_VALUE, Common, data_path};
use embank_examples::rows::{Embedding, Tables, tensor_of};
use embank_tch::SparseOptimizer;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Kind, Tensor, no_grad};

#[derive(Debug, Parser)]
#[command(about = "Trains GraphSAGE on Cora, with node embeddings and features in a bank on disk")]
struct Options {
    /// Folder of nodes.tsv and edges.tsv [default: Cora]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Values of an embedding
    #[arg(long, default_value_t = 64)]
    dim: u32,
    #[arg(long, default_value_t = 64)]
    hidden: i64,
    /// Neighbours drawn for a node, in each of the two layers
    #[arg(long, default_value_t = 10)]
    fanout: usize,
    #[arg(long, default_value_t = 40)]
    epochs: u64,
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// Learning rate of the dense part's Adam
    #[arg(long, default_value_t = 0.01)]
    lr: f64,
    /// Learning rate of the embeddings' Adagrad
    #[arg(long, default_value_t = 0.002)]
    embedding_lr: f64,
    /// Standard deviation of the initial embeddings
    #[arg(long, default_value_t = 0.001)]
    spread: f32,
    /// Weight decay of the dense part's Adam
    #[arg(long, default_value_t = 5e-4)]
    weight_decay: f64,
    /// Dropout of the dense part
    #[arg(long, default_value_t = 0.5)]
    dropout: f64,
    #[arg(long, default_value_t = 2, value_name = "EPOCHS")]
    evaluate_every: u64,
    #[command(flatten)]
    common: Common,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let folder = data_path(options.data.as_deref(), "cora", "Cora's nodes.tsv and edges.tsv")?;
    let graph = Graph::load(&folder)?;

    // Two tables: embeddings that are trained, and features that are put once and then peeked.
    let nodes = graph.neighbours.len() as u64;
    let values =
        nodes * (u64::from(options.dim) * ADAGRAD_BYTES_PER_VALUE + 4 * graph.width as u64);
    let (bank, _folder) = options.common.bank(values)?;
    let config = TableConfig::new(options.dim)
        .optimizer(Optimizer::adagrad(options.embedding_lr))
        .initializer(Initializer::Normal { mean: 0.0, std: options.spread })
        .seed(options.common.seed);
    let features = bank.table("feature", TableConfig::new(graph.width as u32))?;
    for node in 0..nodes {
        features.put(&[node], &graph.features(node))?;
    }
    let features = embank_tch::Embedding::new(features, &SparseOptimizer::new());
    let mut tables = Tables::new(bank, options.common.in_memory);
    let embeddings = tables.open("node", config, 0..nodes)?;

    let variables = nn::VarStore::new(tch::Device::Cpu);
    let model = Model::new(&variables.root(), &graph, &options);
    let mut dense = nn::Adam { wd: options.weight_decay, ..nn::Adam::default() }
        .build(&variables, options.lr)?;

    let announce = |batch: &Batch| {
        embeddings.lookahead(&batch.nodes)?;
        Ok(features.lookahead(&batch.nodes)?)
    };
    let (mut best, mut test, mut seconds) = (-1.0, 0.0, 0.0);
    for epoch in 1..=options.epochs {
        let started = Instant::now();
        let (mut total, mut steps) = (0.0, 0.0);
        let mut random = SmallRng::seed_from_u64(options.common.seed << 32 | epoch);
        let mut order = graph.train.clone();
        order.shuffle(&mut random);
        let batches = graph.batches(&order, options.batch_size, options.fanout, random);
        for batch in announced(batches, options.common.lookahead, announce) {
            let batch = batch?;
            let rows = embeddings.forward(&batch.nodes)?;
            let words = no_grad(|| features.forward(&batch.nodes))?;
            let logits = model.forward(&batch, &rows, &words, true);
            let loss = logits.cross_entropy_for_logits(&batch.labels);
            dense.zero_grad();
            loss.backward();
            dense.step();
            tables.step()?; // the table's own optimizer
            total += loss.double_value(&[]);
            steps += 1.0;
        }
        seconds += started.elapsed().as_secs_f64();
        if epoch % options.evaluate_every == 0 || epoch == options.epochs {
            let accuracy =
                |nodes: &[u64]| no_grad(|| accuracy(&model, &graph, nodes, &embeddings, &features));
            let valid = accuracy(&graph.valid)?;
            if valid > best {
                (best, test) = (valid, accuracy(&graph.test)?);
            }
            println!(
                "epoch {epoch}: loss {:.4}, valid accuracy {valid:.4}, {seconds:.1} s",
                total / steps
            );
        }
    }
    println!("test accuracy {test:.4}");
    let samples = options.epochs as f64 * graph.train.len() as f64;
    let waited = tables.waited_percent(seconds);
    println!("{:.0} samples/s, waits for rows {waited:.0}%", samples / seconds);
    Ok(())
}

/// Two layers of GraphSAGE. A node's input is its features times a matrix, plus its embedding.
struct Model {
    encoder: nn::Linear,
    layers: [Layer; 2],
    dropout: f64,
}

/// Adds a node's vector and the mean of its neighbours' vectors, each through its own matrix.
struct Layer {
    own: nn::Linear,
    around: nn::Linear,
}

impl Model {
    fn new(path: &nn::Path<'_>, graph: &Graph, options: &Options) -> Self {
        let (width, dim, hidden) = (graph.width as i64, i64::from(options.dim), options.hidden);
        let xavier = (6.0 / (width + dim) as f64).sqrt();
        let ws_init = nn::Init::Uniform { lo: -xavier, up: xavier };
        let encoder = nn::LinearConfig { ws_init, bs_init: None, bias: false };
        Self {
            encoder: nn::linear(path / "encoder", width, dim, encoder),
            layers: [
                Layer::new(&(path / "first"), dim, hidden),
                Layer::new(&(path / "second"), hidden, graph.classes),
            ],
            dropout: options.dropout,
        }
    }

    /// Logits, (seeds, classes).
    fn forward(
        &self,
        batch: &Batch,
        embeddings: &Tensor,
        features: &Tensor,
        train: bool,
    ) -> Tensor {
        let mut x = embeddings + self.encoder.forward(&features.dropout(self.dropout, train));
        for (number, (layer, block)) in self.layers.iter().zip(&batch.blocks).enumerate() {
            if number > 0 {
                x = x.relu();
            }
            x = layer.forward(&x.dropout(self.dropout, train), block);
        }
        x
    }
}

impl Layer {
    fn new(path: &nn::Path<'_>, from: i64, to: i64) -> Self {
        Self {
            own: linear(path / "own", from, to, true),
            around: linear(path / "around", from, to, false),
        }
    }

    fn forward(&self, x: &Tensor, block: &Block) -> Tensor {
        // The nodes whose vectors the layer makes are the first of the nodes that it reads.
        let own = x.narrow(0, 0, block.made);
        let sums =
            own.zeros_like().index_add(0, &block.targets, &x.index_select(0, &block.sources));
        self.own.forward(&own) + self.around.forward(&(sums / &block.counts))
    }
}

/// Returns the share of nodes with the right class, from up to 50 neighbours each.
fn accuracy(
    model: &Model,
    graph: &Graph,
    nodes: &[u64],
    embeddings: &Embedding,
    features: &embank_tch::Embedding,
) -> Result<f64> {
    let mut right = 0;
    for batch in graph.batches(nodes, 512, 50, SmallRng::seed_from_u64(0)) {
        let (rows, words) = (embeddings.forward(&batch.nodes)?, features.forward(&batch.nodes)?);
        let logits = model.forward(&batch, &rows, &words, false);
        right += logits.argmax(1, false).eq_tensor(&batch.labels).sum(Kind::Int64).int64_value(&[]);
    }
    Ok(right as f64 / nodes.len() as f64)
}

/// An undirected graph with words and a class per node.
struct Graph {
    neighbours: Vec<Vec<u64>>,
    words: Vec<Vec<usize>>,
    labels: Vec<i64>,
    /// Number of words.
    width: usize,
    classes: i64,
    train: Vec<u64>,
    valid: Vec<u64>,
    test: Vec<u64>,
}

/// `nodes` are the distinct nodes that the first block reads. The last block makes the vectors of
/// the batch's seeds, the nodes of `labels`.
struct Batch {
    nodes: Tensor,
    blocks: [Block; 2],
    labels: Tensor,
}

/// The edges of one layer. The layer reads the vectors of some nodes and makes new vectors for the
/// first `made` of them. An edge goes from `sources`, a place among the nodes that the layer reads,
/// to `targets`, a place among the nodes that it makes. `counts` (made, 1) are the edges of each
/// made node, at least 1.
struct Block {
    made: i64,
    sources: Tensor,
    targets: Tensor,
    counts: Tensor,
}

impl Graph {
    fn load(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).with_context(|| {
                format!("reading {} (name its folder with --data)", path.display())
            })
        };
        let (mut labels, mut words) = (Vec::new(), Vec::new());
        let [mut train, mut valid, mut test] = [const { Vec::new() }; 3];
        for line in read("nodes.tsv")?.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [node, class, split, indices] = fields[..] else {
                anyhow::bail!("nodes.tsv: a line is node, class, split and words, not {line:?}");
            };
            let node: u64 = node.parse()?;
            ensure!(node == labels.len() as u64, "nodes.tsv: nodes must be in order, found {node}");
            labels.push(class.parse()?);
            let indices = indices.split(',').filter(|index| !index.is_empty());
            words.push(indices.map(str::parse).collect::<Result<Vec<usize>, _>>()?);
            match split {
                "train" => train.push(node),
                "valid" => valid.push(node),
                "test" => test.push(node),
                _ => {}
            }
        }
        let mut neighbours = vec![Vec::new(); labels.len()];
        for line in read("edges.tsv")?.lines() {
            let (from, to) = line.split_once('\t').context("edges.tsv: a line is two nodes")?;
            let (from, to): (u64, u64) = (from.parse()?, to.parse()?);
            ensure!(
                from.max(to) < labels.len() as u64,
                "edges.tsv: there is no node {}",
                from.max(to)
            );
            neighbours[from as usize].push(to);
            neighbours[to as usize].push(from);
        }
        let width = words.iter().flatten().max().context("nodes.tsv has no words")? + 1;
        let classes = labels.iter().max().context("nodes.tsv is empty")? + 1;
        Ok(Self { neighbours, words, labels, width, classes, train, valid, test })
    }

    /// The features of a node: an equal value for each of its words, with a Euclidean length of 1.
    fn features(&self, node: u64) -> Vec<f32> {
        let words = &self.words[node as usize];
        let mut row = vec![0.0; self.width];
        words.iter().for_each(|&word| row[word] = (words.len() as f32).powf(-0.5));
        row
    }

    /// Yields batches that contain each seed once. A layer has at most `fanout` neighbours of a
    /// node.
    fn batches(
        &self,
        seeds: &[u64],
        size: usize,
        fanout: usize,
        mut random: SmallRng,
    ) -> impl Iterator<Item = Batch> {
        seeds.chunks(size).map(move |seeds| {
            let (last, middle) = self.block(seeds, fanout, &mut random);
            let (first, nodes) = self.block(&middle, fanout, &mut random);
            let labels: Vec<i64> = seeds.iter().map(|&seed| self.labels[seed as usize]).collect();
            Batch {
                nodes: tensor_of(&nodes),
                blocks: [first, last],
                labels: Tensor::from_slice(&labels),
            }
        })
    }

    /// Returns the block that makes the vectors of the distinct `nodes`, and the distinct nodes
    /// that the block reads. For a node with more neighbours than `fanout`, it draws `fanout` of
    /// them, with replacement.
    fn block(&self, nodes: &[u64], fanout: usize, random: &mut SmallRng) -> (Block, Vec<u64>) {
        let (mut all, mut targets) = (nodes.to_vec(), Vec::new());
        let mut counts = Vec::with_capacity(nodes.len());
        for (target, &node) in (0_i64..).zip(nodes) {
            let neighbours = &self.neighbours[node as usize];
            if neighbours.len() <= fanout {
                all.extend(neighbours);
            } else {
                all.extend(
                    (0..fanout).map(|_| neighbours[random.random_range(0..neighbours.len())]),
                );
            }
            let count = neighbours.len().min(fanout);
            targets.resize(targets.len() + count, target);
            counts.push(count.max(1) as f32);
        }
        let unique = UniqueKeys::new(&all).expect("a batch has fewer than 2^32 nodes");
        let sources = unique.inverse()[nodes.len()..].iter().map(|&place| i64::from(place));
        let block = Block {
            made: nodes.len() as i64,
            sources: Tensor::from_slice(&sources.collect::<Vec<_>>()),
            targets: Tensor::from_slice(&targets),
            counts: Tensor::from_slice(&counts).view([-1, 1]),
        };
        (block, unique.keys().to_vec())
    }
}
