//! `damage`: flips single bits and cuts files of a bank, one at a time. Each time it checks three
//! things: `verify` reports the damage, the store returns no damaged row, and `salvage` brings back
//! every row outside the damaged page.
//!
//! The program makes one small bank with two checkpoints. The bank has tables of fixed and variable
//! width, deleted rows and a dropped table. Each case damages one file. The program first draws the
//! kind of file, so that it damages metadata as often as the log. `verify` may leave damage
//! unreported if the damage is harmless: it is in a byte of the log that belongs to no checkpoint.
//! With an odd seed, the bank has a cold tier: a base of three parts, and a run above it.
//! To know which rows a damaged page has, the program reads the segments itself, by their
//! description in docs/format.md.
//!
//! Estimate, written before measuring: every checkpointed byte has a checksum, so `verify` reports
//! all damage. A verify and an open of 2 MB take 5 to 20 ms, a salvage with its syncs takes 30 to
//! 60 ms. 5,500 cases take 5 to 8 minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use embank_kv::inspect::{
    BankSummary, SalvageOptions, TableReader, VerifyOptions, salvage, summary, verify,
};
use embank_kv::{
    Access, Clock, CompactionOptions, Operation, Store, StoreOptions, TableId, Width, parts,
};
use fastrand::Rng;

use crate::ground::loading::bar;
use crate::ground::options::Common;
use crate::ground::report::{Row, print_provenance};

const BUDGET_BYTES: u64 = 1 << 20;
const NAMES: [&str; 3] = ["small", "vectors", "words"];
const BYTES_MAX: [u32; 3] = [8, 96, 200];
/// No block of a part has more rows: it has 4 KiB, and its shortest rows have 16 bytes.
const BLOCK_ROWS_MAX: u64 = 4096 / 16;

/// Options of `damage`.
#[derive(Debug, clap::Args)]
#[command(after_help = "With --quick, within a minute: 300 flips, 60 cuts")]
pub(crate) struct Args {
    /// Cases that flip a single bit
    #[arg(long, default_value_t = 5000)]
    count: u64,
    /// Cases that cut a file short
    #[arg(long, default_value_t = 500)]
    cuts: u64,
    /// Rows of each of the three tables
    #[arg(long, default_value_t = 1500)]
    rows: u64,
    #[command(flatten)]
    common: Common,
}

type Rows = BTreeMap<u64, Vec<u8>>;

struct Put<'a, const VARIABLE: bool>(&'a [Vec<u8>]);

impl<const VARIABLE: bool> Operation for Put<'_, VARIABLE> {
    const ACCESS: Access = Access::Put;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn value_bytes(&mut self, i: usize, _old: Option<&[u8]>) -> usize {
        self.0[i].len()
    }
    fn update(&mut self, i: usize, value: &mut [u8]) {
        value.copy_from_slice(&self.0[i]);
    }
    fn insert(&mut self, i: usize, value: &mut [u8]) -> bool {
        self.update(i, value);
        true
    }
}

struct Get<'a, const VARIABLE: bool>(&'a mut [Vec<u8>]);

impl<const VARIABLE: bool> Operation for Get<'_, VARIABLE> {
    const ACCESS: Access = Access::Get;
    const WIDTH: Width = if VARIABLE { Width::Variable } else { Width::Fixed };
    fn read(&mut self, i: usize, value: &[u8]) {
        self.0[i] = value.to_vec();
    }
}

fn options() -> StoreOptions {
    StoreOptions {
        memory_budget_bytes: BUDGET_BYTES,
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        ..StoreOptions::default()
    }
}

/// The bank as it was before any damage.
struct Pristine {
    dir: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
    rows: [Rows; 3],
    /// The page of the row's newest record, by table number and key. Rows of parts have none.
    pages: BTreeMap<(u16, u64), u64>,
    summary: BankSummary,
}

