//! Tests columns of pictures: arrays, bad pictures, files and tar archives.
#![cfg(all(feature = "images", feature = "parquet", feature = "arrow"))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod archives;

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int32Array, RecordBatch};
use embank_pipeline::{
    BadRows, Batch, Column, Crop, Dtype, Error, Feed, FeedInput, FeedOptions, Field, FieldKind,
    FileFormat, FileSink, Format, Image, Input, Operator, Output, Pipeline, Result, RunOptions,
    RunReport, Spec, VocabularySpec, arrow_schema,
};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use png::{BitDepth, ColorType as PngColor};

use archives::{archive, run_tar};

/// Red, green and blue of each pixel, row by row.
type Pixels = Vec<u8>;

/// A picture with smooth colours, which JPEG keeps well.
fn smooth(width: usize, height: usize) -> Pixels {
    let pixel = |at: usize| {
        let (x, y) = (at % width, at / width);
        [40 + 160 * x / width, 40 + 160 * y / height, 200 - 80 * (x + y) / (width + height)]
    };
    (0..width * height).flat_map(pixel).map(|value| value as u8).collect()
}

fn jpeg_with(
    pixels: &[u8],
    width: u16,
    height: u16,
    color: ColorType,
    set: impl Fn(&mut Encoder<&mut Vec<u8>>),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 95);
    set(&mut encoder);
    encoder.encode(pixels, width, height, color).unwrap();
    bytes
}

fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let pixels = smooth(width.into(), height.into());
    jpeg_with(&pixels, width, height, ColorType::Rgb, |_| {})
}

fn png_of(values: &[u8], width: u32, height: u32, color: PngColor, depth: BitDepth) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == PngColor::Indexed {
        encoder.set_palette(vec![9, 8, 7, 6, 5, 4]);
    }
    encoder.write_header().unwrap().write_image_data(values).unwrap();
    bytes
}

fn png(pixels: &[u8], width: u32, height: u32) -> Vec<u8> {
    png_of(pixels, width, height, PngColor::Rgb, BitDepth::Eight)
}

/// A pipeline of a picture, `jpg`, and a label, `cls`.
fn spec(image: Image, bad_rows: BadRows) -> Spec {
    Spec {
        fields: vec![
            Field::new("jpg", FieldKind::Blob).required(),
            Field::new("cls", FieldKind::Int32).required(),
        ],
        columns: vec![Column::field("jpg").then(Operator::Image(image)), Column::field("cls")],
        outputs: vec![
            Output::new("label", Dtype::I32, ["cls"]),
            Output::new("picture", Dtype::U8, ["jpg"]),
        ],
        bad_rows,
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

fn columns() -> RunOptions {
    RunOptions { format: Format::Columns, threads: 2, ..RunOptions::default() }
}

/// An Arrow file of pictures. Their labels count from 0.
fn arrow(pictures: &[&[u8]]) -> Vec<u8> {
    let labels: ArrayRef = Arc::new(Int32Array::from_iter_values(0..pictures.len() as i32));
    let pictures: ArrayRef = Arc::new(BinaryArray::from_iter_values(pictures));
    let batch = RecordBatch::try_from_iter([("jpg", pictures), ("cls", labels)]).unwrap();
    let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    file.write(&batch).unwrap();
    file.into_inner().unwrap()
}

/// Labels and pictures of a run.
type Made = (Vec<i32>, Vec<u8>);

fn run(pipeline: &mut Pipeline, input: &Input<'_>) -> Result<(RunReport, Made)> {
    let mut made = Made::default();
    let report = pipeline.run(std::slice::from_ref(input), &mut |batch: &mut Batch| {
        made.0.extend_from_slice(batch.i32(0).unwrap());
        made.1.extend_from_slice(batch.u8(1).unwrap());
        Ok(())
    })?;
    Ok((report, made))
}

/// Decodes pictures, and returns the labels of the good ones, the arrays, and the texts about the
/// bad ones.
fn decode(image: Image, pictures: &[&[u8]]) -> (Vec<i32>, Vec<u8>, Vec<String>) {
    let mut pipeline = Pipeline::new(&spec(image, BadRows::Skip), &columns()).unwrap();
    let file = arrow(pictures);
    let (report, made) = run(&mut pipeline, &Input::memory("pictures", &file)).unwrap();
    let told = report.first_bad_rows.iter().map(ToString::to_string).collect();
    (made.0, made.1, told)
}

/// The largest difference between two pictures.
fn farthest(one: &[u8], other: &[u8]) -> u8 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).max().unwrap()
}

