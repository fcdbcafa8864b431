//! Crash images: the possible contents of the disk after a power cut in a recorded life. This
//! module chooses the power cuts to try, and checks that the bank opens at an allowed state.
//!
//! The journal alone decides the state at which an image must open: the state of the last
//! `checkpoint` or `Store::open` that had returned. A new checkpoint's state is allowed too from
//! the rename of the checkpoint until `checkpoint` returns. A rollback removes the newest
//! checkpoint's name. Until the sync of this removal, the newest state and the one before it are
//! allowed; after the sync, only the one before it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use embank_kv::Store;
use embank_kv::inspect::{Damage, VerifyOptions, verify};
use fastrand::Rng;

use crate::content::content;
use crate::disk::{Disk, Left};
use crate::journal::{Journal, Mark, Op};
use crate::rows::{self, Model};
use crate::settings::Settings;
use crate::strangers::check_restored_segments;
use crate::workload::{BANK, KEYS_END, Life, State, serial_of};

/// Each slow check runs on one in this number of images, drawn at random. The slow checks are the
/// check of the whole bank, the comparison of a scan with the model, the opening of older
/// checkpoints, and the check with segments of a diverged copy.
const SELDOM: u64 = 4;

/// The operation of the program at the power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The program was in `Store::open`.
    Open,
    /// The program was in `checkpoint`.
    Checkpoint,
    /// The program was in `compact`. Background compaction may also run during any other phase.
    Compaction,
    /// The program was in `roll_back`.
    RollBack,
    /// The program ran batches of row changes. Full pages are written during these.
    Work,
}

/// A moment at which the power may be cut.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The number of journal calls before the power cut.
    pub position: usize,
    /// The serial number of the state that is durable.
    pub sure: u64,
    /// The serial number of another state at which the bank may open. `None` if there is no such
    /// state.
    pub maybe: Option<u64>,
    /// The operation of the program at this moment.
    pub phase: Phase,
}

impl Moment {
    fn admits(self, serial: u64) -> bool {
        serial == self.sure || Some(serial) == self.maybe
    }
}

/// A moment, and the unsynced calls that had reached the disk by then.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// The moment of the power cut.
    pub moment: Moment,
    /// The unsynced calls that had reached the disk.
    pub left: Left,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after call {} ({:?})", self.moment.position, self.left)
    }
}

/// Returns the moments before the first call of a journal and after each call.
#[must_use]
pub fn moments(journal: &Journal) -> Vec<Moment> {
    let mut moment = Moment { position: 0, sure: 0, maybe: None, phase: Phase::Work };
    let mut begun = None;
    // The complete checkpoints on the disk: their names and serial numbers.
    let mut complete: BTreeMap<String, u64> = BTreeMap::new();
    let mut moments = vec![moment];
    for (i, op) in journal.ops.iter().enumerate() {
        moment.position = i + 1;
        match op {
            Op::Mark(Mark::Begun { serial }) => {
                begun = Some(*serial);
                moment.phase = Phase::Checkpoint;
            }
            Op::Mark(
                Mark::Done { serial } | Mark::Opened { serial } | Mark::RolledBack { serial },
            ) => {
                (moment.sure, moment.maybe, begun) = (*serial, None, None);
                moment.phase = Phase::Work;
            }
            Op::Mark(Mark::Compacting) => moment.phase = Phase::Compaction,
            Op::Mark(Mark::RollingBack) => moment.phase = Phase::RollBack,
            Op::Mark(Mark::Opening) => moment.phase = Phase::Open,
            Op::Mark(Mark::Working) => moment.phase = Phase::Work,
            // A checkpoint gets its final name.
            Op::Rename { from, to, .. } if from.strip_suffix(".partial") == Some(to) => {
                moment.maybe = begun;
                complete.extend(begun.map(|serial| (to.clone(), serial)));
            }
            // A checkpoint is removed: the oldest one, or the newest one in a rollback.
            Op::Rename { from, to, .. } if to.strip_suffix(".partial") == Some(from) => {
                complete.remove(from);
                if moment.phase == Phase::RollBack {
                    moment.maybe = complete.last_key_value().map(|(_, serial)| *serial);
                }
            }
            Op::Sync { path, .. } if moment.phase == Phase::RollBack && is_checkpoints(path) => {
                moment.sure = moment.maybe.take().unwrap_or(moment.sure);
            }
            _ => {}
        }
        moments.push(moment);
    }
    moments
}

