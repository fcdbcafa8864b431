//! Tests a forked child that drops the feed and the server of its parent. The drops must not wait
//! for the parent's threads.
//!
//! This file has one test only. A forked child has only the forking thread, so a lock that another
//! test's thread held would stay locked.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]
#![cfg(unix)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use embank_pipeline::{
    Column, Dtype, Feed, FeedInput, FeedOptions, Field, FieldKind, Output, Pipeline, RunOptions,
    Spec,
};

/// Runs `work` in a forked child. True if it returns within a minute.
fn in_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child has one thread. It runs `work`, which needs no other threads, and ends.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    if id == 0 {
        // SAFETY: `alarm` sets a timer of the child, which ends the child if `work` waits for ever.
        unsafe { libc::alarm(60) };
        let done = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: `_exit` ends the process without running code that may need the parent's threads.
        unsafe { libc::_exit(i32::from(done.is_err())) }
    }
    let mut status = 0;
    // SAFETY: the child belongs to this test, and `status` is a local variable.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn pipeline() -> Pipeline {
    let spec = Spec {
        fields: vec![Field::new("n", FieldKind::Int32).required()],
        columns: vec![Column::field("n")],
        outputs: vec![Output::new("n", Dtype::I32, ["n"])],
        ..Spec::default()
    };
    Pipeline::new(&spec, &RunOptions::default()).unwrap()
}

fn input(dir: &std::path::Path) -> FeedInput {
    let path = dir.join("rows.tsv");
    let rows: String = (0..100_000).map(|row| format!("{row}\n")).collect();
    std::fs::write(&path, rows).unwrap();
    FeedInput::file(path)
}

fn rows(feed: &mut Feed) -> usize {
    feed.map(|batch| batch.unwrap().rows()).sum()
}

/// The child aborted, because it joined threads that it did not have.
#[test]
fn a_child_may_drop_the_feed_and_the_server_of_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let input = input(dir.path());
    let options = FeedOptions { batch_rows: 100, ..FeedOptions::default() };
    let mut feed = Some(pipeline().feed(vec![input.clone()], &options).unwrap());
    let mut first = feed.as_mut().unwrap().next().unwrap().ok();
    // The child frees the batch. The pool, whose lock a thread of the parent may have, is left
    // alone.
    assert!(in_child(|| drop(first.take())));
    assert!(in_child(|| drop(feed.take())));
    let first = first.unwrap().rows();
    assert_eq!(first + rows(feed.as_mut().unwrap()), 100_000);

    let mut parts = pipeline().feed(vec![input.clone()], &options).unwrap().split(2).unwrap();
    let (mut second, first) = (parts.pop(), parts.pop().unwrap());
    let taker = std::thread::spawn(move || first.map(|batch| batch.unwrap().rows()).sum::<usize>());
    assert!(in_child(|| drop(second.take())));
    let of_second: usize = second.unwrap().map(|batch| batch.unwrap().rows()).sum();
    assert_eq!(taker.join().unwrap() + of_second, 100_000);

    #[cfg(feature = "flight")]
    {
        use embank_pipeline::{FlightOptions, FlightServer};

        let options = FlightOptions::default();
        let server = FlightServer::start(pipeline(), vec![input], "127.0.0.1:0", &options);
        let mut server = Some(server.unwrap());
        assert!(in_child(|| drop(server.take())));
        server.take().unwrap().stop().unwrap();
    }
}
