//! Tests that a bank keeps every acknowledged checkpoint, and touches no other bank, whatever files
//! other programs put into its folders.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use embank_crash::recorder;
use embank_crash::strays::{Tally, round};

/// The number of an ordinary user.
const NOBODY: libc::uid_t = 65_534;

/// Runs rounds in a thread of an ordinary user, because modes do not restrict root.
fn rounds(seeds: std::ops::Range<u64>, live: bool) -> Tally {
    let ran = std::thread::spawn(move || {
        // SAFETY: the call takes no pointers and can't fail.
        if unsafe { libc::geteuid() } == 0 {
            // SAFETY: the call takes no pointers. Unlike the C library's function, this system call
            // changes only this thread and the threads that it starts.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(done, 0);
        }
        rounds_of_this_user(seeds, live)
    });
    ran.join().unwrap()
}

fn rounds_of_this_user(seeds: std::ops::Range<u64>, live: bool) -> Tally {
    recorder::skip_syncs();
    let mut tally = Tally::default();
    for seed in seeds {
        let dir = tempfile::tempdir().unwrap();
        match round(dir.path(), seed, live) {
            Ok(counts) => tally += counts,
            Err(error) => panic!("{error:#}"),
        }
    }
    println!("{tally:?}");
    tally
}

#[test]
fn strays_in_a_closed_bank_end_no_checkpoint() {
    let tally = rounds(0..6, false);
    assert!(tally.opened > 10 && tally.refused > 10, "{tally:?}");
}

#[test]
fn strays_in_an_open_bank_end_no_checkpoint() {
    let tally = rounds(100..106, true);
    assert!(tally.checkpoints > 50 && tally.strays > 100, "{tally:?}");
}
