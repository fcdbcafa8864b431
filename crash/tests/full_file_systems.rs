//! Tests on real file systems that fill up or turn read-only, and on a drive with large sectors.
//! The store reports a clear error, keeps its last checkpoint, and continues afterwards.
//!
//! Each test mounts its file system in the mount namespace of a child process, so no mount outlives
//! the test. If the system forbids that, the test prints a message and is skipped.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use embank::{Bank, BankOptions, Optimizer, TableConfig};
use embank_crash::content::content;
use embank_crash::parts::Parts;
use embank_crash::rows::{self, Model, ModelTable};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{CompactionOptions, DeviceChoice, Error, Store, StoreOptions, TierLimits};

const KEYS: u64 = 2000;
const VALUE_BYTES: u32 = 400;
const MIB: u64 = 1 << 20;
/// Size of each file system that is mounted.
const SIZE_MIB: u64 = 24;
const FOUND: &str = "EMBANK_TEST_MOUNT";

/// Runs an ignored test of this file in a child process that may mount a file system.
fn in_own_namespace(test: &str) {
    let program = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The first flags suffice for root. With the second flags, the child is root in a new user
    // namespace.
    let flags: &[&[&str]] = &[&["-m"], &["-r", "-m"]];
    let may = |flags: &&&[&str]| {
        let probe = "mount -t tmpfs -o size=64k none \"$0\"";
        let mut tried = Command::new("unshare");
        tried.args(**flags).args(["sh", "-c", probe]).arg(dir.path());
        tried.output().is_ok_and(|done| done.status.success())
    };
    let Some(flags) = flags.iter().find(may) else {
        println!("left out: no file system can be mounted here");
        return;
    };
    let mut child = Command::new("unshare");
    child.args(*flags).arg(program).args([test, "--exact", "--ignored", "--nocapture"]);
    let done = child.env(FOUND, dir.path()).output().unwrap();
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    println!("{}", text.concat());
    assert!(done.status.success(), "{test} fails");
    assert!(text[0].contains("1 passed"), "there is no test {test}");
}