fn is_checkpoints(path: &str) -> bool {
    Path::new(path) == Path::new(BANK).join("checkpoints")
}

/// Returns `count` random cuts of a journal. Up to a third of them keep no unsynced call or every
/// unsynced call. Up to a third keep all unsynced calls but one, or only one. The remaining cuts
/// keep a random subset of the unsynced calls.
#[must_use]
pub fn cuts(journal: &Journal, count: usize, random: &mut Rng) -> Vec<Cut> {
    let (sure, moments) = (journal.sure_from(), moments(journal));
    let mut plain = Vec::new();
    let mut singles = Vec::new();
    for &moment in &moments {
        let unsure = Disk::unsure(journal, &sure, moment.position);
        plain.push(Cut { moment, left: Left::Nothing });
        if !unsure.is_empty() {
            plain.push(Cut { moment, left: Left::Everything });
        }
        for call in unsure {
            singles.push(Cut { moment, left: Left::AllBut(call) });
            singles.push(Cut { moment, left: Left::Only(call) });
        }
    }
    // At most a third of the cuts comes from each of these two lists.
    random.shuffle(&mut plain);
    random.shuffle(&mut singles);
    let mut cuts: Vec<Cut> = plain.into_iter().take(count / 3).collect();
    cuts.extend(singles.into_iter().take(count / 3));
    // A random cut first draws its phase, so each phase gets about the same number of cuts.
    // Otherwise most cuts would fall into checkpoints, which make the most calls.
    let mut phases: BTreeMap<Phase, Vec<Moment>> = BTreeMap::new();
    for moment in moments {
        phases.entry(moment.phase).or_default().push(moment);
    }
    let phases: Vec<Vec<Moment>> = phases.into_values().collect();
    while cuts.len() < count {
        let phase = &phases[random.u64(..phases.len() as u64) as usize];
        let moment = phase[random.u64(..phase.len() as u64) as usize];
        cuts.push(Cut { moment, left: Left::Random(random.u64(..)) });
    }
    cuts
}

/// Checks that a bank opens at a state that the journal allows.
#[derive(Debug)]
pub struct Oracle<'a> {
    journal: &'a Journal,
    states: &'a [State],
    /// The settings with which the images are opened. Compaction runs only when it is called.
    settings: Settings,
    sure: Vec<usize>,
}

impl<'a> Oracle<'a> {
    /// Returns the oracle of a life.
    #[must_use]
    pub fn new(life: &'a Life) -> Self {
        Oracle::with_journal(life, &life.journal)
    }

    /// Returns the oracle of a life, with a changed journal in place of its own.
    #[must_use]
    pub fn with_journal(life: &'a Life, journal: &'a Journal) -> Self {
        let settings = life.settings.in_foreground();
        Oracle { journal, states: &life.states, settings, sure: journal.sure_from() }
    }

    /// Makes the image of `cut` in the empty directory `dir`, opens it, and checks it. This changes
    /// the image.
    ///
    /// # Errors
    /// Fails with a description of what is wrong.
    pub fn check(&self, cut: &Cut, dir: &Path, seed: u64) -> Result<()> {
        let mut random = Rng::with_seed(seed);
        self.lay_out(cut, dir)?;
        let bank = dir.join(BANK);
        if random.u64(..SELDOM) == 0 {
            self.check_older(cut, dir).context("falling back to an older checkpoint")?;
        }
        if cut.moment.sure > 0 && random.u64(..SELDOM) == 0 {
            check_whole(&bank)?;
        }
        let store = self.settings.open(&bank).context("opening it")?;
        let serial = serial_of(&store)?;
        ensure!(
            cut.moment.admits(serial),
            "it is at state {serial}, not at {}{}",
            cut.moment.sure,
            cut.moment.maybe.map_or(String::new(), |maybe| format!(" or {maybe}"))
        );
        let state = &self.states[serial as usize];
        self.check_state(&store, state)?;
        if serial > 0 && random.u64(..SELDOM) == 0 {
            rows::check_by_scan(&store, &state.model)?;
        }
        let model = work_on(&store, &state.model, KEYS_END, &mut random).context("working on")?;
        let blob = content(seed, 2, 100);
        store.checkpoint(&blob).context("taking a checkpoint of it")?;
        rows::check(&store, &model, KEYS_END).context("after a checkpoint of it")?;
        drop(store);
        let store = self.settings.open(&bank).context("opening it again")?;
        ensure!(store.recovered().is_some_and(|found| found.blob == blob), "its own blob");
        rows::check(&store, &model, KEYS_END).context("opened again")?;
        drop(store);
        if random.u64(..SELDOM) == 0 {
            check_restored_segments(&bank, &self.settings, &model, KEYS_END, &mut random)
                .context("with segments of a copy that has gone on")?;
        }
        Ok(())
    }

