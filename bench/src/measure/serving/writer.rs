//! The process that trains the bank: this program, started a second time.
//!
//! A served bank shares only the machine and the files with its training, so the writer is a
//! process of its own. It reads its task and then its orders from standard input, one in each line.
//! It writes its news to standard output. Neither process depends on timing.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use embank::{Bank, BankOptions, Optimizer, Table, TableConfig};
use serde::{Deserialize, Serialize};

use super::history::{Training, Updates};
use crate::ground::loading::for_all_rows;

/// Name of the table that is trained and served.
pub(super) const TABLE: &str = "rows";

/// The task of the writer's process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Task {
    /// Folder of the bank; it must not exist yet.
    pub(super) bank: PathBuf,
    pub(super) rows: u64,
    pub(super) dim: usize,
    pub(super) memory_budget_bytes: u64,
    pub(super) zipf: f64,
    pub(super) batch: usize,
    pub(super) checkpoint_every_seconds: f64,
    pub(super) seed: u64,
}

impl Task {
    /// The batches of the task.
    pub(super) fn training(&self) -> Training {
        Training::new(self.rows, self.zipf, self.batch, self.seed)
    }
}

/// The news of the writer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum News {
    /// The checkpoint of this number is complete.
    Checkpoint(u64),
    /// The writer waits for orders. Since the last order it has trained `rows` rows, and a
    /// checkpoint holds all of them.
    Resting { rows: u64 },
}

/// An order of the reader's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    Train,
    Rest,
}

/// Trains a bank.
#[derive(Debug)]
pub(super) struct Trainer {
    bank: Bank,
    table: Table,
    training: Training,
    updates: Updates,
    dim: usize,
    rows: Vec<f32>,
    next: Vec<f32>,
}

impl Trainer {
    /// Makes the bank and loads its rows.
    ///
    /// # Errors
    /// Returns the bank's error.
    pub(super) fn begin(task: &Task) -> Result<Self> {
        let memory_budget_bytes = task.memory_budget_bytes;
        let options = BankOptions { memory_budget_bytes, ..BankOptions::default() };
        let bank = Bank::open(&task.bank, options)?;
        let dim = u32::try_from(task.dim).context("the rows are too long")?;
        // With a learning rate of 1, a gradient is the difference between a row and its next
        // content.
        let config = TableConfig::new(dim).optimizer(Optimizer::sgd(1.0));
        let table = bank.table(TABLE, config)?;
        let updates = Updates::none(task.rows);
        for_all_rows("loading", task.rows, task.dim, |keys, rows| {
            updates.fill(keys, task.dim, rows);
            Ok(table.put(keys, rows)?)
        })?;
        let room = vec![0.0; task.batch * task.dim];
        let (training, dim) = (task.training(), task.dim);
        Ok(Self { bank, table, training, updates, dim, rows: room.clone(), next: room })
    }

    /// Does a step of training: gets the rows of the next batch, checks them, and applies their
    /// gradients. Returns the number of rows.
    ///
    /// # Errors
    /// Fails if the bank fails or a row differs from the result of the last step.
    pub(super) fn step(&mut self) -> Result<u64> {
        let keys = self.training.next_batch();
        let rows = &mut self.rows[..keys.len() * self.dim];
        let next = &mut self.next[..keys.len() * self.dim];
        let lease = self.table.get(&keys, rows)?;
        if let Some(key) = self.updates.wrong(&keys, self.dim, rows) {
            bail!("wrong answer: the writer got a row of key {key} that it has not trained so");
        }
        self.updates.note(&keys);
        self.updates.fill(&keys, self.dim, next);
        // The values are multiples of 2^-24 below 1, so the differences are exact. The step, which
        // subtracts them, is exact too.
        rows.iter_mut().zip(next.iter()).for_each(|(row, next)| *row -= next);
        lease.apply(rows)?;
        Ok(keys.len() as u64)
    }

    /// Takes a checkpoint whose blob has the number of batches. Returns the checkpoint's number.
    ///
    /// # Errors
    /// Returns the bank's error.
    pub(super) fn checkpoint(&self) -> Result<u64> {
        Ok(self.bank.checkpoint(&self.training.batches().to_le_bytes())?)
    }