fn mount(args: &[&str], at: &Path) -> bool {
    let done = Command::new("mount").args(args).arg(at).output().unwrap();
    if !done.status.success() {
        println!("mount {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    done.status.success()
}

/// Returns the directory on which the test in a child process mounts its file system. `None` if the
/// test was started by hand.
fn place() -> Option<std::path::PathBuf> {
    std::env::var_os(FOUND).map(Into::into)
}

fn options(device: DeviceChoice) -> StoreOptions {
    StoreOptions {
        memory_budget_bytes: MIB / 2,
        page_size_bytes: Some(16 << 10),
        segment_size_bytes: Some(MIB),
        device,
        compaction: CompactionOptions { background: false, ..CompactionOptions::default() },
        ..StoreOptions::default()
    }
}

/// A bank on a mounted file system. `version` is the version of its rows; `saved` is their version
/// in the newest checkpoint.
struct OpenBank<'a> {
    mount: &'a Path,
    options: StoreOptions,
    tier: Option<TierLimits>,
    store: Option<Store>,
    version: u64,
    saved: u64,
}

impl<'a> OpenBank<'a> {
    fn new(mount: &'a Path, device: DeviceChoice) -> Self {
        OpenBank::with(mount, options(device), None)
    }

    fn with(mount: &'a Path, options: StoreOptions, tier: Option<TierLimits>) -> Self {
        let mut bank = OpenBank { mount, options, tier, store: None, version: 0, saved: 0 };
        bank.open();
        let store = bank.store.as_ref().unwrap();
        rows::create(store, &mut Model::new(), "rows", VALUE_BYTES, false).unwrap();
        println!("{}: {:?}", mount.display(), store.stats().device_notes);
        bank.put().unwrap();
        bank.checkpoint(&[1]).unwrap();
        bank
    }

    fn dir(&self) -> std::path::PathBuf {
        self.mount.join("bank")
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// Opens the bank and checks that it is at its last checkpoint with every row.
    fn open(&mut self) {
        self.store = None;
        let store = Store::open(&self.dir(), &self.options).unwrap();
        if let Some(limits) = self.tier {
            store.begin_second_tier(limits);
        }
        self.store = Some(store);
        self.version = self.saved;
        if self.saved > 0 {
            rows::check(self.store(), &model(self.saved), KEYS).unwrap();
            let report = verify(&self.dir(), &VerifyOptions::default(), &mut |_| {}).unwrap();
            assert!(report.is_clean(), "{:?}", report.damage);
        }
    }

    /// Puts a new version of every row.
    fn put(&mut self) -> embank_kv::Result<()> {
        self.version += 1;
        let store = self.store.as_ref().unwrap();
        let table = rows::table(store, "rows").unwrap();
        let (keys, values): (Vec<_>, Vec<_>) = values(self.version).into_iter().unzip();
        rows::put(store, &table, &keys, &values)
    }

    fn checkpoint(&mut self, blob: &[u8]) -> embank_kv::Result<u64> {
        let number = self.store().checkpoint(blob)?;
        self.saved = self.version;
        Ok(number)
    }

    /// Checks each row that can be read. It must have the newest version or the version before.
    fn check_what_can_be_read(&self) {
        let store = self.store();
        let table = rows::table(store, "rows").unwrap();
        for key in 0..KEYS {
            if let Ok(found) = rows::peek(store, &table, &[key]) {
                let row = found[0].as_ref();
                let known = [self.version - 1, self.version].map(|version| value(key, version));
                assert!(row.is_some_and(|row| known.contains(row)), "key {key}");
            }
        }
    }
}

fn value(key: u64, version: u64) -> Vec<u8> {
    content(key, version, VALUE_BYTES as usize)
}

fn values(version: u64) -> BTreeMap<u64, Vec<u8>> {
    (0..KEYS).map(|key| (key, value(key, version))).collect()
}

fn model(version: u64) -> Model {
    let table = ModelTable { value_bytes: VALUE_BYTES, variable: false, rows: values(version) };
    [("rows".to_owned(), table)].into()
}

/// Checks that an error names the reason and a path below `mount`.
fn assert_clear(error: &Error, reason: &str, mount: &Path) {
    let text = error.to_string();
    println!("{text}");
    assert!(text.contains(reason) && text.contains(&*mount.to_string_lossy()), "{text}");
}

/// Fills the file system until only `left_bytes` bytes are free.
fn leave(mount: &Path, left_bytes: u64) -> std::path::PathBuf {
    use std::io::Write;
    let path = mount.join("ballast");
    let mut ballast = fs::File::create(&path).unwrap();
    for block in [1 << 20, 64 << 10, 4 << 10] {
        while ballast.write_all(&vec![1; block]).is_ok() && ballast.sync_all().is_ok() {}
    }
    let taken = ballast.metadata().unwrap().len();
    ballast.set_len(taken.saturating_sub(left_bytes)).unwrap();
    ballast.sync_all().unwrap();
    path
}

fn fills_up(mount: &Path, device: DeviceChoice) {
    const FULL: &str = "No space left on device";
    let mut bank = OpenBank::new(mount, device);

    // A checkpoint fails if its own files find no room. Once there is room, the next checkpoint
    // succeeds.
    let ballast = leave(mount, 128 << 10);
    let error = bank.checkpoint(&vec![2; 4 << 20]).unwrap_err();
    assert_clear(&error, FULL, mount);
    rows::check(bank.store(), &model(1), KEYS).unwrap();
    fs::remove_file(&ballast).unwrap();
    bank.checkpoint(&[3]).unwrap();

    // When the log finds no room, a put fails, and no row is lost. A checkpoint still succeeds.
    let others = mount.join("others");
    fs::write(&others, vec![1; 8 << 20]).unwrap();
    let mut rounds = 0;
    let error = loop {
        rounds += 1;
        assert!(rounds < 100, "{SIZE_MIB} MiB never fill up");
        if let Err(error) = bank.put() {
            break error;
        }
    };
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert_clear(&error, "the next checkpoint need", mount);
    assert!(rounds > 2, "{rounds} rounds");
    bank.check_what_can_be_read();
    bank.store().checkpoint(&[4]).unwrap();

    // Another program takes the remaining room.
    let ballast = leave(mount, 0);
    let error = bank.store().checkpoint(&vec![5; 1 << 20]).unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert_clear(&error, FULL, mount);
    bank.check_what_can_be_read();
    fs::remove_file(ballast).unwrap();
    fs::remove_file(others).unwrap();
    bank.put().unwrap();
    bank.checkpoint(&[6]).unwrap();
    rows::check(bank.store(), &model(bank.version), KEYS).unwrap();

    // On a full disk the bank opens at its last checkpoint. Once there is room, it takes writes.
    let ballast = leave(mount, 0);
    bank.open();
    println!("reopened at version {} after {rounds} rounds", bank.saved);
    fs::remove_file(ballast).unwrap();
    for _ in 0..3 {
        bank.put().unwrap();
        bank.store().compact().unwrap();
        bank.checkpoint(&[5]).unwrap();
    }
    bank.open();
}

/// The disk fills up while rows leave the log for the cold tier, and while parts are merged. The
/// output of the failed work goes, no row is lost, and the work succeeds once there is room.
fn fills_up_in_two_tiers(mount: &Path, device: DeviceChoice) {
    let options = StoreOptions { memory_budget_bytes: MIB, ..options(device) };
    let limits = TierLimits {
        log_bytes: 128 << 10,
        sort_buffer_bytes: 100 << 10,
        base_part_bytes: 200 << 10,
        level_runs: 3,
    };
    let mut bank = OpenBank::with(mount, options, Some(limits));
    bank.store().compact().unwrap();
    let parts_written = |bank: &OpenBank<'_>| Parts::of_bank(&bank.dir()).unwrap();
    let (mut refused, mut partly) = (0, 0);
    for left_kib in (0..1600).step_by(200) {
        bank.put().unwrap();
        bank.checkpoint(&[1]).unwrap();
        let before = parts_written(&bank);
        let ballast = leave(mount, left_kib << 10);
        match bank.store().compact() {
            Ok(done) if !done.out_of_room => {}
            Ok(_) => refused += 1,
            Err(error) => {
                assert!(matches!(error, Error::DiskFull { .. }), "{error}");
                assert_clear(&error, "No space left on device", mount);
                assert_eq!(bank.store().stats().compaction_stopped, Some(error.to_string()));
                refused += 1;
            }
        }
        let after = parts_written(&bank);
        partly += u64::from(after.runs > before.runs);
        assert_eq!(after.unfinished, 0, "with {left_kib} KiB: an unfinished part is left");
        rows::check(bank.store(), &model(bank.version), KEYS).unwrap();
        fs::remove_file(ballast).unwrap();
        bank.put().unwrap();
        bank.checkpoint(&[2]).unwrap();
        assert_eq!(bank.store().stats().compaction_stopped, None, "it is tried again");
        if left_kib % 400 == 0 {
            bank.store().compact().unwrap();
            bank.checkpoint(&[3]).unwrap();
            bank.open();
        }
    }
    println!("{refused} compactions met the full disk, {partly} wrote runs");
    assert!(refused > 2 && partly > 2, "{refused} compactions met the full disk, {partly} did not");
    // The bank opens on a full disk, and spills once there is room.
    let ballast = leave(mount, 0);
    bank.open();
    fs::remove_file(ballast).unwrap();
    bank.put().unwrap();
    bank.checkpoint(&[4]).unwrap();
    bank.store().compact().unwrap();
    bank.open();
}

/// The disk fills up during training. Leases (rows on loan to a trainer) are then applied or fail
/// with a clear error, and no lease stays counted.
fn fills_up_in_training(mount: &Path, device: DeviceChoice) {
    const ROWS: u64 = 60_000;
    let options = BankOptions {
        memory_budget_bytes: 2 * MIB,
        device,
        wait_timeout: Duration::from_secs(20),
        ..BankOptions::default()
    };
    let bank = Bank::open(mount.join("trained"), options).unwrap();
    let config = TableConfig::new(16).optimizer(Optimizer::sgd(1.0)).staleness_bound(None);
    let table = bank.table("rows", config).unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    table.put(&keys, &vec![0.0; ROWS as usize * 16]).unwrap();
    bank.checkpoint(b"").unwrap();
    // For each row, the smallest and the largest number of gradients that may have reached it.
    let mut steps = vec![(0_u32, 0_u32); ROWS as usize];
    let mut leases = Vec::new();
    let (mut full, mut late, mut refused) = (0, 0, 0);
    let mut ballast = None;
    for round in 0..400_u64 {
        if round == 60 {
            ballast = Some(leave(mount, 0));
        }
        if round == 260 {
            fs::remove_file(ballast.take().unwrap()).unwrap();
        }
        let some: Vec<u64> = (0..200).map(|i| (round * 7919 + i * 251) % ROWS).collect();
        match table.get(&some, &mut vec![0.0; some.len() * 16]) {
            Ok(lease) => leases.push((lease, some)),
            Err(error) => {
                assert!(matches!(error, embank::Error::Store(Error::DiskFull { .. })), "{error}");
                full += 1;
            }
        }
        // The test holds each lease for about 60 rounds, so that its rows leave mutable memory.
        if leases.len() > 60 || full > 0 && !leases.is_empty() {
            let (lease, keys) = leases.remove(0);
            if round % 5 == 0 {
                lease.release().unwrap();
                continue;
            }
            let done = lease.apply(&vec![-1.0; keys.len() * 16]);
            for &key in &keys {
                steps[key as usize].1 += 1;
                steps[key as usize].0 += u32::from(done.is_ok());
            }
            if let Err(error) = done {
                assert!(matches!(error, embank::Error::Store(Error::DiskFull { .. })), "{error}");
                late += 1;
            }
        }
        let other: Vec<u64> = (0..50).map(|i| (round * 104_729 + i * 1009) % ROWS).collect();
        match table.apply_gradients(&other, &vec![-1.0; other.len() * 16]) {
            Ok(()) => other.iter().for_each(|&key| {
                steps[key as usize].0 += 1;
                steps[key as usize].1 += 1;
            }),
            Err(embank::Error::Store(Error::DiskFull { .. })) => {
                refused += 1;
                other.iter().for_each(|&key| steps[key as usize].1 += 1);
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("{full} gets, {late} leases, {refused} gradients met the full disk");
    assert!(full > 20, "{full} gets met the full disk");
    drop(leases);
    // The next get repeats releases that failed before.
    table.get(&[0], &mut [0.0; 16]).unwrap().release().unwrap();
    let mut rows = vec![0.0; ROWS as usize * 16];
    table.peek(&keys, &mut rows, embank::Missing::Error).unwrap();
    for (&key, row) in keys.iter().zip(rows.chunks(16)) {
        let (least, most) = steps[key as usize];
        assert!(
            (least as f32..=most as f32).contains(&row[0]),
            "{key}: {row:?}, {least} to {most}"
        );
        assert!(row.iter().all(|&value| value == row[0]), "{key}: {row:?}");
        assert_eq!(table.outstanding(key).unwrap(), Some(0), "{key}");
    }
    bank.checkpoint(b"").unwrap();
}

/// A bank on a file system mounted read-only refuses a writer and serves readers.
fn turns_read_only_while_closed(mount_at: &Path, device: DeviceChoice) {
    let mut bank = OpenBank::new(mount_at, device);
    bank.store = None;
    assert!(mount(&["-o", "remount,ro"], mount_at));
    let error = Store::open(&bank.dir(), &bank.options).unwrap_err();
    assert_clear(&error, "Read-only file system", mount_at);
    let reader = Store::open_read_only(&bank.dir(), &bank.options, None).unwrap();
    rows::check(&reader, &model(bank.saved), KEYS).unwrap();
    drop(reader);
    assert!(mount(&["-o", "remount,rw"], mount_at));
    bank.open();
    bank.put().unwrap();
    bank.checkpoint(&[6]).unwrap();
    bank.open();
}

/// A drive with sectors of 4,096 bytes takes only direct transfers of whole sectors. All calls that
/// read the log work there, beside the page cache. Compaction has made a hole at the log's
/// beginning, where the kernel does not check the alignment of direct reads.
///
/// Regression test: a reader tried direct reads of 512 bytes in the hole, took them to work, and
/// failed at its first read with "Invalid argument". A writer used the page cache.
fn has_large_sectors(mount: &Path, device: DeviceChoice) {
    let assert_direct = |store: &Store| {
        let notes = store.stats().device_notes;
        assert!(!notes.iter().any(|note| note.contains("O_DIRECT")), "{notes:?}");
    };
    let mut bank = OpenBank::new(mount, device);
    for number in 2..6 {
        bank.put().unwrap();
        bank.checkpoint(&[number]).unwrap();
    }
    bank.store().compact().unwrap();
    bank.checkpoint(&[6]).unwrap();
    bank.checkpoint(&[7]).unwrap();
    assert_direct(bank.store());
    bank.open();
    assert_direct(bank.store());
    bank.put().unwrap();
    let newest = bank.checkpoint(&[8]).unwrap();
    rows::check(bank.store(), &model(bank.saved), KEYS).unwrap();
    let reader = Store::open_read_only(&bank.dir(), &bank.options, None).unwrap();
    assert_direct(&reader);
    rows::check(&reader, &model(bank.saved), KEYS).unwrap();
    for store in [&reader, bank.store()] {
        let table = rows::table(store, "rows").unwrap();
        let mut scan = store.scan(table.id).unwrap();
        let mut count = 0;
        while let Some(row) = scan.next_row().unwrap() {
            assert_eq!(row.value, value(row.key, bank.saved));
            count += 1;
        }
        assert_eq!(count, KEYS);
    }
    let delta = mount.join("delta");
    Store::export_delta(&bank.dir(), newest - 1, None, &delta, &mut |_| {}).unwrap();
    bank.open();
}

#[test]
fn a_drive_with_large_sectors() {
    in_own_namespace("mounted::a_drive_with_large_sectors");
}

#[test]
fn a_memory_file_system() {
    in_own_namespace("mounted::a_memory_file_system");
}

#[test]
fn a_file_system_on_a_file() {
    in_own_namespace("mounted::a_file_system_on_a_file");
}

mod mounted {
    use super::*;

    type Run<'a> = &'a dyn Fn(&Path, DeviceChoice);

    #[test]
    #[ignore = "run by `a_memory_file_system` in a mount namespace"]
    fn a_memory_file_system() {
        let Some(at) = place() else { return };
        for device in [DeviceChoice::Threads, DeviceChoice::Auto] {
            for run in [
                fills_up,
                fills_up_in_two_tiers,
                fills_up_in_training,
                turns_read_only_while_closed,
            ] {
                let size = format!("size={SIZE_MIB}m");
                assert!(mount(&["-t", "tmpfs", "-o", &size, "none"], &at));
                run(&at, device);
                assert!(Command::new("umount").arg(&at).status().unwrap().success());
            }
        }
    }

    #[test]
    #[ignore = "run by `a_file_system_on_a_file` in a mount namespace"]
    fn a_file_system_on_a_file() {
        let Some(at) = place() else { return };
        let images = tempfile::tempdir().unwrap();
        // The image is in memory: the test fills the file system with many syncs, and on a busy
        // drive these would take minutes.
        let size = format!("size={}m", 2 * SIZE_MIB);
        assert!(mount(&["-t", "tmpfs", "-o", &size, "none"], images.path()));
        let image = images.path().join("image");
        let image = image.to_str().unwrap();
        for device in [DeviceChoice::Threads, DeviceChoice::Auto] {
            let aborted = |at: &Path, device| is_aborted(at, device, image);
            let runs: [Run<'_>; 5] = [
                &fills_up,
                &fills_up_in_two_tiers,
                &fills_up_in_training,
                &turns_read_only_while_closed,
                &aborted,
            ];
            for run in runs {
                fs::File::create(image).unwrap().set_len(SIZE_MIB * MIB).unwrap();
                let made = Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", image]).status();
                if !made.is_ok_and(|made| made.success()) || !mount(&["-o", "loop", image], &at) {
                    println!("left out: no ext4 on a loop device here");
                    return;
                }
                run(&at, device);
                assert!(Command::new("umount").arg(&at).status().unwrap().success());
            }
        }
    }

    /// A loop device. Dropping it detaches the device.
    struct Loop(String);

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").args(["--detach", &self.0]).status();
        }
    }

    /// Makes a loop device with sectors of 4,096 bytes. `None` if the system can't.
    fn large_sectors(image: &str) -> Option<Loop> {
        let mut attach = Command::new("losetup");
        let args = ["--sector-size", "4096", "--find", "--show", image];
        let made = attach.args(args).output().ok().filter(|made| made.status.success())?;
        Some(Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }

    #[test]
    #[ignore = "run by `a_drive_with_large_sectors` in a mount namespace"]
    fn a_drive_with_large_sectors() {
        let Some(at) = place() else { return };
        let images = tempfile::tempdir().unwrap();
        let image = images.path().join("image");
        fs::File::create(&image).unwrap().set_len(4 * SIZE_MIB * MIB).unwrap();
        let Some(device) = large_sectors(image.to_str().unwrap()) else {
            println!("left out: no loop device with sectors of 4,096 bytes here");
            return;
        };
        let made = Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", &device.0]).status();
        if !made.is_ok_and(|made| made.success()) || !mount(&[&device.0], &at) {
            println!("left out: no ext4 on a loop device here");
            return;
        }
        for device in [DeviceChoice::Threads, DeviceChoice::Auto] {
            has_large_sectors(&at, device);
            fs::remove_dir_all(at.join("bank")).unwrap();
            fs::remove_file(at.join("delta")).unwrap();
        }
        assert!(Command::new("umount").arg(&at).status().unwrap().success());
    }

    /// The kernel turns a file system read-only under an open bank, as after a drive error.
    fn is_aborted(at: &Path, device: DeviceChoice, image: &str) {
        let mut bank = OpenBank::new(at, device);
        bank.put().unwrap();
        // The mount command exits with an error, although the kernel has aborted the file system.
        mount(&["-o", "remount,abort"], at);
        let error = loop {
            assert!(bank.version < 20, "a file system that was aborted takes writes");
            if let Err(error) = bank.put() {
                break error;
            }
            if let Err(error) = bank.store().checkpoint(b"bad") {
                break error;
            }
        };
        println!("{error}");
        assert!(error.to_string().contains(&*at.to_string_lossy()), "{error}");
        bank.check_what_can_be_read();
        bank.store = None;
        assert!(Command::new("umount").arg(at).status().unwrap().success());
        // This mount replays the file system's journal.
        assert!(mount(&["-o", "loop", image], at));
        bank.open();
        bank.put().unwrap();
        bank.checkpoint(&[7]).unwrap();
        bank.open();
    }
}