    /// Makes the image of `cut` in `dir`.
    ///
    /// # Errors
    /// Returns any error of the file system.
    pub fn lay_out(&self, cut: &Cut, dir: &Path) -> Result<()> {
        let disk = Disk::after_cut(self.journal, &self.sure, cut.moment.position, cut.left);
        disk.write_to(dir).context("writing the image")
    }

    fn check_state(&self, store: &Store, state: &State) -> Result<()> {
        if state.serial > 0 {
            let same = store.recovered().is_some_and(|found| found.blob == state.blob());
            ensure!(same, "the blob of state {} differs", state.serial);
        }
        rows::check(store, &state.model, KEYS_END)
            .with_context(|| format!("the rows of state {}", state.serial))
    }

    /// Checks every checkpoint except the newest one against its recorded state. A name without
    /// `.partial` promises a complete checkpoint. The check works on copies of the image, in `dir`.
    ///
    /// # Errors
    /// Fails with a description of what is wrong.
    pub fn check_older(&self, cut: &Cut, dir: &Path) -> Result<()> {
        let copy = dir.join("older");
        let checkpoints = copy.join(BANK).join("checkpoints");
        for passed_over in 1.. {
            std::fs::create_dir(&copy)?;
            self.lay_out(cut, &copy)?;
            let mut names = complete_names(&checkpoints)?;
            names.sort_unstable();
            let left = names.len().saturating_sub(passed_over);
            for name in &names[left..] {
                std::fs::remove_dir_all(checkpoints.join(name))?;
            }
            if left > 0 {
                let store = self.settings.open(&copy.join(BANK)).context("opening it")?;
                let serial = serial_of(&store)?;
                let Some(state) = self.states.get(serial as usize) else {
                    bail!("state {serial}?")
                };
                self.check_state(&store, state)?;
            }
            std::fs::remove_dir_all(&copy)?;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Runs `verify`, which checks every byte that a checkpoint of the bank names.
fn check_whole(bank: &Path) -> Result<()> {
    let report = verify(bank, &VerifyOptions::default(), &mut |_| {}).context("verifying it")?;
    let damage = report.damage.first();
    ensure!(report.is_clean(), "verify finds: {}", damage.map_or(String::new(), Damage::to_string));
    Ok(())
}

/// Returns the names of the complete checkpoints' directories.
fn complete_names(checkpoints: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    // The directory may be missing if the power was cut while the bank was made.
    if checkpoints.is_dir() {
        for entry in std::fs::read_dir(checkpoints)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            names.extend((!name.ends_with(".partial")).then_some(name));
        }
    }
    Ok(names)
}

/// Makes some changes of each kind, on the store and on a copy of the model. Returns the changed
/// copy.
pub(crate) fn work_on(
    store: &Store,
    model: &Model,
    keys_end: u64,
    random: &mut Rng,
) -> Result<Model> {
    let mut model = model.clone();
    if !model.contains_key("afterwards") {
        rows::create(store, &mut model, "afterwards", 16, false)?;
    }
    for (name, expected) in &mut model {
        let table = rows::table(store, name)?;
        let first = random.u64(..keys_end - 40);
        let keys: Vec<u64> = (first..first + 40).collect();
        let values: Vec<_> =
            keys.iter().map(|&key| content(key, first, expected.value_bytes as usize)).collect();
        rows::put(store, &table, &keys, &values)?;
        expected.rows.extend(keys.iter().copied().zip(values));
        let deleted: Vec<u64> = keys[..7].iter().map(|key| key / 2).collect();
        store.delete(table.id, &deleted)?;
        deleted.iter().for_each(|key| {
            expected.rows.remove(key);
        });
    }
    if random.u64(..SELDOM) == 0 {
        store.compact()?;
    }
    Ok(model)
}
