//! Trains a click model, DLRM (Naumov et al., 2019), on a log in the format of the Criteo Kaggle
//! set, with the rows of its categories in a bank on disk.
//!
//! ```sh
//! cargo xtask example dlrm                                     # 1,999 real rows: enough to see it run
//! python examples/dlrm/generate.py --rows 200000 clicks.tsv    # a log that can be learned, of any size
//! cargo xtask example dlrm -- --data clicks.tsv                # a quarter of the table in memory
//! cargo xtask example dlrm -- --data clicks.tsv --in-memory    # plain tensors, no bank
//! ```
//!
//! The program reports the AUC on the last tenth of the rows. `examples/dlrm` is this model in
//! Python.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use embank::{Initializer, Optimizer, TableConfig};
use embank_examples::ahead::announced;
use embank_examples::linear::linear;
use embank_examples::options::{ADAGRAD_BYTES_PER_VALUE, Common, data_path};
use embank_examples::rows::{Embedding, Tables, tensor_of};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Reduction, Tensor, no_grad};

const INTEGERS: usize = 13;
const CATEGORIES: usize = 26;

#[derive(Debug, Parser)]
#[command(
    about = "Trains a click model on a log of the Criteo format, with its rows in a bank on disk"
)]
struct Options {
    /// A log: label, 13 integers and 26 categories a line [default: 1,999 rows of the real set]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Values of a row
    #[arg(long, default_value_t = 16)]
    dim: u32,
    /// Passes over the training rows; from the second on, click models overfit rare categories
    #[arg(long, default_value_t = 1)]
    epochs: u64,
    #[arg(long, default_value_t = 128)]
    batch_size: usize,
    /// Learning rate of the dense part's Adam
    #[arg(long, default_value_t = 0.001)]
    lr: f64,
    /// Learning rate of the rows' Adagrad
    #[arg(long, default_value_t = 0.05)]
    embedding_lr: f64,
    #[command(flatten)]
    common: Common,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let what = "a log in the format of the Criteo Kaggle set";
    let log = Log::load(&data_path(options.data.as_deref(), "criteo_tiny/train.tsv", what)?)?;
    let clicks: Vec<usize> = (0..log.labels.len()).collect();
    let (train, test) = clicks.split_at(clicks.len() - clicks.len() / 10);

    // One table serves all columns, without a vocabulary: a key holds the column and the category.
    let values = log.distinct as u64 * u64::from(options.dim);
    let (bank, _folder) = options.common.bank(values * ADAGRAD_BYTES_PER_VALUE)?;
    let config = TableConfig::new(options.dim)
        .optimizer(Optimizer::adagrad(options.embedding_lr))
        .initializer(Initializer::Uniform { low: -0.05, high: 0.05 })
        .seed(options.common.seed);
    let keys = log.keys.iter().flatten().copied();
    let mut tables = Tables::new(bank, options.common.in_memory);
    let categories = tables.open("category", config, keys)?;

    let variables = nn::VarStore::new(tch::Device::Cpu);
    let model = Dlrm::new(&variables.root(), i64::from(options.dim));
    let mut dense = nn::Adam::default().build(&variables, options.lr)?;

    let (mut steps, mut seconds) = (0.0, 0.0);
    for epoch in 1..=options.epochs {
        let mut order = train.to_vec();
        order.shuffle(&mut SmallRng::seed_from_u64(options.common.seed << 32 | epoch));
        let (started, mut total) = (Instant::now(), 0.0);
        let batches = log.batches(&order, options.batch_size);
        for batch in
            announced(batches, options.common.lookahead, |batch| categories.lookahead(&batch.keys))
        {
            let batch = batch?;
            let logits = model.forward(&batch.integers, &categories.forward(&batch.keys)?);
            let loss = logits.binary_cross_entropy_with_logits::<Tensor>(
                &batch.labels,
                None,
                None,
                Reduction::Mean,
            );
            dense.zero_grad();
            loss.backward();
            dense.step();
            tables.step()?; // the table's own optimizer
            total += loss.double_value(&[]);
            steps += 1.0;
        }
        seconds += started.elapsed().as_secs_f64();
        let mean = total * epoch as f64 / steps;
        println!(
            "epoch {epoch}: loss {mean:.4}, test AUC {:.4}, {seconds:.1} s",
            auc(&model, &log, test, &categories)?
        );
    }
    let samples = options.epochs as f64 * train.len() as f64;
    let waited = tables.waited_percent(seconds);
    println!("{:.0} samples/s, waits for rows {waited:.0}%", samples / seconds);
    Ok(())
}

/// ```text
/// integers   --> bottom net ----------------+--> pairwise dot --> top net --> logit
/// categories --> one row a column ----------+    products
/// ```
struct Dlrm {
    bottom: nn::Sequential,
    top: nn::Sequential,
    dim: i64,
    /// Positions of the products below the diagonal, in the flattened (vectors, vectors) matrix.
    pairs: Tensor,
}

