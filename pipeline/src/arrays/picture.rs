//! Decodes and resizes pictures.
//!
//! The first bytes tell JPEG and PNG apart, not the name. The picture is turned as its Exif
//! orientation says, then cropped and resized by a bilinear filter that averages all pixels that an
//! array's pixel covers (as Pillow's `BILINEAR`). Grey becomes three equal values. A transparent
//! pixel keeps its colour, as in Pillow's `convert("RGB")`.
//!
//! **Hostile files.** Width and height are checked before memory is allocated. A progressive JPEG
//! has a limit of scans, because each scan of a few bytes makes the decoder pass over all pixels.
//! A panic of a decoder makes the row bad. What a damaged JPEG leaves out is black.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fast_image_resize::images::{Image as Pixels, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::Image;
use super::decoder::{DecodeChannel, DecodeFailure, Decoder, InThread};
use crate::spec::Dtype;

/// Largest number of pixels of a picture.
const PIXELS_MAX: u64 = 64 << 20;
/// Largest width and height. A JPEG has no larger ones.
const SIDE_MAX: usize = 65_535;
/// Largest number of scans of a JPEG. Encoders make ten.
const SCANS_MAX: usize = 64;
/// Largest buffer in bytes that a thread keeps for its next picture.
const KEPT_BYTES: usize = 48 << 20;
/// Bytes of a pixel.
const CHANNELS: usize = 3;

/// A picture of red, green and blue.
#[derive(Debug, Default)]
struct Rgb {
    width: usize,
    height: usize,
    /// Rows of pixels. May have more bytes than the picture.
    pixels: Vec<u8>,
}

/// The decoder of [`Operator::Image`](crate::Operator::Image), which the threads of a run are
/// themselves.
#[derive(Debug)]
pub(super) struct ImageDecoder(pub(super) Image);

impl Decoder for ImageDecoder {
    fn open(&self, _: &[usize], _: Dtype) -> Result<Box<dyn DecodeChannel>, DecodeFailure> {
        let image = self.0;
        let mut pictures = PictureDecoder::default();
        let decode = move |bytes: &[u8], array: &mut [u8]| pictures.decode(&image, bytes, array);
        Ok(Box::new(InThread::new(decode)))
    }
}

/// Decodes pictures one after the other.
#[derive(Debug, Default)]
struct PictureDecoder {
    decoded: Rgb,
    turned: Rgb,
    /// The bytes of a PNG before they become an `Rgb`.
    raw: Vec<u8>,
    resizer: Resizer,
}

impl PictureDecoder {
    /// Decodes the picture in `bytes` into `array`, which has the bytes of `image`.
    ///
    /// # Errors
    /// The reason why the bytes are no such picture. The text follows the name of the field.
    fn decode(&mut self, image: &Image, bytes: &[u8], array: &mut [u8]) -> Result<(), String> {
        // Unwind safe: after an error, nothing is read of what the decoders have left.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decode_guarded(image, bytes, array)));
        decoded.unwrap_or_else(|_| {
            self.resizer = Resizer::new();
            Err("is a picture with damage that its decoder does not expect".to_owned())
        })
    }

    fn decode_guarded(
        &mut self,
        image: &Image,
        bytes: &[u8],
        array: &mut [u8],
    ) -> Result<(), String> {
        let orientation = match bytes {
            [] => return Err("is empty, and no picture".to_owned()),
            [0xFF, 0xD8, 0xFF, ..] => jpeg(bytes, &mut self.decoded)?,
            [0x89, b'P', b'N', b'G', ..] => png(bytes, &mut self.decoded, &mut self.raw)?,
            _ => return Err("is neither a JPEG nor a PNG".to_owned()),
        };
        let picture = match orientation {
            2..=8 => {
                turn(&self.decoded, orientation, &mut self.turned);
                &self.turned
            }
            _ => &self.decoded,
        };
        let resized = resize(&mut self.resizer, picture, image, array);
        for buffer in [&mut self.decoded.pixels, &mut self.turned.pixels, &mut self.raw] {
            if buffer.len() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        resized
    }
}

impl Rgb {
    /// Makes the picture as large as these numbers say. Its pixels have any values.
    fn make(&mut self, width: usize, height: usize) -> Result<&mut [u8], String> {
        let pixels = width as u64 * height as u64;
        if pixels == 0 || pixels > PIXELS_MAX || width.max(height) > SIDE_MAX {
            return Err(format!(
                "is a picture of {width} x {height} pixels, and one has 1 to {PIXELS_MAX} pixels, \
                 at most {SIDE_MAX} in a row or column"
            ));
        }
        let bytes = pixels as usize * CHANNELS;
        if self.pixels.len() < bytes {
            self.pixels.resize(bytes, 0);
        }
        (self.width, self.height) = (width, height);
        Ok(&mut self.pixels[..bytes])
    }
}

/// Decodes a JPEG. Returns its Exif orientation.
fn jpeg(bytes: &[u8], into: &mut Rgb) -> Result<u32, String> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .jpeg_set_max_scans(SCANS_MAX)
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        // Otherwise a picture that is cut short would have grey in place of what is missing.
        .set_strict_mode(true);
    let bad = |error| format!("is a JPEG that can't be decoded: {error}");
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(bad)?;
    let info = decoder.info().expect("the headers are decoded");
    let pixels = into.make(usize::from(info.width), usize::from(info.height))?;
    // The decoder may leave pixels of a damaged picture as they are.
    pixels.fill(0);
    decoder.decode_into(pixels).map_err(bad)?;
    Ok(decoder.exif().map_or(1, |exif| orientation(exif)))
}

