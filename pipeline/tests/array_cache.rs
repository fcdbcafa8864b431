//! Tests the cache of arrays in memory, and the spool on disk.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use embank_pipeline::{
    ArrayReport, BadRows, Batch, Column, Decode, Decoders, Dtype, Error, Feed, FeedInput,
    FeedOptions, FeedPosition, Field, FieldKind, Format, Header, Input, Operator, Output, Pipeline,
    Result, RunOptions, RunReport, Spec, SpoolOptions, decode_with, verify_records,
};

/// Bytes that the cache counts for an array of this test: 8 values of 64 bits, and an entry.
const ARRAY_BYTES: u64 = 64 + 64;
/// Number of different texts of `text`.
const DIFFERENT: u64 = 450;

fn spec(version: &str, side: usize) -> Spec {
    let decode = Decode {
        decoder: "spread".to_owned(),
        shape: vec![side],
        dtype: Dtype::I64,
        version: version.to_owned(),
    };
    let id = Column {
        name: "id".to_owned(),
        from: embank_pipeline::Source::Field("number".to_owned()),
        operators: vec![Operator::Modulus(1000), Operator::Vocabulary("id".to_owned())],
    };
    Spec {
        fields: vec![
            Field::new("number", FieldKind::Int32).required(),
            Field::new("text", FieldKind::Bytes),
        ],
        columns: vec![Column::field("text").then(Operator::Decode(decode)), id],
        outputs: vec![
            Output::new("array", Dtype::I64, ["text"]),
            Output::new("id", Dtype::I64, ["id"]),
        ],
        bad_rows: BadRows::Skip,
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

/// 500 rows of 450 texts. The last 50 rows have the texts of the first.
fn text() -> Vec<u8> {
    let mut text = Vec::new();
    for row in 0..500_u64 {
        let word = row % DIFFERENT;
        let bad = if word % 9 == 4 { "!" } else { "" };
        text.extend(format!("{}\t{bad}word {word}\n", row * 7 % 1000).bytes());
    }
    text
}

/// 400 rows without a bad one.
fn good_text() -> Vec<u8> {
    (0..400).map(|row| format!("{}\tword {row}\n", row * 7 % 1000)).collect::<String>().into()
}

/// Different texts that can be decoded.
const GOOD: u64 = 400;

fn spread(value: &[u8], array: &mut [u8]) -> std::result::Result<(), String> {
    if value.starts_with(b"!") {
        return Err("is bad".to_owned());
    }
    for (place, into) in array.chunks_exact_mut(8).enumerate() {
        let sum: i64 = value.iter().map(|&byte| i64::from(byte)).sum();
        into.copy_from_slice(&(sum * (place as i64 + 1)).to_ne_bytes());
    }
    Ok(())
}

/// Options with a decoder, and the number of its calls.
fn options(cache_bytes: u64, spool: Option<&Path>) -> (RunOptions, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let decoder = decode_with(move |value, array| {
        counted.fetch_add(1, Ordering::Relaxed);
        spread(value, array)
    });
    let options = RunOptions {
        threads: 2,
        chunk_bytes: 200,
        decoders: Decoders::default().with("spread", Arc::new(decoder)),
        cache_bytes,
        spool: spool.map(|folder| SpoolOptions::new(folder, 1 << 30)),
        ..RunOptions::default()
    };
    (options, calls)
}

/// All rows of a run: arrays and ids.
type Made = (Vec<i64>, Vec<i64>);

fn run(pipeline: &mut Pipeline, text: &[u8]) -> Result<(RunReport, Made)> {
    let mut made = Made::default();
    let report = pipeline.run(&[Input::memory("texts", text)], &mut |batch: &mut Batch| {
        made.0.extend_from_slice(batch.i64(0).unwrap());
        made.1.extend_from_slice(batch.i64(1).unwrap());
        Ok(())
    })?;
    Ok((report, made))
}

/// What a run without cache and spool makes.
fn uncached(version: &str) -> (RunReport, Made) {
    let (options, _) = options(0, None);
    run(&mut Pipeline::new(&spec(version, 8), &options).unwrap(), &text()).unwrap()
}

fn counts(report: &RunReport) -> (u64, u64, u64, u64) {
    let ArrayReport { made, cached, spooled, damaged_groups, .. } = report.arrays;
    (made, cached, spooled, damaged_groups)
}

#[test]
fn later_epochs_come_from_memory_and_are_the_same() {
    let (plain, expected) = uncached("1");
    assert_eq!(counts(&plain), (plain.rows, 0, 0, 0));
    for (threads, chunk_bytes) in [(1, 1), (1, 1 << 20), (3, 200), (8, 50)] {
        let (options, calls) = options(1 << 20, None);
        let options = RunOptions { threads, chunk_bytes, ..options };
        let mut pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
        let (first, made) = run(&mut pipeline, &text()).unwrap();
        assert!(made == expected);
        assert_eq!((first.rows, first.bad_rows), (plain.rows, plain.bad_rows));
        let before = calls.load(Ordering::Relaxed);
        let (second, made) = run(&mut pipeline, &text()).unwrap();
        assert!(made == expected);
        assert_eq!(second.first_bad_rows, plain.first_bad_rows);
        // Bad values are decoded again.
        assert_eq!(calls.load(Ordering::Relaxed) - before, plain.bad_rows);
        assert_eq!(counts(&second), (0, plain.rows, 0, 0));
        let (third, made) = run(&mut pipeline.evaluation(), &text()).unwrap();
        assert!(made == expected);
        assert_eq!(counts(&third), (0, plain.rows, 0, 0));
    }
}

#[test]
fn a_cache_holds_its_budget_of_arrays() {
    let (plain, expected) = uncached("1");
    for (budget, held) in [
        (1, 0),
        (ARRAY_BYTES - 1, 0),
        (ARRAY_BYTES, 1),
        (100 * ARRAY_BYTES + 1, 100),
        (GOOD * ARRAY_BYTES, GOOD),
        (u64::MAX, GOOD),
    ] {
        let (options, _) = options(budget, None);
        let options = RunOptions { threads: 1, ..options };
        let mut pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
        run(&mut pipeline, &text()).unwrap();
        let (report, made) = run(&mut pipeline, &text()).unwrap();
        assert!(made == expected);
        // The first 50 texts come twice.
        let first: Vec<_> = (0..50).filter(|word| word % 9 != 4).collect();
        let twice = first.len().min(held as usize) as u64;
        assert_eq!(counts(&report), (plain.rows - held - twice, held + twice, 0, 0));
    }
}

#[test]
fn a_cache_without_arrays_is_refused() {
    let (options, _) = options(1, None);
    let options = RunOptions { decoders: Decoders::default(), ..options };
    let error = Pipeline::new(&Spec::criteo(5), &options).unwrap_err();
    assert!(error.to_string().contains("no column has such an operator"), "{error}");
}

/// Makes a spool of all texts.
fn spooled(folder: &Path) {
    let (options, _) = options(0, Some(folder));
    let (report, _) = run(&mut Pipeline::new(&spec("1", 8), &options).unwrap(), &text()).unwrap();
    assert_eq!(report.arrays.spool_failure, None);
}

fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        all.filter(|path| path.extension().is_some_and(|found| found == kind)).collect();
    found.sort();
    found
}

#[test]
fn a_later_process_takes_arrays_from_the_spool() {
    let (plain, expected) = uncached("1");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("new/spool");
    spooled(&folder);
    for path in files(&folder, "arrays").iter().chain(&files(&folder, "keys")) {
        assert!(verify_records(path, &mut |_| {}).unwrap().is_clean());
    }
    for cache_bytes in [0, 1 << 20] {
        let (options, calls) = options(cache_bytes, Some(&folder));
        // With one thread, an array is in memory when an equal value comes.
        let options = RunOptions { threads: 1, ..options };
        let mut pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
        let (report, made) = run(&mut pipeline, &text()).unwrap();
        assert!(made == expected);
        assert_eq!(calls.load(Ordering::Relaxed), plain.bad_rows);
        let of_file = if cache_bytes == 0 { plain.rows } else { GOOD };
        assert_eq!(counts(&report), (0, plain.rows - of_file, of_file, 0));
    }
    assert_eq!(files(&folder, "arrays").len(), 1, "nothing was written twice");
    // The same process finds what it has spooled.
    let other = dir.path().join("other");
    let (options, _) = options(0, Some(&other));
    let mut pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
    run(&mut pipeline, &text()).unwrap();
    let (report, made) = run(&mut pipeline, &text()).unwrap();
    assert!(made == expected);
    assert_eq!(counts(&report), (0, 0, plain.rows, 0));
}

#[test]
fn another_version_shape_or_value_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    spooled(dir.path());
    let (options, _) = options(0, Some(dir.path()));
    for other in [spec("2", 8), spec("1", 4)] {
        let (report, _) = run(&mut Pipeline::new(&other, &options).unwrap(), &text()).unwrap();
        assert_eq!(counts(&report), (report.rows, 0, 0, 0));
    }
    // A touched input: other texts are made, equal ones are found at their new places.
    let mut touched = b"5\tanother\n".to_vec();
    touched.extend(text());
    let (report, made) =
        run(&mut Pipeline::new(&spec("1", 8), &options).unwrap(), &touched).unwrap();
    assert_eq!(counts(&report), (1, 0, report.rows - 1, 0));
    assert!(made.0[8..] == uncached("1").1.0);
}

