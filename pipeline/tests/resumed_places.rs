//! Compares feeds that resume at a place with the uninterrupted feed, over random inputs. Also
//! checks that they read only what they must.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use embank::{Bank, BankOptions};
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Error, Feed, FeedInput, FeedOptions, FeedPosition, Field,
    FieldKind, Format, Header, Operator, Output, Pipeline, RunOptions, RunReport, Spec,
    VocabularySpec,
};

/// Number of random cases. Each has its number as its seed, which a failure shows.
const CASES: u64 = 320;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// Lines without quotes.
    Lines,
    /// Lines with a header, whose columns have another order in each file.
    Header,
    /// Text with quotes and a header.
    Quoted,
    /// Text with quotes and a header, compressed.
    Compressed,
    /// Lines without quotes, compressed.
    CompressedLines,
    Packed,
    #[cfg(feature = "parquet")]
    Parquet,
    #[cfg(feature = "parquet")]
    Arrow,
}

const FORMS: &[Form] = &[
    Form::Lines,
    Form::Header,
    Form::Quoted,
    Form::Compressed,
    Form::CompressedLines,
    Form::Packed,
    #[cfg(feature = "parquet")]
    Form::Parquet,
    #[cfg(feature = "parquet")]
    Form::Arrow,
];

/// What the pipeline of the resumed feed knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resumes {
    /// Nothing.
    Fresh,
    /// All that the first feed has read, in memory.
    Same,
    /// Values of other rows.
    Other,
    /// A bank's checkpoint before the first batch.
    BankBefore,
    /// A bank's checkpoint at the position.
    BankAt,
    /// A bank's checkpoint after the position.
    BankAfter,
    /// An evaluation, which knows all values of the rows.
    Evaluation,
    /// An evaluation that knows no value, and gives the id for unknown values.
    Unknown,
}

const ALL_RESUMES: [Resumes; 8] = [
    Resumes::Fresh,
    Resumes::Same,
    Resumes::Other,
    Resumes::BankBefore,
    Resumes::BankAt,
    Resumes::BankAfter,
    Resumes::Evaluation,
    Resumes::Unknown,
];

#[derive(Debug, Clone)]
struct Case {
    form: Form,
    resumes: Resumes,
    threads: usize,
    chunk_bytes: [usize; 2],
    options: FeedOptions,
}

/// A row. `None` as the number makes a bad row.
struct Row {
    number: Option<i32>,
    code: u32,
    word: String,
}

impl Case {
    fn new(seed: u64) -> (Self, fastrand::Rng) {
        let mut random = fastrand::Rng::with_seed(seed);
        let form = FORMS[seed as usize % FORMS.len()];
        let mut chunk_bytes = || 1 + random.usize(..300);
        let chunk_bytes = [chunk_bytes(), chunk_bytes()];
        let options = FeedOptions {
            batch_rows: 1 + random.usize(..20),
            shuffle_rows: if random.u8(..3) == 0 { random.usize(1..90) } else { 0 },
            ..FeedOptions::default()
        };
        let resumes = random.choice(ALL_RESUMES).unwrap();
        let threads = 1 + random.usize(..3);
        (Self { form, resumes, threads, chunk_bytes, options }, random)
    }

    fn has_plain_rows(&self) -> bool {
        matches!(self.form, Form::Lines | Form::Header | Form::CompressedLines | Form::Packed)
    }

    fn has_bank(&self) -> bool {
        matches!(self.resumes, Resumes::BankBefore | Resumes::BankAt | Resumes::BankAfter)
    }

    /// A number, the ids of a code, and the ids of a word, which packed rows do not have.
    fn spec(&self) -> Spec {
        let fill = |value| Operator::FillMissing(value);
        let vocabulary = |name: &str| Operator::Vocabulary(name.to_owned());
        let code = Column::field("c").then(fill(0.into()));
        let mut columns =
            vec![Column::field("n"), code.then(Operator::Modulus(997)).then(vocabulary("c"))];
        let mut fields =
            vec![Field::new("n", FieldKind::Int32).required(), Field::new("c", FieldKind::Hex32)];
        if self.form != Form::Packed {
            fields.push(Field::new("w", FieldKind::Bytes));
            let word = Column::field("w").then(fill("".into()));
            columns.push(if self.has_bank() {
                word.then(vocabulary("w"))
            } else {
                word.then(Operator::Hash { seed: 3 })
                    .then(Operator::Modulus(499))
                    .then(vocabulary("w"))
            });
        }
        let names: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
        let settings = |name: &str| VocabularySpec {
            first_id: 1,
            unknown_id: Some(0),
            // Of a bank's vocabulary: a longer word makes its row bad.
            value_bytes_max: (name == "w" && self.has_bank()).then_some(6),
            ..VocabularySpec::new(name)
        };
        Spec {
            vocabularies: names[1..].iter().map(|name| settings(name)).collect(),
            outputs: vec![Output::new("x", Dtype::I64, names)],
            fields,
            columns,
            bad_rows: BadRows::Skip,
            bad_rows_max: 1.0,
        }
    }

