//! Trains DistMult (Yang et al., 2015) on a knowledge graph, with its embeddings in a bank on disk.
//!
//! ```sh
//! cargo xtask example kge                  # a quarter of the tables in memory
//! cargo xtask example kge -- --in-memory   # plain tensors, no bank
//! ```
//!
//! The data are three files of triples, as WN18RR has them. The program reports the filtered mean
//! reciprocal rank and Hits@1, 3 and 10 over both directions. `examples/kge` is this model in
//! Python, and has ComplEx too.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use embank::{Initializer, Optimizer, TableConfig, UniqueKeys};
use embank_examples::ahead::announced;
use embank_examples::options::{ADAGRAD_BYTES_PER_VALUE, Common, data_path};
use embank_examples::rows::{Embedding, Tables, tensor_of};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tch::{Kind, Tensor, no_grad};

#[derive(Debug, Parser)]
#[command(about = "Trains DistMult on a knowledge graph, with its embeddings in a bank on disk")]
struct Options {
    /// Folder of train.tsv, valid.tsv and test.tsv [default: WN18RR]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Values of a row
    #[arg(long, default_value_t = 128)]
    dim: u32,
    #[arg(long, default_value_t = 6)]
    epochs: u64,
    #[arg(long, default_value_t = 1000)]
    batch_size: usize,
    /// Random entities that a batch uses as negatives
    #[arg(long, default_value_t = 2000)]
    negatives: usize,
    /// Learning rate of Adagrad
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    /// Weight of the rows' cubed norm, N3 (Lacroix et al., 2018)
    #[arg(long, default_value_t = 0.05)]
    regularization: f64,
    #[arg(long, default_value_t = 2, value_name = "EPOCHS")]
    evaluate_every: u64,
    #[command(flatten)]
    common: Common,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let folder = data_path(
        options.data.as_deref(),
        "wn18rr",
        "train.tsv, valid.tsv and test.tsv of WN18RR",
    )?;
    let graph = Graph::load(&folder)?;

    // One row for each entity and each relation. The first get of a row creates it.
    let values = (graph.entities + graph.relations) * u64::from(options.dim);
    let (bank, _folder) = options.common.bank(values * ADAGRAD_BYTES_PER_VALUE)?;
    let config = TableConfig::new(options.dim)
        .optimizer(Optimizer::adagrad(options.lr))
        .initializer(Initializer::Normal { mean: 0.0, std: 0.01 })
        .seed(options.common.seed);
    let mut tables = Tables::new(bank, options.common.in_memory);
    let entities = tables.open("entity", config.clone(), 0..graph.entities)?;
    let relations = tables.open("relation", config, 0..graph.relations)?;

    let mut seconds = 0.0;
    for epoch in 1..=options.epochs {
        let started = Instant::now();
        let (mut total, mut steps) = (0.0, 0.0);
        let batches = graph.batches(&options, epoch);
        for batch in announced(batches, options.common.lookahead, |batch| {
            entities.lookahead(&batch.entities)
        }) {
            let batch = batch?;
            let entity_rows = entities.forward(&batch.entities)?;
            let relation_rows = relations.forward(&batch.relations)?;
            let loss = loss(&batch, &entity_rows, &relation_rows, options.regularization);
            loss.backward();
            tables.step()?; // the tables' own optimizer
            total += loss.double_value(&[]);
            steps += 1.0;
        }
        seconds += started.elapsed().as_secs_f64();
        if epoch % options.evaluate_every == 0 || epoch == options.epochs {
            let valid = no_grad(|| rank(&graph, &graph.valid, &entities, &relations))?;
            println!(
                "epoch {epoch}: loss {:.4}, valid MRR {:.4}, {seconds:.1} s",
                total / steps,
                valid.mrr
            );
        }
    }
    let test = no_grad(|| rank(&graph, &graph.test, &entities, &relations))?;
    let [first, three, ten] = test.hits;
    println!("test MRR {:.4}, Hits@1 {first:.4}, @3 {three:.4}, @10 {ten:.4}", test.mrr);
    let samples = options.epochs as f64 * graph.train.len() as f64;
    let waited = tables.waited_percent(seconds);
    println!("{:.0} samples/s, waits for rows {waited:.0}%", samples / seconds);
    Ok(())
}