#[test]
fn pictures_of_every_kind_become_red_green_and_blue() {
    let (width, height) = (32, 24);
    let pixels = smooth(width, height);
    let (w, h) = (width as u16, height as u16);
    let grey: Vec<u8> = pixels.chunks(3).map(|pixel| pixel[0]).collect();
    let of_grey: Vec<u8> = grey.iter().flat_map(|&grey| [grey; 3]).collect();
    let with_alpha: Vec<u8> = pixels.chunks(3).flat_map(|p| [p[0], p[1], p[2], 7]).collect();
    let grey_alpha: Vec<u8> = grey.iter().flat_map(|&grey| [grey, 9]).collect();
    let wide: Vec<u8> = pixels.iter().flat_map(|&value| [value, 99]).collect();
    let indexed: Vec<u8> = vec![0b1010_1010; width / 8 * height];
    let of_indexed: Vec<u8> = [6, 5, 4, 9, 8, 7].repeat(width / 2 * height);
    let cmyk: Vec<u8> =
        pixels.chunks(3).flat_map(|p| [255 - p[0], 255 - p[1], 255 - p[2], 0]).collect();
    let (w32, h32) = (width as u32, height as u32);
    let eight = BitDepth::Eight;
    let all = [
        (png(&pixels, w32, h32), &pixels, 0),
        (png_of(&with_alpha, w32, h32, PngColor::Rgba, eight), &pixels, 0),
        (png_of(&grey, w32, h32, PngColor::Grayscale, eight), &of_grey, 0),
        (png_of(&grey_alpha, w32, h32, PngColor::GrayscaleAlpha, eight), &of_grey, 0),
        (png_of(&wide, w32, h32, PngColor::Rgb, BitDepth::Sixteen), &pixels, 0),
        (png_of(&indexed, w32, h32, PngColor::Indexed, BitDepth::One), &of_indexed, 0),
        (jpeg(w, h), &pixels, 6),
        (jpeg_with(&pixels, w, h, ColorType::Rgb, |e| e.set_progressive(true)), &pixels, 6),
        (
            jpeg_with(&pixels, w, h, ColorType::Rgb, |e| {
                e.set_sampling_factor(SamplingFactor::F_1_1)
            }),
            &pixels,
            6,
        ),
        (jpeg_with(&pixels, w, h, ColorType::Rgb, |e| e.set_restart_interval(3)), &pixels, 6),
        (jpeg_with(&grey, w, h, ColorType::Luma, |_| {}), &of_grey, 6),
        (jpeg_with(&cmyk, w, h, ColorType::Cmyk, |_| {}), &pixels, 12),
    ];
    let pictures: Vec<&[u8]> = all.iter().map(|(bytes, ..)| &**bytes).collect();
    let (labels, arrays, told) = decode(Image::new(h32, w32), &pictures);
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(labels, (0..all.len() as i32).collect::<Vec<_>>());
    for (place, (array, (_, expected, tolerance))) in
        arrays.chunks(pixels.len()).zip(&all).enumerate()
    {
        let far = farthest(array, expected);
        assert!(far <= *tolerance, "picture {place} is {far} away");
    }
}

