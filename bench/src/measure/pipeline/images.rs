//! `images`: pictures a second of a pipeline, beside a bare loop over the same crates.
//!
//! The pictures are JPEGs of 500 x 375 pixels at quality 90, and become arrays of 224 x 224. The
//! pipeline reads a list of files, which the page cache has. The bare loop has the same number of
//! threads, takes the next picture by a counter, and writes into memory that it uses again. It has
//! the pictures in memory, and does nothing but decode and resize. The arrays of both are compared
//! byte by byte.
//!
//! Estimate, written before measuring: decoding takes 2 to 3 ms of a core and resizing 0.3 ms. What
//! the pipeline adds is opening and reading a file of 60 KiB, 30 us. So it should reach 0.99 of the
//! bare loop.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use embank_pipeline::{
    Batch, Column, Dtype, Field, FieldKind, Image, Input, Operator, Output as Shown, Pipeline,
    RunOptions, Spec,
};
use fast_image_resize::images::{Image as Pixels, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::ground::report::{Output, Row, print_provenance};
use crate::ground::rounds::Spread;

/// Pixels of a picture.
const WIDTH: usize = 500;
const HEIGHT: usize = 375;
/// Pixels of a side of an array.
pub(super) const SIDE: usize = 224;
/// Bytes of an array.
pub(super) const ARRAY_BYTES: usize = SIDE * SIDE * 3;
/// Number of different pictures. The measurement repeats them.
const DIFFERENT: usize = 100;

/// Options of `images` and `cache`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Pictures
    #[arg(long, default_value_t = 2000)]
    pub(super) pictures: usize,
    /// Rounds; the median counts
    #[arg(long = "count", default_value_t = 5)]
    pub(super) rounds: usize,
    /// Threads of the pipeline, and of a bare loop beside it
    #[arg(long, default_value_t = 2)]
    pub(super) threads: usize,
    /// A rough answer within a minute: 300 pictures, three rounds
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

impl Args {
    /// Applies `--quick`.
    ///
    /// # Errors
    /// Fails if a number is 0.
    pub(super) fn settle(&mut self) -> Result<()> {
        if self.quick {
            (self.pictures, self.rounds) = (self.pictures.min(300), self.rounds.min(3));
        }
        ensure!(self.pictures.min(self.rounds).min(self.threads) > 0, "numbers must be positive");
        Ok(())
    }
}

/// Makes a JPEG of clouds and rectangles.
fn picture(seed: u64) -> Result<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pixels = vec![0.0_f32; WIDTH * HEIGHT * 3];
    for octave in 0..6 {
        // Noise on a grid that is twice as fine in each octave, and half as strong.
        let (columns, rows) = (4 << octave, 3 << octave);
        let grid: Vec<f32> = (0..(columns + 2) * (rows + 2) * 3).map(|_| random.f32()).collect();
        let strength = 150.0 / (1 << octave) as f32;
        for (at, pixel) in pixels.iter_mut().enumerate() {
            let (place, channel) = (at / 3, at % 3);
            let x = (place % WIDTH) as f32 / WIDTH as f32 * columns as f32;
            let y = (place / WIDTH) as f32 / HEIGHT as f32 * rows as f32;
            let value = |right: usize, down: usize| {
                grid[((y as usize + down) * (columns + 2) + x as usize + right) * 3 + channel]
            };
            let (across, down) = (x.fract(), y.fract());
            let top = value(0, 0) * (1.0 - across) + value(1, 0) * across;
            let bottom = value(0, 1) * (1.0 - across) + value(1, 1) * across;
            *pixel += (top * (1.0 - down) + bottom * down - 0.5) * strength;
        }
    }
    let mut pixels: Vec<u8> =
        pixels.into_iter().map(|value| (value + 128.0).clamp(0.0, 255.0) as u8).collect();
    for _ in 0..12 {
        let (left, top) = (random.usize(..WIDTH - 20), random.usize(..HEIGHT - 20));
        let (right, bottom) = (random.usize(left..WIDTH), random.usize(top..HEIGHT));
        let color = [random.u8(..), random.u8(..), random.u8(..)];
        for y in top..bottom.min(top + 80) {
            for x in left..right.min(left + 80) {
                pixels[(y * WIDTH + x) * 3..][..3].copy_from_slice(&color);
            }
        }
    }
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::F_2_2);
    encoder.encode(&pixels, WIDTH as u16, HEIGHT as u16, jpeg_encoder::ColorType::Rgb)?;
    Ok(bytes)
}

/// Makes all different pictures.
pub(super) fn pictures() -> Result<Vec<Vec<u8>>> {
    (0..DIFFERENT as u64).map(picture).collect()
}

/// Writes pictures as files into `root`. Returns a list of `count` of them, a name on each line.
pub(super) fn write(pictures: &[Vec<u8>], root: &Path, count: usize) -> Result<String> {
    for (place, picture) in pictures.iter().enumerate() {
        std::fs::write(root.join(format!("{place}.jpg")), picture)?;
    }
    let mut list = String::new();
    for place in 0..count {
        writeln!(list, "{}.jpg", place % pictures.len())?;
    }
    Ok(list)
}