/// The score of (h, r, t) is the sum of h * r * t; the loss is the cross entropy of the true tail
/// among the candidates.
fn loss(batch: &Batch, entities: &Tensor, relations: &Tensor, regularization: f64) -> Tensor {
    let head = entities.index_select(0, &batch.heads);
    let candidates = entities.index_select(0, &batch.candidates);
    let tail = candidates.index_select(0, &batch.targets);
    let scores = (&head * relations).matmul(&candidates.tr());
    let cubed = |rows: &Tensor| rows.abs().pow_tensor_scalar(3).sum(Kind::Float);
    let norm = cubed(&head) + cubed(relations) + cubed(&tail);
    scores.cross_entropy_for_logits(&batch.targets)
        + norm * (regularization / batch.relations.numel() as f64)
}

/// Mean reciprocal rank, and the share of queries with the true tail in the first 1, 3, 10.
struct Ranking {
    mrr: f64,
    hits: [f64; 3],
}

/// Ranks the tail of each query among all entities except the query's other known tails. Reads a
/// chunk of entities at a time, so the table need not be in memory. A score that equals the score
/// of the true tail up to rounding counts as half better. Fails if a score is not finite: no score
/// is greater than NaN, so NaN would rank first.
fn rank(
    graph: &Graph,
    queries: &[Triple],
    entities: &Embedding,
    relations: &Embedding,
) -> Result<Ranking> {
    const ENTITY_CHUNK: u64 = 8192;
    const QUERY_CHUNK: usize = 1024;
    const TIE: f64 = 1e-5;
    let column = |of: fn(&Triple) -> u64| tensor_of(&queries.iter().map(of).collect::<Vec<u64>>());
    let query =
        entities.forward(&column(|of| of.head))? * relations.forward(&column(|of| of.relation))?;
    let truth = &query * entities.forward(&column(|of| of.tail))?;
    let truth = finite(truth.sum_dim_intlist(1, true, Kind::Float))?;
    let tie = truth.abs().clamp_min(1.0) * TIE;
    let better = Tensor::zeros([queries.len() as i64], (Kind::Double, tch::Device::Cpu));
    for begin in (0..graph.entities).step_by(ENTITY_CHUNK as usize) {
        let end = graph.entities.min(begin + ENTITY_CHUNK);
        let rows = entities.forward(&Tensor::arange_start(
            begin as i64,
            end as i64,
            (Kind::Int64, tch::Device::Cpu),
        ))?;
        let width = (end - begin) as i64;
        for (chunk, part) in queries.chunks(QUERY_CHUNK).enumerate() {
            let (first, count) = ((chunk * QUERY_CHUNK) as i64, part.len() as i64);
            let known: Vec<i64> = (0..)
                .zip(part)
                .flat_map(|(place, query)| graph.tails(query).map(move |tail| (place, tail)))
                .filter(|(_, tail)| (begin..end).contains(tail))
                .map(|(place, tail)| place * width + (tail - begin) as i64)
                .collect();
            let scores = finite(query.narrow(0, first, count).matmul(&rows.tr()))?;
            let _ = scores.view(-1).index_fill_(0, &Tensor::from_slice(&known), f64::NEG_INFINITY);
            let (lead, near) =
                (scores - truth.narrow(0, first, count), tie.narrow(0, first, count));
            let above = |found: Tensor| found.sum_dim_intlist(1, false, Kind::Double);
            let here = above(lead.gt_tensor(&near)) + above(lead.abs().le_tensor(&near)) * 0.5;
            let _ = better.narrow(0, first, count).g_add_(&here);
        }
    }
    let ranks = better + 1.0;
    let mean = |of: Tensor| of.to_kind(Kind::Double).mean(Kind::Double).double_value(&[]);
    let hits = [1.0, 3.0, 10.0].map(|most| mean(ranks.le(most)));
    Ok(Ranking { mrr: mean(ranks.reciprocal()), hits })
}

/// Returns the scores, or an error if one is NaN or infinite.
fn finite(scores: Tensor) -> Result<Tensor> {
    if scores.isfinite().all().int64_value(&[]) == 0 {
        bail!("the model gives scores that are not finite: its training has diverged; lower --lr");
    }
    Ok(scores)
}

#[derive(Debug, Clone, Copy)]
struct Triple {
    head: u64,
    relation: u64,
    tail: u64,
}

