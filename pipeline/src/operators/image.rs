//! `Image`: decodes a picture to an array. The decoders are in [`arrays`](crate::arrays).

use super::definition::{Definition, Flow, Kind, Place};
use super::program::Program;
use crate::arrays::{self, ArrayMaker, ArrayPlan, Crop, Image};
use crate::decode::Slot;
use crate::error::{Result, refused};
use crate::spec::Dtype;

/// Largest height and width of an array.
const SIDE_MAX: u32 = 1 << 14;

pub(super) struct DecodeImage(pub(super) Image);

impl Definition for DecodeImage {
    fn name(&self) -> &'static str {
        "Image"
    }

    fn plan(&self, place: Place<'_>, program: &mut Program) -> Result<Flow> {
        let image = self.0;
        let from = match (place.flow.kind, place.flow.slot) {
            (Kind::Blob, Slot::Bytes(column)) => arrays::Place::Bytes(column),
            (Kind::File, Slot::Bytes(column)) => arrays::Place::File(column),
            _ => return place.wrong_kind("Image", "fields of kind Blob or File"),
        };
        if cfg!(not(feature = "images")) {
            return refused("this program was built without pictures (feature `images`)");
        }
        check(place.column, image)?;
        Ok(program.push_array(ArrayPlan {
            column: place.column.to_owned(),
            field: place.flow.field,
            place: from,
            maker: ArrayMaker::Image(image),
            dtype: Dtype::U8,
            shape: image.shape().to_vec(),
            output: 0,
        }))
    }
}

fn check(column: &str, image: Image) -> Result<()> {
    let Image { height, width, resize, crop } = image;
    let why = match (resize, crop) {
        _ if !(1..=SIDE_MAX).contains(&height) || !(1..=SIDE_MAX).contains(&width) => {
            format!("height and width are 1 to {SIDE_MAX}, not {height} and {width}")
        }
        (Some(_), None) => {
            "resize leaves pictures of different sizes: give it a crop too".to_owned()
        }
        (Some(shorter), Some(Crop::Center)) if shorter < height.max(width) => {
            format!("resize is {shorter}, and less than what the crop keeps, {height} x {width}")
        }
        (Some(shorter), _) if shorter > SIDE_MAX => {
            format!("resize is 1 to {SIDE_MAX}, not {shorter}")
        }
        _ => return Ok(()),
    };
    refused(format!("column {column:?}: {why}"))
}
