//! Does every crash image of a bank's life come back to a completed checkpoint, and would a missing
//! sync show?
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use embank_crash::disk::{Disk, Left};
use embank_crash::images::{Cut, Oracle, cuts, moments};
use embank_crash::journal::{Journal, Mark, Op};
use embank_crash::recorder;
use embank_crash::workload::{Life, live, live_and_be_killed};
use fastrand::Rng;
use tempfile::TempDir;

/// In memory, where there is such a place.
fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Every life is recorded again, so a cut of another run lies elsewhere: the order of calls depends
/// on threads too.
fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = std::env::var("EMBANK_TEST_SEED").map_or(2, |seed| seed.parse().unwrap());
        println!("replay with EMBANK_TEST_SEED={seed}");
        seed
    })
}

/// A life that the tests look at from several sides.
fn life() -> &'static Life {
    static LIFE: OnceLock<Life> = OnceLock::new();
    LIFE.get_or_init(|| eventful_life(seed()))
}

/// The first eventful life of up to twenty, whose seeds begin with `first_seed`.
fn eventful_life(first_seed: u64) -> Life {
    recorder::skip_syncs();
    let mut lives = (0..20).map(|i| live(temporary().path(), first_seed + i, 80).unwrap());
    lives.find(is_eventful).expect("one life of twenty has all that the tests look for")
}

/// True if a life has the events that the tests of this file need. Its moments follow from threads,
/// so one life in about twenty has no roll-back or no kill inside a checkpoint.
fn is_eventful(life: &Life) -> bool {
    life.checkpoints > 10 && life.kills_in_checkpoint > 0 && life.roll_backs > 0
}

/// What is wrong with the image of a cut.
fn failure(oracle: &Oracle<'_>, cut: &Cut, seed: u64) -> Option<String> {
    let dir = temporary();
    let checked = oracle.check(cut, dir.path(), seed);
    checked.err().map(|error| format!("{cut}: {error:#}"))
}

#[test]
fn every_image_of_a_life_opens_at_its_checkpoint() {
    let life = life();
    let oracle = Oracle::new(&life.journal, &life.states);
    let mut random = Rng::with_seed(seed());
    for cut in cuts(&life.journal, 400, &mut random) {
        assert_eq!(failure(&oracle, &cut, random.u64(..)), None);
    }
}

/// An open after a kill found a checkpoint whose name no sync covered, and a new bank's directory
/// of which the same was true. A power cut after that took back what the open had reported.
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
        let oracle = Oracle::new(&life.journal, &life.states);
        let (moments, opened) = (moments(&life.journal), opened_last(&life.journal));
        let after = (moments.len() - opened) as u64;
        for i in 0..5 {
            // The moment of the open, and some that follow.
            let at = opened + if i == 0 { 0 } else { random.u64(..after) as usize };
            let cut = Cut { moment: moments[at], left: Left::Nothing };
            assert_eq!(failure(&oracle, &cut, random.u64(..)), None, "killed after {calls} calls");
        }
    }
    assert!(killed > 60, "{killed} kills");
}

/// An open after a kill removed the files of a checkpoint that had been renamed away, and no sync
/// covered the renaming. A power cut then could bring its name back without them.
#[test]
fn what_an_open_after_a_kill_removes_does_not_come_back() {
    recorder::skip_syncs();
    for calls in 0.. {
        let life = live_and_be_killed(temporary().path(), calls).unwrap();
        if life.kills == 0 {
            break;
        }
        let oracle = Oracle::new(&life.journal, &life.states);
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

/// The moment after the last open.
fn opened_last(journal: &Journal) -> usize {
    let opened = |op: &Op| matches!(op, Op::Mark(Mark::Opened { .. }));
    journal.ops.iter().rposition(opened).unwrap() + 1
}

/// What a sync is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Segment,
    LogFolder,
    Image,
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
    for op in &journal.ops {
        match op {
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
                Ok("log") => Purpose::LogFolder,
                Ok("checkpoints") => renamed,
                Ok("BANK.new") => Purpose::BankFile,
                Ok(path) if path.ends_with(".seg") => Purpose::Segment,
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

/// Each sync of the store is there for something: without it, an image does not come back. So the
/// images are not blind.
///
/// A life whose threads ran slowly may have no such image among its cuts, so the test tries
/// several.
#[test]
fn a_missing_sync_shows() {
    for purpose in [
        Purpose::Segment,
        Purpose::LogFolder,
        Purpose::Image,
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

/// Whether an image of `life` does not come back without the syncs for `purpose`.
fn missing_sync_shows(life: &Life, purpose: Purpose, seed: u64) -> bool {
    let purposes = purposes(&life.journal);
    let mut gone = 0;
    let journal = life.journal.without_syncs(|i, _| {
        let is = purposes[i] == purpose;
        gone += u32::from(is);
        is
    });
    assert!(gone > 0, "no sync for {purpose:?}");
    let oracle = Oracle::new(&journal, &life.states);
    let mut random = Rng::with_seed(seed);
    let mut cuts = cuts(&journal, 600, &mut random).into_iter();
    let found = cuts.find_map(|cut| failure(&oracle, &cut, random.u64(..)));
    println!("without {gone} syncs for {purpose:?}: {found:?}");
    found.is_some()
}

/// A store that gives space back before the checkpoint that lets go of it is durable fails the
/// images.
///
/// About one recorded life in twenty gives back only what no checkpoint has named, so the test
/// tries several.
#[test]
fn space_that_is_given_back_too_early_shows() {
    recorder::skip_syncs();
    let shows = (0..8).any(|i| {
        let life = live(temporary().path(), seed() + i, 80).unwrap();
        early_give_back_shows(&life, seed() + i)
    });
    assert!(shows, "with space given back too early every image is good");
}

/// Whether an image of `life` fails when each give-back stands at the beginning of its checkpoint.
///
/// The space is missing at the moments between that beginning and the give-back's own place. So the
/// power goes only there, and everything before it has reached the disk: the give-back as well.
fn early_give_back_shows(life: &Life, seed: u64) -> bool {
    let mut ops: Vec<Op> = Vec::new();
    let mut begun = 0;
    let mut too_early: BTreeSet<usize> = BTreeSet::new();
    for op in &life.journal.ops {
        let gives_back = match op {
            Op::Punch { .. } => true,
            Op::Unlink { name, .. } => name.ends_with(".seg"),
            _ => false,
        };
        if gives_back {
            ops.insert(begun, op.clone());
            too_early.extend(begun + 1..=ops.len());
            continue;
        }
        if matches!(op, Op::Mark(Mark::Begun { .. })) {
            begun = ops.len();
        }
        ops.push(op.clone());
    }
    let journal = Journal { ops };
    let oracle = Oracle::new(&journal, &life.states);
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