#[test]
fn a_picture_is_turned_as_its_orientation_says() {
    let (width, height) = (3_usize, 2_usize);
    let at = |x: usize, y: usize| [(x * 80) as u8, (y * 90) as u8, 11];
    let pixels: Pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| at(x, y))).collect();
    for orientation in 1..=8_u8 {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
        encoder.set_color(PngColor::Rgb);
        let mut exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
        exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
        let mut writer = encoder.write_header().unwrap();
        writer.write_chunk(png::chunk::eXIf, &exif).unwrap();
        writer.write_image_data(&pixels).unwrap();
        drop(writer);
        let swaps = orientation >= 5;
        let (to_width, to_height) = if swaps { (height, width) } else { (width, height) };
        let (_, array, told) = decode(Image::new(to_height as u32, to_width as u32), &[&bytes]);
        assert!(told.is_empty(), "{told:?}");
        // Where the picture's first pixel, and the last one of its first row, come to lie.
        let (right, bottom) = (to_width - 1, to_height - 1);
        let (first, second) = match orientation {
            1 => ((0, 0), (right, 0)),
            2 => ((right, 0), (0, 0)),
            3 => ((right, bottom), (0, bottom)),
            4 => ((0, bottom), (right, bottom)),
            5 => ((0, 0), (0, bottom)),
            6 => ((right, 0), (right, bottom)),
            7 => ((right, bottom), (right, 0)),
            _ => ((0, bottom), (0, 0)),
        };
        let pixel = |(x, y): (usize, usize)| &array[(y * to_width + x) * 3..][..3];
        assert_eq!(
            (pixel(first), pixel(second)),
            (&at(0, 0)[..], &at(width - 1, 0)[..]),
            "{orientation}"
        );
    }
}

#[test]
fn the_part_that_is_kept_lies_in_the_middle() {
    // Red is the pixel's x and green its y, doubled.
    let (width, height) = (120_usize, 60_usize);
    let pixel = |at: usize| [(at % width * 2) as u8, (at / width * 2) as u8, 0];
    let pixels: Pixels = (0..width * height).flat_map(pixel).collect();
    let file = png(&pixels, width as u32, height as u32);
    let center = |resize| Image { resize, crop: Some(Crop::Center), ..Image::new(20, 20) };
    for (image, across, down) in [
        (Image::new(20, 20), 0.0..120.0, 0.0..60.0),
        (center(None), 30.0..90.0, 0.0..60.0),
        (center(Some(30)), 40.0..80.0, 10.0..50.0),
        (center(Some(20)), 30.0..90.0, 0.0..60.0),
        (center(Some(60)), 50.0..70.0, 20.0..40.0),
    ] {
        let (_, array, told) = decode(image, &[&file]);
        assert!(told.is_empty(), "{told:?}");
        for (place, value) in array.chunks(3).enumerate() {
            let middle = |place: usize, range: &std::ops::Range<f64>| {
                let step = (range.end - range.start) / 20.0;
                2.0 * (range.start + (place as f64 + 0.5) * step - 0.5)
            };
            let expected = [middle(place % 20, &across), middle(place / 20, &down)];
            // The filter reaches beyond the picture at its edges.
            let inner = (2..18).contains(&(place % 20)) && (2..18).contains(&(place / 20));
            for (value, expected) in value.iter().zip(expected) {
                let far = (f64::from(*value) - expected).abs();
                assert!(far <= if inner { 1.1 } else { 6.0 }, "{image:?} at {place}: {far}");
            }
        }
    }
}

