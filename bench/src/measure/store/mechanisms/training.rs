//! One run: opens a bank at its last checkpoint, then trains and reads it for a number of steps.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use embank::{AutoDepth, Bank, BankOptions, BankStats, Missing, Table};

use super::models::{Batches, Keys, Model};
use crate::ground::content;
use crate::ground::loading::for_all_rows;

/// The run reads the statistics once in this number of steps, to find the largest size of the log
/// on disk.
const STEPS_BETWEEN_LOOKS: usize = 16;
/// One row in this number is part of the final checksum.
const ROWS_PER_LOOK: usize = 61;
/// Ticks a second in which the kernel counts a process's processor time.
const TICKS_PER_S: f64 = 100.0;

/// The plan of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) budget_bytes: u64,
    /// Steps before the measured ones.
    pub(super) warm_up: usize,
    pub(super) steps: usize,
    /// Batches to look ahead; `None` leaves it to an `AutoDepth`.
    pub(super) depth: Option<usize>,
    /// The time that each step of training sleeps.
    pub(super) compute: Duration,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) rows_per_s: f64,
    /// Rows a second. The time in which the training thread was ready but had no processor is left
    /// out.
    pub(super) undisturbed_rows_per_s: f64,
    /// Milliseconds that batches waited for a free frame, divided by the number of steps.
    pub(super) page_wait_ms_per_step: f64,
    pub(super) cpu_ms_per_step: f64,
    pub(super) read_kib_per_step: f64,
    pub(super) written_kib_per_step: f64,
    /// Bytes by which the log grew, divided by the bytes of the trained rows.
    pub(super) log_amplification: f64,
    /// Largest size of the log on disk, in MiB.
    pub(super) disk_mib_max: f64,
    /// The depth of Lookahead at the end.
    pub(super) depth: f64,
    /// The checksum of the rows that were read and trained, and of a part of the final rows.
    pub(super) checksum: u64,
}

fn options(plan: &Plan) -> BankOptions {
    BankOptions { memory_budget_bytes: plan.budget_bytes, ..BankOptions::default() }
}

/// Fills a new bank, trains it for `plan.warm_up` steps, compacts it and takes a checkpoint. Then
/// trains as many steps again and returns their steps a second. No checkpoint holds these last
/// steps.
///
/// # Errors
/// Returns the bank's error.
pub(super) fn prepare(path: &Path, model: &Model, plan: &Plan) -> Result<f64> {
    let bank = Bank::open(path, options(plan))?;
    let tables = open_tables(&bank, model)?;
    for (table, of) in tables.iter().zip(&model.tables) {
        for_all_rows("loading", of.rows, model.dim, |keys, rows| {
            content::fill(keys, model.dim, rows);
            Ok(table.put(keys, rows)?)
        })?;
    }
    let mut trainer = Trainer::new(&bank, tables, model, plan);
    trainer.run(plan.warm_up, |_| Ok(()))?;
    // Compaction removes each row's first record, which loading wrote.
    bank.compact()?;
    bank.checkpoint(&[])?;
    let began = Instant::now();
    trainer.run(plan.warm_up, |_| Ok(()))?;
    Ok(plan.warm_up as f64 / began.elapsed().as_secs_f64())
}