#[test]
fn a_spool_takes_its_bytes_and_no_more() {
    let (plain, expected) = uncached("1");
    for (bytes, held) in [(0, 0), (95, 0), (96, 1), (10 * 96, 10)] {
        let dir = tempfile::tempdir().unwrap();
        let (options, _) = options(0, None);
        let spool = Some(SpoolOptions::new(dir.path(), bytes));
        let options = RunOptions { spool, threads: 1, ..options };
        let mut pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
        run(&mut pipeline, &text()).unwrap();
        let (report, made) = run(&mut pipeline, &text()).unwrap();
        assert!(made == expected);
        assert_eq!(report.arrays.spool_failure, None);
        let found = report.arrays.spooled;
        assert!((held..=2 * held).contains(&found), "{found} of {held}");
        assert_eq!(report.arrays.made, plain.rows - found);
    }
}

#[test]
fn a_spool_that_can_not_be_written_is_told_once_and_changes_nothing() {
    let (plain, expected) = uncached("1");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("spool");
    let (options, _) = options(0, Some(&folder));
    let mut pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
    fs::remove_dir(&folder).unwrap();
    let (report, made) = run(&mut pipeline, &text()).unwrap();
    assert!(made == expected);
    let told = report.arrays.spool_failure.clone().unwrap();
    assert!(told.contains("not spooled any more") && told.contains("spool"), "{told}");
    let (report, made) = run(&mut pipeline, &text()).unwrap();
    assert!(made == expected);
    assert_eq!((report.arrays.spool_failure, report.arrays.made), (None, plain.rows));
    // A file is in the place of the folder.
    fs::write(&folder, b"a file").unwrap();
    let error = Pipeline::new(&spec("1", 8), &options).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if *path == folder), "{error}");
}