/// No picture is too long by the rounding of a number, and a crop also applies to a picture that
/// has the array's size.
#[test]
fn every_length_of_a_side_can_be_cropped() {
    let line = |side: u32| png(&vec![50; side as usize * 3], side, 1);
    for side in [7, 16] {
        let pictures: Vec<_> = (1..=600).map(line).collect();
        let pictures: Vec<&[u8]> = pictures.iter().map(|picture| &**picture).collect();
        for resize in [None, Some(side)] {
            let image = Image { resize, crop: Some(Crop::Center), ..Image::new(side, side) };
            let (labels, arrays, told) = decode(image, &pictures);
            assert_eq!((labels.len(), told.len()), (600, 0), "{side} {resize:?}: {told:?}");
            assert!(arrays.iter().all(|&value| value == 50));
        }
    }
    let square = |side: u32| png(&vec![9; (side * side * 3) as usize], side, side);
    let sides = [58, 116, 225, 232, 347, 350, 355, 368, 450, 481, 496, 498, 500, 506];
    let pictures = sides.map(square);
    let pictures: Vec<&[u8]> = pictures.iter().map(|picture| &**picture).collect();
    for side in [224, 299, 336, 480] {
        let image =
            Image { resize: Some(side), crop: Some(Crop::Center), ..Image::new(side, side) };
        let (labels, _, told) = decode(image, &pictures);
        assert_eq!(labels.len(), sides.len(), "{side}: {told:?}");
    }
    let pixel = |at: usize| [(at % 32 * 8) as u8, 0, 0];
    let ramp: Pixels = (0..32 * 32).flat_map(pixel).collect();
    let zoomed = Image { resize: Some(64), crop: Some(Crop::Center), ..Image::new(32, 32) };
    let (_, array, _) = decode(zoomed, &[&png(&ramp, 32, 32)]);
    assert!(array[0].abs_diff(64) <= 4 && array[31 * 3].abs_diff(190) <= 4, "{:?}", &array[..96]);
}

/// What a damaged JPEG leaves out does not come from another picture.
#[test]
fn a_damaged_picture_has_nothing_of_the_one_before() {
    let light = png(&[255; 64 * 48 * 3], 64, 48);
    let whole = jpeg(64, 48);
    for end in [&b"\xFF\xD9"[..], b"\xFF\xFE\x00\x02\xFF\xD9"] {
        let cut = [&whole[..whole.len() * 2 / 3], end].concat();
        let alone = decode(Image::new(48, 64), &[&cut, &light]);
        let after = decode(Image::new(48, 64), &[&light, &cut]);
        if alone.0.len() == 2 {
            assert_eq!(alone.1[..64 * 48 * 3], after.1[64 * 48 * 3..]);
        } else {
            assert_eq!((alone.0.len(), after.0.len()), (1, 1));
        }
    }
}

/// Changes the marker of a JPEG's frame, or what follows it.
fn with_frame(mut bytes: Vec<u8>, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let at = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    change(&mut bytes[at..]);
    bytes
}

#[test]
fn bad_pictures_are_bad_rows() {
    let good = jpeg(64, 48);
    let progressive =
        jpeg_with(&smooth(64, 48), 64, 48, ColorType::Rgb, |e| e.set_progressive(true));
    // The picture's first scan, a thousand times.
    let scan = progressive.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
    let next = progressive[scan + 2..]
        .windows(2)
        .position(|pair| pair[0] == 0xFF && pair[1] != 0)
        .unwrap();
    let scans = progressive[scan..scan + 2 + next].repeat(1000);
    let bomb = [&progressive[..scan], &scans, &progressive[scan..]].concat();
    let whole = png(&smooth(64, 48), 64, 48);
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    let mut huge = whole.clone();
    huge[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let bad: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "\"jpg\""),
        (b"a text\n".to_vec(), "is neither a JPEG nor a PNG"),
        (b"GIF89a....".to_vec(), "is neither a JPEG nor a PNG"),
        (good[..good.len() / 2].to_vec(), "can't be decoded"),
        (good[..20].to_vec(), "can't be decoded"),
        (progressive[..progressive.len() / 2].to_vec(), "can't be decoded"),
        (whole[..whole.len() / 2].to_vec(), "can't be decoded"),
        (flipped, "can't be decoded"),
        (with_frame(good.clone(), |frame| frame[4] = 12), "can't be decoded"),
        (with_frame(good.clone(), |frame| frame[1] = 0xC9), "can't be decoded"),
        (with_frame(good.clone(), |frame| frame[5..9].fill(0)), "can't be decoded"),
        (bomb, "can't be decoded"),
        (huge, "PNG"),
        (png(&[0; 70_000 * 3], 70_000, 1), "65535 in a row or column"),
    ];
    let mut pictures: Vec<&[u8]> = Vec::new();
    for (bytes, _) in &bad {
        pictures.push(&good);
        pictures.push(bytes);
    }
    let (labels, arrays, told) = decode(Image::new(48, 64), &pictures);
    assert_eq!(labels, (0..bad.len() as i32).map(|label| 2 * label).collect::<Vec<_>>());
    assert_eq!(arrays.len(), bad.len() * 64 * 48 * 3);
    assert!(arrays.chunks(64 * 48 * 3).all(|array| array == &arrays[..64 * 48 * 3]));
    // A report names ten rows.
    for (row, (told, (_, expected))) in told.iter().zip(&bad).enumerate() {
        assert!(
            told.contains(expected) && told.contains(&format!("pictures:{}:", 2 * row + 2)),
            "{told}"
        );
    }
    for (bytes, expected) in &bad[told.len()..] {
        let (_, _, told) = decode(Image::new(48, 64), &[&good, bytes]);
        assert!(told[0].contains(expected), "{told:?}");
    }
    // Without `Skip` the run ends with an error that names the row.
    let mut pipeline = Pipeline::new(&spec(Image::new(4, 4), BadRows::Fail), &columns()).unwrap();
    let file = arrow(&[&good, b"x"]);
    let error = run(&mut pipeline, &Input::memory("pictures", &file)).unwrap_err().to_string();
    assert!(error.contains("pictures:2") && error.contains("field \"jpg\" is neither"), "{error}");
}

