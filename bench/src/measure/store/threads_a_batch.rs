//! `in-memory --threads-a-batch`: how much faster the batches of one caller are if a bank has
//! several threads.
//!
//! One thread calls a table's get, get + release, peek and gradients, with batches of three
//! lengths. For each number of threads there is a bank ([`BankOptions::threads`]) with equal rows,
//! all in memory. The banks take turns on the same keys, and each figure is compared with that of
//! the bank with one thread.
//!
//! Estimate, written before measuring. A batch of 256 keys stays on the calling thread, so more
//! threads do not change its rate. A batch of 4,096 rows of 64 bytes takes about 250 us on one
//! thread. The bank divides it into parts, four for each thread. Starting and joining the parts
//! takes about 10 us, so two free processors give 1.8 times the rate and four give 3 times. At
//! 32,768 keys two processors give 1.9 times. A get finds the distinct keys of its batch before the
//! parts begin, so gets gain less than peeks.
//!
//! Every answer is checked, as in the rest of `in-memory`.

use std::sync::Mutex;

use anyhow::{Result, ensure};
use embank::{Bank, BankOptions, Optimizer, Table};

use crate::ground::contenders::{Flips, Get, Gradients, Peek};
use crate::ground::loading::bar;
use crate::ground::report::Row;
use crate::ground::rounds::{Contender, Draw, Plan, alternate};
use crate::measure::store::in_memory::{
    self, check_in_memory, check_table, load_table, scratch_in,
};

/// Keys of a batch: a short batch that stays on one thread, a usual batch, and a long one.
const BATCHES: [usize; 3] = [256, 4096, 32_768];

/// A bank that divides its batches among up to `threads` threads, with its table.
struct Shared {
    threads: usize,
    bank: Bank,
    table: Table,
    flips: Mutex<Flips>,
}

/// Measures tables with `dim` columns and adds their figures.
///
/// # Errors
/// Fails if the store fails or reads from disk, or an answer is wrong.
pub(crate) fn measure(args: &in_memory::Args, dim: usize, figures: &mut Vec<Row>) -> Result<()> {
    let counts = counts(&args.threads_a_batch)?;
    let directory = scratch_in(&args.common.directory)?;
    // Each bank has one table. All these tables together have at most the bytes that `--table-mib`
    // allows for one table.
    let rows = args.rows_of(dim * counts.len());
    ensure!(rows > 0, "--table-mib does not hold a row in each of {} tables", counts.len());
    let memory_budget_bytes = args.budget_bytes(rows, dim);
    println!(
        "{} B      {rows} rows, budget {} MiB each; {} banks",
        dim * size_of::<f32>(),
        memory_budget_bytes >> 20,
        counts.len()
    );
    let mut banks = Vec::new();
    for threads in counts {
        let options = BankOptions { memory_budget_bytes, threads, ..BankOptions::default() };
        let bank = Bank::open(directory.path().join(threads.to_string()), options)?;
        let table = load_table(&bank, rows, dim, Optimizer::sgd(1.0))?;
        banks.push(Shared { threads, bank, table, flips: Mutex::new(Flips::new(rows)) });
    }
    for batch in BATCHES {
        one_length(args, &banks, rows, batch, figures)?;
    }
    for Shared { threads, bank, table, flips } in banks {
        check_in_memory(&format!("{threads} a batch"), &bank.stats().store)?;
        let flips = flips.into_inner().expect("a thread that panicked has ended the run");
        check_table(&table, rows, dim, &flips)?;
    }
    Ok(())
}

/// Returns 1, then the other numbers of threads in their order, each once.
fn counts(asked: &[usize]) -> Result<Vec<usize>> {
    ensure!(asked.iter().all(|&threads| threads > 0), "--threads-a-batch must be positive");
    let mut counts = vec![1];
    for &threads in asked {
        if !counts.contains(&threads) {
            counts.push(threads);
        }
    }
    Ok(counts)
}

/// Measures all banks with batches of one length.
fn one_length(
    args: &in_memory::Args,
    banks: &[Shared],
    rows: u64,
    batch: usize,
    figures: &mut Vec<Row>,
) -> Result<()> {
    let dim = banks[0].table.dim();
    let batches = (rows as usize / batch).max(1);
    let plan = Plan {
        rows,
        dim,
        batch,
        threads: vec![1],
        draw: Draw::Apart,
        rounds: args.rounds,
        batches,
        warm_up_batches: batches.min(64),
        seed: args.common.seed,
    };
    let mut contenders: Vec<Box<dyn Contender + '_>> = Vec::new();
    for Shared { table, flips, .. } in banks {
        contenders.push(Box::new(Get { table, release: false }));
        contenders.push(Box::new(Get { table, release: true }));
        contenders.push(Box::new(Peek { table }));
        contenders.push(Box::new(Gradients { table, flips }));
    }
    let operations = contenders.len() / banks.len();
    let in_turn: Vec<&dyn Contender> = contenders.iter().map(|one| &**one).collect();
    let spreads = alternate(&plan, &in_turn, &bar("measuring", 0))?;
    let spreads = spreads.into_iter().next().expect("the plan has one number of callers");
    let row_bytes = dim * size_of::<f32>();
    let rates: Vec<Row> = spreads
        .into_iter()
        .enumerate()
        .map(|(place, spread)| {
            let threads = banks[place / operations].threads;
            let plural = if threads == 1 { "" } else { "s" };
            let name = contenders[place].name();
            let label =
                format!("{row_bytes} B, batches of {batch}, {threads} thread{plural} a batch");
            Row::rate(format!("{label}: {name}"), spread)
        })
        .collect();
    let (single, shared) = rates.split_at(operations);
    figures.extend_from_slice(single);
    figures.extend(
        shared.iter().zip(single.iter().cycle()).map(|(row, single)| row.clone().beside(single)),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_comes_first_and_each_number_once() {
        assert_eq!(counts(&[4, 2, 4]).unwrap(), [1, 4, 2]);
        assert_eq!(counts(&[1]).unwrap(), [1]);
        assert!(counts(&[0]).is_err());
    }
}
