//! Parts of files, which workers on several machines read.
//!
//! A part is plain data: its number, the file's path, and a range. All other things that a worker
//! must know stand in the [`Split`]: the format of the files, a digest of the spec and a digest of
//! all parts. A worker that has another spec is refused, because its rows could be other ones.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result, refused};
use crate::format::{Format, Header, Separator};
use crate::input::{FilePart, Input, split};
use crate::plan::Plans;
use crate::spec::Spec;

/// A part of a file. Its rows are those that a run over the whole file reads there.
///
/// # Examples
/// See [`Pipeline::for_parts`](crate::Pipeline::for_parts).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The part's number in its split, from 0, in the order of the files.
    pub number: u64,
    /// The file's absolute path.
    pub path: String,
    /// The part's first byte, or its first row group in a Parquet file.
    pub begin: u64,
    /// The end of the part's bytes or row groups.
    pub end: u64,
    /// The length of the whole file in bytes.
    pub file_bytes: u64,
    /// The file's time of change, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// What the parts of files have in common.
///
/// # Examples
/// See [`Pipeline::for_parts`](crate::Pipeline::for_parts).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// A digest of all parts.
    id: String,
    /// The number of parts.
    parts: u64,
    /// A digest of the spec.
    spec: String,
    format: WrittenFormat,
}

/// A format in a split's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum WrittenFormat {
    Text { separator: Vec<u8>, header: WrittenHeader, quote: Option<u8> },
    Packed,
    Columns,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenHeader {
    Names,
    Skip,
    None,
}

/// Divides files into parts of about `part_bytes` bytes, in the order of the inputs.
///
/// A part of a text begins and ends where a row does, so a row is a bit of one part only, also if
/// it has line ends in quotes. A compressed text, an Arrow file and a tar file are one part. A part
/// of a Parquet file is some of its row groups, of about `part_bytes` compressed bytes together.
/// Each file has at least one part, also an empty one.
///
/// A text with quotes is read as a whole here. Of other files, the beginning and a few bytes for
/// each part are read.
///
/// # Errors
/// [`Error::Spec`] for an invalid spec, or if `part_bytes` is 0. [`Error::Inputs`] for an input
/// that is no file. The errors of a [run](crate::Pipeline::run) for files that can't be read, whose
/// header does not fit, or whose columns do not go together.
///
/// # Examples
/// See [`Pipeline::for_parts`](crate::Pipeline::for_parts).
pub fn split_files(
    spec: &Spec,
    inputs: &[Input<'_>],
    format: Format,
    part_bytes: u64,
) -> Result<(Split, Vec<Part>)> {
    if part_bytes == 0 {
        return refused("parts have at least one byte, and part_bytes is 0");
    }
    let inputs: Vec<Input<'_>> = Input::expand(inputs)?.iter().map(Input::named_by_path).collect();
    let format = format.of_names(inputs.iter().map(Input::name))?;
    let plans = Arc::new(Plans::new(spec, format, true)?);
    let numbered = (0..).zip(split(&inputs, part_bytes, &plans)?);
    let parts: Vec<Part> = numbered
        .map(|(number, part): (u64, FilePart)| Part {
            number,
            path: part.path.to_string_lossy().into_owned(),
            begin: part.range.start,
            end: part.range.end,
            file_bytes: part.file_bytes,
            modified_ns: part.modified_ns,
        })
        .collect();
    let format = WrittenFormat::of(format);
    let spec = digest(&spec.to_json());
    let all = format!("{format:?} {spec} {parts:?}");
    Ok((Split { id: digest(&all), parts: parts.len() as u64, spec, format }, parts))
}

fn digest(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

impl Split {
    /// The number of parts.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.parts
    }

    /// Fails if the split was made for another spec.
    ///
    /// # Errors
    /// [`Error::Spec`].
    pub fn check_spec(&self, spec: &Spec) -> Result<()> {
        if self.spec == digest(&spec.to_json()) {
            return Ok(());
        }
        refused(
            "the parts were split for another spec: split the files with the spec that is used here",
        )
    }

    /// Returns a part as the input of a run. It must be the run's only input. The run reads it in
    /// the format of the split, whatever format the pipeline has.
    ///
    /// # Errors
    /// [`Error::Spec`] if `spec` is not the spec of the split. [`Error::Inputs`] if the part's
    /// numbers can't be those of a part.
    pub fn input(&self, spec: &Spec, part: &Part) -> Result<Input<'static>> {
        self.check_spec(spec)?;
        let Part { number, ref path, begin, end, file_bytes, modified_ns } = *part;
        let is_text = self.format != WrittenFormat::Columns;
        if number >= self.parts || begin > end || (is_text && end > file_bytes) {
            return Err(Error::Inputs(format!("{part:?} is no part of its split, {self:?}")));
        }
        let format = self.format.format()?;
        Ok(Input::part(FilePart {
            path: PathBuf::from(path),
            range: begin..end,
            file_bytes,
            modified_ns,
            format,
        }))
    }

    /// Writes the split as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("names and numbers have a JSON form")
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`Error::Spec`] with the fault and its place in the JSON.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::Spec(format!("no split: {error}")))
    }
}

impl WrittenFormat {
    fn of(format: Format) -> Self {
        match format {
            Format::Text { separator, header, quote } => Self::Text {
                separator: separator.as_bytes().to_vec(),
                header: match header {
                    Header::Names => WrittenHeader::Names,
                    Header::Skip => WrittenHeader::Skip,
                    Header::None => WrittenHeader::None,
                },
                quote,
            },
            Format::Packed => Self::Packed,
            Format::Columns => Self::Columns,
            Format::ByName(_) => unreachable!("the names of the files have decided the format"),
        }
    }

    fn format(&self) -> Result<Format> {
        let format = match *self {
            Self::Text { ref separator, header, quote } => Format::Text {
                separator: Separator::of_bytes(separator)?,
                header: match header {
                    WrittenHeader::Names => Header::Names,
                    WrittenHeader::Skip => Header::Skip,
                    WrittenHeader::None => Header::None,
                },
                quote,
            },
            Self::Packed => Format::Packed,
            Self::Columns => Format::Columns,
        };
        format.check()?;
        Ok(format)
    }
}
