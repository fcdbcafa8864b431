//! `device`: pictures a second through a simulated device that decodes beside the processor.
//!
//! The device has `--lanes` lanes. Each decodes one picture at a time, in `--delay` milliseconds,
//! half of that more or less. So units come back out of order. The device burns no processor time:
//! it writes a mark of 64 bytes into each array, and its answers come when the clock says so. A
//! real device writes the arrays itself. The limit is the device alone: it gets all pictures at
//! once.
//!
//! Estimate, written before measuring: the pipeline reads a file of 60 KiB and copies it once, 40
//! us, and the rest is some microseconds a unit. With 16 lanes of 4 ms, the device makes 4,000
//! pictures a second, which is 0.16 of a core. So the pipeline should reach 0.99 of the device
//! alone.

use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embank_pipeline::{
    Batch, Column, Decode, DecodeChannel, DecodeFailure, DecodeUnit, Decoder, Decoders, Dtype,
    Field, FieldKind, Input, Operator, Output as Shown, Pipeline, RunOptions, Spec,
};

use super::images;
use crate::ground::report::{Output, Row, print_provenance};
use crate::ground::rounds::Spread;
use crate::measure::store::growth::processor_time_of_all;

/// Bytes of the mark in an array.
const MARK_BYTES: usize = 64;
/// Units that a channel may have out. Two threads keep 16 lanes full with units of 6 pictures.
const UNITS: usize = 4;
/// Share of decoding's processor time that a picture may cost (DLBooster's claim).
const SHARE_MAX: f64 = 0.1;

/// Options of `device`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Pictures
    #[arg(long, default_value_t = 20_000)]
    pictures: usize,
    /// Rounds; the median counts
    #[arg(long = "count", default_value_t = 5)]
    rounds: usize,
    /// Threads of the pipeline
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Pictures that the device decodes at a time
    #[arg(long, default_value_t = 16)]
    lanes: usize,
    /// Mean time in milliseconds in which a lane decodes a picture
    #[arg(long, default_value_t = 4.0)]
    delay: f64,
    /// A rough answer within a minute: 4,000 pictures, three rounds
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// The simulated device.
#[derive(Debug)]
struct Device {
    delay: Duration,
    lanes: Arc<Mutex<Lanes>>,
}

/// When each lane is free again.
#[derive(Debug)]
struct Lanes {
    free: BinaryHeap<std::cmp::Reverse<Instant>>,
    random: fastrand::Rng,
}

impl Device {
    fn new(args: &Args) -> Self {
        let now = Instant::now();
        let free = (0..args.lanes).map(|_| std::cmp::Reverse(now)).collect();
        let lanes = Lanes { free, random: fastrand::Rng::with_seed(1) };
        let delay = Duration::from_secs_f64(args.delay / 1e3);
        Self { delay, lanes: Arc::new(Mutex::new(lanes)) }
    }

    /// Gives the pictures of a unit to lanes. Returns the time at which the last is decoded.
    fn begin(&self, pictures: usize) -> Instant {
        let mut lanes = self.lanes.lock().expect("nothing panics under the lock");
        let now = Instant::now();
        let mut last = now;
        for _ in 0..pictures {
            let delay = self.delay.mul_f64(0.5 + lanes.random.f64());
            let free = lanes.free.pop().expect("there is a lane").0;
            let end = free.max(now) + delay;
            lanes.free.push(std::cmp::Reverse(end));
            last = last.max(end);
        }
        last
    }
}

impl Decoder for Device {
    fn open(&self, _: &[usize], _: Dtype) -> Result<Box<dyn DecodeChannel>, DecodeFailure> {
        let device = Self { delay: self.delay, lanes: Arc::clone(&self.lanes) };
        Ok(Box::new(Channel { device, units: Vec::new() }))
    }

    fn units(&self) -> usize {
        UNITS
    }
}

struct Channel {
    device: Device,
    /// Units with the time at which they are decoded.
    units: Vec<(Instant, DecodeUnit)>,
}

impl DecodeChannel for Channel {
    fn submit(&mut self, mut unit: DecodeUnit) -> Result<(), DecodeFailure> {
        let waiting: Vec<usize> = unit.waiting().collect();
        for row in waiting {
            let (value, array) = unit.value_and_array(row);
            mark(value, array);
            unit.finish(row);
        }
        self.units.push((self.device.begin(unit.rows()), unit));
        Ok(())
    }

    fn drain(&mut self, wait: Duration) -> Result<Vec<DecodeUnit>, DecodeFailure> {
        let first = self.units.iter().map(|(done, _)| *done).min();
        if let Some(first) = first {
            std::thread::sleep(first.saturating_duration_since(Instant::now()).min(wait));
        }
        let now = Instant::now();
        let mut done = Vec::new();
        let mut place = 0;
        while place < self.units.len() {
            if self.units[place].0 <= now {
                done.push(self.units.swap_remove(place).1);
            } else {
                place += 1;
            }
        }
        Ok(done)
    }
}

