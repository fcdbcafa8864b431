//! Real file systems that fill up or turn read-only: a clear error, the last checkpoint, and going on afterwards.
//!
//! They are mounted in a mount namespace of a process of their own, so nothing is left of them whatever happens. Where
//! that is not permitted, the tests are left out with a message.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use embank_crash::random::content;
use embank_crash::rows::{self, Model, ModelTable};
use embank_kv::inspect::{VerifyOptions, verify};
use embank_kv::{CompactionOptions, DeviceChoice, Error, Store, StoreOptions};

const KEYS: u64 = 2000;
const VALUE_BYTES: u32 = 400;
const MIB: u64 = 1 << 20;
/// Of each file system.
const SIZE_MIB: u64 = 24;
const FOUND: &str = "EMBANK_TEST_MOUNT";

/// Runs an ignored test of this file in a process that may mount.
fn in_own_namespace(test: &str) {
    let program = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Root of a user namespace, where this process is not root.
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

/// Where the test of a child process is to mount; none if somebody runs it by hand.
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

/// A bank on a file system of its own, and what its newest checkpoint holds.
struct Bank<'a> {
    mount: &'a Path,
    options: StoreOptions,
    store: Option<Store>,
    version: u64,
    saved: u64,
}

impl<'a> Bank<'a> {
    fn new(mount: &'a Path, device: DeviceChoice) -> Self {
        let mut bank = Bank { mount, options: options(device), store: None, version: 0, saved: 0 };
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

    /// Opens the bank, which must be at its last checkpoint with every row.
    fn open(&mut self) {
        self.store = None;
        self.store = Some(Store::open(&self.dir(), &self.options).unwrap());
        self.version = self.saved;
        if self.saved > 0 {
            rows::check(self.store(), &model(self.saved), KEYS).unwrap();
            let report = verify(&self.dir(), &VerifyOptions::default(), &mut |_| {}).unwrap();
            assert!(report.is_clean(), "{:?}", report.damage);
        }
    }

    /// Puts another version of every row.
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

    /// Each row is of the last version or of the one before, or can't be read: never of another.
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

    fn assert_stopped(&mut self) {
        let refused = self.put().unwrap_err();
        self.version -= 1;
        assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
        let refused = self.store().checkpoint(b"no").unwrap_err();
        assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
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

/// An error that says what happened and where.
fn assert_clear(error: &Error, reason: &str, mount: &Path) {
    let text = error.to_string();
    println!("{text}");
    assert!(text.contains(reason) && text.contains(&*mount.to_string_lossy()), "{text}");
}

/// Takes room until so many bytes are left.
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
    let mut bank = Bank::new(mount, device);

    // Without room for a checkpoint's own files that checkpoint fails, and the next one is good.
    let ballast = leave(mount, 128 << 10);
    let error = bank.checkpoint(&vec![2; 4 << 20]).unwrap_err();
    assert_clear(&error, FULL, mount);
    rows::check(bank.store(), &model(1), KEYS).unwrap();
    fs::remove_file(&ballast).unwrap();
    bank.checkpoint(&[3]).unwrap();

    // Without room for the log the store stops.
    let others = mount.join("others");
    fs::write(&others, vec![1; 8 << 20]).unwrap();
    let mut rounds = 0;
    let error = loop {
        rounds += 1;
        assert!(rounds < 100, "{SIZE_MIB} MiB never fill up");
        if let Err(error) = bank.put() {
            break error;
        }
        if let Err(error) = bank.checkpoint(&[4]) {
            break error;
        }
    };
    assert_clear(&error, FULL, mount);
    assert!(rounds > 2, "{rounds} rounds");
    bank.check_what_can_be_read();
    if matches!(error, Error::Poisoned { .. }) {
        bank.assert_stopped();
    }

    // Opened on the full disk it is at its last checkpoint, and once there is room it goes on.
    let ballast = leave(mount, 0);
    bank.open();
    println!("reopened at version {} after {rounds} rounds", bank.saved);
    fs::remove_file(ballast).unwrap();
    fs::remove_file(others).unwrap();
    for _ in 0..3 {
        bank.put().unwrap();
        bank.store().compact().unwrap();
        bank.checkpoint(&[5]).unwrap();
    }
    bank.open();
}

/// A file system that is mounted read-only takes no writer, and serves readers.
fn turns_read_only_while_closed(mount_at: &Path, device: DeviceChoice) {
    let mut bank = Bank::new(mount_at, device);
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
            for run in [fills_up, turns_read_only_while_closed] {
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
        let image = images.path().join("image");
        let image = image.to_str().unwrap();
        for device in [DeviceChoice::Threads, DeviceChoice::Auto] {
            let aborted = |at: &Path, device| is_aborted(at, device, image);
            let runs: [Run<'_>; 3] = [&fills_up, &turns_read_only_while_closed, &aborted];
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

    /// The kernel turns a file system read-only under an open bank, as after an error of the drive.
    fn is_aborted(at: &Path, device: DeviceChoice, image: &str) {
        let mut bank = Bank::new(at, device);
        bank.put().unwrap();
        // The mount command reports the state that was asked for as an error.
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
        // Its journal is played back.
        assert!(mount(&["-o", "loop", image], at));
        bank.open();
        bank.put().unwrap();
        bank.checkpoint(&[7]).unwrap();
        bank.open();
    }
}
