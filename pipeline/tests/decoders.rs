//! Tests decoders that the caller gives: functions, devices, and devices that break.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use embank_pipeline::{
    BadRows, Batch, Column, Decode, DecodeChannel, DecodeFailure, DecodeUnit, Decoder, Decoders,
    Dtype, Error, FeedInput, FeedOptions, Field, FieldKind, Input, Operator, Output, Pipeline,
    Result, RunOptions, RunReport, Spec, VocabularySpec, decode_with,
};

fn decode(decoder: &str, shape: &[usize], dtype: Dtype) -> Operator {
    let shape = shape.to_vec();
    Operator::Decode(Decode { decoder: decoder.to_owned(), shape, dtype, version: String::new() })
}

/// A pipeline of a text, which becomes two numbers, and a label.
fn spec(bad_rows: BadRows) -> Spec {
    Spec {
        fields: vec![
            Field::new("label", FieldKind::Int32).required(),
            Field::new("text", FieldKind::Bytes),
        ],
        columns: vec![
            Column::field("label"),
            Column::field("text").then(decode("measure", &[2], Dtype::I32)),
        ],
        outputs: vec![
            Output::new("label", Dtype::I64, ["label"]),
            Output::new("measure", Dtype::I32, ["text"]),
        ],
        bad_rows,
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

/// The bytes of a text and their sum. A text that begins with `!` can't be measured.
fn measure(value: &[u8], array: &mut [u8]) -> std::result::Result<(), String> {
    if value.first() == Some(&b'!') {
        return Err("shouts".to_owned());
    }
    let sum: i32 = value.iter().map(|&byte| i32::from(byte)).sum();
    array[..4].copy_from_slice(&(value.len() as i32).to_ne_bytes());
    array[4..].copy_from_slice(&sum.to_ne_bytes());
    Ok(())
}

fn measure_unit(unit: &mut DecodeUnit) {
    let waiting: Vec<_> = unit.waiting().collect();
    for row in waiting {
        let (value, array) = unit.value_and_array(row);
        match measure(value, array) {
            Ok(()) => unit.finish(row),
            Err(why) => unit.fail(row, why),
        }
    }
}

/// What a device does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// It forgets the unit of this number, from 0.
    Loses(usize),
    /// It gives a unit back before its rows are decoded.
    LeavesOut,
    /// It gives units back in the order in which all its channels got them.
    Exchanges,
    /// It keeps all units for another device.
    Keeps,
    FailsToOpen,
    FailsToSubmit,
    FailsToDrain,
    Panics,
}

/// A device that answers out of order: the last unit first, and only if `depth` units are in it or
/// the caller waits.
#[derive(Debug)]
struct Device {
    depth: usize,
    fault: Fault,
    timeout: Duration,
    /// Units that channels of this device exchange.
    exchanged: Arc<Mutex<VecDeque<DecodeUnit>>>,
    most_out: Arc<AtomicUsize>,
}

impl Device {
    fn new(depth: usize, fault: Fault) -> Arc<Self> {
        Self::with_timeout(depth, fault, Duration::from_secs(3600))
    }

    fn with_timeout(depth: usize, fault: Fault, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            depth,
            fault,
            timeout,
            exchanged: Arc::default(),
            most_out: Arc::default(),
        })
    }
}

struct Channel {
    fault: Fault,
    submitted: usize,
    units: Vec<DecodeUnit>,
    depth: usize,
    out: usize,
    exchanged: Arc<Mutex<VecDeque<DecodeUnit>>>,
    most_out: Arc<AtomicUsize>,
}

impl Decoder for Device {
    fn open(
        &self,
        shape: &[usize],
        dtype: Dtype,
    ) -> std::result::Result<Box<dyn DecodeChannel>, DecodeFailure> {
        assert_eq!((shape, dtype), (&[2][..], Dtype::I32));
        if self.fault == Fault::FailsToOpen {
            return Err("no such device".into());
        }
        Ok(Box::new(Channel {
            fault: self.fault,
            submitted: 0,
            units: Vec::new(),
            depth: self.depth,
            out: 0,
            exchanged: Arc::clone(&self.exchanged),
            most_out: Arc::clone(&self.most_out),
        }))
    }

