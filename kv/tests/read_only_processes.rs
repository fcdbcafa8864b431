//! Tests read-only stores next to a writer or a reader in another process. That process is this
//! test binary, run again.
//!
//! These tests are alone in this file. Between its fork and its exec, a child process also holds
//! all locks of this process, which would disturb other tests.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::reading::{BUDGET, by_hand, keys, rows_of, scanned};
use common::{Random, options, peek, put};
use embank_kv::{Store, StoreOptions};

const ROWS: u64 = 2_000;
const ROLE: &str = "EMBANK_TEST_READ_ONLY_ROLE";

struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--nocapture"])
            .env(ROLE, format!("{role}:{}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Other { child, to, from }
    }

    fn ask(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
        self.to.flush().unwrap();
    }

    /// Returns the next answer of the other process: the text of a line after "answer:".
    fn answer(&mut self) -> String {
        let mut line = String::new();
        // The loop ends: the process prints an answer, or it ends.
        loop {
            line.clear();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some((_, answer)) = line.split_once("answer:") {
                return answer.trim().to_owned();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs in the other process. Does nothing in an ordinary run of the tests.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, dir) = role.split_once(':').unwrap();
    let dir = Path::new(dir);
    let all = keys(ROWS);
    let options = StoreOptions { checkpoints_kept: 1, ..options(BUDGET) };
    let mut lines = std::io::stdin().lines();
    if role == "reader" {
        let store = Store::open_read_only(dir, &options, None).unwrap();
        println!("answer:{}", store.reading().unwrap().checkpoint);
        while let Some(Ok(_)) = lines.next() {
            let at = store.reading().unwrap().checkpoint;
            let table = store.tables()[0].id;
            let whole = peek(&store, table, &all).unwrap() == rows_of(&all, at, 120);
            println!("answer:{whole}");
        }
        return;
    }
    // The writer works until the test kills it.
    let store = Store::open(dir, &options).unwrap();
    let found = store.tables().first().map(|table| table.id);
    let table = found.unwrap_or_else(|| store.create_table("rows", 120, b"").unwrap());
    let next = store.recovered().map_or(1, |found| found.checkpoint + 1);
    for version in next.. {
        put(&store, table, &all, version, 120);
        assert_eq!(store.checkpoint(&version.to_le_bytes()).unwrap(), version);
        println!("answer:{version}");
        if version % 3 == 0 {
            store.compact().unwrap();
        }
    }
}

#[test]
fn readers_beside_a_writer_that_is_killed_and_begins_anew() {
    let mut random = Random::new();
    let dir = tempfile::tempdir().unwrap();
    let all = keys(ROWS);
    let mut writer = Other::start("writer", dir.path());
    writer.answer();
    let open = || Store::open_read_only(dir.path(), &options(BUDGET), None).unwrap();
    let whole = |reader: &Store| {
        let at = reader.reading().unwrap();
        assert_eq!(at.blob, at.checkpoint.to_le_bytes());
        let table = reader.tables()[0].id;
        assert_eq!(peek(reader, table, &all).unwrap(), rows_of(&all, at.checkpoint, 120));
        let rows: Vec<_> = scanned(reader, table).into_values().map(Some).collect();
        assert_eq!(rows, rows_of(&all, at.checkpoint, 120));
        at.checkpoint
    };
    let stays = open();
    let first = whole(&stays);
    let moves = open();
    for _ in 0..4 {
        for _ in 0..=random.below(8) {
            let before = whole(&moves);
            assert!(moves.refresh().unwrap() >= before);
            let new = open();
            assert!(whole(&new) >= before);
            writer.answer();
        }
        writer.child.kill().unwrap();
        writer.child.wait().unwrap();
        assert_eq!(whole(&stays), first);
        whole(&moves);
        writer = Other::start("writer", dir.path());
        writer.answer();
    }
    assert_eq!(whole(&stays), first);
    assert!(moves.refresh().unwrap() > first);
    whole(&moves);
}

#[test]
fn a_killed_reader_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Store::open(dir.path(), &by_hand(1)).unwrap();
    let table = writer.create_table("rows", 120, b"").unwrap();
    let mut turn = |version| {
        put(&writer, table, &keys(ROWS), version, 120);
        assert_eq!(writer.checkpoint(b"").unwrap(), version);
    };
    turn(1);
    let mut reader = Other::start("reader", dir.path());
    assert_eq!(reader.answer(), "1");
    (2..5).for_each(&mut turn);
    let is_there = |number: u64| dir.path().join(format!("checkpoints/{number:010}")).is_dir();
    assert_eq!([1, 2, 3, 4].map(is_there), [true, false, false, true]);
    reader.ask("are your rows whole?");
    assert_eq!(reader.answer(), "true");
    reader.child.kill().unwrap();
    reader.child.wait().unwrap();
    turn(5);
    assert_eq!([1, 4, 5].map(is_there), [false, false, true]);
}
