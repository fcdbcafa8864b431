//! Decodes edited pictures, and arbitrary bytes after the beginning of a picture. A picture must
//! become one array or one bad row, whatever the decoder has decoded before it.

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use arrow_ipc::writer::FileWriter;
use embank_pipeline::{
    BadRows, Batch, Column, Dtype, Field, FieldKind, Format, Image, Input, Operator, Output,
    Pipeline, RunOptions, Spec,
};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::edits::{Edit, change};
use super::reference::expected_of_input;

const WIDTH: u16 = 19;
const HEIGHT: u16 = 13;
const BYTES_MAX: usize = 64 << 10;
const JPEG_BEGIN: &[u8] = &[0xFF, 0xD8, 0xFF];
const PNG_BEGIN: &[u8] = b"\x89PNG\r\n\x1a\n";

/// A damaged picture, and the array to make of it.
#[derive(Debug, Arbitrary)]
pub struct Damaged {
    which: u8,
    edits: Vec<Edit>,
    /// Arbitrary bytes after the first bytes of a JPEG (false) or a PNG (true).
    raw: Option<(bool, Vec<u8>)>,
    /// True to correct the checksums of a PNG after the edits.
    seals: bool,
    height: u8,
    width: u8,
}

/// Returns JPEGs and PNGs of several kinds.
fn pictures() -> &'static [Vec<u8>] {
    static PICTURES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PICTURES.get_or_init(|| {
        let values = |channels: usize| -> Vec<u8> {
            let count = usize::from(WIDTH) * usize::from(HEIGHT) * channels;
            (0..count).map(|at| (at * 37 % 251) as u8).collect()
        };
        let jpeg = |color: ColorType, channels: usize, set: &dyn Fn(&mut Encoder<&mut Vec<u8>>)| {
            let mut bytes = Vec::new();
            let mut encoder = Encoder::new(&mut bytes, 80);
            set(&mut encoder);
            encoder.encode(&values(channels), WIDTH, HEIGHT, color).expect("it goes to memory");
            bytes
        };
        let png = |color: png::ColorType, depth: png::BitDepth, row_bytes: usize| {
            let mut bytes = Vec::new();
            let mut encoder = png::Encoder::new(&mut bytes, WIDTH.into(), HEIGHT.into());
            encoder.set_color(color);
            encoder.set_depth(depth);
            if color == png::ColorType::Indexed {
                encoder.set_palette(vec![9; 48]);
            }
            let mut writer = encoder.write_header().expect("it goes to memory");
            let values = &values(8)[..row_bytes * usize::from(HEIGHT)];
            writer.write_image_data(values).expect("it goes to memory");
            drop(writer);
            bytes
        };
        let row = usize::from(WIDTH);
        vec![
            jpeg(ColorType::Rgb, 3, &|_| {}),
            jpeg(ColorType::Rgb, 3, &|encoder| encoder.set_progressive(true)),
            jpeg(ColorType::Rgb, 3, &|encoder| {
                encoder.set_sampling_factor(SamplingFactor::F_2_2);
                encoder.set_restart_interval(3);
            }),
            jpeg(ColorType::Luma, 1, &|_| {}),
            png(png::ColorType::Rgb, png::BitDepth::Eight, 3 * row),
            png(png::ColorType::Rgba, png::BitDepth::Sixteen, 8 * row),
            png(png::ColorType::Indexed, png::BitDepth::Four, row.div_ceil(2)),
            png(png::ColorType::Grayscale, png::BitDepth::One, row.div_ceil(8)),
        ]
    })
}

/// Corrects the checksum of each chunk of a PNG that lies where the lengths before it say.
fn seal(bytes: &mut [u8]) {
    let mut at = PNG_BEGIN.len();
    // The loop ends: each turn moves on by a chunk of 12 bytes at least.
    while let Some(&[a, b, c, d]) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let (kind, sum) = (at + 4, at + 8 + length);
        if sum + 4 > bytes.len() {
            return;
        }
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[kind..sum]);
        bytes[sum..sum + 4].copy_from_slice(&crc.sum().to_be_bytes());
        at = sum + 4;
    }
}

fn spec(image: Image) -> Spec {
    Spec {
        fields: vec![Field::new("jpg", FieldKind::Blob).required()],
        columns: vec![Column::field("jpg").then(Operator::Image(image))],
        outputs: vec![Output::new("picture", Dtype::U8, ["jpg"])],
        bad_rows: BadRows::Skip,
        bad_rows_max: 1.0,
        ..Spec::default()
    }
}

/// Returns the array of each picture that is good.
fn decode(image: Image, pictures: &[&[u8]]) -> Vec<Vec<u8>> {
    let column: ArrayRef = Arc::new(BinaryArray::from_iter_values(pictures));
    let batch = RecordBatch::try_from_iter([("jpg", column)]).expect("a column");
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).expect("a writer");
    file.write(&batch).expect("it goes to memory");
    let file = file.into_inner().expect("it goes to memory");
    let options = RunOptions { threads: 1, format: Format::Columns, ..RunOptions::default() };
    let mut pipeline = Pipeline::new(&spec(image), &options).expect("a pipeline");
    let bytes = image.height as usize * image.width as usize * 3;
    let mut arrays = Vec::new();
    let report = pipeline.run(&[Input::memory("pictures", &file)], &mut |batch: &mut Batch| {
        let values = batch.u8(0).expect("bytes");
        arrays.extend(values.chunks(bytes).map(<[u8]>::to_vec));
        Ok(())
    });
    match report {
        Ok(report) => {
            assert_eq!(report.rows, arrays.len() as u64);
            assert_eq!(report.rows + report.bad_rows, pictures.len() as u64);
            report.first_bad_rows.iter().for_each(|row| assert!(!row.to_string().is_empty()));
        }
        Err(error) => {
            expected_of_input(&error);
            panic!("bad pictures are bad rows: {error}");
        }
    }
    arrays
}

impl Damaged {
    /// Decodes the picture among others.
    pub fn run(&self) {
        let all = pictures();
        let intact = &all[usize::from(self.which) % all.len()];
        let mut bytes = match &self.raw {
            Some((is_png, raw)) => [if *is_png { PNG_BEGIN } else { JPEG_BEGIN }, raw].concat(),
            None => intact.clone(),
        };
        change(&mut bytes, &self.edits);
        bytes.truncate(BYTES_MAX);
        if self.seals && bytes.starts_with(PNG_BEGIN) {
            seal(&mut bytes);
        }
        let side = |of: u8| u32::from(of % 40) + 1;
        let image = Image::new(side(self.height), side(self.width));
        let other = &all[(usize::from(self.which) + 1) % all.len()];
        let alone = decode(image, &[&bytes]);
        let among = decode(image, &[other, &bytes, intact, &bytes]);
        if bytes == *intact {
            assert_eq!(alone.len(), 1);
        }
        let others =
            [decode(image, &[other]), decode(image, &[intact])].map(|mut one| one.remove(0));
        let [other, intact] = others;
        let mut expected = vec![other];
        expected.extend_from_slice(&alone);
        expected.push(intact);
        expected.extend(alone);
        assert!(among == expected, "an array depends on the pictures before it");
    }
}
