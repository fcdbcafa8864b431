//! Processes of a fleet that are killed at any moment of the set protocol, and the coordinator that
//! checks where the fleet opens afterwards.
//!
//! Each worker process has one shard. The coordinator stands in for the process group: it passes
//! views, results and decisions between the workers, through pipes. It also tells them to run
//! steps. At a moment that the seed plans, it kills some workers with SIGKILL, and then the rest.
//! Then it starts new workers. These must open at the newest complete set, and each of them
//! compares all rows of its shard with the rows that the set's steps make.
//!
//! The coordinator knows which sets are complete: a set with an answer of `commit` is complete. If
//! a worker was told to commit and did not answer, the set may be complete. No other outcome is
//! right, whatever the moment of the kill was.
//!
//! At random the coordinator lets the fleet go back to an earlier set. If workers are killed
//! meanwhile, the next opening must be at that set or at a later one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use embank::fleet::{FleetPlan, Routing, Shard, ShardView, Taken, list_sets, shard_path};
use embank::{Bank, BankOptions, Missing, TableConfig};
use fastrand::Rng;

const TABLE: &str = "rows";
const DIM: u32 = 4;
/// Keys are below this.
const KEYS_END: u64 = 500;
const KEYS_A_STEP: u64 = 40;
/// Longest delay of a kill after a command was sent, in microseconds. A checkpoint of these small
/// banks takes a few milliseconds.
const DELAY_US: u64 = 6_000;
/// The largest number of sets that a fleet keeps. Each start of the workers draws a number from 1.
/// A fleet with one set to open at shows every checkpoint that goes too early, and a fleet with
/// more can go back.
const SETS_KEPT_MAX: usize = 3;

fn options() -> BankOptions {
    BankOptions { memory_budget_bytes: 1 << 20, checkpoints_kept: 1, ..BankOptions::default() }
}