    fn units(&self) -> usize {
        self.depth
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl DecodeChannel for Channel {
    fn submit(&mut self, mut unit: DecodeUnit) -> std::result::Result<(), DecodeFailure> {
        let number = self.submitted;
        self.submitted += 1;
        self.out += 1;
        self.most_out.fetch_max(self.out, Ordering::Relaxed);
        match self.fault {
            Fault::FailsToSubmit if number == 3 => return Err("its queue is gone".into()),
            Fault::Panics => panic!("a driver that panics"),
            Fault::Loses(lost) if lost == number => return Ok(()),
            Fault::LeavesOut => {}
            _ => measure_unit(&mut unit),
        }
        self.units.push(unit);
        Ok(())
    }

    fn drain(&mut self, wait: Duration) -> std::result::Result<Vec<DecodeUnit>, DecodeFailure> {
        if self.fault == Fault::FailsToDrain {
            return Err("the bus has an error".into());
        }
        if self.units.len() < self.depth && wait.is_zero() {
            return Ok(Vec::new());
        }
        if matches!(self.fault, Fault::Exchanges | Fault::Keeps) {
            let mut exchanged = self.exchanged.lock().unwrap();
            exchanged.extend(self.units.drain(..));
            let kept = self.fault == Fault::Keeps;
            return Ok(if kept { Vec::new() } else { exchanged.pop_front().into_iter().collect() });
        }
        let units: Vec<_> = self.units.pop().into_iter().collect();
        self.out -= units.len();
        Ok(units)
    }
}

fn text(rows: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut text = Vec::new();
    for row in 0..rows {
        let word: String = (0..random.usize(..20)).map(|_| random.lowercase()).collect();
        let shout = if row % 17 == 5 { "!" } else { "" };
        text.extend(format!("{row}\t{shout}{word}\n").bytes());
    }
    text
}

type Made = (Vec<i64>, Vec<i32>);

fn run(
    spec: &Spec,
    device: Arc<dyn Decoder>,
    threads: usize,
    chunk_bytes: usize,
    text: &[u8],
) -> Result<(RunReport, Made)> {
    let decoders = Decoders::default().with("measure", device);
    let options = RunOptions { threads, chunk_bytes, decoders, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(spec, &options)?;
    let mut made = Made::default();
    let report = pipeline.run(&[Input::memory("texts", text)], &mut |batch: &mut Batch| {
        made.0.extend_from_slice(batch.i64(0).unwrap());
        made.1.extend_from_slice(batch.i32(1).unwrap());
        Ok(())
    })?;
    Ok((report, made))
}

/// What must come of `text`.
fn expected(text: &[u8]) -> Made {
    let mut made = Made::default();
    for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let tab = line.iter().position(|&byte| byte == b'\t').unwrap();
        let mut array = [0; 8];
        if measure(&line[tab + 1..], &mut array).is_ok() {
            made.0.push(std::str::from_utf8(&line[..tab]).unwrap().parse().unwrap());
            made.1.extend(array.chunks(4).map(|n| i32::from_ne_bytes(n.try_into().unwrap())));
        }
    }
    made
}

fn failure(fault: Fault, threads: usize) -> Error {
    let timeout = Duration::ZERO;
    let device = Device::with_timeout(4, fault, timeout);
    run(&spec(BadRows::Skip), device, threads, 64, &text(3000)).unwrap_err()
}

#[test]
fn a_device_makes_what_a_function_makes_with_any_threads_and_chunks() {
    let text = text(3000);
    let made = expected(&text);
    let function: Arc<dyn Decoder> = Arc::new(decode_with(measure));
    for threads in [1, 2, 3, 8] {
        for chunk_bytes in [1, 100, 3000, 1 << 20] {
            for device in [
                Arc::clone(&function),
                Device::new(1, Fault::Nothing),
                Device::new(5, Fault::Nothing),
            ] {
                let (report, found) =
                    run(&spec(BadRows::Skip), device, threads, chunk_bytes, &text).unwrap();
                assert!(found == made, "{threads} threads, chunks of {chunk_bytes}");
                assert_eq!(report.bad_rows, 177);
                let first = report.first_bad_rows[0].to_string();
                assert!(first.contains("texts:6:") && first.contains("\"text\" shouts"), "{first}");
            }
        }
    }
}

#[test]
fn a_thread_has_at_most_the_units_of_its_decoder_out_and_uses_them() {
    for depth in [1, 2, 7] {
        let device = Device::new(depth, Fault::Nothing);
        let most_out = Arc::clone(&device.most_out);
        run(&spec(BadRows::Skip), device, 1, 64, &text(1000)).unwrap();
        assert_eq!(most_out.load(Ordering::Relaxed), depth);
    }
}

#[test]
fn a_missing_value_is_no_bytes_and_a_bad_row_ends_a_strict_run() {
    let function = || Arc::new(decode_with(measure));
    let (_, made) = run(&spec(BadRows::Fail), function(), 2, 64, b"1\tab\n2\t\n").unwrap();
    assert_eq!(made, (vec![1, 2], vec![2, 195, 0, 0]));
    let error = run(&spec(BadRows::Fail), function(), 2, 64, b"1\tab\n2\t!no\n").unwrap_err();
    let Error::BadRow(bad) = &error else { panic!("{error}") };
    assert_eq!((bad.line, bad.what.as_str()), (2, "field \"text\" shouts"));
}

#[test]
fn a_device_that_breaks_ends_the_run_with_the_columns_name() {
    for (fault, told) in [
        (Fault::FailsToOpen, "can't be opened: no such device"),
        (Fault::FailsToSubmit, "failed: its queue is gone"),
        (Fault::FailsToDrain, "failed: the bus has an error"),
        (Fault::LeavesOut, "is neither finished nor failed"),
        (Fault::Loses(0), "has not answered for 0 s"),
        (Fault::Loses(6), "has not answered for 0 s"),
    ] {
        for threads in [1, 3] {
            let error = failure(fault, threads);
            assert!(matches!(error, Error::Decoder { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("column \"text\"") && text.contains(told), "{text}");
        }
    }
    let error = failure(Fault::Panics, 3);
    assert!(matches!(&error, Error::Panicked(told) if told == "a driver that panics"), "{error}");
}

#[test]
fn a_unit_of_another_channel_is_refused() {
    let device = Device::new(2, Fault::Exchanges);
    // The first run leaves a unit behind: its rows are complete, and it fails for another reason.
    let loses = Device::with_timeout(2, Fault::Keeps, Duration::ZERO);
    run(&spec(BadRows::Skip), Arc::clone(&loses) as _, 1, 64, &text(20)).unwrap_err();
    std::mem::swap(&mut *device.exchanged.lock().unwrap(), &mut *loses.exchanged.lock().unwrap());
    let error = run(&spec(BadRows::Skip), device, 1, 64, &text(3000)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("gave back a unit that this channel has not submitted"), "{text}");
}

/// A feed that was closed must not wait for a device that never answers.
#[test]
fn closing_a_feed_ends_a_wait_for_a_device() {
    let device = Device::new(4, Fault::Loses(0));
    let decoders = Decoders::default().with("measure", device);
    let options = RunOptions { threads: 2, chunk_bytes: 64, decoders, ..RunOptions::default() };
    let pipeline = Pipeline::new(&spec(BadRows::Skip), &options).unwrap();
    let inputs = vec![FeedInput::memory("texts", text(3000))];
    let feed = pipeline.feed(inputs, &FeedOptions::default()).unwrap();
    drop(feed);
}

/// The refill of a shuffle buffer is a run of its own, with the device.
#[test]
fn a_shuffled_feed_with_a_device_resumes() {
    let text: Vec<u8> = text(3000).into_iter().filter(|&byte| byte != b'!').collect();
    let inputs = || vec![FeedInput::memory("texts", text.clone())];
    let shuffled = FeedOptions { batch_rows: 50, shuffle_rows: 300, ..FeedOptions::default() };
    let pipeline = |device: Arc<dyn Decoder>, threads| {
        let decoders = Decoders::default().with("measure", device);
        let options = RunOptions { threads, chunk_bytes: 64, decoders, ..RunOptions::default() };
        Pipeline::new(&spec(BadRows::Skip), &options).unwrap()
    };
    let made = |batch: Result<Batch>| {
        batch.map(|batch| (batch.i64(0).unwrap().to_vec(), batch.i32(1).unwrap().to_vec()))
    };
    let device = |fault| Device::with_timeout(5, fault, Duration::ZERO);
    let mut feed = pipeline(Arc::new(decode_with(measure)), 1).feed(inputs(), &shuffled).unwrap();
    assert_eq!(feed.by_ref().take(40).map(made).filter(Result::is_ok).count(), 40);
    let resumes = shuffled.resume(&feed.resume_position()).unwrap();
    let expected: Vec<_> = feed.map(made).collect::<Result<_>>().unwrap();
    for threads in [1, 2, 8] {
        let mut feed =
            pipeline(Device::new(5, Fault::Nothing), threads).feed(inputs(), &resumes).unwrap();
        let found: Vec<_> = feed.by_ref().map(made).collect::<Result<_>>().unwrap();
        assert!(found == expected, "{threads} threads");
        let passed = feed.report().unwrap().passed_rows;
        assert!(passed > 1500, "{passed}");
        for fault in [Fault::FailsToSubmit, Fault::FailsToDrain, Fault::Loses(6)] {
            let mut feed = pipeline(device(fault), threads).feed(inputs(), &resumes).unwrap();
            let error = feed.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::Decoder { .. }), "{error}");
            feed.into_pipeline().unwrap();
        }
        // Without a timeout, only the drop ends the wait.
        let silent = Device::new(5, Fault::Loses(0));
        drop(pipeline(silent, threads).feed(inputs(), &resumes).unwrap());
    }
}

#[test]
fn two_columns_of_arrays_and_a_vocabulary_that_counts() {
    let mut spec = spec(BadRows::Skip);
    spec.columns.push(Column {
        name: "length".to_owned(),
        from: embank_pipeline::Source::Field("text".to_owned()),
        operators: vec![decode("length", &[1, 1], Dtype::U8)],
    });
    spec.columns.push(Column {
        name: "id".to_owned(),
        from: embank_pipeline::Source::Field("label".to_owned()),
        operators: vec![Operator::Modulus(4), Operator::Vocabulary("id".to_owned())],
    });
    spec.outputs.push(Output::new("length", Dtype::U8, ["length"]));
    spec.outputs.push(Output::new("id", Dtype::I64, ["id"]));
    let new = VocabularySpec::new("id");
    spec.vocabularies =
        vec![VocabularySpec { min_count: 2, first_id: 1, unknown_id: Some(0), ..new }];
    let length = |value: &[u8], array: &mut [u8]| {
        array[0] = value.len() as u8;
        if value.starts_with(b"?") { Err("asks".to_owned()) } else { Ok(()) }
    };
    let decoders = Decoders::default()
        .with("measure", Device::new(3, Fault::Nothing))
        .with("length", Arc::new(decode_with(length)));
    let options = RunOptions { threads: 2, chunk_bytes: 8, decoders, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let text = b"1\tab\n2\t!x\n3\t?\n5\tabc\n6\tq\n9\t\n";
    let mut rows = Vec::new();
    let report = pipeline
        .run(&[Input::memory("texts", text)], &mut |batch: &mut Batch| {
            for row in 0..batch.rows() {
                let of = |output| batch.i64(output).unwrap()[row];
                rows.push((
                    of(0),
                    batch.i32(1).unwrap()[2 * row],
                    batch.u8(2).unwrap()[row],
                    of(3),
                ));
            }
            Ok(())
        })
        .unwrap();
    // The value 2 comes once in a good row, and once in a bad one.
    assert_eq!(rows, [(1, 2, 2, 1), (5, 3, 3, 1), (6, 1, 1, 0), (9, 0, 0, 1)]);
    let told: Vec<_> = report.first_bad_rows.iter().map(|bad| bad.what.as_str()).collect();
    assert_eq!(told, ["field \"text\" shouts", "field \"text\" asks"]);
}

#[test]
fn specs_that_no_decoder_fits_are_refused() {
    let none = RunOptions::default();
    let told =
        |spec: &Spec, options: &RunOptions| Pipeline::new(spec, options).unwrap_err().to_string();
    let text = told(&spec(BadRows::Fail), &none);
    assert!(text.contains("\"text\" decodes with \"measure\""), "{text}");
    let decoders = Decoders::default()
        .with("measure", Arc::new(decode_with(measure)))
        .with("other", Arc::new(decode_with(measure)));
    let both = RunOptions { decoders, ..none.clone() };
    assert!(told(&spec(BadRows::Fail), &both).contains("\"other\", which no column names"));
    let with = |operators: Vec<Operator>, dtype| {
        let mut spec = spec(BadRows::Fail);
        spec.columns[1].operators = operators;
        spec.outputs[1].dtype = dtype;
        told(&spec, &none)
    };
    for (shape, why) in [
        (&[][..], "1 to 8 numbers"),
        (&[3, 0], "1 to 8 numbers"),
        (&[1; 9], "1 to 8 numbers"),
        (&[1 << 27], "at most 268435456 bytes"),
        (&[usize::MAX, 2], "at most 268435456 bytes"),
    ] {
        let text = with(vec![decode("measure", shape, Dtype::I32)], Dtype::I32);
        assert!(text.contains(why), "{text}");
    }
    let text = with(vec![decode("measure", &[2], Dtype::Bits32)], Dtype::Bits32);
    assert!(text.contains("not bits32"), "{text}");
    let text = with(vec![decode("measure", &[2], Dtype::I32)], Dtype::I64);
    assert!(text.contains("its arrays are i32"), "{text}");
    let empty = Operator::FillMissing(embank_pipeline::Value::Text("x".to_owned()));
    let text = with(vec![empty, decode("measure", &[2], Dtype::I32)], Dtype::I32);
    assert!(text.contains("must be its only operator"), "{text}");
    let text = with(vec![decode("measure", &[2], Dtype::I32), Operator::Float], Dtype::F32);
    assert!(text.contains("must be its only operator"), "{text}");
}
