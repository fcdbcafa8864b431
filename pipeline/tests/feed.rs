//! Tests feeds: batches of equal size, shuffled, resumed and ended early.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Feed, FeedInput, FeedOptions, Field, FieldKind, Input,
    Matrix, Operator, Output, Pipeline, RunOptions, Spec, Waited,
};

/// A spec with a number in all four types, and the id of a category.
fn spec() -> Spec {
    Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("c", FieldKind::Hex32).required(),
        ],
        columns: vec![
            Column::field("n"),
            Column::field("c")
                .then(Operator::Modulus(97))
                .then(Operator::Vocabulary("c".to_owned())),
        ],
        outputs: vec![
            Output::new("f", Dtype::F32, ["n"]),
            Output::new("i", Dtype::I32, ["n", "n"]),
            Output::new("w", Dtype::I64, ["c", "n"]),
            Output::new("b", Dtype::Bits32, ["n"]),
        ],
        ..Spec::default()
    }
}

fn text(rows: usize) -> Arc<[u8]> {
    let line = |row: usize| format!("{row}\t{:x}\n", (row * 7919) % 1013);
    (0..rows).map(line).collect::<String>().into_bytes().into()
}

fn pipeline(threads: usize, chunk_bytes: usize) -> Pipeline {
    Pipeline::new(&spec(), &RunOptions { threads, chunk_bytes, ..Default::default() }).unwrap()
}

fn feed(threads: usize, text: &Arc<[u8]>, options: &FeedOptions) -> Feed {
    let inputs = vec![FeedInput::memory("text", Arc::clone(text))];
    pipeline(threads, 300).feed(inputs, options).unwrap()
}

/// Returns a batch's numbers and ids. The four matrices must agree.
fn content(batch: Batch) -> Vec<(i32, i64)> {
    let rows = batch.rows();
    let matrices: [Matrix; 4] = batch.into_matrices().try_into().unwrap();
    let [Matrix::F32(f), Matrix::I32(i), Matrix::I64(w), Matrix::Bits32(b)] = matrices else {
        panic!("other dtypes")
    };
    assert_eq!((f.len(), i.len(), w.len(), b.len()), (rows, rows * 2, rows * 2, rows));
    for row in 0..rows {
        assert_eq!((i[row * 2], i[row * 2 + 1]), (f[row] as i32, f[row] as i32));
        assert_eq!((w[row * 2 + 1], b[row]), (i64::from(i[row * 2]), i[row * 2] as u32));
    }
    (0..rows).map(|row| (i[row * 2], w[row * 2])).collect()
}

fn all(feed: Feed) -> Vec<Vec<(i32, i64)>> {
    feed.map(|batch| content(batch.unwrap())).collect()
}

fn options(batch_rows: usize, shuffle_rows: usize) -> FeedOptions {
    FeedOptions { batch_rows, shuffle_rows, seed: 3, ..Default::default() }
}

#[test]
fn every_batch_but_the_last_has_exactly_as_many_rows_as_asked() {
    let text = text(1000);
    for batch_rows in [1, 7, 100, 128, 999, 1000, 1001, 5000] {
        let batches = all(feed(2, &text, &options(batch_rows, 0)));
        assert_eq!(batches.len(), 1000_usize.div_ceil(batch_rows));
        let whole = &batches[..batches.len() - 1];
        assert!(whole.iter().all(|batch| batch.len() == batch_rows));
        let numbers: Vec<_> = batches.concat().iter().map(|row| row.0).collect();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }
}

#[test]
fn the_last_shorter_batch_is_dropped_on_request() {
    for shuffle_rows in [0, 50] {
        let options = FeedOptions { drop_last: true, ..options(300, shuffle_rows) };
        let mut feed = feed(2, &text(1000), &options);
        assert_eq!(feed.by_ref().map(|batch| batch.unwrap().rows()).collect::<Vec<_>>(), [300; 3]);
        assert_eq!((feed.next_row(), feed.report().unwrap().rows), (900, 1000));
    }
}

#[test]
fn batches_do_not_depend_on_the_number_of_threads() {
    let text = text(3000);
    for shuffle_rows in [0, 1, 64, 1000, 10_000] {
        let options = options(70, shuffle_rows);
        let expected = all(feed(1, &text, &options));
        for threads in [2, 5] {
            assert_eq!(all(feed(threads, &text, &options)), expected, "{threads} threads");
        }
    }
}

#[test]
fn a_shuffle_keeps_every_row_moves_most_and_follows_its_seed() {
    let text = text(3000);
    let plain = all(feed(2, &text, &options(64, 0))).concat();
    let shuffled = all(feed(2, &text, &options(64, 500))).concat();
    let in_place = plain.iter().zip(&shuffled).filter(|(a, b)| a == b).count();
    assert!(in_place < 30, "{in_place} rows stayed");
    // The shuffle does not change which id a number has, because ids are given in the order of the
    // input.
    let mut sorted = shuffled.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, plain);
    let other = FeedOptions { seed: 4, ..options(64, 500) };
    assert_ne!(all(feed(2, &text, &other)).concat(), shuffled);
}

