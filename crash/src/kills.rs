//! A writer process that is killed repeatedly, and the supervisor that checks its bank after each
//! kill.
//!
//! The writer runs the steps of [`program`] on one thread, beside the store's own
//! threads. Some steps take a checkpoint, whose blob holds the number of steps done. The writer
//! also keeps a *status file* beside the bank. This file names the checkpoint that the writer has
//! begun and the last checkpoint that returned. One `write` call stores the file's few bytes, so
//! they survive a kill of the process.
//!
//! The supervisor starts the writer, waits for the planned moment and sends SIGKILL. Then it opens
//! the bank and compares every row with the rows that the steps make. The next writer continues
//! with this bank. To find a moment within a checkpoint, the supervisor watches the checkpoint's
//! directory, so the store needs no hook for these tests.
//!
//! The writer opens the bank by a relative path through a symbolic link. Then it points the link at
//! another bank, the *decoy*, and makes the decoy its working directory. After some checkpoints the
//! writer exchanges the bank's directory for the decoy's, and back. A checkpoint in between must
//! fail. A kill may come at any of these moments. The supervisor checks that the decoy keeps every
//! byte.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use embank_kv::device::{self, DeviceOptions};
use embank_kv::{CompactionOptions, DeviceChoice, Error, Store, StoreOptions, TierLimits};
use fastrand::Rng;

use crate::parts::{Parts, is_part};
use crate::program::{self, KEYS_END, Step};
use crate::rows::{self, Model};
use crate::settings::low_limits;
use crate::strangers::{exchange, files};
use crate::workload::BANK;

/// A scan of a bank in two tiers needs more than 2 MiB.
const BUDGET_BYTES: u64 = 3 << 20;
const PAGE_BYTES: u32 = 8 << 10;
/// A bank in two tiers moves rows to the cold tier when its log exceeds this length. With a shorter
/// log, the compactor takes most of the processor's time.
const LOG_BYTES: u64 = 512 << 10;
/// The log segment size is small so that compaction frees whole segments.
const SEGMENT_BYTES: u64 = 256 << 10;
/// The symbolic link through which the writer opens the bank.
const LINK: &str = "current";
/// The directory of the decoy, the other bank that the writer puts in its bank's place for a
/// moment.
const DECOY: &str = "decoy";
/// A file that only the decoy's directory holds.
const MARK: &str = "DECOY";
/// The decoy takes the bank's place after a checkpoint whose number of steps is a multiple of this.
const EXCHANGED_EVERY: u64 = 3;
/// The supervisor waits at most this long for the planned moment. This suffices on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time between two looks of the supervisor at the status file and the checkpoint's directory.
const LOOK: Duration = Duration::from_micros(30);
/// The supervisor lets the writer run at most this many steps. Then it begins to look for the
/// planned moment.
const STEPS_AHEAD_MAX: u64 = 60;
/// Longest delay, in microseconds, of a kill for [`Moment::Any`].
const ANY_TIME_US: u64 = 20_000;
/// Longest delay, in microseconds, from the start of a checkpoint to the kill for
/// [`Moment::Checkpoint`]. For the later moments of a checkpoint ([`Moment::Partial`] and its
/// successors), the longest delay is a quarter of this.
const LATER_US: u64 = 4_000;

/// Returns the limits of the cold tier of the bank that a writer with this seed makes. With an even
/// seed, the bank has one tier.
#[must_use]
pub fn tier_of(seed: u64) -> Option<TierLimits> {
    (seed % 2 == 1).then(|| TierLimits { log_bytes: LOG_BYTES, ..low_limits(seed) })
}

/// Opens the bank that the writer works on. `tier` has the limits of its cold tier.
///
/// # Errors
/// Returns any error of the store.
pub fn open(
    dir: &Path,
    device: DeviceChoice,
    tier: Option<TierLimits>,
) -> embank_kv::Result<Store> {
    let compaction = CompactionOptions { background: true, ..CompactionOptions::default() };
    let options = StoreOptions {
        memory_budget_bytes: BUDGET_BYTES,
        page_size_bytes: Some(PAGE_BYTES),
        compaction,
        ..StoreOptions::default()
    };
    let store = Store::open_on(dir, &options, |_| {
        let options = DeviceOptions {
            segment_size_bytes: SEGMENT_BYTES,
            threads: 2,
            ..DeviceOptions::default()
        };
        device::open(dir, device, &options)
    })?;
    if let Some(limits) = tier {
        store.begin_second_tier(limits);
    }
    Ok(store)
}

/// The content of the status file. Steps are counted from 1; 0 means no step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Status {
    /// The number of steps that are done.
    done: u64,
    /// The number of steps in the checkpoint that the writer has begun and that has not returned.
    begun: u64,
    /// The number of steps in the last checkpoint that returned.
    completed: u64,
}