/// Opens the bank at its last checkpoint and runs the plan. Takes no checkpoint, so the bank stays
/// as it was.
///
/// # Errors
/// Returns the bank's error.
pub(super) fn run(path: &Path, model: &Model, plan: &Plan) -> Result<Figures> {
    let bank = Bank::open(path, options(plan))?;
    let tables = open_tables(&bank, model)?;
    let mut trainer = Trainer::new(&bank, tables, model, plan);
    trainer.run(plan.warm_up, |_| Ok(()))?;
    let (before, cpu_before, delay_before) = (bank.stats(), cpu_s()?, run_delay_s());
    let began = Instant::now();
    let (rows_before, trained_before) = (trainer.rows, trainer.trained);
    let mut disk_bytes = 0;
    trainer.run(plan.steps, |step| {
        if step.is_multiple_of(STEPS_BETWEEN_LOOKS) {
            disk_bytes = disk_bytes.max(bank.stats().store.log_disk_bytes);
        }
        Ok(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let (delay, cpu, after) = (run_delay_s() - delay_before, cpu_s()?, bank.stats());
    let rows = (trainer.rows - rows_before) as f64;
    let trained_bytes = (trainer.trained - trained_before) * model.record_bytes();
    let kib_per_step =
        |of: fn(&BankStats) -> u64| (of(&after) - of(&before)) as f64 / 1024.0 / plan.steps as f64;
    Ok(Figures {
        rows_per_s: rows / seconds,
        undisturbed_rows_per_s: rows / (seconds - delay),
        page_wait_ms_per_step: (after.store.page_waits_us - before.store.page_waits_us) as f64
            / 1e3
            / plan.steps as f64,
        cpu_ms_per_step: (cpu - cpu_before) * 1e3 / plan.steps as f64,
        read_kib_per_step: kib_per_step(|stats| stats.store.disk_read_bytes),
        written_kib_per_step: kib_per_step(|stats| stats.store.disk_write_bytes),
        log_amplification: (after.store.log_tail - before.store.log_tail) as f64
            / trained_bytes.max(1) as f64,
        disk_mib_max: disk_bytes as f64 / f64::from(1 << 20),
        depth: trainer.depth() as f64,
        checksum: trainer.final_checksum()?,
    })
}

fn open_tables(bank: &Bank, model: &Model) -> Result<Vec<Table>> {
    let open = |of: &super::models::TablePlan| Ok(bank.table(&of.name, model.config())?);
    model.tables.iter().map(open).collect()
}

/// Processor time of all threads of this process.
fn cpu_s() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat").context("reading the processor time")?;
    // The program's name may have any characters, so this splits behind it. The state is the third
    // field, and the times are fields 14 and 15.
    let fields = text.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 = fields.split(' ').skip(11).take(2).map_while(|n| n.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / TICKS_PER_S)
}

/// The time that this thread has waited for a processor. 0 if the system does not say.
fn run_delay_s() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').nth(1).and_then(|ns| ns.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

/// A loop that trains and, between blocks, evaluates.
struct Trainer<'b> {
    bank: &'b Bank,
    model: Model,
    tables: Vec<Table>,
    training: Batches,
    evaluation: Batches,
    /// The batches that were announced to Lookahead and not trained yet, oldest first.
    ahead: VecDeque<Keys>,
    auto: AutoDepth,
    fixed_depth: Option<usize>,
    compute: Duration,
    /// Steps so far.
    step: usize,
    /// `rows` counts the requested rows, `trained` the distinct rows of trained batches.
    rows: u64,
    trained: u64,
    checksum: u64,
    values: Vec<f32>,
}

impl<'b> Trainer<'b> {
    fn new(bank: &'b Bank, tables: Vec<Table>, model: &Model, plan: &Plan) -> Self {
        Self {
            bank,
            model: model.clone(),
            tables,
            training: model.training(),
            evaluation: model.evaluation(),
            ahead: VecDeque::new(),
            auto: AutoDepth::new(),
            fixed_depth: plan.depth,
            compute: plan.compute,
            step: 0,
            rows: 0,
            trained: 0,
            checksum: 0,
            values: Vec::new(),
        }
    }

    fn depth(&self) -> usize {
        self.fixed_depth.unwrap_or_else(|| self.auto.depth())
    }

    /// Runs `steps` steps. Before each step, calls `before` with the step's number.
    fn run(&mut self, steps: usize, mut before: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let (trains, evaluates) = self.model.kind.blocks();
        for number in 0..steps {
            before(number)?;
            let place = self.step % (trains + evaluates);
            self.step += 1;
            if place >= trains {
                self.evaluate()?;
                continue;
            }
            if place == 0 {
                self.auto.begin_pass();
            }
            self.train()?;
        }
        Ok(())
    }

    fn train(&mut self) -> Result<()> {
        let auto = self.auto.step(self.bank);
        let depth = self.fixed_depth.unwrap_or(auto);
        while self.ahead.len() <= depth {
            let keys = self.training.next();
            for (table, keys) in self.tables.iter().zip(&keys) {
                table.lookahead(keys)?;
            }
            self.ahead.push_back(keys);
        }
        let batch = self.ahead.pop_front().expect("one more than the depth");
        let mut leases = Vec::with_capacity(self.tables.len());
        for (table, keys) in self.tables.iter().zip(&batch) {
            let mut rows = vec![0.0; keys.len() * self.model.dim];
            let lease = table.get(keys, &mut rows)?;
            (self.rows, self.trained) =
                (self.rows + keys.len() as u64, self.trained + lease.unique().len() as u64);
            leases.push((lease, rows));
        }
        if !self.compute.is_zero() {
            std::thread::sleep(self.compute);
        }
        for ((lease, mut rows), keys) in leases.into_iter().zip(&batch) {
            self.checksum = checksum(self.checksum, &rows);
            to_gradients(keys, self.step, self.model.dim, &mut rows);
            lease.apply(&rows)?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<()> {
        let batch = self.evaluation.next();
        for (table, keys) in self.tables.iter().zip(&batch) {
            self.values.resize(keys.len() * self.model.dim, 0.0);
            table.peek(keys, &mut self.values, Missing::Error)?;
            self.checksum = checksum(self.checksum, &self.values);
            self.rows += keys.len() as u64;
        }
        Ok(())
    }

    /// The checksum of the rows read in all steps, and of a part of the rows as they are now.
    fn final_checksum(&mut self) -> Result<u64> {
        for (table, of) in self.tables.iter().zip(&self.model.tables) {
            let keys: Vec<u64> = (0..of.rows).step_by(ROWS_PER_LOOK).collect();
            self.values.resize(keys.len() * self.model.dim, 0.0);
            table.peek(&keys, &mut self.values, Missing::Error)?;
            self.checksum = checksum(self.checksum, &self.values);
        }
        Ok(self.checksum)
    }
}

/// A checksum of four sums. It depends on each value's bits and place.
fn checksum(before: u64, values: &[f32]) -> u64 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sums = [before, 1, 2, 3];
    for values in values.chunks_exact(4) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = (*sum ^ u64::from(value.to_bits())).wrapping_mul(PRIME).rotate_left(29);
        }
    }
    sums.into_iter().fold(0, |all, sum| (all ^ sum).wrapping_mul(PRIME))
}

/// Turns the rows into gradients. The loss moves each row to a point that its key and the step
/// give.
fn to_gradients(keys: &[u64], step: usize, dim: usize, rows: &mut [f32]) {
    for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(dim)) {
        let target = content::value(key, step) - 0.5;
        row.iter_mut().for_each(|value| *value = 0.1 * (*value - target));
    }
}