    fn format(&self) -> Format {
        let text = |header, quote| Format::Text { separator: b','.into(), header, quote };
        match self.form {
            Form::Lines | Form::CompressedLines => text(Header::None, None),
            Form::Header => text(Header::Names, None),
            Form::Quoted | Form::Compressed => text(Header::Names, Some(b'"')),
            Form::Packed => Format::Packed,
            #[cfg(feature = "parquet")]
            Form::Parquet | Form::Arrow => Format::Columns,
        }
    }

    fn run_options(&self, chunk_bytes: usize) -> RunOptions {
        RunOptions {
            format: self.format(),
            threads: self.threads,
            chunk_bytes,
            ..RunOptions::default()
        }
    }

    fn pipeline(&self, chunk_bytes: usize, bank: Option<&Bank>) -> Pipeline {
        let (spec, options) = (self.spec(), self.run_options(chunk_bytes));
        let Some(bank) = bank else { return Pipeline::new(&spec, &options).unwrap() };
        let mut pipeline = Pipeline::with_bank(&spec, &options, bank).unwrap();
        pipeline.save_each_batch(true);
        pipeline
    }

    fn file(&self, rows: &[Row], random: &mut fastrand::Rng) -> Vec<u8> {
        match self.form {
            Form::Lines => lines(rows, [0, 1, 2], false, false),
            Form::CompressedLines => {
                zstd::encode_all(&lines(rows, [0, 1, 2], false, false)[..], 1).unwrap()
            }
            Form::Header => {
                let order = if random.bool() { [0, 1, 2] } else { [2, 0, 1] };
                let text = lines(rows, order, true, false);
                let mark: &[u8] = if random.bool() { b"\xEF\xBB\xBF" } else { b"" };
                [mark, &text].concat()
            }
            Form::Quoted => lines(rows, [1, 2, 0], true, true),
            Form::Compressed => {
                let text = lines(rows, [1, 0, 2], true, true);
                if random.bool() {
                    return zstd::encode_all(&text[..], 1).unwrap();
                }
                let level = flate2::Compression::new(1);
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                encoder.write_all(&text).unwrap();
                encoder.finish().unwrap()
            }
            Form::Packed => rows
                .iter()
                .flat_map(|row| [row.number.unwrap_or(7).cast_unsigned(), row.code])
                .flat_map(u32::to_le_bytes)
                .collect(),
            #[cfg(feature = "parquet")]
            Form::Parquet | Form::Arrow => columns(self.form, rows, random),
        }
    }
}

/// Random rows with values that no earlier row has up to the last row. The values of different
/// `kind`s differ.
fn rows(count: usize, kind: u32, random: &mut fastrand::Rng) -> Vec<Row> {
    let row = |at: usize| {
        let distinct = at as u32 + 3;
        let word = format!("{kind}w{}", random.u32(..distinct));
        Row {
            number: (random.u8(..10) > 0).then(|| random.i32(-9..99)),
            code: kind * 300 + random.u32(..distinct) % 250,
            word: if random.u8(..12) == 0 { format!("{word}{word}") } else { word },
        }
    };
    (0..count).map(row).collect()
}

fn lines(rows: &[Row], order: [usize; 3], header: bool, quotes: bool) -> Vec<u8> {
    let mut text = String::new();
    let line = |text: &mut String, fields: [&str; 3]| {
        let [one, two, three] = order.map(|field| fields[field]);
        writeln!(text, "{one},{two},{three}").unwrap();
    };
    if header {
        line(&mut text, ["n", "c", "w"]);
    }
    for row in rows {
        let number = row.number.map_or_else(|| "bad".to_owned(), |number| number.to_string());
        let word = if quotes { format!("\"{}\n,\"", row.word) } else { row.word.clone() };
        line(&mut text, [&number, &format!("{:x}", row.code), &word]);
        if !quotes && row.code % 11 == 0 {
            // Empty lines are no rows.
            text.push_str(if row.code % 2 == 0 { "\n" } else { "\r\n" });
        }
    }
    text.into_bytes()
}