const STATUS_BYTES: usize = 24;

impl Status {
    fn write(self, file: &File) -> Result<()> {
        let mut bytes = [0; STATUS_BYTES];
        for (to, number) in bytes.chunks_mut(8).zip([self.done, self.begun, self.completed]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        file.write_all_at(&bytes, 0).context("writing the status file")
    }

    fn read(file: &File) -> Result<Self> {
        let mut bytes = [0; STATUS_BYTES];
        file.read_exact_at(&mut bytes, 0).context("reading the status file")?;
        let [done, begun, completed] = [0, 8, 16]
            .map(|at| bytes[at..].first_chunk().map_or(0, |number| u64::from_le_bytes(*number)));
        Ok(Status { done, begun, completed })
    }
}

/// Returns the number of steps in a store's checkpoint.
fn steps_held(store: &Store) -> Result<u64> {
    let Some(recovered) = store.recovered() else { return Ok(0) };
    Ok(u64::from_le_bytes(*recovered.blob.first_chunk().context("the blob is too short")?))
}

/// Runs the writer until it is killed. The bank must hold `from` steps.
///
/// # Errors
/// Returns an error if the bank holds another number of steps, and any error of the store.
pub fn write_until_killed(dir: &Path, seed: u64, from: u64, device: DeviceChoice) -> Result<()> {
    let status_file = File::options().write(true).open(dir.join("status"))?;
    let mut store = open_by_link(dir, device, tier_of(seed))?;
    let steps = steps_held(&store)?;
    ensure!(
        steps == from,
        "the bank holds {steps} steps, and held {from} when it was last looked at"
    );
    let mut status = Status { done: steps, begun: 0, completed: steps };
    // The loop ends when SIGKILL ends the process.
    loop {
        match go_on(&store, dir, seed, &mut status, &status_file) {
            // A thread of the store found the decoy in the bank's place and failed. The bank's last
            // checkpoint is still good.
            Err(error) if has_met_the_decoy(&error) => {
                drop(store);
                put_back(dir)?;
                store = open_by_link(dir, device, tier_of(seed))?;
                ensure!(steps_held(&store)? == status.completed, "not at {status:?}");
                status = Status { done: status.completed, ..status };
                (status.begun, status.completed) = (0, status.done);
            }
            done => done?,
        }
    }
}

/// Runs one step of the writer. After some checkpoints it exchanges the bank and the decoy for a
/// moment.
fn go_on(
    store: &Store,
    dir: &Path,
    seed: u64,
    status: &mut Status,
    status_file: &File,
) -> Result<()> {
    let step = program::step(seed, status.done);
    program::act(store, &step).with_context(|| format!("step {}", status.done))?;
    status.done += 1;
    if step == Step::Checkpoint {
        status.begun = status.done;
        status.write(status_file)?;
        store.checkpoint(&status.done.to_le_bytes())?;
        (status.begun, status.completed) = (0, status.done);
        if status.done.is_multiple_of(EXCHANGED_EVERY) {
            exchange(&dir.join(BANK), &dir.join(DECOY))?;
            let refused = store.checkpoint(b"elsewhere");
            put_back(dir)?;
            match refused {
                Err(Error::DirectoryMoved { .. }) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => bail!("a checkpoint went to the bank that took the writer's place"),
            }
        }
    }
    status.write(status_file)
}

fn has_met_the_decoy(error: &anyhow::Error) -> bool {
    let of_store = error.downcast_ref::<Error>();
    of_store.is_some_and(|error| error.to_string().contains("replaced by another directory"))
}

/// Opens the bank by a relative path through a link. Afterwards the link and the relative path lead
/// to the decoy.
fn open_by_link(dir: &Path, device: DeviceChoice, tier: Option<TierLimits>) -> Result<Store> {
    std::env::set_current_dir(dir)?;
    fs::create_dir_all(dir.join(BANK))?;
    lead_to(dir, BANK)?;
    let store = open(Path::new(LINK), device, tier)?;
    lead_to(dir, DECOY)?;
    std::env::set_current_dir(dir.join(DECOY))?;
    Ok(store)
}

/// Points the link at a directory beside it.
fn lead_to(dir: &Path, name: &str) -> Result<()> {
    let new = dir.join("current.new");
    std::os::unix::fs::symlink(name, &new)?;
    fs::rename(new, dir.join(LINK)).context("switching the link")
}

/// Puts the bank back if a kill came during an exchange with the decoy.
fn put_back(dir: &Path) -> Result<()> {
    if dir.join(BANK).join(MARK).exists() {
        exchange(&dir.join(BANK), &dir.join(DECOY))?;
    }
    // A kill may have come after the new link was made and before it was renamed.
    let _ = fs::remove_file(dir.join("current.new"));
    Ok(())
}

/// The moment at which the supervisor plans a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// While the writer opens the bank or runs its first steps.
    Start,
    /// After some steps, at any time.
    Any,
    /// Shortly after the writer began a checkpoint.
    Checkpoint,
    /// After the checkpoint's directory has appeared.
    Partial,
    /// After a file of the index image has appeared.
    Image,
    /// After the blob has appeared.
    Blob,
    /// After the manifest has appeared.
    Manifest,
    /// After the checkpoint has its final name.
    Renamed,
    /// After a new part of the cold tier has appeared. Only for a bank in two tiers.
    Part,
}