/// Every triple (h, r, t) is in the graph a second time as (t, r', h), with the reciprocal relation
/// r'. So the model only answers the question "which tail?" (Lacroix et al., 2018).
struct Graph {
    entities: u64,
    relations: u64,
    train: Vec<Triple>,
    valid: Vec<Triple>,
    test: Vec<Triple>,
    /// The known tails of every (head, relation), from all parts.
    known: HashMap<(u64, u64), Vec<u64>>,
}

/// `entities` are the distinct entities of the batch. `heads` and `candidates` are positions in
/// `entities`, and `targets` are the positions of the tails in `candidates`.
struct Batch {
    entities: Tensor,
    relations: Tensor,
    heads: Tensor,
    candidates: Tensor,
    targets: Tensor,
}

impl Graph {
    fn load(folder: &Path) -> Result<Self> {
        let (mut entities, mut relations) = (HashMap::new(), HashMap::new());
        let mut read = |part: &str| -> Result<Vec<Triple>> {
            let path = folder.join(part).with_extension("tsv");
            let text = std::fs::read_to_string(&path).with_context(|| {
                format!("reading {} (name its folder with --data)", path.display())
            })?;
            let mut triples = Vec::new();
            for (number, line) in text.lines().enumerate() {
                let mut fields = line.split('\t');
                let (Some(head), Some(relation), Some(tail)) =
                    (fields.next(), fields.next(), fields.next())
                else {
                    bail!("{}:{}: a line is head, relation and tail", path.display(), number + 1);
                };
                triples.push(Triple {
                    head: numbered(&mut entities, head),
                    relation: numbered(&mut relations, relation),
                    tail: numbered(&mut entities, tail),
                });
            }
            Ok(triples)
        };
        let parts = [read("train")?, read("valid")?, read("test")?];
        let reciprocal = relations.len() as u64;
        let [train, valid, test] = parts.map(|triples| {
            let reverse = triples.iter().map(|of| Triple {
                head: of.tail,
                relation: of.relation + reciprocal,
                tail: of.head,
            });
            triples.iter().copied().chain(reverse).collect::<Vec<_>>()
        });
        let mut known: HashMap<_, Vec<u64>> = HashMap::new();
        for of in train.iter().chain(&valid).chain(&test) {
            known.entry((of.head, of.relation)).or_default().push(of.tail);
        }
        let entities = entities.len() as u64;
        Ok(Self { entities, relations: 2 * reciprocal, train, valid, test, known })
    }

    fn tails(&self, query: &Triple) -> impl Iterator<Item = u64> {
        self.known[&(query.head, query.relation)].iter().copied()
    }

    /// Yields the batches of one epoch, in shuffled order. All triples of a batch share its random
    /// negatives.
    fn batches(&self, options: &Options, epoch: u64) -> impl Iterator<Item = Batch> {
        let mut random = SmallRng::seed_from_u64(options.common.seed << 32 | epoch);
        let mut order: Vec<usize> = (0..self.train.len()).collect();
        order.shuffle(&mut random);
        let (size, negatives) = (options.batch_size, options.negatives);
        (0..order.len()).step_by(size).map(move |begin| {
            let triples = order[begin..].iter().take(size).map(|&place| self.train[place]);
            let triples: Vec<Triple> = triples.collect();
            let others = (0..negatives).map(|_| random.random_range(0..self.entities));
            let candidates: Vec<u64> = triples.iter().map(|of| of.tail).chain(others).collect();
            let candidates =
                UniqueKeys::new(&candidates).expect("a batch has fewer than 2^32 keys");
            let heads = triples.iter().map(|of| of.head);
            let all: Vec<u64> = heads.chain(candidates.keys().iter().copied()).collect();
            let all = UniqueKeys::new(&all).expect("a batch has fewer than 2^32 keys");
            Batch {
                entities: tensor_of(all.keys()),
                relations: tensor_of(&triples.iter().map(|of| of.relation).collect::<Vec<_>>()),
                heads: places(&all.inverse()[..triples.len()]),
                candidates: places(&all.inverse()[triples.len()..]),
                targets: places(&candidates.inverse()[..triples.len()]),
            }
        })
    }
}

/// Returns the number of `name`. A new name gets the next number.
fn numbered(numbers: &mut HashMap<String, u64>, name: &str) -> u64 {
    let next = numbers.len() as u64;
    *numbers.entry(name.to_owned()).or_insert(next)
}

fn places(of: &[u32]) -> Tensor {
    Tensor::from_slice(&of.iter().map(|&place| i64::from(place)).collect::<Vec<_>>())
}