impl Dlrm {
    fn new(path: &nn::Path<'_>, dim: i64) -> Self {
        let vectors = CATEGORIES as i64 + 1;
        let pairs: Vec<i64> = (0..vectors)
            .flat_map(|row| (0..row).map(move |column| row * vectors + column))
            .collect();
        let linear = |name: &str, from, to| linear(path / name, from, to, true);
        Self {
            bottom: nn::seq()
                .add(linear("bottom1", INTEGERS as i64, 64))
                .add_fn(Tensor::relu)
                .add(linear("bottom2", 64, dim))
                .add_fn(Tensor::relu),
            top: nn::seq()
                .add(linear("top1", dim + pairs.len() as i64, 64))
                .add_fn(Tensor::relu)
                .add(linear("top2", 64, 1)),
            dim,
            pairs: Tensor::from_slice(&pairs),
        }
    }

    /// Logits of a click, (batch,), from integers (batch, 13) and rows (batch * 26, dim).
    fn forward(&self, integers: &Tensor, rows: &Tensor) -> Tensor {
        let dense = self.bottom.forward(integers);
        let rows = rows.view([-1, CATEGORIES as i64, self.dim]);
        let vectors = Tensor::cat(&[dense.unsqueeze(1), rows], 1);
        let products =
            vectors.bmm(&vectors.transpose(1, 2)).flatten(1, 2).index_select(1, &self.pairs);
        self.top.forward(&Tensor::cat(&[dense, products], 1)).squeeze_dim(1)
    }
}

/// Returns the chance that a clicked row scores above a row that was not clicked. Equal scores
/// count one half.
fn auc(model: &Dlrm, log: &Log, clicks: &[usize], categories: &Embedding) -> Result<f64> {
    let mut scored: Vec<(f32, f32)> = Vec::with_capacity(clicks.len());
    for batch in log.batches(clicks, 4096) {
        let logits = no_grad(|| -> Result<Tensor> {
            Ok(model.forward(&batch.integers, &categories.forward(&batch.keys)?))
        })?;
        let (logits, labels) =
            (Vec::<f32>::try_from(&logits)?, Vec::<f32>::try_from(&batch.labels)?);
        scored.extend(logits.into_iter().zip(labels));
    }
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut wins, mut clicked) = (0.0, 0.0, 0.0);
    for equal in scored.chunk_by(|a, b| a.0 == b.0) {
        let here = equal.iter().map(|(_, label)| f64::from(*label)).sum::<f64>();
        let others = equal.len() as f64 - here;
        wins += here * (below + 0.5 * others);
        clicked += here;
        below += others;
    }
    Ok(wins / (clicked * below))
}

/// A click log in memory.
struct Log {
    labels: Vec<f32>,
    integers: Vec<[f32; INTEGERS]>,
    keys: Vec<[u64; CATEGORIES]>,
    /// Number of distinct keys.
    distinct: usize,
}

/// `keys` are those of the first row, then those of the second, and so on.
struct Batch {
    labels: Tensor,
    integers: Tensor,
    keys: Tensor,
}

impl Log {
    fn load(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let (mut labels, mut integers, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let fields: Vec<&str> = line.split('\t').collect();
            let wrong = || format!("{}:{}", path.display(), number + 1);
            let count = 1 + INTEGERS + CATEGORIES;
            ensure!(
                fields.len() == count,
                "{}: {count} fields a line, not {}",
                wrong(),
                fields.len()
            );
            labels.push(fields[0].parse().with_context(wrong)?);
            let mut dense = [0.0; INTEGERS];
            for (value, field) in
                dense.iter_mut().zip(&fields[1..]).filter(|(_, field)| !field.is_empty())
            {
                let integer: i64 = field.parse().with_context(wrong)?;
                *value = (integer.max(0) as f32).ln_1p();
            }
            integers.push(dense);
            let mut of_columns = [0; CATEGORIES];
            for (column, (key, field)) in
                of_columns.iter_mut().zip(&fields[1 + INTEGERS..]).enumerate()
            {
                // An empty category gets the number after the largest that eight hexadecimal digits
                // can write.
                let category = match *field {
                    "" => 1 << 32,
                    digits => u64::from_str_radix(digits, 16).with_context(wrong)?,
                };
                *key = (column as u64) << 33 | category;
            }
            keys.push(of_columns);
        }
        let distinct = keys.iter().flatten().collect::<std::collections::HashSet<_>>().len();
        Ok(Self { labels, integers, keys, distinct })
    }

    fn batches(&self, clicks: &[usize], size: usize) -> impl Iterator<Item = Batch> {
        clicks.chunks(size).map(|clicks| {
            let labels: Vec<f32> = clicks.iter().map(|&click| self.labels[click]).collect();
            let integers: Vec<f32> =
                clicks.iter().flat_map(|&click| self.integers[click]).collect();
            let keys: Vec<u64> = clicks.iter().flat_map(|&click| self.keys[click]).collect();
            Batch {
                labels: Tensor::from_slice(&labels),
                integers: Tensor::from_slice(&integers).view([-1, INTEGERS as i64]),
                keys: tensor_of(&keys),
            }
        })
    }
}