/// Damages one byte, cuts a file, or exchanges files: no wrong array comes out.
#[test]
fn damaged_and_foreign_files_are_made_anew() {
    let (plain, expected) = uncached("1");
    let dir = tempfile::tempdir().unwrap();
    spooled(dir.path());
    let [arrays] = &*files(dir.path(), "arrays") else { panic!("there is one file") };
    let [keys] = &*files(dir.path(), "keys") else { panic!("there is one file") };
    let (whole, of_keys) = (fs::read(arrays).unwrap(), fs::read(keys).unwrap());
    let checks = |why: &str| {
        let (options, _) = options(0, Some(dir.path()));
        let mut pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
        let (report, made) = run(&mut pipeline, &text()).unwrap();
        assert!(made == expected, "{why}");
        let (report, again) = (report.arrays, run(&mut pipeline, &text()).unwrap().1);
        assert!(again == expected, "{why}");
        assert_eq!(report.made + report.spooled, plain.rows, "{why}");
        for kind in ["arrays", "keys"] {
            let added = files(dir.path(), kind);
            added.iter().filter(|path| **path != *arrays && **path != *keys).for_each(|path| {
                fs::remove_file(path).unwrap();
            });
        }
        report
    };
    let mut random = fastrand::Rng::with_seed(3);
    let mut damaged_groups = 0;
    for round in 0..60 {
        let mut damaged = whole.clone();
        let at = random.usize(..damaged.len());
        damaged[at] ^= 1 << random.usize(..8);
        fs::write(arrays, &damaged).unwrap();
        let report = checks(&format!("round {round}: bit at {at}"));
        damaged_groups += report.damaged_groups;
    }
    assert!(damaged_groups > 0, "a round has damaged the group");
    for length in [0, 1, 4096, whole.len() / 2, whole.len() - 1] {
        fs::write(arrays, &whole[..length]).unwrap();
        assert_eq!(checks(&format!("cut at {length}")).spooled, 0);
    }
    fs::write(arrays, &whole).unwrap();
    for (at, bit) in [(0, 0), (of_keys.len() / 2, 3), (of_keys.len() - 1, 7)] {
        let mut damaged = of_keys.clone();
        damaged[at] ^= 1 << bit;
        fs::write(keys, &damaged).unwrap();
        checks(&format!("keys: bit at {at}"));
    }
    fs::remove_file(keys).unwrap();
    assert_eq!(checks("no keys").spooled, 0);
    fs::write(keys, &of_keys).unwrap();
    // Arrays of the same number of other texts, under this name.
    let other = tempfile::tempdir().unwrap();
    let others: Vec<u8> =
        text().split_inclusive(|&byte| byte == b'\n').rev().flatten().copied().collect();
    let (options, _) = options(0, Some(other.path()));
    run(&mut Pipeline::new(&spec("1", 8), &options).unwrap(), &others).unwrap();
    fs::copy(&files(other.path(), "arrays")[0], arrays).unwrap();
    let report = checks("exchanged");
    assert!(report.damaged_groups > 0);
}

