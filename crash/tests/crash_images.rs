//! Tests that every crash image of a bank's life opens at a completed checkpoint, and that a
//! missing sync is found.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use embank_crash::disk::{Disk, Left};
use embank_crash::images::{Cut, Oracle, Phase, cuts, moments};
use embank_crash::journal::{Journal, Mark, Op};
use embank_crash::parts::{Parts, is_part};
use embank_crash::recorder;
use embank_crash::workload::{Life, compact_and_be_killed, live, live_and_be_killed};
use fastrand::Rng;
use tempfile::TempDir;

/// Makes a temporary directory, in memory if the system has /dev/shm.
fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns the seed of this run. Two runs with one seed may have different cuts, because the order
/// of calls also depends on the timing of the threads.
fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = std::env::var("EMBANK_TEST_SEED").map_or(2, |seed| seed.parse().unwrap());
        println!("replay with EMBANK_TEST_SEED={seed}");
        seed
    })
}

/// Returns a life that several tests share.
fn life() -> &'static Life {
    static LIFE: OnceLock<Life> = OnceLock::new();
    LIFE.get_or_init(|| eventful_life(seed()))
}

/// Records up to twenty lives, with seeds from `first_seed` on, and returns the first eventful one.
fn eventful_life(first_seed: u64) -> Life {
    recorder::skip_syncs();
    let mut lives = (0..20).map(|i| live(temporary().path(), first_seed + i, 80).unwrap());
    lives.find(is_eventful).expect("one life of twenty has all that the tests look for")
}

/// True if a life has the events that the tests of this file need. The events also depend on the
/// timing of the threads. About one life in twenty has no rollback or no kill inside a checkpoint.
/// Half of the lives have two tiers.
fn is_eventful(life: &Life) -> bool {
    let Parts { runs, joined, base, removed, .. } = life.parts;
    let has_merged = runs > 10 && joined > 3 && base > 3 && removed > 10;
    life.checkpoints > 10 && life.kills_in_checkpoint > 0 && life.roll_backs > 0 && has_merged
}

/// Returns the error that the image of a cut causes. `None` if the image is right.
fn failure(oracle: &Oracle<'_>, cut: &Cut, seed: u64) -> Option<String> {
    let dir = temporary();
    let checked = oracle.check(cut, dir.path(), seed);
    checked.err().map(|error| format!("{cut}: {error:#}"))
}

#[test]
fn every_image_of_a_life_opens_at_its_checkpoint() {
    let life = life();
    let oracle = Oracle::new(life);
    let mut random = Rng::with_seed(seed());
    for cut in cuts(&life.journal, 400, &mut random) {
        assert_eq!(failure(&oracle, &cut, random.u64(..)), None);
    }
}

/// Regression test: an open after a kill accepted the names of a checkpoint and of a new bank's
/// directory without a sync. A later power cut could then take back the state that the open had
/// reported.
#[test]
fn what_an_open_after_a_kill_reports_is_there_for_good() {
    recorder::skip_syncs();
    let mut random = Rng::with_seed(seed());
    let mut killed = 0;
    for calls in 0.. {
        let life = live_and_be_killed(temporary().path(), calls).unwrap();
        if life.kills == 0 {
            break;
        }
        killed += 1;
        let oracle = Oracle::new(&life);
        let (moments, opened) = (moments(&life.journal), opened_last(&life.journal));
        let after = (moments.len() - opened) as u64;
        for i in 0..5 {
            // Tries the moment of the open and some later moments.
            let at = opened + if i == 0 { 0 } else { random.u64(..after) as usize };
            let cut = Cut { moment: moments[at], left: Left::Nothing };
            assert_eq!(failure(&oracle, &cut, random.u64(..)), None, "killed after {calls} calls");
        }
    }
    assert!(killed > 60, "{killed} kills");
}

/// An open after a kill syncs the rename of a checkpoint before it removes that checkpoint's files.
/// Without the sync, a power cut could bring back the name without the files.
#[test]
fn what_an_open_after_a_kill_removes_does_not_come_back() {
    recorder::skip_syncs();
    for calls in 0.. {
        let life = live_and_be_killed(temporary().path(), calls).unwrap();
        if life.kills == 0 {
            break;
        }
        let oracle = Oracle::new(&life);
        let (sure, moments) = (life.journal.sure_from(), moments(&life.journal));
        let opening = |op: &Op| matches!(op, Op::Mark(Mark::Opening));
        let opening = life.journal.ops.iter().rposition(opening).unwrap();
        for &moment in &moments[opening..=opened_last(&life.journal)] {
            for call in Disk::unsure(&life.journal, &sure, moment.position) {
                let (cut, dir) = (Cut { moment, left: Left::Only(call) }, temporary());
                let checked = oracle.check_older(&cut, dir.path());
                assert!(checked.is_ok(), "killed after {calls} calls, {cut}: {checked:?}");
            }
        }
    }
}

