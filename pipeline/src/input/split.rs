//! Divides files into parts, which processes on several machines read.
//!
//! **Problem.** A part must have the rows that a run over the whole files would read there. Where a
//! row begins may depend on all bytes before it (quotes), a part may need the beginning of its file
//! (a header), and what a column means may depend on other files.
//!
//! **Approach.** A cut lies where a row begins. In text without quotes that is after a line end, so
//! this module reads a few bytes at each cut. Text with quotes is read as a whole, with the reader
//! of a run ([`stream`](super::stream)). A compressed text, an Arrow file and a tar file are one part.
//! A part of a Parquet file is some row groups. The checks that need other files are made here.
//! The reader of a later part reads the header at the beginning of the file itself.

use std::path::Path;
use std::sync::Arc;

use super::chunks::{Chunks, Reader};
use super::open::Open;
use super::stream::{Broken, RowEnds, Stream};
use super::{FilePart, Input};
use crate::error::{Error, Result};
use crate::plan::Plans;

/// Bytes of text that the search for quotes reads at a time.
const READ_BYTES: usize = 512 << 10;

/// Divides the inputs, which must be files, into parts of about `part_bytes` bytes, in the order of
/// the inputs. Each file has at least one part. `plans` has the format of the files.
///
/// # Errors
/// [`Error::Inputs`] for an input that is no file. The errors of a run for the beginnings of files.
pub(crate) fn split(
    inputs: &[Input<'_>],
    part_bytes: u64,
    plans: &Arc<Plans>,
) -> Result<Vec<FilePart>> {
    let paths = inputs.iter().map(path_of).collect::<Result<Vec<_>>>()?;
    let chunks = Chunks::new(inputs, READ_BYTES, plans, Arc::default(), Arc::default())?;
    let mut parts = Vec::new();
    for (place, path) in paths.into_iter().enumerate() {
        let current = chunks.open(place)?;
        let open = &current.open;
        let cuts = match current.reader {
            Reader::Ranges => match chunks.row_ends {
                RowEnds::Rows(row_bytes) => cuts_of_rows(open.bytes, part_bytes, row_bytes as u64),
                _ => cuts_of_lines(open, part_bytes)?,
            },
            Reader::Text(ref stream) if stream.is_compressed() => vec![0, open.bytes],
            Reader::Text(mut stream) => cuts_of_quoted(&chunks, open, &mut stream, part_bytes)?,
            #[cfg(feature = "parquet")]
            Reader::Columns(stream) => cuts_of_columns(&chunks, open, stream, part_bytes)?,
        };
        let part = |cuts: &[u64]| FilePart {
            path: path.to_owned(),
            range: cuts[0]..cuts[1],
            file_bytes: open.bytes,
            modified_ns: open.modified_ns(),
            format: plans.format(),
        };
        parts.extend(cuts.windows(2).map(part));
    }
    Ok(parts)
}

/// The absolute path of an input.
fn path_of<'i>(input: &'i Input<'_>) -> Result<&'i Path> {
    let refused = |why: &str| Err(Error::Inputs(format!("{}: {why}", input.name())));
    let Some(path) = input.path().filter(|_| !input.is_pipe()) else {
        return refused(
            "it is no file, and only files are split: every worker reads its part by the file's path",
        );
    };
    if path.to_str().is_none() {
        return refused("its path is not UTF-8, and a part names its file by text: rename it");
    }
    Ok(path)
}

/// The cuts of packed rows, with the beginning and the end.
fn cuts_of_rows(bytes: u64, part_bytes: u64, row_bytes: u64) -> Vec<u64> {
    let step = (part_bytes / row_bytes).max(1) * row_bytes;
    let inner = (1..).map(|part| part * step).take_while(|&cut| cut < bytes);
    [0].into_iter().chain(inner).chain([bytes]).collect()
}

/// The cuts of lines, with the beginning and the end.
fn cuts_of_lines(open: &Open<'_>, part_bytes: u64) -> Result<Vec<u64>> {
    let mut cuts = vec![0];
    let mut begin = 0;
    // The loop ends: each round moves on by a part at least.
    while open.bytes - begin > part_bytes {
        begin = open.line_begin(begin + part_bytes)?;
        if begin < open.bytes {
            cuts.push(begin);
        }
    }
    open.check_unchanged()?;
    cuts.push(open.bytes);
    Ok(cuts)
}

/// The cuts of a text with quotes, with the beginning and the end.
fn cuts_of_quoted<'a>(
    chunks: &Chunks<'a>,
    open: &Open<'a>,
    stream: &mut Stream<'_>,
    part_bytes: u64,
) -> Result<Vec<u64>> {
    let mut cuts = vec![0];
    let mut begin = 0;
    let mut text = Vec::new();
    let read_bytes = READ_BYTES.min(usize::try_from(part_bytes).unwrap_or(READ_BYTES));
    // The loop ends: each round reads a row at least.
    loop {
        let is_first = stream.offset() == 0;
        let more = stream.next(chunks.row_ends, read_bytes, &mut text);
        // First: a change explains an error.
        open.check_unchanged()?;
        let told = |broken: Broken| match chunks.broken(open, false, broken) {
            Error::LineTooLong { input, limit, .. } => Error::Inputs(format!(
                "{input}: the row that begins at or after byte {begin} has more than {limit} bytes; is each quote closed?"
            )),
            other => other,
        };
        if !more.map_err(told)? {
            break;
        }
        if is_first {
            chunks.begins.of(&open.name, &text)?;
        }
        let end = stream.offset();
        if end - begin >= part_bytes && end < open.bytes {
            cuts.push(end);
            begin = end;
        }
    }
    cuts.push(open.bytes);
    Ok(cuts)
}

/// The cuts of a file of columns, with the beginning and the end: row groups of a Parquet file, and
/// the whole of an Arrow file.
#[cfg(feature = "parquet")]
fn cuts_of_columns<'a>(
    chunks: &Chunks<'a>,
    open: &Open<'a>,
    mut stream: crate::columns::ColumnStream<'a>,
    part_bytes: u64,
) -> Result<Vec<u64>> {
    let told = |what| Error::Columns { input: open.name.clone(), what };
    if chunks.has_rows(open, &mut stream)? {
        chunks.check_columns(open, &stream)?;
    }
    let groups = open.row_group_bytes().map_err(told)?;
    open.check_unchanged()?;
    let Some(groups) = groups else { return Ok(vec![0, open.bytes]) };
    let mut cuts = vec![0];
    let mut bytes = 0;
    for (place, of_group) in groups.iter().enumerate() {
        bytes += of_group;
        if bytes >= part_bytes && place + 1 < groups.len() {
            cuts.push(place as u64 + 1);
            bytes = 0;
        }
    }
    cuts.push(groups.len() as u64);
    Ok(cuts)
}