#[test]
fn a_feed_goes_on_at_the_position_of_another() {
    let text = text(1000);
    for shuffle_rows in [0, 90, 2000] {
        let whole = all(feed(2, &text, &options(64, shuffle_rows)));
        for taken in [0, 1, 5, whole.len() - 1, whole.len()] {
            let mut first = feed(2, &text, &options(64, shuffle_rows));
            assert_eq!(first.by_ref().take(taken).count(), taken);
            let skip_rows = first.next_row();
            drop(first);
            let mut second =
                feed(3, &text, &FeedOptions { skip_rows, ..options(64, shuffle_rows) });
            assert_eq!(second.next_row(), skip_rows);
            let rest: Vec<_> = second.by_ref().map(|batch| content(batch.unwrap())).collect();
            assert_eq!(rest, whole[taken..], "{shuffle_rows} rows of shuffle, {taken} batches");
            assert_eq!(second.next_row(), 1000);
        }
    }
}

#[test]
fn batches_know_their_first_row() {
    let options = FeedOptions { skip_rows: 30, ..options(40, 10) };
    let first_rows: Vec<_> =
        feed(2, &text(100), &options).map(|batch| batch.unwrap().first_row()).collect();
    assert_eq!(first_rows, [30, 70]);
}

/// Regression test: a feed that was to skip more rows than there are returned no batch and no
/// error, so a training loop that resumed over other files took the epoch for done.
#[test]
fn skipping_more_rows_than_there_are_is_an_error() {
    for (shuffle_rows, drop_last) in [(0, false), (10, false), (1000, true)] {
        let skipping = |skip_rows| {
            let options = FeedOptions { skip_rows, drop_last, ..options(40, shuffle_rows) };
            feed(2, &text(100), &options)
        };
        for skip_rows in [101, 1_000_000, u64::MAX] {
            let mut feed = skipping(skip_rows);
            let error = feed.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::SkipsTooMany { rows: 100, .. }), "{error}");
            assert!(error.to_string().contains(&skip_rows.to_string()), "{error}");
            assert!(feed.next().is_none() && feed.report().is_none());
        }
        // A feed that stopped after the last row continues with nothing.
        assert!(skipping(100).next().is_none());
    }
}

#[test]
fn a_feed_that_is_dropped_ends_its_run() {
    let text = text(20_000);
    for taken in [0, 1, 3] {
        for (threads, shuffle_rows) in [(1, 0), (3, 0), (3, 100)] {
            let mut feed = feed(threads, &text, &options(16, shuffle_rows));
            assert_eq!(feed.by_ref().take(taken).count(), taken);
            drop(feed); // joins its threads
        }
    }
    assert_eq!(Arc::strong_count(&text), 1, "nobody holds the input any more");
}

#[test]
fn a_slow_taker_holds_the_run_back() {
    // Each row has its own category, so the size of the vocabulary is the number of rows that the
    // feed has read.
    let mut spec = spec();
    spec.columns[1].operators[0] = Operator::Modulus(1 << 20);
    let text = (0..200_000).map(|row| format!("{row}\t{row:x}\n")).collect::<String>();
    for threads in [1, 2] {
        let run_options = RunOptions { threads, chunk_bytes: 300, ..Default::default() };
        let pipeline = Pipeline::new(&spec, &run_options).unwrap();
        let inputs = vec![FeedInput::memory("text", text.clone().into_bytes())];
        let mut feed = pipeline.feed(inputs, &options(16, 0)).unwrap();
        assert_eq!(feed.next().unwrap().unwrap().rows(), 16);
        let Waited::Batch(second) = feed.wait(Duration::from_secs(60)).unwrap() else {
            panic!("late")
        };
        assert_eq!(second.first_row(), 16);
        let pipeline = feed.into_pipeline().unwrap();
        // Five batches of 16 rows may exist: two taken, two in the channel, and one that is being
        // sent. The rest of the current chunk is read too.
        let (_, values) = pipeline.vocabularies().next().unwrap();
        assert!((32..=200).contains(&values.len()), "{} rows", values.len());
    }
}

/// Regression test: a dropped feed waited for its pipe until the writer wrote bytes or closed the
/// pipe.
#[test]
fn a_feed_of_a_silent_pipe_ends_when_it_is_dropped() {
    use std::os::fd::AsRawFd as _;
    // The pipe has the first bytes of a gzip file, the beginning of a text, or nothing.
    for said in [&b"\x1f\x8b\x08\0\0"[..], b"5\t5\n6", b""] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(said).unwrap();
        let inputs = vec![FeedInput::file(format!("/dev/fd/{}", reader.as_raw_fd()))];
        let mut feed = pipeline(2, 300).feed(inputs.clone(), &options(1, 0)).unwrap();
        assert!(matches!(feed.wait(Duration::ZERO).unwrap(), Waited::Late));
        let mut pipeline = feed.into_pipeline().unwrap();
        // The flag that ended the feed does not end later runs. The caller's own flag does.
        let memory = Input::memory("text", b"1\t1\n");
        assert_eq!(pipeline.run(&[memory], &mut |_: &mut Batch| Ok(())).unwrap().rows, 1);
        pipeline.stop_when(Arc::new(true.into()));
        let stopped = pipeline.generate(&[inputs[0].input()]);
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
    }
}