#[test]
fn pictures_of_one_pixel_and_of_one_line() {
    let line = png(&[5; 65_500 * 3], 65_500, 1);
    let (_, arrays, told) = decode(Image::new(2, 2), &[&png(&[1, 2, 3], 1, 1), &line]);
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(arrays, [[1, 2, 3].repeat(4), vec![5; 12]].concat());
    let crop = Image { resize: Some(2), crop: Some(Crop::Center), ..Image::new(2, 2) };
    assert_eq!(decode(crop, &[&line]).1, [5; 12]);
}

/// Pictures, of which each seventh is bad.
fn many() -> Vec<Vec<u8>> {
    let picture = |n: usize| match n % 7 {
        3 => jpeg(20, 20)[..100].to_vec(),
        _ if n.is_multiple_of(2) => jpeg(20 + (n % 30) as u16, 25),
        _ => png(&smooth(10 + n % 9, 12), (10 + n % 9) as u32, 12),
    };
    (0..300).map(picture).collect()
}

#[test]
fn neither_threads_nor_chunks_change_the_batches() {
    let pictures = many();
    let pictures: Vec<&[u8]> = pictures.iter().map(|picture| &**picture).collect();
    let file = arrow(&pictures);
    let mut first: Option<(u64, Vec<String>, Made)> = None;
    for threads in [1, 2, 3, 8] {
        for chunk_bytes in [1, 1000, 512 << 10] {
            let options = RunOptions { threads, chunk_bytes, ..columns() };
            let mut pipeline =
                Pipeline::new(&spec(Image::new(16, 24), BadRows::Skip), &options).unwrap();
            let (report, made) = run(&mut pipeline, &Input::memory("pictures", &file)).unwrap();
            let told = report.first_bad_rows.iter().map(ToString::to_string).collect();
            let made = (report.bad_rows, told, made);
            assert_eq!(*first.get_or_insert_with(|| made.clone()), made);
        }
    }
    assert_eq!(first.unwrap().0, 43);
}

