//! Compares feeds that resume at a place with the uninterrupted feed, over random inputs. Also
//! checks that they read only what they must.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use embank::{Bank, BankOptions};
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Feed, FeedInput, FeedOptions, FeedPosition, Field, FieldKind,
    Format, Header, Operator, Output, Pipeline, RunOptions, RunReport, Spec, VocabularySpec,
};

/// Number of random cases. Each has its number as its seed, which a failure shows.
const CASES: u64 = 480;

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

/// The forms whose rows need not be decoded to refill a shuffle buffer.
const REFILLED: [Form; 3] = [Form::Lines, Form::Header, Form::Packed];

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
    has_bad_rows: bool,
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
            shuffle_rows: if random.bool() { random.usize(1..50) } else { 0 },
            ..FeedOptions::default()
        };
        let resumes = random.choice(ALL_RESUMES).unwrap();
        let threads = 1 + random.usize(..3);
        let has_bad_rows = random.bool();
        (Self { form, resumes, threads, chunk_bytes, options, has_bad_rows }, random)
    }

    /// True if a feed that shuffles need not decode all rows before a place. A compressed text is
    /// decoded: its decompression would take longer.
    fn may_refill(&self) -> bool {
        REFILLED.contains(&self.form)
    }

    /// Random rows with values that no earlier row has up to the last row. The values of different
    /// `kind`s differ.
    fn rows(&self, count: usize, kind: u32, random: &mut fastrand::Rng) -> Vec<Row> {
        let row = |at: usize| {
            let distinct = at as u32 + 3;
            let word = format!("{kind}w{}", random.u32(..distinct));
            let (number, twice) = (random.u8(..10) > 0, random.u8(..12) == 0);
            Row {
                number: (number || !self.has_bad_rows).then(|| random.i32(-9..99)),
                code: kind * 300 + random.u32(..distinct) % 250,
                word: if twice && self.has_bad_rows { format!("{word}{word}") } else { word },
            }
        };
        (0..count).map(row).collect()
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
        let bytes = case.file(&case.rows(count, 0, random), random);
        let name = format!("input {number}");
        inputs.push(if random.bool() {
            FeedInput::memory(name, bytes)
        } else {
            std::fs::write(folder.path().join(&name), bytes).unwrap();
            FeedInput::file(folder.path().join(&name))
        });
    }
    let other = case.file(&case.rows(200, 1, random), random);
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
            let refills = case.may_refill() && place.bad_rows == 0;
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
    // Cases in which the buffer was refilled from a part of the rows.
    let mut refilled: HashMap<Form, u64> = HashMap::new();
    for seed in 0..CASES {
        let (case, mut random) = Case::new(seed);
        let checked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&case, &mut random)));
        let checked = checked.unwrap_or_else(|_| panic!("case {seed} failed: {case:?}"));
        if case.options.shuffle_rows > 0 {
            *refilled.entry(case.form).or_default() += u64::from(checked > 0);
        } else {
            *passed.entry(case.form).or_default() += checked;
        }
    }
    for form in FORMS {
        assert!(passed[form] > 50, "{form:?}: {passed:?}");
    }
    assert!(REFILLED.iter().all(|form| refilled[form] >= 5), "{refilled:?}");
}