/// Regression test: a feed removed the caller's stop flag for good.
#[test]
fn a_flag_from_before_a_feed_stops_runs_after_it() {
    let mut before = pipeline(2, 300);
    let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
    before.stop_when(Arc::clone(&flag));
    let inputs = vec![FeedInput::memory("text", b"1\t1\n".as_slice())];
    let mut feed = before.feed(inputs, &options(1, 0)).unwrap();
    assert_eq!(feed.by_ref().map(|batch| batch.unwrap().rows()).sum::<usize>(), 1);
    let mut pipeline = feed.into_pipeline().unwrap();
    flag.store(true, std::sync::atomic::Ordering::Relaxed);
    let stopped = pipeline.generate(&[Input::memory("text", b"1\t1\n")]);
    assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
}

/// Regression test: a thread of the feed waited in `open` until another process opened the pipe for
/// writing. A dropped feed waits for its threads, so it did not end.
#[test]
fn a_feed_of_a_pipe_that_nobody_writes_to_ends_when_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let begin = || pipeline(2, 300).feed(vec![FeedInput::file(&path)], &options(2, 0)).unwrap();
    drop(begin());
    // A feed waits for a writer that comes late.
    let mut feed = begin();
    assert!(matches!(feed.wait(Duration::ZERO).unwrap(), Waited::Late));
    let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all(b"1\t1\n2\t2\n3\t3\n").unwrap();
    drop(writer);
    assert_eq!(feed.map(|batch| batch.unwrap().rows()).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn the_pipeline_comes_back_with_its_vocabularies() {
    let text = text(500);
    let mut first = feed(2, &text, &options(64, 10));
    let rows: usize = first.by_ref().map(|batch| batch.unwrap().rows()).sum();
    assert_eq!(rows, 500);
    assert!(matches!(first.wait(Duration::ZERO).unwrap(), Waited::End));
    let mut pipeline = first.into_pipeline().unwrap();
    let distinct: HashSet<_> = (0..500).map(|row| (row * 7919) % 1013 % 97).collect();
    assert_eq!(pipeline.vocabularies().next().unwrap().1.len(), distinct.len());
    pipeline.set_threads(1);
    let second = pipeline.feed(vec![FeedInput::memory("text", text.clone())], &options(64, 0));
    assert_eq!(all(second.unwrap()), all(feed(2, &text, &options(64, 0))));
}

#[test]
fn errors_come_after_the_batches_before_them_and_once() {
    let mut bytes = text(1000).to_vec();
    bytes.extend_from_slice(b"no number\t1\n");
    let mut feed = feed(2, &bytes.into(), &options(10, 0));
    let taken = feed.by_ref().take_while(|batch| batch.is_ok()).count();
    assert!(taken > 50, "{taken} batches before the one with the bad row");
    assert!(feed.next().is_none() && feed.report().is_none());

    let mut missing =
        pipeline(2, 300).feed(vec![FeedInput::file("/not/there.tsv")], &options(10, 0)).unwrap();
    let error = missing.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(missing.next().is_none());
    assert!(missing.into_pipeline().is_ok());
}

#[test]
fn bad_rows_are_left_out_and_reported() {
    let spec = Spec { bad_rows: BadRows::Skip, ..spec() };
    let text = [&*text(10), b"no number\t1\n", &*text(10)].concat();
    let pipeline = Pipeline::new(&spec, &RunOptions::default()).unwrap();
    let mut feed = pipeline.feed(vec![FeedInput::memory("t", text)], &options(8, 0)).unwrap();
    let rows: Vec<_> = feed.by_ref().map(|batch| batch.unwrap().rows()).collect();
    assert_eq!(rows, [8, 8, 4]);
    let report = feed.report().unwrap();
    assert_eq!((report.rows, report.bad_rows, report.first_bad_rows[0].line), (20, 1, 11));
}

#[test]
fn files_and_memory_one_after_the_other() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&text(50)).unwrap();
    let inputs = vec![FeedInput::file(file.path()), FeedInput::memory("m", text(30))];
    let batches = all(pipeline(2, 100).feed(inputs, &options(64, 0)).unwrap());
    let numbers: Vec<_> = batches.concat().iter().map(|row| row.0).collect();
    assert_eq!(numbers, (0..50).chain(0..30).collect::<Vec<_>>());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for options in [
        FeedOptions { batch_rows: 0, ..Default::default() },
        FeedOptions { batches_ahead: 0, ..Default::default() },
        FeedOptions { shuffle_rows: usize::MAX, ..Default::default() },
    ] {
        let error = pipeline(1, 100).feed(Vec::new(), &options).unwrap_err();
        assert!(matches!(error, Error::Spec(_)), "{error}");
    }
}