/// Decodes a PNG. Returns its Exif orientation.
fn png(bytes: &[u8], into: &mut Rgb, raw: &mut Vec<u8>) -> Result<u32, String> {
    let bad = |error| format!("is a PNG that can't be decoded: {error}");
    let limits = png::Limits { bytes: PIXELS_MAX as usize * 8 };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(bad)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    into.make(width, height)?;
    let (color, _) = reader.output_color_type();
    let channels = color.samples();
    let needed = reader.output_buffer_size().ok_or("is a PNG that is too large")?;
    if raw.len() < needed {
        raw.resize(needed, 0);
    }
    reader.next_frame(&mut raw[..needed]).map_err(bad)?;
    reader.finish().map_err(bad)?;
    let pixels = into.pixels[..width * height * CHANNELS].chunks_exact_mut(CHANNELS);
    for (pixel, raw) in pixels.zip(raw.chunks_exact(channels)) {
        match raw {
            [grey] | [grey, _] => pixel.fill(*grey),
            [color @ .., _] if channels == 4 => pixel.copy_from_slice(color),
            color => pixel.copy_from_slice(color),
        }
    }
    Ok(reader.info().exif_metadata.as_deref().map_or(1, orientation))
}

/// Returns the orientation of Exif metadata: 1, if they have none that can be read.
fn orientation(exif: &[u8]) -> u32 {
    let read = exif::Reader::new().read_raw(exif.to_vec());
    let field = read.ok().and_then(|exif| {
        let field = exif.get_field(exif::Tag::Orientation, exif::In::PRIMARY)?;
        field.value.get_uint(0)
    });
    field.filter(|orientation| (1..=8).contains(orientation)).unwrap_or(1)
}

/// Turns a picture as its Exif orientation says, from 2 to 8.
fn turn(from: &Rgb, orientation: u32, into: &mut Rgb) {
    let (width, height) = (from.width, from.height);
    let swaps = orientation >= 5;
    let (turned_width, turned_height) = if swaps { (height, width) } else { (width, height) };
    let pixels = into.make(turned_width, turned_height).expect("it has as many pixels");
    for y in 0..turned_height {
        for x in 0..turned_width {
            let (column, row) = match orientation {
                2 => (width - 1 - x, y),
                3 => (width - 1 - x, height - 1 - y),
                4 => (x, height - 1 - y),
                5 => (y, x),
                6 => (y, height - 1 - x),
                7 => (width - 1 - y, height - 1 - x),
                _ => (width - 1 - y, x),
            };
            let at = (row * width + column) * CHANNELS;
            let to = (y * turned_width + x) * CHANNELS;
            pixels[to..to + CHANNELS].copy_from_slice(&from.pixels[at..at + CHANNELS]);
        }
    }
}

/// A rectangle of a picture, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Window {
    /// Removes what lies outside of the picture because numbers were rounded.
    fn inside(self, picture_width: f64, picture_height: f64) -> Self {
        let (left, top) = (self.left.max(0.0), self.top.max(0.0));
        let width = self.width.min(picture_width - left);
        let height = self.height.min(picture_height - top);
        Self { left, top, width, height }
    }
}

/// Returns the part of a picture that `image` shows.
fn window(image: &Image, width: usize, height: usize) -> Window {
    let (own_width, own_height) = (width as f64, height as f64);
    let inside = |window: Window| window.inside(own_width, own_height);
    let (to_width, to_height) = (f64::from(image.width), f64::from(image.height));
    let whole = Window { left: 0.0, top: 0.0, width: own_width, height: own_height };
    match (image.resize, image.crop) {
        (None, None) | (Some(_), None) => whole,
        (None, Some(super::Crop::Center)) => {
            let scale = (own_width / to_width).min(own_height / to_height);
            let (width, height) = (to_width * scale, to_height * scale);
            inside(Window {
                left: (own_width - width) / 2.0,
                top: (own_height - height) / 2.0,
                width,
                height,
            })
        }
        (Some(shorter), Some(super::Crop::Center)) => {
            // The numbers of pixels are those of torchvision's `Resize` and `CenterCrop`.
            let longer = |long: usize, short: usize| {
                (u64::from(shorter) * long as u64 / short as u64) as f64
            };
            let (resized_width, resized_height) = match width <= height {
                true => (f64::from(shorter), longer(height, width)),
                false => (longer(width, height), f64::from(shorter)),
            };
            let across = own_width / resized_width;
            let down = own_height / resized_height;
            inside(Window {
                left: ((resized_width - to_width) / 2.0).round_ties_even() * across,
                top: ((resized_height - to_height) / 2.0).round_ties_even() * down,
                width: to_width * across,
                height: to_height * down,
            })
        }
    }
}

fn resize(
    resizer: &mut Resizer,
    picture: &Rgb,
    image: &Image,
    array: &mut [u8],
) -> Result<(), String> {
    let (width, height) = (picture.width, picture.height);
    let pixels = &picture.pixels[..width * height * CHANNELS];
    let window = window(image, width, height);
    let failed =
        |error: &dyn std::fmt::Display| format!("is a picture that can't be resized: {error}");
    let from = ImageRef::new(width as u32, height as u32, pixels, PixelType::U8x3);
    let from = from.map_err(|error| failed(&error))?;
    let into = Pixels::from_slice_u8(image.width, image.height, array, PixelType::U8x3);
    let mut into = into.map_err(|error| failed(&error))?;
    let Window { left, top, width, height } = window;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .crop(left, top, width, height);
    resizer.resize(&from, &mut into, &options).map_err(|error| failed(&error))
}