/// A feed gives the rows of a run, also if it shuffles and begins in the middle, and as Arrow.
#[test]
fn a_feed_of_pictures() {
    let pictures = many();
    let pictures: Vec<&[u8]> = pictures.iter().map(|picture| &**picture).collect();
    let file: Arc<[u8]> = arrow(&pictures).into();
    let pipeline = || Pipeline::new(&spec(Image::new(8, 6), BadRows::Skip), &columns()).unwrap();
    let feed = |options: &FeedOptions| -> Feed {
        pipeline().feed(vec![FeedInput::memory("pictures", Arc::clone(&file))], options).unwrap()
    };
    let rows = |feed: &mut Feed| -> Vec<(i32, Vec<u8>)> {
        let mut all = Vec::new();
        for batch in feed {
            let batch = batch.unwrap();
            let arrays = batch.u8(1).unwrap().chunks(8 * 6 * 3).map(<[u8]>::to_vec);
            all.extend(batch.i32(0).unwrap().iter().copied().zip(arrays));
        }
        all
    };
    let plain = FeedOptions { batch_rows: 10, ..FeedOptions::default() };
    let all = rows(&mut feed(&plain));
    assert_eq!(all.len(), 257);
    let shuffled = FeedOptions { shuffle_rows: 50, seed: 3, ..plain.clone() };
    let mixed = rows(&mut feed(&shuffled));
    let mut sorted = mixed.clone();
    sorted.sort();
    assert!(mixed != all && sorted == all);
    let mut stopped = feed(&shuffled);
    stopped.by_ref().take(7).for_each(drop);
    let resumed = FeedOptions { skip_rows: stopped.next_row(), ..shuffled };
    assert_eq!(rows(&mut feed(&resumed)), mixed[70..]);

    let mut feed = feed(&plain);
    let schema = arrow_schema(feed.outputs());
    let metadata = schema.field(1).metadata();
    assert_eq!(metadata["ARROW:extension:name"], "arrow.fixed_shape_tensor");
    assert_eq!(metadata["ARROW:extension:metadata"], "{\"shape\":[8,6,3]}");
    let batch = feed.next().unwrap().unwrap();
    assert_eq!(batch.infos()[1].shape, [8, 6, 3]);
    assert_eq!(batch.into_record_batch().schema(), schema);
}

/// Rows whose picture is bad give their other values no id and no count.
#[test]
fn a_vocabulary_has_no_values_of_bad_rows() {
    let pictures = many();
    let pictures: Vec<&[u8]> = pictures.iter().map(|picture| &**picture).collect();
    let mut spec = spec(Image::new(4, 4), BadRows::Skip);
    spec.columns[1] = Column::field("cls")
        .then(Operator::Modulus(1000))
        .then(Operator::Vocabulary("label".to_owned()));
    let one_pass = spec.clone();
    let new = VocabularySpec::new("label");
    spec.vocabularies =
        vec![VocabularySpec { min_count: 1, first_id: 1, unknown_id: Some(0), ..new }];
    for spec in [one_pass, spec] {
        let mut pipeline = Pipeline::new(&spec, &columns()).unwrap();
        let file = arrow(&pictures);
        let (_, (ids, _)) = run(&mut pipeline, &Input::memory("pictures", &file)).unwrap();
        let first = spec.vocabularies.first().map_or(0, |vocabulary| vocabulary.first_id as i32);
        assert_eq!(ids, (first..first + 257).collect::<Vec<_>>());
        let (_, values) = pipeline.vocabularies().next().unwrap();
        assert_eq!(values, (0..300).filter(|n| n % 7 != 3).collect::<Vec<u32>>());
    }
}