/// A kill or a power cut at any call of a compaction that spills and merges leaves a bank with
/// every row.
#[test]
fn a_compaction_in_two_tiers_may_end_at_any_call() {
    const EVERY: usize = 17;
    recorder::skip_syncs();
    let mut random = Rng::with_seed(seed());
    let first = random.usize(..EVERY);
    let mut killed = 0;
    // The loop ends: the compaction makes a limited number of calls.
    for calls in (first..).step_by(EVERY) {
        let life = compact_and_be_killed(temporary().path(), calls as u64).unwrap();
        if life.kills == 0 {
            let Parts { runs, joined, base, removed, .. } = life.parts;
            assert!(runs > 8 && joined > 2 && base > 2 && removed > 8, "{:?}", life.parts);
            break;
        }
        killed += 1;
        let oracle = Oracle::new(&life);
        let moments = moments(&life.journal);
        let opened = opened_last(&life.journal);
        // The last moment of the compaction that was killed, and one after the opening.
        let cut_at = moments[..opened].iter().rposition(|at| at.phase == Phase::Compaction);
        let later = opened + random.usize(..moments.len() - opened);
        for at in [cut_at.unwrap(), later] {
            for left in [Left::Nothing, Left::Everything] {
                let cut = Cut { moment: moments[at], left };
                assert_eq!(failure(&oracle, &cut, random.u64(..)), None, "killed after {calls}");
            }
        }
    }
    assert!(killed > 5, "{killed} kills");
}

/// Returns the index of the moment just after the last open.
fn opened_last(journal: &Journal) -> usize {
    let opened = |op: &Op| matches!(op, Op::Mark(Mark::Opened { .. }));
    journal.ops.iter().rposition(opened).unwrap() + 1
}

/// The purpose of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Segment,
    Part,
    PartNames,
    LogFolder,
    Image,
    PartList,
    Blob,
    Manifest,
    PartialDirectory,
    Completion,
    Pruning,
    RollingBack,
    CheckpointsAtOpen,
    BankFile,
    BankDirectory,
    Other,
}

fn purposes(journal: &Journal) -> Vec<Purpose> {
    let mut purposes = Vec::new();
    let mut renamed = Purpose::CheckpointsAtOpen;
    let mut removing = Purpose::Pruning;
    // What the folder of the log lacks until its next sync.
    let (mut new_parts, mut new_segments) = (false, false);
    for op in &journal.ops {
        match op {
            Op::Make { name, .. } if is_part(name) => new_parts = true,
            Op::Make { name, .. } if name.ends_with(".seg") => new_segments = true,
            Op::Rename { to, .. } if to.ends_with(".partial") => renamed = removing,
            Op::Mark(Mark::RollingBack) => {
                (renamed, removing) = (Purpose::CheckpointsAtOpen, Purpose::RollingBack);
            }
            Op::Mark(Mark::Begun { .. }) => removing = Purpose::Pruning,
            Op::Rename { .. } => renamed = Purpose::Completion,
            Op::Mark(Mark::Opening) => renamed = Purpose::CheckpointsAtOpen,
            _ => {}
        }
        let Op::Sync { path, .. } = op else {
            purposes.push(Purpose::Other);
            continue;
        };
        purposes.push(
            match Path::new(path).strip_prefix("bank").map(|path| path.to_str().unwrap()) {
                Ok("") => Purpose::BankDirectory,
                Ok("log") => {
                    let only_parts = new_parts && !new_segments;
                    (new_parts, new_segments) = (false, false);
                    if only_parts { Purpose::PartNames } else { Purpose::LogFolder }
                }
                Ok("checkpoints") => renamed,
                Ok("BANK.new") => Purpose::BankFile,
                Ok(path) if path.strip_prefix("log/").is_some_and(is_part) => Purpose::Part,
                Ok(path) if path.ends_with(".seg") => Purpose::Segment,
                Ok(path) if path.contains("/cold.") => Purpose::PartList,
                Ok(path) if path.ends_with(".partial") => Purpose::PartialDirectory,
                Ok(path) if path.ends_with("/blob") => Purpose::Blob,
                Ok(path) if path.ends_with("/manifest") => Purpose::Manifest,
                Ok(path) if path.contains("/index.") => Purpose::Image,
                _ => Purpose::Other,
            },
        );
    }
    purposes
}

