//! Tests when a feed that resumes begins at its place, when it reads all rows, and which places are
//! errors.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;

use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Feed, FeedInput, FeedOptions, FeedPosition, Field,
    FieldKind, Format, Header, Operator, Output, Pipeline, RunOptions, Spec, VocabularySpec,
};

#[derive(Debug, Clone, PartialEq)]
struct Got {
    first_row: u64,
    values: Vec<i64>,
}

fn got(batch: &Batch) -> Got {
    Got { first_row: batch.first_row(), values: batch.i64(0).unwrap().to_vec() }
}

fn all(feed: &mut Feed) -> Vec<Got> {
    feed.map(|batch| got(&batch.unwrap())).collect()
}

/// The spec of lines with a number and the id of a code.
fn small_spec(bad_rows: BadRows) -> Spec {
    let code = Column::field("c").then(Operator::FillMissing(0.into()));
    Spec {
        fields: vec![
            Field::new("n", FieldKind::Int32).required(),
            Field::new("c", FieldKind::Hex32),
        ],
        columns: vec![
            Column::field("n"),
            code.then(Operator::Modulus(997)).then(Operator::Vocabulary("c".to_owned())),
        ],
        outputs: vec![Output::new("x", Dtype::I64, ["n", "c"])],
        bad_rows,
        ..Spec::default()
    }
}

/// A pipeline of lines with a number and the id of a code.
fn small(format: Format, bad_rows: BadRows) -> Pipeline {
    let spec = small_spec(bad_rows);
    let options = RunOptions { format, threads: 2, chunk_bytes: 30, ..RunOptions::default() };
    Pipeline::new(&spec, &options).unwrap()
}

const SMALL: FeedOptions = FeedOptions {
    batch_rows: 4,
    drop_last: false,
    shuffle_rows: 0,
    seed: 0,
    skip_rows: 0,
    skipped_inputs: Vec::new(),
    skipped_place: None,
    batches_ahead: 2,
};

fn small_text() -> String {
    (0..40).map(|n| format!("{n},{:x}\n", n * 7)).collect()
}

/// Takes 28 rows, and returns the pipeline and the position.
fn stop(pipeline: Pipeline, input: &FeedInput) -> (Pipeline, FeedPosition) {
    let mut feed = pipeline.feed(vec![input.clone()], &SMALL).unwrap();
    assert_eq!(feed.by_ref().take(7).map(|batch| batch.unwrap().rows()).sum::<usize>(), 28);
    let position = feed.resume_position();
    (feed.into_pipeline().unwrap(), position)
}

fn resume(
    pipeline: Pipeline,
    input: &FeedInput,
    position: &FeedPosition,
) -> (Result<Vec<Got>, Error>, Pipeline, Option<u64>) {
    let options = SMALL.resume(position).unwrap();
    let mut feed = pipeline.feed(vec![input.clone()], &options).unwrap();
    let found = feed.by_ref().map(|batch| batch.map(|batch| got(&batch))).collect();
    let passed = feed.report().map(|report| report.passed_rows);
    (found, feed.into_pipeline().unwrap(), passed)
}

/// Changes a number of the position's place.
fn changed(position: &FeedPosition, name: &str, change: impl Fn(u64) -> u64) -> FeedPosition {
    let mut json = serde_json::to_value(position).unwrap();
    let number = &mut json["place"][name];
    *number = change(number.as_u64().unwrap()).into();
    serde_json::from_value(json).unwrap()
}