/// Returns the keys that step `step` puts. The seed and the step decide them.
fn keys_of(seed: u64, step: u64) -> Vec<u64> {
    let mut random = Rng::with_seed(seed ^ step.wrapping_mul(0x9E6C_63D0_876A_3F6B));
    let mut keys: Vec<u64> = (0..KEYS_A_STEP).map(|_| random.u64(..KEYS_END)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Returns the row that a step puts for a key. All values are exact in f32.
fn row_of(step: u64, key: u64) -> [f32; DIM as usize] {
    [step as f32, key as f32, (step % 251) as f32, -1.0]
}

/// The shard of a worker process.
struct Worker {
    /// `None` only while the bank rolls back.
    bank: Option<Bank>,
    part: Shard,
    routing: Routing,
    seed: u64,
}

impl Worker {
    fn bank(&self) -> Result<&Bank> {
        self.bank.as_ref().context("the bank did not open again")
    }

    fn own(&self, keys: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let own = |key: &u64| self.routing.shard_of(*key) == self.part.shard();
        keys.into_iter().filter(own).collect()
    }

    /// Runs steps from `from` up to and not including `to`. Steps are counted from 1.
    fn run(&self, from: u64, to: u64) -> Result<()> {
        let table = self.bank()?.table(TABLE, TableConfig::new(DIM))?;
        for step in from..to {
            let keys = self.own(keys_of(self.seed, step));
            let rows: Vec<f32> = keys.iter().flat_map(|&key| row_of(step, key)).collect();
            table.put(&keys, &rows)?;
        }
        Ok(())
    }

    /// Compares all rows of the shard with those that the steps up to `steps` make.
    fn check(&self, steps: u64) -> Result<()> {
        let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 1..=steps {
            expected.extend(keys_of(self.seed, step).into_iter().map(|key| (key, step)));
        }
        let shard = self.part.shard();
        let Ok(table) = self.bank()?.open_table(TABLE) else {
            ensure!(steps == 0, "shard {shard} has no table after {steps} steps");
            return Ok(());
        };
        let all: Vec<u64> = (0..KEYS_END).collect();
        let there = table.contains(&all)?;
        let own = self.own(expected.keys().copied());
        let mut own_next = own.iter().peekable();
        for (&key, is_there) in all.iter().zip(there) {
            let should = own_next.next_if_eq(&&key).is_some();
            ensure!(
                is_there == should,
                "shard {shard}, {steps} steps: key {key} is there: {is_there}"
            );
        }
        let mut rows = vec![0.0; own.len() * DIM as usize];
        table.peek(&own, &mut rows, Missing::Error)?;
        for (key, row) in own.iter().zip(rows.chunks(DIM as usize)) {
            let right = row_of(expected[key], *key);
            ensure!(
                row == right,
                "shard {shard}, {steps} steps: key {key} is {row:?}, not {right:?}"
            );
        }
        Ok(())
    }

    /// Settles at the set `back`, or at the newest complete one.
    fn settle(
        &mut self,
        back: Option<u64>,
        record: Option<&[u8]>,
        views: &[ShardView],
    ) -> Result<u64> {
        let plan = plan_of(views, back)?;
        self.part.check(&plan)?;
        let bank = self.bank.take().context("the bank did not open again")?;
        let checkpoint = self.part.settle(&bank, &plan, record)?;
        self.bank = match checkpoint {
            None => Some(bank),
            Some(checkpoint) => {
                let path = bank.path().to_owned();
                drop(bank);
                Bank::roll_back(&path, checkpoint)?;
                let bank = Bank::open(&path, options())?;
                ensure!(self.part.settle(&bank, &plan, record)?.is_none(), "still ahead");
                Some(bank)
            }
        };
        self.check_pins()?;
        let Some(set) = self.part.recovered() else { return Ok(0) };
        let steps = u64::from_le_bytes(set.blob[..].try_into().context("the set's blob")?);
        self.check(steps)?;
        Ok(steps)
    }

    /// Checks that the pinned checkpoints are those that the records name. Any other pin would keep
    /// disk space for ever.
    fn check_pins(&self) -> Result<()> {
        let shard = self.part.shard();
        let there = Bank::checkpoints(self.part.path())?;
        let pinned: Vec<u64> = there.iter().filter(|of| of.pinned).map(|of| of.number).collect();
        let sets = self.part.sets()?;
        let named: Vec<u64> =
            sets.iter().map(|set| set.checkpoints[shard as usize].number).collect();
        ensure!(
            pinned == named,
            "shard {shard}: {pinned:?} are pinned, and records name {named:?}"
        );
        Ok(())
    }

    /// Does what a line asks for, and returns the answer.
    fn answer(&mut self, line: &str) -> Result<String> {
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let mut number = || words.next().context("a number")?.parse::<u64>().context("a number");
        Ok(match command {
            "view" => hex(&self.part.view()?.to_bytes()),
            "record" => hex(&self.part.record(number()?)?),
            "settle" => {
                let back = words.next().context("a set")?;
                let back = if back == "-" { None } else { Some(back.parse()?) };
                let record = words.next().context("a record")?;
                let record = if record == "-" { None } else { Some(unhex(record)?) };
                let views = words.map(|view| Ok(ShardView::from_bytes(&unhex(view)?)?));
                let views = views.collect::<Result<Vec<_>>>()?;
                self.settle(back, record.as_deref(), &views)?.to_string()
            }
            "run" => {
                self.run(number()?, number()?)?;
                "ran".into()
            }
            "take" => {
                let bank = self.bank.as_ref().context("the bank did not open again")?;
                hex(&self.part.take(bank)?.to_bytes())
            }
            "abandon" => {
                self.part.abandon();
                "abandoned".into()
            }
            "commit" => {
                let steps = number()?;
                let taken = words.map(|taken| Ok(Taken::from_bytes(&unhex(taken)?)?));
                let taken = taken.collect::<Result<Vec<_>>>()?;
                let bank = self.bank.as_ref().context("the bank did not open again")?;
                let set = self.part.commit(bank, &taken, &steps.to_le_bytes())?;
                set.number.to_string()
            }
            other => bail!("no command {other:?}"),
        })
    }
}

fn plan_of(views: &[ShardView], back: Option<u64>) -> Result<FleetPlan> {
    Ok(match back {
        Some(set) => FleetPlan::at(views, set, None)?,
        None => FleetPlan::of(views)?,
    })
}

/// Runs a worker with shard `shard` of `shards` of the fleet in `dir`, until its input ends. The
/// shard keeps the newest `sets_kept` sets.
///
/// # Errors
/// Returns any error of the fleet, and the first row that differs from the steps'.
pub fn work(dir: &Path, shard: u32, shards: u32, seed: u64, sets_kept: usize) -> Result<()> {
    let bank = Bank::open(shard_path(dir, shard), options())?;
    let part = Shard::open(&bank, shard, shards, sets_kept)?;
    let mut worker = Worker { bank: Some(bank), part, routing: Routing::new(TABLE, shards)?, seed };
    let mut output = std::io::stdout();
    // The loop ends with the coordinator's end of the pipe.
    for line in std::io::stdin().lines() {
        let answer = worker.answer(&line?)?;
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2).unwrap_or_default(), 16);
    (0..text.len()).step_by(2).map(|at| byte(at).context("hexadecimal digits")).collect()
}

/// A running worker, as the coordinator has it.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn send(&mut self, line: &str) {
        // A worker that was killed does not read.
        let _ = writeln!(self.input, "{line}");
    }

    /// Reads an answer. `None` if the worker was killed before it answered.
    fn read(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? > 0 && line.ends_with('\n') {
            return Ok(Some(line.trim_end().to_owned()));
        }
        let status = self.child.wait()?;
        ensure!(status.code().is_none(), "a worker failed by itself: {status}");
        Ok(None)
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// The command of the protocol in which workers are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// While the workers open their banks, and look at their shards.
    View,
    /// While the shards settle at the newest complete set.
    Settle,
    /// While the workers run steps.
    Run,
    /// While the shards take their checkpoints.
    Take,
    /// While the shards write the record.
    Commit,
}