/// If all syncs of one purpose are removed from a life's journal, some image fails. This holds for
/// each purpose. So every sync is needed, and the images show a missing one.
///
/// If the threads ran slowly during a life, the life may have no failing image. So the test tries
/// several lives.
#[test]
fn a_missing_sync_shows() {
    for purpose in [
        Purpose::Segment,
        Purpose::Part,
        Purpose::PartNames,
        Purpose::LogFolder,
        Purpose::Image,
        Purpose::PartList,
        Purpose::Blob,
        Purpose::Manifest,
        Purpose::PartialDirectory,
        Purpose::Completion,
        Purpose::Pruning,
        Purpose::RollingBack,
        Purpose::BankFile,
        Purpose::BankDirectory,
    ] {
        let shows = missing_sync_shows(life(), purpose, seed())
            || (1..8).map(|i| seed() + 20 * i).any(|first_seed| {
                missing_sync_shows(&eventful_life(first_seed), purpose, first_seed)
            });
        assert!(shows, "without the syncs for {purpose:?} every image is good");
    }
}

/// True if an image of `life` fails without the syncs for `purpose`.
fn missing_sync_shows(life: &Life, purpose: Purpose, seed: u64) -> bool {
    let purposes = purposes(&life.journal);
    let mut gone = 0;
    let journal = life.journal.without_syncs(|i, _| {
        let is = purposes[i] == purpose;
        gone += u32::from(is);
        is
    });
    assert!(gone > 0, "no sync for {purpose:?}");
    let oracle = Oracle::with_journal(life, &journal);
    let mut random = Rng::with_seed(seed);
    let mut cuts = cuts(&journal, 600, &mut random).into_iter();
    let found = cuts.find_map(|cut| failure(&oracle, &cut, random.u64(..)));
    println!("without {gone} syncs for {purpose:?}: {found:?}");
    found.is_some()
}

/// A store may free space only after a checkpoint that no longer names this space is durable. If
/// the space is freed earlier, some image fails.
///
/// About one life in twenty frees only space that no checkpoint has named, so the test tries
/// several lives.
#[test]
fn space_that_is_given_back_too_early_shows() {
    recorder::skip_syncs();
    let shows = (0..8).any(|i| {
        let life = live(temporary().path(), seed() + i, 80).unwrap();
        early_give_back_shows(&life, seed() + i, &|op| match op {
            Op::Punch { .. } => true,
            Op::Unlink { name, .. } => name.ends_with(".seg") && !is_part(name),
            _ => false,
        })
    });
    assert!(shows, "with space given back too early every image is good");
}

/// A store may remove a part only after all checkpoints that name it are gone for good.
#[test]
fn a_part_that_is_removed_too_early_shows() {
    let is_removal = |op: &Op| matches!(op, Op::Unlink { name, .. } if is_part(name));
    let shows = early_give_back_shows(life(), seed(), &is_removal);
    assert!(shows, "with parts removed too early every image is good");
}

/// Moves each call that `gives_back` selects back to the start of the last checkpoint that began
/// before the call, unless its file is younger. Returns true if an image of the changed life fails.
///
/// The space is missing too early only between the call's new and original places. So the test cuts
/// the power only between these two places, with every earlier call on the disk.
fn early_give_back_shows(life: &Life, seed: u64, gives_back: &dyn Fn(&Op) -> bool) -> bool {
    let mut ops: Vec<Op> = Vec::new();
    let mut begun = 0;
    let mut too_early: BTreeSet<usize> = BTreeSet::new();
    // The names that were made since then.
    let mut young: BTreeSet<&String> = BTreeSet::new();
    for op in &life.journal.ops {
        let is_younger = match op {
            Op::Unlink { name, .. } => young.contains(name),
            _ => false,
        };
        if gives_back(op) && !is_younger {
            ops.insert(begun, op.clone());
            too_early.extend(begun + 1..=ops.len());
            continue;
        }
        match op {
            Op::Mark(Mark::Begun { .. }) => {
                begun = ops.len();
                young.clear();
            }
            Op::Make { name, .. } => _ = young.insert(name),
            _ => {}
        }
        ops.push(op.clone());
    }
    let journal = Journal { ops };
    let oracle = Oracle::with_journal(life, &journal);
    let mut random = Rng::with_seed(seed);
    let moments = moments(&journal);
    let mut cuts: Vec<Cut> = too_early
        .iter()
        .map(|&position| Cut { moment: moments[position], left: Left::Everything })
        .collect();
    random.shuffle(&mut cuts);
    let found = cuts.iter().position(|cut| {
        failure(&oracle, cut, random.u64(..)).is_some()
            || oracle.check_older(cut, temporary().path()).is_err()
    });
    println!("space given back too early: image {found:?} of {} fails", cuts.len());
    found.is_some()
}