#[test]
fn a_place_that_does_not_fit_is_an_error_or_counts_for_nothing() {
    let text = small_text();
    let quoted: String =
        text.lines().map(|line| format!("\"{line}\"\n").replace(',', "\",\"")).collect();
    let packed: Vec<u8> = (0..40_u32).flat_map(|n| [n, n * 7]).flat_map(u32::to_le_bytes).collect();
    let zipped = zstd::encode_all(text.as_bytes(), 1).unwrap();
    let csv = |quote| Format::Text { separator: b','.into(), header: Header::None, quote };
    for (format, bytes, within) in [
        (csv(None), text.clone().into_bytes(), false),
        (csv(Some(b'"')), quoted.into_bytes(), true),
        (Format::Packed, packed, true),
        (csv(None), zipped, true),
    ] {
        let input = FeedInput::memory("rows", bytes);
        let (pipeline, position) = stop(small(format, BadRows::Fail), &input);
        let (expected, mut pipeline, passed) = resume(pipeline, &input, &position);
        let expected = expected.unwrap();
        assert_eq!(expected.iter().map(|got| got.values.len()).sum::<usize>(), 24);
        assert!(passed.unwrap() > 15, "{passed:?}");

        type Change = (&'static str, fn(u64) -> u64);
        let misplaced: [Change; 2] = [("offset", |_| 1 << 40), ("offset", |offset| offset + 1)];
        for (name, change) in &misplaced[..1 + usize::from(within)] {
            let (error, back, _) = resume(pipeline, &input, &changed(&position, name, change));
            let error = error.unwrap_err();
            assert!(matches!(error, Error::Inputs(_)), "{error}");
            assert!(error.to_string().contains("rows: a feed is to continue at"), "{error}");
            pipeline = back;
        }
        let ignored: [Change; 3] =
            [("input", |_| 1), ("settings", |settings| settings ^ 1), ("rows", |_| 29)];
        for (name, change) in ignored {
            let (found, back, passed) = resume(pipeline, &input, &changed(&position, name, change));
            assert_eq!((found.unwrap(), passed), (expected.clone(), Some(0)), "{name}");
            pipeline = back;
        }
        // Other bad rows may be left out, so the rows to skip may be others.
        let (found, _, passed) = resume(small(format, BadRows::Skip), &input, &position);
        assert_eq!((found.unwrap(), passed), (expected.clone(), Some(0)));
        // A position of an earlier version.
        let old = FeedPosition { place: None, ..position };
        let text = serde_json::to_string(&old).unwrap();
        assert!(!text.contains("place"), "{text}");
        let old = serde_json::from_str(&text).unwrap();
        let (found, _, passed) = resume(pipeline, &input, &old);
        assert_eq!((found.unwrap(), passed), (expected, Some(0)));
    }
}

#[test]
fn a_place_that_does_not_fit_a_shuffled_feed_is_an_error_or_counts_for_nothing() {
    let packed: Vec<u8> = (0..40_u32).flat_map(|n| [n, n * 7]).flat_map(u32::to_le_bytes).collect();
    let csv = Format::Text { separator: b','.into(), header: Header::None, quote: None };
    let shuffled = FeedOptions { shuffle_rows: 9, ..SMALL };
    for (format, bytes) in [(csv, small_text().into_bytes()), (Format::Packed, packed)] {
        let input = FeedInput::memory("rows", bytes);
        let inputs = || vec![input.clone()];
        let mut feed = small(format, BadRows::Fail).feed(inputs(), &shuffled).unwrap();
        assert_eq!(feed.by_ref().take(5).map(|batch| batch.unwrap().rows()).sum::<usize>(), 20);
        let position = feed.resume_position();
        let expected = all(&mut feed);
        let mut pipeline = feed.into_pipeline().unwrap();
        let (mut errors, mut passed) = (0, 0);
        for (more_bytes, more_rows) in
            (0..20).flat_map(|more_bytes| (0..2).map(move |more_rows| (more_bytes, more_rows)))
        {
            let position = changed(&position, "offset", |offset| offset + more_bytes);
            let position = changed(&position, "rows", |rows| rows + more_rows);
            let options = shuffled.resume(&position).unwrap();
            let mut feed = pipeline.feed(inputs(), &options).unwrap();
            match feed.by_ref().map(|batch| batch.map(|batch| got(&batch))).collect() {
                Ok(found) => {
                    let found: Vec<_> = found;
                    assert_eq!(found, expected, "{more_bytes}, {more_rows}");
                    passed += u64::from(feed.report().unwrap().passed_rows > 0);
                }
                Err(error) => {
                    assert!(format == Format::Packed && more_bytes % 8 > 0, "{error}");
                    assert!(
                        error.to_string().contains("rows: a feed is to continue at"),
                        "{error}"
                    );
                    errors += 1;
                }
            }
            pipeline = feed.into_pipeline().unwrap();
        }
        assert!(passed > 0);
        assert_eq!(errors > 0, format == Format::Packed);
    }
}

/// An empty line is a row of one field.
#[test]
fn a_shuffled_feed_of_one_field_decodes_only_what_its_buffer_holds() {
    let spec = Spec {
        fields: vec![Field::new("w", FieldKind::Bytes)],
        columns: vec![
            Column::field("w")
                .then(Operator::FillMissing("".into()))
                .then(Operator::Hash { seed: 3 })
                .then(Operator::Modulus(499)),
        ],
        outputs: vec![Output::new("x", Dtype::I64, ["w"])],
        ..Spec::default()
    };
    let format = Format::Text { separator: b','.into(), header: Header::None, quote: None };
    let options = RunOptions { format, threads: 2, chunk_bytes: 30, ..RunOptions::default() };
    let word = |n: u32| if n.is_multiple_of(3) { "\n".to_owned() } else { format!("word {n}\n") };
    let text = (0..100).map(word).collect::<String>().into_bytes();
    let inputs = vec![FeedInput::memory("rows", text)];
    let shuffled = FeedOptions { shuffle_rows: 9, ..SMALL };
    let pipeline = Pipeline::new(&spec, &options).unwrap();
    let mut feed = pipeline.feed(inputs.clone(), &shuffled).unwrap();
    assert_eq!(feed.by_ref().take(20).map(|batch| batch.unwrap().rows()).sum::<usize>(), 80);
    let position = feed.resume_position();
    let expected = all(&mut feed);
    let options = shuffled.resume(&position).unwrap();
    let mut feed = feed.into_pipeline().unwrap().feed(inputs, &options).unwrap();
    assert_eq!(all(&mut feed), expected);
    assert!(feed.report().unwrap().passed_rows > 60);
}

/// The rows of the position are counted in a pass of their own, and frozen. The second pass may
/// begin at the place also in a new pipeline.
#[test]
fn a_pass_that_counts_reads_all_rows() {
    let row = |n: u32| format!("{n},{:x}\n", n % 3 * (n % 9));
    let input = FeedInput::memory("rows", (0..400).map(row).collect::<String>().into_bytes());
    let settings = VocabularySpec {
        min_count: 30,
        first_id: 1,
        unknown_id: Some(0),
        ..VocabularySpec::new("c")
    };
    let spec = Spec { vocabularies: vec![settings], ..small_spec(BadRows::Fail) };
    let format = Format::Text { separator: b','.into(), header: Header::None, quote: None };
    let options = RunOptions { format, chunk_bytes: 30, ..RunOptions::default() };
    let new = || Pipeline::new(&spec, &options).unwrap();
    let mut whole = new().feed(vec![input.clone()], &SMALL).unwrap();
    let expected = all(&mut whole);
    assert!(expected.iter().any(|got| got.values.contains(&0)), "some values are rare");
    let (_, position) = stop(new(), &input);
    let (found, resumed, passed) = resume(new(), &input, &position);
    assert_eq!(found.unwrap(), expected[7..]);
    assert!(passed.unwrap() > 15, "{passed:?}");
    let whole = whole.into_pipeline().unwrap();
    assert_eq!(
        resumed.vocabularies().collect::<Vec<_>>(),
        whole.vocabularies().collect::<Vec<_>>()
    );
}

#[test]
fn a_pipe_is_read_from_its_beginning() {
    use std::os::fd::AsRawFd as _;
    let format = Format::Text { separator: b','.into(), header: Header::None, quote: None };
    let pipe = || {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(small_text().as_bytes()).unwrap();
        // The text fits in the pipe's buffer, so the writer need not wait.
        (FeedInput::file(format!("/dev/fd/{}", reader.as_raw_fd())), reader)
    };
    let (input, reader) = pipe();
    let (pipeline, mut position) = stop(small(format, BadRows::Fail), &input);
    drop(reader);
    let (input, _reader) = pipe();
    position.inputs[0].name = input.name().to_owned();
    let (found, _, passed) = resume(pipeline, &input, &position);
    let found = found.unwrap();
    assert_eq!((found[0].first_row, &found[0].values[..2]), (28, &[28, 28][..]));
    assert_eq!(passed, Some(0));
}

/// The types and names of columns in files before the place decide whether later files go together
/// with them.
#[cfg(feature = "parquet")]
#[test]
fn columns_of_files_before_the_place_are_checked() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int32Array, RecordBatch, UInt32Array};
    let file = |first: i32, has_code: bool| {
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(first..first + 20));
        let codes: ArrayRef = Arc::new(UInt32Array::from_iter_values(0..20));
        let mut columns = vec![("n", numbers)];
        columns.extend(has_code.then_some(("c", codes)));
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        file.write(&batch).unwrap();
        FeedInput::memory(format!("from {first}"), file.into_inner().unwrap())
    };
    let inputs = vec![file(0, false), file(20, true)];
    let pipeline = small(Format::Columns, BadRows::Fail);
    let mut feed = pipeline.feed(inputs.clone(), &SMALL).unwrap();
    assert_eq!(feed.by_ref().take(7).count(), 7);
    let position = feed.resume_position();
    let pipeline = feed.into_pipeline().unwrap();
    let mut resumed = pipeline.feed(inputs, &SMALL.resume(&position).unwrap()).unwrap();
    assert_eq!(resumed.next().unwrap().unwrap().i64(0).unwrap()[0], 28);
    assert_eq!(all(&mut resumed).len(), 2);
    let report = resumed.report().unwrap();
    assert!(report.passed_rows > 20, "{report:?}");
    assert_eq!(report.first_missing_columns, ["from 0: \"c\""]);
}