    /// Trains until an order comes. Takes a checkpoint whenever `every` has passed since the last
    /// one. Returns true if an order came, after one more checkpoint. Returns false if standard
    /// input ended.
    fn train(&mut self, every: Duration, orders: &Receiver<Order>) -> Result<bool> {
        let (mut rows, mut last) = (0, Instant::now());
        // The loop ends with the next order, or when the sender of the orders ends.
        let told = loop {
            rows += self.step()?;
            match orders.try_recv() {
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break false,
                Ok(order) => {
                    ensure!(
                        order == Order::Rest,
                        "the writer is told to {order:?} while it trains"
                    );
                    break true;
                }
            }
            if last.elapsed() >= every {
                tell(News::Checkpoint(self.checkpoint()?))?;
                last = Instant::now();
            }
        };
        if told {
            tell(News::Checkpoint(self.checkpoint()?))?;
            tell(News::Resting { rows })?;
        }
        Ok(told)
    }
}

/// The writer's program: loads the bank, takes a checkpoint, and trains when it is ordered to,
/// until standard input ends.
///
/// # Errors
/// Fails if the bank fails or a line is neither a task nor an order.
pub(crate) fn run() -> Result<()> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).context("reading the writer's task")?;
    let task: Task =
        serde_json::from_str(&line).context("no task; `serving` starts this program by itself")?;
    let every = Duration::from_secs_f64(task.checkpoint_every_seconds);
    let mut trainer = Trainer::begin(&task)?;
    tell(News::Checkpoint(trainer.checkpoint()?))?;
    let (give, orders) = mpsc::channel();
    // A thread reads the orders, so that training can check for an order without waiting. The
    // thread ends when standard input ends.
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { break };
            if give.send(order).is_err() {
                break;
            }
        }
    });
    // The loop ends when standard input ends, at the latest with the process that gives the orders.
    while let Ok(order) = orders.recv() {
        ensure!(order == Order::Train, "the writer is told to {order:?} while it rests");
        if !trainer.train(every, &orders)? {
            break;
        }
    }
    Ok(())
}

fn tell(news: News) -> Result<()> {
    let line = serde_json::to_string(&news).context("news to JSON")?;
    writeln!(io::stdout(), "{line}").context("telling the reader's process")
}

/// The writer's process, as a handle of the reader's process. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Writer {
    child: Child,
    pub(super) orders: Orders,
    /// Closed when the process ends.
    pub(super) news: Receiver<News>,
    /// Number of the writer's first checkpoint.
    pub(super) first_checkpoint: u64,
}

impl Writer {
    /// Starts the process, and waits until the bank is loaded and has a checkpoint. The writer then
    /// waits for orders.
    ///
    /// # Errors
    /// Fails if the process can't be started or has failed.
    pub(super) fn start(task: &Task) -> Result<Self> {
        let program = env::current_exe().context("finding this program to start it once more")?;
        let mut child = Command::new(program)
            .arg("serving-writer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the writer's process")?;
        let orders = Orders(child.stdin.take().context("its standard input is a pipe")?);
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let (tell, news) = mpsc::channel();
        // The thread ends when the process closes its standard output.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(news) = serde_json::from_str(&line) else { break };
                if tell.send(news).is_err() {
                    break;
                }
            }
        });
        let mut writer = Self { child, orders, news, first_checkpoint: 0 };
        writer.orders.send(task)?;
        match writer.news.recv() {
            Ok(News::Checkpoint(number)) => writer.first_checkpoint = number,
            other => bail!("the writer's process has not loaded its bank: {other:?}"),
        }
        Ok(writer)
    }
}

/// The writer's standard input.
#[derive(Debug)]
pub(super) struct Orders(ChildStdin);

impl Orders {
    /// Gives an order.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub(super) fn give(&mut self, order: Order) -> Result<()> {
        self.send(&order)
    }

    fn send(&mut self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what).context("a line to JSON")?;
        writeln!(self.0, "{line}").context("the writer's process has ended")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The bank is removed with its directory, so the process may end at any point.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