impl Pristine {
    fn make(dir: &Path, args: &Args) -> Result<Self> {
        let mut random = Rng::with_seed(args.common.seed);
        let store = Store::open(dir, &options())?;
        let mut tables = Vec::new();
        for (i, name) in NAMES.into_iter().enumerate() {
            tables.push(match i {
                2 => store.create_variable_table(name, BYTES_MAX[i], b"")?,
                _ => store.create_table(name, BYTES_MAX[i], b"")?,
            });
        }
        let dropped = store.create_table("dropped", 16, b"")?;
        let mut rows: [Rows; 3] = Default::default();
        let is_cold = args.common.seed % 2 == 1;
        for checkpoint in 0..2 {
            if is_cold {
                add_parts(&store, checkpoint, args.rows, &mut random, &mut rows)?;
            }
            for (i, &table) in tables.iter().enumerate() {
                let some: BTreeSet<u64> = (0..args.rows).map(|_| random.u64(..args.rows)).collect();
                let keys: Vec<u64> = some.into_iter().collect();
                let values: Vec<Vec<u8>> = keys.iter().map(|_| value(i, &mut random)).collect();
                match i {
                    2 => store.execute(table, &keys, Clock::Keep, &mut Put::<true>(&values))?,
                    _ => store.execute(table, &keys, Clock::Keep, &mut Put::<false>(&values))?,
                };
                rows[i].extend(keys.into_iter().zip(values));
                let gone: Vec<u64> = (0..args.rows / 16).map(|_| random.u64(..args.rows)).collect();
                store.delete(table, &gone)?;
                rows[i].retain(|key, _| !gone.contains(key));
            }
            if checkpoint == 0 {
                let values = vec![vec![7; 16]; 100];
                let keys: Vec<u64> = (0..100).collect();
                store.execute(dropped, &keys, Clock::Keep, &mut Put::<false>(&values))?;
            } else {
                store.drop_table(dropped)?;
            }
            store.checkpoint(&vec![checkpoint as u8; 3000])?;
        }
        drop(store);
        let summary = summary(dir)?;
        let (files, page_bytes) = (read_all(dir)?, summary.checkpoints[1].page_bytes as usize);
        let log = files.iter().find(|(path, _)| path.extension().is_some_and(|e| e == "seg"));
        let (_, log) = log.context("the log has a segment")?;
        let named = log.get(..summary.checkpoints[1].log_end as usize).context("a short log")?;
        let pages = pages_of_rows(named, page_bytes);
        Ok(Pristine { dir: dir.to_owned(), files, rows, pages, summary })
    }

    /// Restores every file of the undamaged bank, and removes other files.
    fn restore(&self) -> Result<()> {
        for (path, found) in read_all(&self.dir)? {
            match self.files.get(&path) {
                None => fs::remove_file(path)?,
                Some(good) if *good != found => fs::write(path, good)?,
                Some(_) => {}
            }
        }
        for (path, good) in self.files.iter().filter(|(path, _)| !path.exists()) {
            fs::write(path, good)?;
        }
        Ok(())
    }

    /// Returns the files that can be damaged, by kind. A file with several names is listed once.
    fn kinds(&self) -> Result<Vec<(&'static str, Vec<PathBuf>)>> {
        let mut seen = BTreeSet::new();
        let mut kinds: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
        for (path, bytes) in &self.files {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let kind = match name.as_str() {
                "BANK" => "BANK",
                "manifest" => "manifest",
                "blob" => "blob",
                name if name.starts_with("index") => "index",
                name if name.starts_with("cold.") => "list of parts",
                // The addresses of parts begin at 2^49.
                name if name.starts_with("0002") => "part",
                name if name.ends_with(".seg") => "log",
                _ => continue,
            };
            if !bytes.is_empty() && seen.insert(fs::metadata(path)?.ino()) {
                kinds.entry(kind).or_default().push(path.clone());
            }
        }
        Ok(kinds.into_iter().collect())
    }
}

/// Returns a random value of table `i`.
fn value(i: usize, random: &mut Rng) -> Vec<u8> {
    let bytes = match i {
        2 => random.u64(..u64::from(BYTES_MAX[i]) + 1) as usize,
        _ => BYTES_MAX[i] as usize,
    };
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// Gives the bank a base, or a run above it with new values and deletions. The keys of the run are
/// at least `count`, because the log has rows of smaller keys, which would hide them.
fn add_parts(
    store: &Store,
    checkpoint: u64,
    count: u64,
    random: &mut Rng,
    rows: &mut [Rows; 3],
) -> Result<()> {
    let mut versions = parts::Rows::new();
    for i in 0..NAMES.len() {
        for _ in 0..count {
            let first = checkpoint * count;
            let value = (checkpoint == 0 || random.u8(..8) > 0).then(|| value(i, random));
            versions.insert((i as u16 + 1, random.u64(first..2 * count)), value);
        }
    }
    match checkpoint {
        0 => parts::replace_by_base(store, &versions, 3)?,
        _ => parts::add_run(store, &versions)?,
    }
    for ((table, key), value) in versions {
        let rows = &mut rows[usize::from(table) - 1];
        match value {
            Some(value) => _ = rows.insert(key, value),
            None => _ = rows.remove(&key),
        }
    }
    Ok(())
}

fn read_all(dir: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let (mut all, mut folders) = (BTreeMap::new(), vec![dir.to_owned()]);
    // The loop ends because a bank's folders are two levels deep.
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(path.clone(), fs::read(path)?);
            }
        }
    }
    Ok(all)
}

