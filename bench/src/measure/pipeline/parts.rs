//! `parts`: rows/s of a feed that two consumers share, beside one consumer of the undivided feed.
//!
//! Each consumer is a thread that takes batches and drops them. Before measuring, every row of the
//! undivided feed is checked against the reference. The checksum of each batch of the parts is
//! compared with that of the undivided feed's batch.
//!
//! Estimate, written before measuring: a batch of 4,096 rows takes 200 us to make. The parts add
//! two locks and at most two wake-ups for each batch, some 10 us of a core that would otherwise
//! decode. So two consumers should get 0.97 to 1 of the rows/s of one.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use embank_pipeline::{Batch, Feed, FeedInput, FeedOptions, Pipeline, RunOptions, Spec};

use super::Common;
use super::generate;
use super::reference::Reference;
use crate::ground::report::{Row, print_provenance};
use crate::ground::rounds::Spread;

/// Consumers of the divided feed.
const PARTS: usize = 2;

/// A batch's first row, and the checksum of its values.
type Digest = (u64, u32);

fn values(batch: &Batch) -> &[u32] {
    batch.bits32(0).expect("the one output has 32 bits")
}

fn digest(batch: &Batch) -> Digest {
    (batch.first_row(), crc32c::crc32c(bytemuck::cast_slice(values(batch))))
}

fn feed(text: &Arc<[u8]>, modulus: u32, common: &Common) -> Result<Feed> {
    let options = RunOptions { chunk_bytes: common.chunk_kib << 10, ..RunOptions::default() };
    let pipeline = Pipeline::new(&Spec::criteo(modulus), &options)?;
    let inputs = vec![FeedInput::memory("rows", Arc::clone(text))];
    Ok(pipeline.feed(inputs, &FeedOptions::default())?)
}

/// Calls `take` with each batch of the undivided feed.
fn one(feed: Feed, mut take: impl FnMut(&Batch) -> Result<()>) -> Result<()> {
    for batch in feed {
        take(&batch?)?;
    }
    Ok(())
}

/// Calls `take` with each batch, in a thread for each part. Returns the results in no order.
fn several<T: Send>(feed: Feed, take: impl Fn(&Batch) -> T + Sync) -> Result<Vec<T>> {
    let parts = feed.split(PARTS)?;
    let take = &take;
    let taken = std::thread::scope(|scope| {
        let consume = |part| -> Result<Vec<T>> {
            let part: embank_pipeline::FeedPart = part;
            part.map(|batch| Ok(take(&batch?))).collect()
        };
        let threads: Vec<_> =
            parts.into_iter().map(|part| scope.spawn(move || consume(part))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("it returns errors"));
        joined.collect::<Result<Vec<_>>>()
    })?;
    Ok(taken.into_iter().flatten().collect())
}

/// Checks the rows of the undivided feed, and that the parts together have its batches.
fn check(text: &Arc<[u8]>, modulus: u32, common: &Common) -> Result<()> {
    let mut reference = Reference::new(common.seed, modulus);
    let mut expected = Vec::new();
    one(feed(text, modulus, common)?, |batch| {
        expected.push(digest(batch));
        reference.check(values(batch))
    })?;
    ensure!(reference.checked() == common.rows, "{} rows were checked", reference.checked());
    let mut found = several(feed(text, modulus, common)?, digest)?;
    found.sort_unstable();
    ensure!(found == expected, "the parts together have other batches than the feed");
    println!("checked: {} batches of {PARTS} parts are those of the feed", found.len());
    Ok(())
}

/// Runs `parts`.
pub(super) fn run(common: &Common) -> Result<()> {
    print_provenance();
    let text = generate::rows(common.seed, common.rows, generate::write_text).into();
    let mut rows = Vec::new();
    for &modulus in &common.moduli {
        if common.check {
            check(&text, modulus, common)?;
        }
        let rate = |seconds: f64| common.rows as f64 / seconds;
        let (mut of_one, mut of_several) = (Vec::new(), Vec::new());
        // The first round warms up and does not count.
        for round in 0..=common.rounds {
            let started = Instant::now();
            one(feed(&text, modulus, common)?, |_| Ok(()))?;
            let alone = rate(started.elapsed().as_secs_f64());
            let started = Instant::now();
            several(feed(&text, modulus, common)?, |_| ())?;
            let together = rate(started.elapsed().as_secs_f64());
            if round > 0 {
                of_one.push(alone);
                of_several.push(together);
            }
        }
        let name = |what: &str| format!("{what}, vocabularies of {modulus}");
        let one = Row::rate(name("one consumer"), Spread::of(of_one));
        rows.push(Row::rate(name("two consumers"), Spread::of(of_several)).beside(&one));
        rows.push(one);
    }
    common.output.publish("pipeline parts", &rows).context("publishing the rows")
}
