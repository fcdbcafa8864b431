//! Tests of output files: names, modes, links, and the removal of files after a signal.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

/// A test sets this environment variable in its child process. The child then acts as if no file
/// system had `O_TMPFILE`, and its files have hidden names.
const HIDDEN: &str = "EMBANK_TEST_HIDDEN";

pub(super) fn may_be_unnamed() -> bool {
    std::env::var_os(HIDDEN).is_none()
}

fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

fn write(path: &Path, unnamed: bool, text: &str) -> Result<()> {
    let mut file = OutputFile::create_as(path, unnamed)?;
    file.write_all(text.as_bytes()).unwrap();
    file.sync()?;
    file.publish()
}

fn mode_of(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn a_file_appears_when_it_is_complete_and_leaves_nothing_when_not() {
    for unnamed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let file = OutputFile::create_as(&path, unnamed).unwrap();
        file.write_at(b"later", 3).unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(names(dir.path()).len(), 0);
        for text in ["first", "second"] {
            write(&path, unnamed, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(dir.path()), ["out"]);
        }
    }
}

/// Regression test: `create` refused a name of 240 bytes or more, because the hidden name was this
/// name with more characters.
#[test]
fn a_name_may_be_as_long_as_the_file_system_takes() {
    for (unnamed, length) in [(true, 240), (true, 255), (false, 240), (false, 255)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n".repeat(length));
        write(&path, unnamed, "first").unwrap();
        write(&path, unnamed, "second").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
        let longer = dir.path().join("n".repeat(256));
        assert!(
            OutputFile::create_as(&longer, unnamed).is_err(),
            "the error comes before the file is written"
        );
    }
}

/// Regression test: a file of mode 0600 was replaced by a file that every user could read.
#[test]
fn a_file_keeps_the_mode_of_the_one_before() {
    for unnamed in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        for mode in [0o600, 0o640, 0o444, 0o755] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            write(&path, unnamed, "new").unwrap();
            assert_eq!(
                (mode_of(&path), std::fs::read_to_string(&path).unwrap()),
                (mode, "new".into())
            );
            std::fs::remove_file(&path).unwrap();
        }
        // A file that replaces no file has the same mode as any new file of this process.
        std::fs::write(dir.path().join("plain"), "").unwrap();
        write(&path, unnamed, "new").unwrap();
        assert_eq!(mode_of(&path), mode_of(&dir.path().join("plain")));
    }
}

/// Regression test: the new file replaced a link, and the link's target kept the old content.
#[test]
fn links_are_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    std::fs::write(at("real/v1"), "old").unwrap();
    symlink("real/v1", at("latest")).unwrap();
    symlink("latest", at("twice")).unwrap();
    symlink("real/new", at("dangling")).unwrap();
    symlink(at("real"), at("folder")).unwrap();
    for (link, target) in [
        ("latest", "real/v1"),
        ("twice", "real/v1"),
        ("dangling", "real/new"),
        ("folder/v2", "real/v2"),
    ] {
        assert_eq!(
            output_path(&at(link)).unwrap(),
            at(target).canonicalize().unwrap_or(at(target))
        );
        write(&at(link), true, link).unwrap();
        assert_eq!(std::fs::read_to_string(at(target)).unwrap(), link);
    }
    assert!(at("latest").is_symlink() && at("twice").is_symlink() && at("dangling").is_symlink());
    symlink("circle", at("circle")).unwrap();
    let error = OutputFile::create(&at("circle")).unwrap_err().to_string();
    assert!(error.contains("links"), "{error}");
}

/// Regression test: an export by root replaced /dev/null by a regular file.
#[test]
fn what_is_no_regular_file_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let fifo = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, fifo, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    symlink("pipe", at("to-pipe")).unwrap();
    symlink("folder", at("to-folder")).unwrap();
    symlink("/dev/full", at("to-device")).unwrap();
    let mut cases = vec![
        ("pipe", "a pipe"),
        ("socket", "a socket"),
        ("folder", "a directory"),
        ("to-pipe", "a pipe"),
        ("to-folder", "a directory"),
        ("to-device", "a device"),
        ("folder/", "names no file"),
        ("folder/..", "names no file"),
    ];
    let device = rustix::fs::makedev(1, 3);
    // Only root can make a device.
    if rustix::fs::mknodat(CWD, at("null"), FileType::CharacterDevice, fifo, device).is_ok() {
        cases.push(("null", "a device"));
    }
    let before = names(dir.path());
    for (name, expected) in cases {
        let error = OutputFile::create(&at(name)).unwrap_err().to_string();
        assert!(
            error.contains(name.trim_end_matches("/..")) && error.contains(expected),
            "{error}"
        );
    }
    assert_eq!(names(dir.path()), before);
    assert!(at("pipe").metadata().unwrap().file_type().is_fifo());
    // The name becomes a pipe while the file is written.
    let file = OutputFile::create(&at("late")).unwrap();
    rustix::fs::mknodat(CWD, at("late"), FileType::Fifo, fifo, 0).unwrap();
    let error = file.sync().unwrap_err().to_string();
    assert!(error.contains("something else"), "{error}");
}

#[test]
fn a_link_of_another_user_in_a_directory_for_all_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    symlink("secret", at("out")).unwrap();
    std::fs::write(at("secret"), "old").unwrap();
    let other = (Some(Uid::from_raw(12_345)), Some(Gid::from_raw(12_345)));
    // Only root can give the link to another user.
    if rustix::fs::chownat(CWD, at("out"), other.0, other.1, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return;
    }
    let error = OutputFile::create(&at("out")).unwrap_err().to_string();
    assert!(error.contains("another user"), "{error}");
    assert_eq!(std::fs::read_to_string(at("secret")).unwrap(), "old");
}

/// Runs in a child process of the next test. The test ends the child by a signal.
#[test]
#[ignore = "run by a_signal_leaves_no_hidden_file"]
fn writes_a_file_until_it_is_ended() {
    let Some(path) = std::env::var_os(HIDDEN) else { return };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the call sets the default action and no handler. It is needed because a shell may
        // have started this process with ignored signals.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut file = OutputFile::create(Path::new(&path)).unwrap();
    file.write_all(b"half").unwrap();
    assert!(file.hidden.is_some());
    println!("written");
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_signal_leaves_no_hidden_file() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, "old").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["writes_a_file_until_it_is_ended", "--ignored", "--nocapture"])
            .env(HIDDEN, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("written")));
        assert_eq!(names(dir.path()).len(), 2);
        // SAFETY: the process is this test's child, and the test has not waited for it, so its id
        // is valid.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        assert_eq!(child.wait().unwrap().signal(), Some(signal), "the signal still ends it");
        assert_eq!(names(dir.path()), ["out"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    }
}