#[test]
fn files_below_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/one.jpg"), png(&[1, 2, 3], 1, 1)).unwrap();
    fs::write(root.join("two"), png(&[4, 5, 6], 1, 1)).unwrap();
    fs::write(dir.path().join("outside"), png(&[7, 8, 9], 1, 1)).unwrap();
    fs::write(root.join("text.jpg"), "text").unwrap();
    symlink("two", root.join("link")).unwrap();
    symlink("a", root.join("folder")).unwrap();
    let fifo = root.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let mut spec = spec(Image::new(1, 1), BadRows::Skip);
    spec.fields[0].kind = FieldKind::File;
    let options = RunOptions { root: Some(root.clone()), ..RunOptions::default() };
    let text = "a/b/one.jpg\t1\n\ntwo\t2\ngone\t3\n../outside\t4\na/../two\t5\nlink\t6\nfolder/b/one.jpg\t7\n\
                a\t8\npipe\t9\ntext.jpg\t10\n/two\t11\na//b/one.jpg\t12\ntwo\t13\n";
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let (report, made) = run(&mut pipeline, &Input::memory("list", text.as_bytes())).unwrap();
    assert_eq!(made, (vec![1, 2, 13], vec![1, 2, 3, 4, 5, 6, 4, 5, 6]));
    let told: Vec<_> = report.first_bad_rows.iter().map(ToString::to_string).collect();
    let expected = [
        (4, "\"gone\"", "No such file"),
        (5, "\"../outside\"", "not below `root`"),
        (6, "\"a/../two\"", "not below `root`"),
        (7, "\"link\"", "symbolic link"),
        (8, "\"folder/b/one.jpg\"", ""),
        (9, "\"a\"", "is no regular file"),
        (10, "\"pipe\"", "is no regular file"),
        (11, "\"text.jpg\"", "is neither a JPEG nor a PNG"),
        (12, "\"/two\"", "not below `root`"),
        (13, "\"a//b/one.jpg\"", "not below `root`"),
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (told, (line, name, why)) in told.iter().zip(expected) {
        let line = format!("list:{line}");
        assert!([&*line, name, why].iter().all(|part| told.contains(part)), "{told}");
    }
    // Quotes, with a path that has a separator.
    fs::write(root.join("x,\ny"), png(&[3, 3, 3], 1, 1)).unwrap();
    let options = RunOptions { format: Format::CSV, ..options };
    let text = "jpg,cls\n\"x,\ny\",1\n\"no,\n,\",2\ntwo,3\nno,4\n";
    let mut pipeline = Pipeline::new(&spec, &options).unwrap();
    let (report, made) = run(&mut pipeline, &Input::memory("csv", text.as_bytes())).unwrap();
    assert_eq!((made.0, report.bad_rows, report.bad_lines), (vec![1, 3], 2, 3));
    assert_eq!(report.first_bad_rows.iter().map(|bad| bad.line).collect::<Vec<_>>(), [4, 7]);

    let none = Pipeline::new(&spec, &RunOptions::default()).unwrap_err().to_string();
    assert!(none.contains("column \"jpg\" reads files") && none.contains("`root`"), "{none}");
    let gone = RunOptions { root: Some(dir.path().join("gone")), ..RunOptions::default() };
    assert!(Pipeline::new(&spec, &gone).unwrap_err().to_string().contains("gone"));
}

#[test]
fn specs_that_can_not_work_are_refused() {
    let good = spec(Image::new(4, 4), BadRows::Fail);
    let with = |change: &dyn Fn(&mut Spec)| {
        let mut spec = good.clone();
        change(&mut spec);
        Pipeline::new(&spec, &columns()).map(drop).unwrap_err().to_string()
    };
    let image =
        |image| move |spec: &mut Spec| spec.columns[0].operators = vec![Operator::Image(image)];
    let wide = Image { resize: Some(3), crop: Some(Crop::Center), ..Image::new(4, 2) };
    let bare = Image { resize: Some(8), ..Image::new(4, 2) };
    let cases: Vec<(String, &str)> = vec![
        (with(&|spec| spec.fields[0].required = false), "make its field required"),
        (
            with(&|spec| spec.fields[0].kind = FieldKind::Bytes),
            "Image is for fields of kind Blob or File",
        ),
        (with(&|spec| spec.columns[0].operators.clear()), "Image and Decode make arrays of them"),
        (with(&|spec| spec.outputs[1].dtype = Dtype::F32), "its arrays are u8"),
        (with(&|spec| spec.outputs[0].dtype = Dtype::U8), "it has no arrays"),
        (with(&|spec| drop(spec.outputs.pop())), "one output must show it, and 0 do"),
        (with(&|spec| spec.outputs.push(Output::new("twice", Dtype::U8, ["jpg"]))), "and 2 do"),
        (with(&|spec| spec.outputs[1].columns.push("jpg".to_owned())), "has 2 columns"),
        (
            with(&|spec| spec.columns[0].operators.push(Operator::Float)),
            "no operator takes its arrays",
        ),
        (with(&image(Image::new(0, 4))), "height and width are 1 to"),
        (with(&image(wide)), "resize is 3, and less than what the crop keeps"),
        (with(&image(bare)), "give it a crop"),
        (
            with(&|spec| {
                spec.fields[0].required = false;
                spec.columns[0].operators.insert(0, Operator::FillMissing("x".into()));
            }),
            "the values are blobs there",
        ),
    ];
    for (told, expected) in cases {
        assert!(told.contains(expected), "{told}");
    }
    let json = good.to_json();
    assert!(json.contains("\"image\"") && json.contains("\"blob\""), "{json}");
    assert_eq!(Spec::from_json(&json).unwrap(), good);
    let text = Pipeline::new(&good, &RunOptions::default()).map(drop).unwrap_err().to_string();
    assert!(text.contains("which text can't hold"), "{text}");
    let packed = RunOptions { format: Format::Packed, ..RunOptions::default() };
    assert!(Pipeline::new(&good, &packed).is_err());
}