/// All moments.
pub const MOMENTS: [Moment; 5] =
    [Moment::View, Moment::Settle, Moment::Run, Moment::Take, Moment::Commit];

/// A planned kill.
#[derive(Debug, Clone)]
struct Plan {
    moment: Moment,
    /// The moment's command goes only to the first workers: the others are killed before it
    /// reaches them.
    sent: usize,
    /// The workers that are killed first.
    victims: Vec<usize>,
    /// The time from the command to the kill. `None`: the kill comes after the answers.
    delay: Option<Duration>,
    /// Which of the earlier complete sets the opening goes back to, the newest of them at 0 and
    /// counted around. `None`: it opens at the newest set.
    back: Option<usize>,
}

/// The result of one kill.
#[derive(Debug, Clone, Copy)]
pub struct Kill {
    /// The command in which the workers were killed.
    pub moment: Moment,
    /// The number of shards that lacked the record of the newest complete set at the opening.
    pub lacking: usize,
    /// True if the opening found a set whose `commit` no worker had answered.
    pub unanswered: bool,
    /// The number of sets that became complete since the last kill.
    pub sets: u64,
    /// True if the opening went, or was about to go, to an earlier set than the newest.
    pub back: bool,
}

impl Kill {
    fn new(moment: Moment) -> Self {
        Kill { moment, lacking: 0, unanswered: false, sets: 0, back: false }
    }
}

/// Starts the workers of a fleet, kills them, and checks where the fleet opens.
#[derive(Debug)]
pub struct Coordinator {
    program: PathBuf,
    dir: PathBuf,
    shards: u32,
    seed: u64,
    random: Rng,
    /// The steps in each set that a worker has completed, by number, without those after a set
    /// that the fleet went back to. The fleet may keep only the newest of them.
    sets: BTreeMap<u64, u64>,
    /// Number and steps of a set that a worker was told to commit, without an answer.
    unanswered: Option<(u64, u64)>,
    /// The set that an interrupted opening went back to. The newest set that all shards hold may be
    /// any from this one on.
    back: Option<u64>,
    kills: u64,
}

/// Whether the workers are still alive after a command.
enum Outcome {
    All(Vec<String>),
    Killed,
}