#[cfg(feature = "parquet")]
fn columns(form: Form, rows: &[Row], random: &mut fastrand::Rng) -> Vec<u8> {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray, UInt32Array};
    let numbers: ArrayRef = Arc::new(rows.iter().map(|row| row.number).collect::<Int32Array>());
    let codes: ArrayRef = Arc::new(rows.iter().map(|row| Some(row.code)).collect::<UInt32Array>());
    let words: ArrayRef = Arc::new(rows.iter().map(|row| Some(&row.word)).collect::<StringArray>());
    let named = [("n", numbers, true), ("c", codes, true), ("w", words, true)];
    let batch = RecordBatch::try_from_iter_with_nullable(named).unwrap();
    let rows_at_once = 1 + random.usize(..30);
    if form == Form::Arrow {
        let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        for begin in (0..rows.len()).step_by(rows_at_once) {
            file.write(&batch.slice(begin, rows_at_once.min(rows.len() - begin))).unwrap();
        }
        return file.into_inner().unwrap();
    }
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows_at_once))
        .build();
    let mut file =
        parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    file.write(&batch).unwrap();
    file.into_inner().unwrap()
}

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

fn open(path: &Path) -> Bank {
    let options = BankOptions { memory_budget_bytes: 16 << 20, ..BankOptions::default() };
    Bank::open(path, options).unwrap()
}

/// What is equal in the reports of a feed that resumed and of one that did not.
fn counts(report: &RunReport) -> (u64, u64, u64, u64, u64) {
    let RunReport { rows, bad_rows, bad_lines, missing_columns, bytes, .. } = *report;
    (rows, bad_rows, bad_lines, missing_columns, bytes)
}

/// What a position's place says as JSON.
struct Place {
    rows: u64,
    bad_rows: u64,
    /// True if the vocabularies had no value there.
    knows_nothing: bool,
}

fn place_of(position: &FeedPosition) -> Option<Place> {
    let place: serde_json::Value =
        serde_json::from_str(&position.place.as_ref()?.to_json()).unwrap();
    let number = |name: &str| place[name].as_u64().unwrap();
    let marks = place["vocabularies"].as_array().unwrap();
    let knows_nothing = marks.iter().all(|mark| mark[0] == 0);
    Some(Place { rows: number("rows"), bad_rows: number("bad_rows"), knows_nothing })
}

/// The pipelines of the uninterrupted feed, of the feed that stops and, unless it is that of the
/// stopped feed, of the feed that resumes.
struct Pipelines {
    whole: Pipeline,
    stops: Pipeline,
    resumes: Option<Pipeline>,
}

fn pipelines(
    case: &Case,
    inputs: &[FeedInput],
    other: &[u8],
    banks: [Option<&Bank>; 2],
) -> Pipelines {
    let [first, second] = case.chunk_bytes;
    let trained = |data: &[FeedInput], chunk_bytes: usize| {
        let mut pipeline = case.pipeline(chunk_bytes, None);
        let data: Vec<_> = data.iter().map(FeedInput::input).collect();
        pipeline.generate(&data).unwrap();
        pipeline
    };
    match case.resumes {
        Resumes::Fresh | Resumes::BankBefore | Resumes::BankAt | Resumes::BankAfter => Pipelines {
            whole: case.pipeline(first, banks[0]),
            stops: case.pipeline(first, banks[1]),
            resumes: (!case.has_bank()).then(|| case.pipeline(second, None)),
        },
        Resumes::Same => Pipelines {
            whole: case.pipeline(first, None),
            stops: case.pipeline(first, None),
            resumes: None,
        },
        // The uninterrupted feed of the pipeline that resumes.
        Resumes::Other => {
            let other = [FeedInput::memory("other", other)];
            Pipelines {
                whole: trained(&other, first),
                stops: case.pipeline(first, None),
                resumes: Some(trained(&other, second)),
            }
        }
        Resumes::Evaluation => Pipelines {
            whole: trained(inputs, first).evaluation(),
            stops: trained(inputs, first).evaluation(),
            resumes: Some(trained(inputs, second).evaluation()),
        },
        Resumes::Unknown => Pipelines {
            whole: case.pipeline(first, None).evaluation(),
            stops: case.pipeline(first, None).evaluation(),
            resumes: Some(case.pipeline(second, None).evaluation()),
        },
    }
}