#[test]
fn pictures_go_to_npy_files_alone() {
    let file = arrow(&[&png(&[1, 2, 3, 4, 5, 6], 2, 1), &png(&[6, 5, 4, 3, 2, 1], 2, 1)]);
    let mut pipeline = Pipeline::new(&spec(Image::new(1, 2), BadRows::Fail), &columns()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut sink = FileSink::create(dir.path(), FileFormat::Npy, pipeline.outputs()).unwrap();
    pipeline.run(&[Input::memory("pictures", &file)], &mut sink).unwrap();
    sink.finish().unwrap();
    let bytes = fs::read(dir.path().join("picture.npy")).unwrap();
    let header = String::from_utf8_lossy(&bytes[..128]);
    assert!(header.contains("'|u1'") && header.contains("'shape': (2, 1, 2, 3)"), "{header}");
    assert_eq!(bytes[128..], [1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1]);
    for format in [FileFormat::Parquet, FileFormat::Packed] {
        let refused = FileSink::create(&dir.path().join("other"), format, pipeline.outputs());
        assert!(refused.unwrap_err().to_string().contains("only npy files"));
    }
}

/// Bytes with up to four changes: other bytes, a cut end, or a piece that comes twice.
fn damaged(bytes: &[u8], random: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random(4) {
        let at = random(bytes.len());
        match random(8) {
            0 => bytes.truncate(at.max(1)),
            1 => {
                let end = (at + 1 + random(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            2 => bytes[at] = 0xFF,
            _ => bytes[at] ^= 1 << random(8),
        }
    }
    bytes
}

/// Damage ends in bad rows and errors. The process does not end, wait, or take all memory.
#[test]
fn damaged_pictures_and_archives() {
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let originals = [
        jpeg(40, 30),
        jpeg_with(&smooth(40, 30), 40, 30, ColorType::Rgb, |e| e.set_progressive(true)),
        png(&smooth(40, 30), 40, 30),
    ];
    for original in &originals {
        let all: Vec<_> = (0..400).map(|_| damaged(original, &mut random)).collect();
        let pictures: Vec<&[u8]> = all.iter().map(|bytes| &**bytes).collect();
        let (labels, arrays, _) = decode(Image::new(6, 8), &pictures);
        assert_eq!(arrays.len(), labels.len() * 6 * 8 * 3);
        assert!(labels.len() < 400);
    }
    let one = png(&[1, 2, 3], 1, 1);
    let bytes = archive(&[("a.jpg", &one), ("a.cls", b"1"), ("b.jpg", &one), ("b.cls", b"2")]);
    let mut refused = 0;
    for _ in 0..1000 {
        match run_tar(&damaged(&bytes, &mut random)) {
            Ok((_, (labels, arrays))) => assert_eq!(arrays.len(), 3 * labels.len()),
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("shard"), "{error}");
            }
        }
    }
    assert!(refused > 300, "{refused}");
}