impl Coordinator {
    /// Makes a coordinator of a fleet of `shards` shards in the empty directory `dir`. `program` is
    /// this crate's program, whose subcommand `fleet-worker` runs a worker.
    #[must_use]
    pub fn new(program: &Path, dir: &Path, shards: u32, seed: u64) -> Self {
        Coordinator {
            program: program.to_owned(),
            dir: dir.to_owned(),
            shards,
            seed,
            random: Rng::with_seed(seed),
            sets: BTreeMap::new(),
            unanswered: None,
            back: None,
            kills: 0,
        }
    }

    /// Expects the rows that the steps of another seed make.
    pub fn expect_steps_of(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Starts the workers, kills them at a planned moment, and opens the fleet again.
    ///
    /// # Errors
    /// Returns an error with the number of the kill and what was wrong.
    pub fn kill(&mut self) -> Result<Kill> {
        let shards = self.shards as usize;
        // The numbers of a kill depend on the seed and the kill's number alone. The moment at which
        // an earlier kill came decides how many numbers it drew.
        self.random = Rng::with_seed(self.seed ^ self.kills.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        let random = &mut self.random;
        let mut victims: Vec<usize> = (0..shards).filter(|_| random.bool()).collect();
        if victims.is_empty() {
            victims.push(random.usize(..shards));
        }
        let plan = Plan {
            moment: MOMENTS[random.usize(..MOMENTS.len())],
            sent: random.usize(1..=shards),
            victims,
            delay: (random.u8(..3) > 0).then(|| Duration::from_micros(random.u64(..DELAY_US))),
            back: (random.u8(..3) == 0).then(|| random.usize(..SETS_KEPT_MAX)),
        };
        let rounds = random.u8(..3);
        let kept = random.usize(1..=SETS_KEPT_MAX);
        self.planned(&plan, rounds, kept)
    }

    /// Kills the workers after the first shard has written the record of a set, and the others have
    /// not.
    ///
    /// # Errors
    /// As [`kill`](Self::kill).
    pub fn kill_after_first_commit(&mut self) -> Result<Kill> {
        let moment = Moment::Commit;
        let plan = Plan { moment, sent: 1, victims: Vec::new(), delay: None, back: None };
        self.planned(&plan, 0, SETS_KEPT_MAX)
    }

    /// Takes two sets. Then kills the workers of the next opening after the first shard has gone
    /// back to the earlier set, and the others have not.
    ///
    /// # Errors
    /// As [`kill`](Self::kill).
    pub fn kill_after_first_back(&mut self) -> Result<Kill> {
        let mut kill = Kill::new(Moment::Settle);
        let mut workers = self.start(SETS_KEPT_MAX)?;
        let opened = self.open(&mut workers, None, &mut kill)?;
        let mut steps = opened.context("the workers ended by themselves")?;
        while kill.sets < 2 {
            self.all(&mut workers, Moment::Run, &format!("run {} {}", steps + 1, steps + 2), None)?;
            steps += 1;
            self.set(&mut workers, steps, None, &mut kill)?;
        }
        drop(workers);
        let moment = Moment::Settle;
        let plan = Plan { moment, sent: 1, victims: Vec::new(), delay: None, back: Some(0) };
        let killed = self.planned(&plan, 0, SETS_KEPT_MAX)?;
        Ok(Kill { lacking: kill.lacking, sets: kill.sets, ..killed })
    }

    fn planned(&mut self, plan: &Plan, rounds: u8, kept: usize) -> Result<Kill> {
        let number = self.kills;
        self.kills += 1;
        self.round(plan, rounds, kept)
            .with_context(|| format!("kill {number} ({plan:?}, seed {})", self.seed))
    }

    fn round(&mut self, plan: &Plan, rounds: u8, kept: usize) -> Result<Kill> {
        let mut kill = Kill::new(plan.moment);
        let mut workers = self.start(kept)?;
        let Some(mut steps) = self.open(&mut workers, Some(plan), &mut kill)? else {
            return Ok(kill);
        };
        for round in 0..=rounds {
            let plan = (round == rounds).then_some(plan);
            let to = steps + 1 + self.random.u64(..3);
            if let Outcome::Killed =
                self.all(&mut workers, Moment::Run, &format!("run {} {}", steps + 1, to + 1), plan)?
            {
                break;
            }
            steps = to;
            if !self.set(&mut workers, steps, plan, &mut kill)? {
                break;
            }
        }
        Ok(kill)
    }

    /// Takes a set. Returns false if the workers were killed.
    fn set(
        &mut self,
        workers: &mut [Process],
        steps: u64,
        plan: Option<&Plan>,
        kill: &mut Kill,
    ) -> Result<bool> {
        let Outcome::All(taken) = self.all(workers, Moment::Take, "take", plan)? else {
            return Ok(false);
        };
        // A fleet has a set before it has rows, so the first one is not given up.
        if plan.is_none() && !self.sets.is_empty() && self.random.u8(..5) == 0 {
            // As if a shard could not take its checkpoint.
            return Ok(matches!(
                self.all(workers, Moment::Take, "abandon", None)?,
                Outcome::All(_)
            ));
        }
        // From here on, the set may be complete. The answer of one worker shows that it is.
        let number = self.sets.last_key_value().map_or(0, |(newest, _)| newest + 1);
        self.unanswered = Some((number, steps));
        let command = format!("commit {steps} {}", taken.join(" "));
        let plan = plan.filter(|plan| plan.moment == Moment::Commit);
        let answers = send(workers, &command, plan)?;
        for answer in answers.into_iter().flatten() {
            ensure!(answer == number.to_string(), "set {answer} was taken, not {number}");
            self.sets.insert(number, steps);
            self.unanswered = None;
        }
        kill.sets += u64::from(self.unanswered.is_none());
        Ok(plan.is_none())
    }

    fn start(&self, kept: usize) -> Result<Vec<Process>> {
        let kept = kept.to_string();
        let start = |shard: u32| {
            let mut child = Command::new(&self.program)
                .arg("fleet-worker")
                .arg(&self.dir)
                .args(["--shard", &shard.to_string(), "--shards", &self.shards.to_string()])
                .args(["--seed", &self.seed.to_string(), "--sets-kept", &kept])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let input = child.stdin.take().context("the worker's input")?;
            let output = BufReader::new(child.stdout.take().context("the worker's output")?);
            Ok(Process { child, input, output })
        };
        (0..self.shards).map(start).collect()
    }

    /// Opens the fleet, and checks at which set. Returns the number of steps in it; `None` if the
    /// workers were killed.
    fn open(
        &mut self,
        workers: &mut [Process],
        plan: Option<&Plan>,
        kill: &mut Kill,
    ) -> Result<Option<u64>> {
        let Outcome::All(views) = self.all(workers, Moment::View, "view", plan)? else {
            return Ok(None);
        };
        let decoded = views.iter().map(|view| Ok(ShardView::from_bytes(&unhex(view)?)?));
        let decoded = decoded.collect::<Result<Vec<_>>>()?;
        self.find_newest(&decoded, kill)?;
        let back = match plan.and_then(|plan| plan.back) {
            Some(earlier) => earlier_set(&decoded, earlier)?,
            None => None,
        };
        kill.back = back.is_some();
        let fleet = plan_of(&decoded, back)?;
        let mut record = "-".to_owned();
        if let Some(set) = fleet.newest.as_ref().filter(|set| !set.lacking.is_empty()) {
            kill.lacking = set.lacking.len();
            let holder = &mut workers[set.holder as usize];
            holder.send(&format!("record {}", set.number));
            record = holder.read()?.context("the record")?;
        }
        let at = back.map_or("-".to_owned(), |set| set.to_string());
        let command = format!("settle {at} {record} {}", views.join(" "));
        if back.is_some() {
            // From here on, a shard may have let go of later sets.
            self.back = back;
        }
        let Outcome::All(answers) = self.all(workers, Moment::Settle, &command, plan)? else {
            return Ok(None);
        };
        ensure!(answers.iter().all(|steps| *steps == answers[0]), "not at one step: {answers:?}");
        let steps: u64 = answers[0].parse()?;
        self.back = None;
        let Some(set) = fleet.newest else {
            return Ok(self.set(workers, 0, None, kill)?.then_some(0));
        };
        ensure!(self.sets.get(&set.number) == Some(&steps), "set {} at {steps} steps", set.number);
        self.sets.retain(|&number, _| number <= set.number);
        Ok(Some(steps))
    }

    /// Checks which set is the newest complete one. Forgets the sets after it.
    fn find_newest(&mut self, views: &[ShardView], kill: &mut Kill) -> Result<()> {
        let fleet = FleetPlan::of(views)?;
        // While a fleet goes back, some shards have sets that others have removed.
        ensure!(
            fleet.passed_over.is_empty() || self.back.is_some(),
            "passed over {:?}",
            fleet.passed_over
        );
        let Some(newest) = fleet.newest else {
            ensure!(self.sets.is_empty(), "the complete set is gone");
            return Ok(());
        };
        let last = self.sets.last_key_value().map(|(&number, _)| number);
        if let Some((number, steps)) = self.unanswered.take()
            && number == newest.number
        {
            kill.unanswered = true;
            self.sets.insert(number, steps);
        } else {
            let from = self.back.or(last);
            ensure!(
                self.sets.contains_key(&newest.number) && Some(newest.number) >= from,
                "at set {}; complete: {:?}, on the way back to {:?}",
                newest.number,
                self.sets,
                self.back
            );
        }
        self.sets.retain(|&number, _| number <= newest.number);
        self.back = self.back.map(|_| newest.number);
        Ok(())
    }

    /// Sends a command to all workers, and reads their answers. If `plan` plans a kill in `moment`,
    /// kills workers meanwhile.
    fn all(
        &self,
        workers: &mut [Process],
        moment: Moment,
        command: &str,
        plan: Option<&Plan>,
    ) -> Result<Outcome> {
        let plan = plan.filter(|plan| plan.moment == moment);
        let answers = send(workers, command, plan)?;
        if plan.is_some() {
            return Ok(Outcome::Killed);
        }
        let answers: Option<Vec<String>> = answers.into_iter().collect();
        Ok(Outcome::All(answers.context("a worker ended by itself")?))
    }

    /// Opens the fleet without a kill, and checks every row.
    ///
    /// # Errors
    /// Returns an error if the fleet does not open at the newest complete set.
    pub fn check(&mut self) -> Result<u64> {
        let mut kill = Kill::new(Moment::View);
        let mut workers = self.start(2)?;
        let steps = self.open(&mut workers, None, &mut kill)?;
        steps.context("the workers ended by themselves")
    }
}

/// Returns the earlier complete set at `at`, the newest of them at 0 and counted around. `None` if
/// no set is earlier than the newest.
fn earlier_set(views: &[ShardView], at: usize) -> Result<Option<u64>> {
    let complete = list_sets(views)?.into_iter().filter(|set| set.incomplete.is_none());
    let complete: Vec<u64> = complete.map(|set| set.number).collect();
    let earlier = complete.split_last().map_or(&[][..], |(_, earlier)| earlier);
    Ok(earlier.iter().rev().nth(at % earlier.len().max(1)).copied())
}

/// Sends a command and reads the answers, with `None` for workers that were killed before they
/// answered.
fn send(
    workers: &mut [Process],
    command: &str,
    plan: Option<&Plan>,
) -> Result<Vec<Option<String>>> {
    let Some(plan) = plan else {
        workers.iter_mut().for_each(|worker| worker.send(command));
        return workers.iter_mut().map(Process::read).collect();
    };
    let (told, untold) = workers.split_at_mut(plan.sent);
    untold.iter_mut().for_each(Process::kill);
    told.iter_mut().for_each(|worker| worker.send(command));
    if let Some(delay) = plan.delay {
        std::thread::sleep(delay);
        let victims = plan.victims.iter().filter(|&&victim| victim < plan.sent);
        victims.for_each(|&victim| told[victim].kill());
    }
    let answers = told.iter_mut().map(Process::read).collect::<Result<Vec<_>>>()?;
    told.iter_mut().for_each(Process::kill);
    Ok(answers)
}