/// All moments. The last one is for banks in two tiers.
pub const MOMENTS: [Moment; 9] = [
    Moment::Start,
    Moment::Any,
    Moment::Checkpoint,
    Moment::Partial,
    Moment::Image,
    Moment::Blob,
    Moment::Manifest,
    Moment::Renamed,
    Moment::Part,
];

/// The result of one kill.
#[derive(Debug, Clone, Copy)]
pub struct Kill {
    /// The planned moment of the kill.
    pub moment: Moment,
    /// True if the writer was in `checkpoint` when it was killed.
    pub in_checkpoint: bool,
    /// True if the bank came back at the checkpoint that was being taken.
    pub at_begun: bool,
    /// The number of steps after the last checkpoint, which a kill may lose.
    pub steps_lost: u64,
    /// The parts of a cold tier that the writer left in its folder.
    pub parts: Parts,
}

/// Kills a writer and checks the bank that it leaves.
#[derive(Debug)]
pub struct Supervisor {
    program: PathBuf,
    dir: PathBuf,
    seed: u64,
    random: Rng,
    status_file: File,
    /// The decoy's files with their original bytes.
    decoy: BTreeMap<PathBuf, Vec<u8>>,
    /// The number of steps in the newest durable checkpoint.
    steps: u64,
    /// The rows that the first `steps` steps make.
    model: Model,
    kills: u64,
}