fn pages_of_rows(log: &[u8], page_bytes: usize) -> BTreeMap<(u16, u64), u64> {
    let mut pages = BTreeMap::new();
    for (number, page) in log.chunks_exact(page_bytes).enumerate() {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&page[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (mut at, end) = (64, word(24) as u32 as usize);
        while at + 32 <= end {
            let (key, shape) = (word(at + 16), word(at + 24));
            pages.insert(((shape >> 32) as u16, key), number as u64);
            at += 32 + (shape >> 48) as usize * 8;
        }
    }
    pages
}

/// The counts of one kind of file.
#[derive(Debug, Default)]
struct Tally {
    cases: u64,
    reported: u64,
    harmless: u64,
    refused: u64,
    rows_refused: u64,
    rows_off: u64,
    rows_back: u64,
}

/// One damaged file.
struct Case<'a> {
    path: &'a Path,
    is_log: bool,
    is_part: bool,
    /// The first damaged byte.
    at: u64,
    is_cut: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if harmful damage is not reported, a row is wrong, or `salvage` loses an undamaged row.
pub(crate) fn run(mut args: Args) -> Result<()> {
    if args.common.quick {
        (args.count, args.cuts) = (args.count.min(300), args.cuts.min(60));
    }
    print_provenance();
    let scratch = crate::measure::store::in_memory::scratch_in(&args.common.directory)?;
    let bank = Pristine::make(&scratch.path().join("bank"), &args)?;
    let kinds = bank.kinds()?;
    let mut random = Rng::with_seed(args.common.seed ^ 0xDA3A_6E00);
    let mut tallies: BTreeMap<(bool, &str), Tally> = BTreeMap::new();
    let progress = bar("damaging", args.count + args.cuts);
    for number in 0..args.count + args.cuts {
        let is_cut = number >= args.count;
        let (kind, files) = &kinds[random.u64(..kinds.len() as u64) as usize];
        let path = &files[random.u64(..files.len() as u64) as usize];
        let mut bytes = bank.files[path].clone();
        let at = random.u64(..bytes.len() as u64);
        let bit = random.u64(..8);
        if is_cut {
            bytes.truncate(at as usize);
        } else {
            bytes[at as usize] ^= 1 << bit;
        }
        fs::write(path, &bytes)?;
        let case = Case { path, is_log: *kind == "log", is_part: *kind == "part", at, is_cut };
        let tally = tallies.entry((is_cut, kind)).or_default();
        let what = if is_cut { "cut at".to_owned() } else { format!("bit {bit} of byte") };
        examine(&bank, &case, &scratch.path().join("new"), tally).with_context(|| {
            format!("case {number} of seed {}: {}, {what} {at}", args.common.seed, path.display())
        })?;
        bank.restore()?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    ensure!(
        verify(&bank.dir, &VerifyOptions::default(), &mut |_| {})?.is_clean(),
        "the bank was not restored"
    );
    let mut figures = Vec::new();
    for ((is_cut, kind), tally) in tallies {
        let what = if is_cut { "cut" } else { "flip" };
        let mut push = |name: &str, unit, value: u64| {
            figures.push(Row::count(format!("{kind}, {what}: {name}"), unit, value as f64));
        };
        push("cases", "cases", tally.cases);
        push("reported, file and page named", "cases", tally.reported);
        push("harmless: in no checkpoint's log", "cases", tally.harmless);
        push("bank refused to open", "cases", tally.refused);
        push("rows refused when read", "rows", tally.rows_refused);
        push("rows off damaged pages", "rows", tally.rows_off);
        push("of these, brought back", "rows", tally.rows_back);
    }
    args.common.output.publish("Damage", &figures)
}

fn examine(bank: &Pristine, case: &Case<'_>, new: &Path, tally: &mut Tally) -> Result<()> {
    tally.cases += 1;
    let page_bytes = bank.summary.checkpoints[0].page_bytes;
    let page = case.at / page_bytes;
    let report = verify(&bank.dir, &VerifyOptions::default(), &mut |_| {})?;
    let covers = |found: &embank_kv::inspect::Damage| {
        let first = found.page.unwrap_or(u64::MAX);
        found.path == case.path && (!case.is_log || (first..first + found.pages).contains(&page))
    };
    let harmless = case.is_log
        && !bank.summary.checkpoints.iter().any(|of| (of.log_begin..of.log_end).contains(&case.at));
    let reported = report.damage.iter().any(covers);
    ensure!(reported || harmless, "not reported: {:?}", report.damage);
    tally.reported += u64::from(reported);
    tally.harmless += u64::from(harmless);

    // Salvages before opening the bank, because opening may cut the log.
    let salvaged = salvage(
        &bank.dir,
        new,
        &SalvageOptions { memory_budget_bytes: Some(4 << 20) },
        &mut |_| {},
    )?;
    let hit = |table: u16, key: u64| match bank.pages.get(&(table, key)) {
        Some(&at) => case.is_log && (at == page || case.is_cut && at > page),
        None => case.is_part,
    };
    let mut blocks_rows = 0;
    for (i, rows) in bank.rows.iter().enumerate() {
        let mut found = Rows::new();
        let mut reader = TableReader::open(new, None, NAMES[i])?;
        let damage =
            reader.for_each_row(&mut |key, value| found.insert(key, value.to_vec()).is_none())?;
        ensure!(damage.is_empty(), "the new bank is damaged: {damage:?}");
        let off = rows.iter().filter(|(key, _)| !hit(i as u16 + 1, **key));
        for (key, row) in off {
            tally.rows_off += 1;
            ensure!(found.get(key) == Some(row), "{} {key} did not come back", NAMES[i]);
            tally.rows_back += 1;
        }
        let other = found.iter().filter(|(key, row)| rows.get(key) != Some(row)).count() as u64;
        let missing = rows.keys().filter(|key| !found.contains_key(key)).count() as u64;
        let lost = salvaged.tables[i].lost();
        ensure!(
            lost.is_none_or(|lost| lost >= missing),
            "{}: {missing} rows are missing",
            NAMES[i]
        );
        blocks_rows += if case.is_part { missing } else { 0 };
        let uncertain = salvaged.tables[i].uncertain;
        ensure!(other <= uncertain, "{}: {other} rows are wrong, {uncertain} uncertain", NAMES[i]);
    }
    let is_one_block = case.is_cut || blocks_rows <= BLOCK_ROWS_MAX;
    ensure!(is_one_block, "a flipped bit of a part has lost {blocks_rows} rows");
    fs::remove_dir_all(new)?;
    read_rows(bank, tally)
}

/// Opens the bank and reads every row. Fails if the store returns a wrong row instead of an error.
fn read_rows(bank: &Pristine, tally: &mut Tally) -> Result<()> {
    let Ok(store) = Store::open(&bank.dir, &options()) else {
        tally.refused += 1;
        return Ok(());
    };
    for (i, rows) in bank.rows.iter().enumerate() {
        let table = store.tables().iter().find(|table| table.name == NAMES[i]).map(|t| t.id);
        let table = table.context("a table is gone")?;
        if let Ok(mut scan) = store.scan(table) {
            // The loop ends at the last row or at the first error.
            while let Ok(Some(row)) = scan.next_row() {
                let right = rows.get(&row.key).is_some_and(|value| value == row.value);
                ensure!(right, "a scan of {} returned a wrong row {}", NAMES[i], row.key);
            }
        }
        let most = rows.last_key_value().map_or(0, |(key, _)| key + 2);
        let keys: Vec<u64> = (0..most).collect();
        for keys in keys.chunks(64) {
            if get(&store, table, i, keys, rows)? {
                continue;
            }
            for key in keys {
                tally.rows_refused += u64::from(!get(&store, table, i, &[*key], rows)?);
            }
        }
    }
    Ok(())
}

/// Gets rows and compares them with the rows that were put. Returns false if the store returns an
/// error.
fn get(store: &Store, table: TableId, i: usize, keys: &[u64], rows: &Rows) -> Result<bool> {
    let mut values = vec![Vec::new(); keys.len()];
    let got = match i {
        2 => store.execute(table, keys, Clock::Keep, &mut Get::<true>(&mut values)),
        _ => store.execute(table, keys, Clock::Keep, &mut Get::<false>(&mut values)),
    };
    let Ok(outcome) = got else { return Ok(false) };
    for (place, (key, value)) in keys.iter().zip(&values).enumerate() {
        let missing = outcome.missing.contains(&(place as u32));
        let found = (!missing).then_some(value);
        ensure!(found == rows.get(key), "a get of {} returned a wrong row {key}", NAMES[i]);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_cases_of_each_kind_end_well() {
        // An odd seed gives a bank with a cold tier.
        for seed in [3, 4] {
            let directory = tempfile::tempdir().unwrap();
            let common = Common::of_test(seed, directory.path());
            run(Args { count: 16, cuts: 8, rows: 300, common }).unwrap();
        }
    }
}