/// A feed that shuffles and resumes gives the batches of one without a cache.
const SHUFFLED: FeedOptions = FeedOptions {
    batch_rows: 32,
    drop_last: false,
    shuffle_rows: 77,
    seed: 5,
    skip_rows: 0,
    skipped_inputs: Vec::new(),
    skipped_place: None,
    batches_ahead: 2,
};

/// The batches of a feed: first rows, arrays and ids.
type Batches = Vec<(u64, Vec<i64>, Vec<i64>)>;

fn batches(feed: &mut Feed) -> Result<Batches> {
    let one = |batch: Batch| {
        (batch.first_row(), batch.i64(0).unwrap().to_vec(), batch.i64(1).unwrap().to_vec())
    };
    feed.map(|batch| batch.map(one)).collect()
}

#[test]
fn feeds_with_a_cache_and_a_spool_are_those_without() {
    // With a bad row before its place, a feed that resumes decodes all rows.
    for (text, passes) in [(text(), false), (good_text(), true)] {
        let inputs = || vec![FeedInput::memory("texts", text.clone())];
        let (plain, _) = options(0, None);
        let pipeline = Pipeline::new(&spec("1", 8), &plain).unwrap();
        let expected = batches(&mut pipeline.feed(inputs(), &SHUFFLED).unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (kept, _) = options(50 * ARRAY_BYTES, Some(dir.path()));
        let mut pipeline = Pipeline::new(&spec("1", 8), &kept).unwrap();
        for _ in 0..3 {
            let mut feed = pipeline.feed(inputs(), &SHUFFLED).unwrap();
            assert!(batches(&mut feed).unwrap() == expected);
            pipeline = feed.into_pipeline().unwrap();
        }
        for taken in [1, 5, expected.len() - 1] {
            let mut feed = pipeline.feed(inputs(), &SHUFFLED).unwrap();
            let first: Vec<_> = feed.by_ref().take(taken).collect::<Result<_>>().unwrap();
            assert_eq!(first.len(), taken);
            let stopped = feed.resume_position();
            pipeline = feed.into_pipeline().unwrap();
            let mut feed = pipeline.feed(inputs(), &SHUFFLED.resume(&stopped).unwrap()).unwrap();
            assert!(batches(&mut feed).unwrap() == expected[taken..]);
            let passed = feed.report().unwrap().passed_rows;
            assert_eq!(passed > 0, passes, "{passed}");
            pipeline = feed.into_pipeline().unwrap();
        }
    }
}

/// Rows with arrays are worth the decompressions that a refill needs.
#[test]
fn a_shuffled_feed_of_a_compressed_text_decodes_no_array_twice() {
    let text = [&b"number\ttext\n"[..], &good_text()].concat();
    let header = 12;
    let inputs = || vec![FeedInput::memory("texts", zstd::encode_all(&text[..], 1).unwrap())];
    let (mut options, calls) = options(0, None);
    options.format = Format::Text { separator: b'\t'.into(), header: Header::Names, quote: None };
    let pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
    let expected = batches(&mut pipeline.feed(inputs(), &SHUFFLED).unwrap()).unwrap();

    let pipeline = Pipeline::new(&spec("1", 8), &options).unwrap();
    let mut feed = pipeline.feed(inputs(), &SHUFFLED).unwrap();
    assert_eq!(feed.by_ref().take(8).map(|batch| batch.unwrap().rows()).sum::<usize>(), 256);
    let stopped = feed.resume_position();
    let pipeline = feed.into_pipeline().unwrap();
    let before = calls.load(Ordering::Relaxed);
    let mut feed = pipeline.feed(inputs(), &SHUFFLED.resume(&stopped).unwrap()).unwrap();
    assert!(batches(&mut feed).unwrap() == expected[8..]);
    let passed = feed.report().unwrap().passed_rows;
    assert!(passed > 150, "{passed}");
    assert_eq!(calls.load(Ordering::Relaxed) - before, 400 - passed);
    let mut pipeline = feed.into_pipeline().unwrap();

    // A place where no row begins is an error, and the pipeline is not lost.
    let place = serde_json::to_value(&stopped).unwrap()["place"]["offset"].as_u64().unwrap();
    for offset in [1, header / 2, header - 1, place - 1, place + 1, 1 << 40] {
        let mut misplaced = serde_json::to_value(&stopped).unwrap();
        misplaced["place"]["offset"] = offset.into();
        let misplaced: FeedPosition = serde_json::from_value(misplaced).unwrap();
        let options = SHUFFLED.resume(&misplaced).unwrap();
        let mut feed = pipeline.feed(inputs(), &options).unwrap();
        match batches(&mut feed) {
            // Other rows lie before the place than the feed has counted, so it reads all rows.
            Ok(found) => assert!(offset == 1 << 40 && found == expected[8..], "{offset}"),
            Err(error) => {
                assert!(matches!(error, Error::Inputs(_)), "{error}");
                assert!(error.to_string().contains("texts: a feed is to continue at"), "{error}");
            }
        }
        pipeline = feed.into_pipeline().unwrap();
    }
}