/// Writes `count` different pictures as files into `root`. Returns a list of them, a name on each
/// line.
pub(super) fn write_different(root: &Path, count: usize) -> Result<String> {
    let mut list = String::new();
    for place in 0..count {
        std::fs::write(root.join(format!("{place}.jpg")), picture(place as u64)?)?;
        writeln!(list, "{place}.jpg")?;
    }
    Ok(list)
}

/// Decodes and resizes pictures, and does nothing else.
#[derive(Default)]
struct Bare {
    pixels: Vec<u8>,
    resizer: Resizer,
}

impl Bare {
    fn decode(&mut self, bytes: &[u8], array: &mut [u8]) -> Result<()> {
        let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers()?;
        let info = decoder.info().context("no headers")?;
        self.pixels.resize(usize::from(info.width) * usize::from(info.height) * 3, 0);
        decoder.decode_into(&mut self.pixels)?;
        let (width, height) = (u32::from(info.width), u32::from(info.height));
        let from = ImageRef::new(width, height, &self.pixels, PixelType::U8x3)?;
        let side = SIDE as u32;
        let mut into = Pixels::from_slice_u8(side, side, array, PixelType::U8x3)?;
        let filter = ResizeAlg::Convolution(FilterType::Bilinear);
        self.resizer.resize(&from, &mut into, &ResizeOptions::new().resize_alg(filter))?;
        Ok(())
    }
}

/// Runs the bare loop over all pictures. Returns the pictures a second.
fn bare(pictures: &[Vec<u8>], args: &Args) -> Result<f64> {
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let work = || -> Result<()> {
        let mut bare = Bare::default();
        let mut array = vec![0; ARRAY_BYTES];
        // The loop ends after the last picture.
        loop {
            // Relaxed: the counter orders no other memory.
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= args.pictures {
                return Ok(());
            }
            bare.decode(&pictures[place % pictures.len()], &mut array)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it returns errors"))
    })?;
    Ok(args.pictures as f64 / started.elapsed().as_secs_f64())
}

pub(super) fn spec() -> Spec {
    let image = Image::new(SIDE as u32, SIDE as u32);
    Spec {
        fields: vec![Field::new("jpg", FieldKind::File).required()],
        columns: vec![Column::field("jpg").then(Operator::Image(image))],
        outputs: vec![Shown::new("picture", Dtype::U8, ["jpg"])],
        ..Spec::default()
    }
}

/// Runs a pipeline over a list of files in `root`. Returns the pictures a second.
fn piped(list: &str, root: &Path, args: &Args, mut take: impl FnMut(&[u8]) + Send) -> Result<f64> {
    let options =
        RunOptions { threads: args.threads, root: Some(root.to_owned()), ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec(), &options)?;
    let started = Instant::now();
    let report =
        pipeline.run(&[Input::memory("pictures", list.as_bytes())], &mut |batch: &mut Batch| {
            take(batch.u8(0).expect("the output has bytes"));
            Ok(())
        })?;
    let elapsed = started.elapsed();
    ensure!(report.rows == args.pictures as u64, "{} rows came out", report.rows);
    Ok(args.pictures as f64 / elapsed.as_secs_f64())
}

/// Runs a pipeline over a list of files in `root`, and drops the arrays.
pub(super) fn decode_all(list: &str, root: &Path, threads: usize, pictures: usize) -> Result<()> {
    let output = Output { json: None, markdown: None, plot: None };
    let args = Args { pictures, rounds: 1, threads, quick: false, output };
    piped(list, root, &args, |_| {}).map(drop)
}

/// Runs `images`.
pub(super) fn run(mut args: Args) -> Result<()> {
    args.settle()?;
    print_provenance();
    let pictures = pictures()?;
    let root = tempfile::tempdir()?;
    let list = write(&pictures, root.path(), args.pictures)?;

    let mut expected = Vec::new();
    let mut decoder = Bare::default();
    for picture in &pictures {
        let mut array = vec![0; ARRAY_BYTES];
        decoder.decode(picture, &mut array)?;
        expected.push(array);
    }
    let mut checked = 0;
    let mut wrong = 0;
    piped(&list, root.path(), &args, |arrays| {
        for array in arrays.chunks_exact(ARRAY_BYTES) {
            wrong += usize::from(array != &expected[checked % DIFFERENT][..]);
            checked += 1;
        }
    })?;
    ensure!(wrong == 0 && checked == args.pictures, "{wrong} of {checked} arrays are wrong");
    println!("checked: {checked} arrays are those of the bare loop");

    let (mut of_pipeline, mut of_loop) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        of_loop.push(bare(&pictures, &args)?);
        of_pipeline.push(piped(&list, root.path(), &args, |_| {})?);
    }
    let rate = |name: &str, rates| Row::of(name, "pictures/s", Spread::of(rates), 1.0);
    let loops = rate("bare loop over the same crates", of_loop);
    let rows = [rate("pipeline", of_pipeline).beside(&loops), loops];
    args.output.publish("pipeline images", &rows)
}