/// Writes bytes from all of a picture into its array.
fn mark(value: &[u8], array: &mut [u8]) {
    for (place, into) in array[..MARK_BYTES].iter_mut().enumerate() {
        *into = value[place * (value.len() - 1) / (MARK_BYTES - 1)];
    }
}

fn spec() -> Spec {
    let decode = Decode {
        decoder: "device".to_owned(),
        shape: vec![images::SIDE, images::SIDE, 3],
        dtype: Dtype::U8,
        version: String::new(),
    };
    Spec {
        fields: vec![Field::new("jpg", FieldKind::File).required()],
        columns: vec![Column::field("jpg").then(Operator::Decode(decode))],
        outputs: vec![Shown::new("picture", Dtype::U8, ["jpg"])],
        ..Spec::default()
    }
}

/// What a run took.
struct Took {
    seconds: f64,
    /// Processor time of all threads.
    cpu_seconds: f64,
}

fn timed(call: impl FnOnce() -> Result<()>) -> Result<Took> {
    let (began, started) = (processor_time_of_all(), Instant::now());
    call()?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(Took { seconds, cpu_seconds: (processor_time_of_all() - began).as_secs_f64() })
}

fn piped(list: &str, root: &Path, args: &Args, mut take: impl FnMut(&[u8]) + Send) -> Result<Took> {
    let decoders = Decoders::default().with("device", Arc::new(Device::new(args)));
    let options = RunOptions {
        threads: args.threads,
        root: Some(root.to_owned()),
        decoders,
        ..RunOptions::default()
    };
    let mut pipeline = Pipeline::new(&spec(), &options)?;
    timed(|| {
        let input = Input::memory("pictures", list.as_bytes());
        let report = pipeline.run(&[input], &mut |batch: &mut Batch| {
            take(batch.u8(0).expect("the output has bytes"));
            Ok(())
        })?;
        ensure!(report.rows == args.pictures as u64, "{} rows came out", report.rows);
        Ok(())
    })
}

/// Gives a device all pictures at once, and waits. Returns the pictures a second.
fn bare(args: &Args) -> Result<f64> {
    let device = Device::new(args);
    let took = timed(|| {
        let last = device.begin(args.pictures);
        std::thread::sleep(last.saturating_duration_since(Instant::now()));
        Ok(())
    })?;
    Ok(args.pictures as f64 / took.seconds)
}

/// Runs `device`.
pub(super) fn run(mut args: Args) -> Result<()> {
    if args.quick {
        (args.pictures, args.rounds) = (args.pictures.min(4000), args.rounds.min(3));
    }
    ensure!(args.pictures > 0 && args.rounds > 0 && args.threads > 0, "numbers must be positive");
    ensure!(args.lanes > 0 && args.delay > 0.0, "numbers must be positive");
    print_provenance();
    let pictures = images::pictures()?;
    let root = tempfile::tempdir()?;
    let list = images::write(&pictures, root.path(), args.pictures)?;

    let mut checked = 0;
    let mut wrong = 0;
    let mut expected = [0; MARK_BYTES];
    piped(&list, root.path(), &args, |arrays| {
        for array in arrays.chunks_exact(images::ARRAY_BYTES) {
            mark(&pictures[checked % pictures.len()], &mut expected);
            wrong += usize::from(array[..MARK_BYTES] != expected);
            checked += 1;
        }
    })?;
    ensure!(wrong == 0 && checked == args.pictures, "{wrong} of {checked} arrays are wrong");
    println!("checked: {checked} arrays have the marks of their pictures");

    let (mut through, mut alone, mut cost, mut decoding) = (vec![], vec![], vec![], vec![]);
    // Fewer pictures: the processor is slower, and its time a picture does not depend on them.
    let decoded = (args.pictures / 10).max(1);
    let few = images::write(&pictures, root.path(), decoded)?;
    for _ in 0..args.rounds {
        alone.push(bare(&args)?);
        let took = piped(&list, root.path(), &args, |_| {})?;
        through.push(args.pictures as f64 / took.seconds);
        cost.push(took.cpu_seconds / args.pictures as f64);
        let took = timed(|| images::decode_all(&few, root.path(), args.threads, decoded))?;
        decoding.push(took.cpu_seconds / decoded as f64);
    }
    let rate = |name: &str, rates| Row::of(name, "pictures/s", Spread::of(rates), 1.0);
    let limit = rate("the device alone", alone);
    let time = |name: &str, times| Row::of(name, "us of processor time", Spread::of(times), 1e6);
    let on_processor = time("a picture that the processor decodes", decoding);
    let rows = [
        rate("pipeline with the device", through).beside(&limit),
        limit,
        time("a picture through the device", cost).beside(&on_processor),
        on_processor,
    ];
    let share = rows[2].ratio.unwrap_or(f64::NAN);
    println!("processor time a picture: {share:.3} of decoding, at most {SHARE_MAX} is wanted");
    args.output.publish("pipeline device", &rows)
}