impl Supervisor {
    /// Makes a supervisor over an empty directory. `program` is this crate's program, whose
    /// `writer` subcommand runs the writer.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub fn new(program: &Path, dir: &Path, seed: u64) -> Result<Self> {
        let mut status_file = File::options();
        let status_file = status_file.read(true).write(true).create(true).truncate(true);
        let status_file = status_file.open(dir.join("status"))?;
        Status::default().write(&status_file)?;
        let decoy = dir.join(DECOY);
        let store = open(&decoy, DeviceChoice::Threads, None)?;
        rows::create(&store, &mut Model::new(), "decoy", 8, false)?;
        store.checkpoint(b"another bank")?;
        drop(store);
        fs::write(decoy.join(MARK), "")?;
        Ok(Supervisor {
            decoy: files(&decoy)?,
            program: program.to_owned(),
            dir: dir.to_owned(),
            seed,
            random: Rng::with_seed(seed),
            status_file,
            steps: 0,
            model: Model::new(),
            kills: 0,
        })
    }

    /// Returns the number of steps in the newest durable checkpoint.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Starts the writer, kills it, and compares the bank's rows with the rows that the steps make.
    ///
    /// # Errors
    /// Returns an error with the number of the kill and the first difference.
    pub fn kill(&mut self) -> Result<Kill> {
        let moments = MOMENTS.len() - usize::from(tier_of(self.seed).is_none());
        let moment = MOMENTS[self.random.usize(..moments)];
        // The writers alternate between two devices for the same bank: the one that the store
        // chooses (`auto`) and `threads`.
        let device = if self.kills.is_multiple_of(2) { "auto" } else { "threads" };
        let number = self.kills;
        self.kills += 1;
        let killed = self.kill_at(moment, device);
        killed.with_context(|| format!("kill {number} ({moment:?}, {device}, seed {})", self.seed))
    }

    fn kill_at(&mut self, moment: Moment, device: &str) -> Result<Kill> {
        Status { done: 0, begun: 0, completed: self.steps }.write(&self.status_file)?;
        let mut command = Command::new(&self.program);
        command.arg("writer").arg(&self.dir).args(["--seed", &self.seed.to_string()]);
        command.args(["--from", &self.steps.to_string(), "--device", device]).stdin(Stdio::null());
        let mut writer = Writer(command.spawn().context("starting the writer")?);
        self.await_moment(moment, &mut writer.0)?;
        writer.0.kill()?;
        let ended = writer.0.wait()?;
        ensure!(ended.signal() == Some(libc::SIGKILL), "the writer ended by itself: {ended}");
        self.check(moment)
    }

    fn await_moment(&mut self, moment: Moment, writer: &mut Child) -> Result<()> {
        let later = Duration::from_micros(match moment {
            Moment::Start => self.random.u64(..15_000),
            Moment::Any => self.random.u64(..ANY_TIME_US),
            Moment::Checkpoint => self.random.u64(..LATER_US),
            // At the later moments of a checkpoint, half of the kills come without a delay, the
            // other half after a short one.
            _ => self.random.u64(..2) * self.random.u64(..LATER_US / 4),
        });
        let ahead = match moment {
            Moment::Start => 0,
            _ => self.steps + 1 + self.random.u64(..STEPS_AHEAD_MAX),
        };
        let began = Instant::now();
        let (mut before, mut part_before) = (None, None);
        let (mut looks_out, mut came) = (false, None);
        // The loop ends at the moment, at the writer's exit, or when `PATIENCE` is over.
        loop {
            if !looks_out && Status::read(&self.status_file)?.done >= ahead {
                (looks_out, before) = (true, self.newest_name());
                part_before = self.newest_part();
            }
            let has_come = || match moment {
                Moment::Part => Ok(self.newest_part() > part_before),
                _ => self.has_come(moment, before.as_deref()),
            };
            if looks_out && came.is_none() && has_come()? {
                came = Some(Instant::now());
            }
            if came.is_some_and(|came| came.elapsed() >= later) {
                return Ok(());
            }
            if let Some(ended) = writer.try_wait()? {
                bail!("the writer ended by itself: {ended}");
            }
            ensure!(began.elapsed() < PATIENCE, "the moment has not come");
            std::thread::sleep(LOOK);
        }
    }

    fn has_come(&self, moment: Moment, before: Option<&str>) -> Result<bool> {
        let in_partial = |starts: &str| {
            let partial = self.checkpoints().into_iter().find(|name| name.ends_with(".partial"));
            partial.is_some_and(|name| {
                let files = fs::read_dir(self.dir.join("bank/checkpoints").join(name));
                let named = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(starts);
                files.is_ok_and(|files| files.flatten().any(|file| named(&file.file_name())))
            })
        };
        Ok(match moment {
            Moment::Start | Moment::Any | Moment::Part => true,
            Moment::Checkpoint => Status::read(&self.status_file)?.begun > 0,
            Moment::Partial => self.checkpoints().iter().any(|name| name.ends_with(".partial")),
            Moment::Image => in_partial("index"),
            Moment::Blob => in_partial("blob"),
            Moment::Manifest => in_partial("manifest"),
            Moment::Renamed => self.newest_name().as_deref() > before,
        })
    }

    fn checkpoints(&self) -> Vec<String> {
        // The directory does not exist until the bank is made.
        let entries = fs::read_dir(self.dir.join("bank/checkpoints")).into_iter().flatten();
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Returns the name of the newest part in the folder `log`.
    fn newest_part(&self) -> Option<String> {
        // The directory does not exist until the bank is made.
        let entries = fs::read_dir(self.dir.join("bank/log")).into_iter().flatten();
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_part(name)).max()
    }

    fn newest_name(&self) -> Option<String> {
        self.checkpoints().into_iter().filter(|name| !name.ends_with(".partial")).max()
    }

    fn check(&mut self, moment: Moment) -> Result<Kill> {
        let status = Status::read(&self.status_file)?;
        put_back(&self.dir)?;
        let decoy = files(&self.dir.join(DECOY))?;
        ensure!(decoy == self.decoy, "the writer changed the bank that took its place");
        let bank = self.dir.join(BANK);
        let parts = Parts::of_bank(&bank).context("reading the parts")?;
        let store = open(&bank, DeviceChoice::Auto, tier_of(self.seed)).context("opening it")?;
        let steps = steps_held(&store)?;
        let at_begun = status.begun > 0 && steps == status.begun;
        ensure!(
            steps == status.completed || at_begun,
            "the bank holds {steps} steps; the writer was at {status:?}"
        );
        for step in self.steps..steps {
            program::foresee(&mut self.model, program::step(self.seed, step))?;
        }
        self.steps = steps;
        rows::check(&store, &self.model, KEYS_END).with_context(|| format!("{steps} steps"))?;
        if steps > 0 && self.random.u64(..8) == 0 {
            rows::check_by_scan(&store, &self.model)?;
        }
        Ok(Kill {
            moment,
            in_checkpoint: status.begun > 0,
            at_begun,
            steps_lost: status.done.saturating_sub(steps),
            parts,
        })
    }
}

/// The writer's process. Dropping this kills it, also after an error of the supervisor.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the device choice with this name.
///
/// # Errors
/// Returns an error if no device has this name.
pub fn device_named(name: &str) -> Result<DeviceChoice> {
    match name {
        "auto" => Ok(DeviceChoice::Auto),
        "threads" => Ok(DeviceChoice::Threads),
        "io_uring" => Ok(DeviceChoice::IoUring),
        _ => bail!("no device {name}: auto, threads or io_uring"),
    }
}