/// Runs a case. Returns the number of rows that the resumed feed did not read.
fn check(case: &Case, random: &mut fastrand::Rng) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let mut inputs = Vec::new();
    for number in 0..1 + random.usize(..4) {
        let count = if random.u8(..6) == 0 { 0 } else { random.usize(..120) };
        let bytes = case.file(&rows(count, 0, random), random);
        let name = format!("input {number}");
        inputs.push(if random.bool() {
            FeedInput::memory(name, bytes)
        } else {
            std::fs::write(folder.path().join(&name), bytes).unwrap();
            FeedInput::file(folder.path().join(&name))
        });
    }
    let other = case.file(&rows(200, 1, random), random);
    let paths = ["whole", "stops"].map(|name| folder.path().join(name));
    let banks = case.has_bank().then(|| [open(&paths[0]), open(&paths[1])]);
    let of_pipelines = banks.as_ref().map_or([None, None], |[one, two]| [Some(one), Some(two)]);
    let Pipelines { whole, stops, resumes } = pipelines(case, &inputs, &other, of_pipelines);

    let mut whole = whole.feed(inputs.clone(), &case.options).unwrap();
    let expected = all(&mut whole);
    let report = whole.report().unwrap().clone();
    let bank = banks.as_ref().map(|[_, bank]| bank);
    if case.resumes == Resumes::BankBefore {
        bank.unwrap().checkpoint(b"").unwrap();
    }
    let mut stopped = stops.feed(inputs.clone(), &case.options).unwrap();
    let taken = random.usize(..=expected.len());
    for _ in 0..taken {
        stopped.next().unwrap().unwrap();
    }
    // Some loops have used fewer batches than they have taken.
    let used = taken - random.usize(..=taken.min(3));
    let rows_used = (used * case.options.batch_rows) as u64;
    let position = stopped.resume_position_at(rows_used);
    if case.resumes == Resumes::BankAt {
        bank.unwrap().checkpoint(b"").unwrap();
        stopped.next();
    }
    let mut stops = stopped.into_pipeline().unwrap();
    if case.resumes == Resumes::BankAfter {
        stops.checkpoint(bank.unwrap(), b"").unwrap();
    }
    drop(banks);
    let mut reopened = None;
    let resumes = resumes.unwrap_or_else(|| {
        if case.has_bank() {
            drop(stops);
            return case.pipeline(case.chunk_bytes[1], Some(reopened.insert(open(&paths[1]))));
        }
        stops
    });

    let text = serde_json::to_string(&position).unwrap();
    let position: FeedPosition = serde_json::from_str(&text).unwrap();
    let resumed = case.options.resume(&position).unwrap();
    let mut resumed = resumes.feed(inputs, &resumed).unwrap();
    assert_eq!(all(&mut resumed), expected[used..], "{text}");
    let resumed = resumed.report().unwrap();
    assert_eq!(counts(resumed), counts(&report), "{text}");
    let shuffle_rows = case.options.shuffle_rows as u64;
    let passed = match (place_of(&position), case.resumes) {
        (None, _) => 0,
        (
            Some(Place { knows_nothing: false, .. }),
            Resumes::Fresh | Resumes::Other | Resumes::BankBefore,
        ) => 0,
        (Some(place), _) if shuffle_rows > 0 => {
            let refills = case.has_plain_rows() && place.bad_rows == 0;
            if refills { place.rows.saturating_sub(shuffle_rows) } else { 0 }
        }
        (Some(place), _) => place.rows,
    };
    assert_eq!(resumed.passed_rows, passed, "{text}");
    assert!(place_of(&position).is_some() || used == 0);
    passed
}

#[test]
fn a_feed_that_resumes_anywhere_gives_the_batches_of_one_that_never_stopped() {
    let mut passed: HashMap<Form, u64> = HashMap::new();
    for seed in 0..CASES {
        let (case, mut random) = Case::new(seed);
        let checked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&case, &mut random)));
        *passed.entry(case.form).or_default() +=
            checked.unwrap_or_else(|_| panic!("case {seed} failed: {case:?}"));
    }
    for form in FORMS {
        assert!(passed[form] > 50, "{form:?}: {passed:?}");
    }
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
