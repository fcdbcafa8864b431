//! Where rows come from, and how they are cut into chunks.
//!
//! A chunk is a range of bytes. Packed rows are all of one length, so ranges begin and end with them. The lines of a
//! text chunk are those that *begin* in the range. So threads claim ranges by adding to a counter, and find out on
//! their own where their first line begins and their last one ends: nobody has to read all of the input first.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// A line is shorter than this.
const LINE_BYTES_MAX: usize = 16 << 20;
/// What is read beyond a chunk's range to find the end of its last line, at first.
const TAIL_BYTES: usize = 4 << 10;

/// Rows of a pipeline: in memory or in a file.
///
/// # Examples
/// ```
/// use embank_pipeline::Input;
///
/// let input = Input::memory("two rows", b"1\t2\n3\t4\n");
/// assert_eq!(input.name(), "two rows");
/// ```
#[derive(Debug, Clone)]
pub struct Input<'a> {
    name: String,
    from: From<'a>,
}

#[derive(Debug, Clone)]
enum From<'a> {
    Memory(&'a [u8]),
    File(PathBuf),
}

impl<'a> Input<'a> {
    /// Rows in memory; errors call them by `name`.
    #[must_use]
    pub fn memory(name: impl Into<String>, text: &'a [u8]) -> Self {
        Self { name: name.into(), from: From::Memory(text) }
    }

    /// A file.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        Self { name: path.display().to_string(), from: From::File(path) }
    }

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// All inputs, open.
#[derive(Debug)]
pub(crate) struct Chunks<'a> {
    inputs: Vec<Open<'a>>,
    chunk_bytes: u64,
    /// Bytes of a row, where all are alike.
    row_bytes: Option<u64>,
    at: Mutex<Position>,
}

#[derive(Debug)]
struct Open<'a> {
    name: String,
    text: OpenText<'a>,
    bytes: u64,
}

#[derive(Debug)]
enum OpenText<'a> {
    Memory(&'a [u8]),
    File(File, PathBuf),
}

#[derive(Debug, Default)]
struct Position {
    input: usize,
    offset: u64,
    sequence: u64,
}

/// A range of an input that one thread works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Its place in the order of all chunks.
    pub(crate) sequence: u64,
    pub(crate) input: usize,
    pub(crate) range: Range<u64>,
}

impl<'a> Chunks<'a> {
    /// Opens all inputs. `row_bytes`: bytes of a row, where all are alike; else rows are lines.
    pub(crate) fn open(
        inputs: &[Input<'a>],
        chunk_bytes: usize,
        row_bytes: Option<usize>,
    ) -> Result<Self> {
        let open = |input: &Input<'a>| {
            let (text, bytes) = match &input.from {
                From::Memory(text) => (OpenText::Memory(text), text.len() as u64),
                From::File(path) => {
                    let io = |source| Error::Io { doing: "open", path: path.clone(), source };
                    let file = File::open(path).map_err(io)?;
                    let bytes = file.metadata().map_err(io)?.len();
                    (OpenText::File(file, path.clone()), bytes)
                }
            };
            if let Some(row_bytes) = row_bytes.filter(|&row_bytes| bytes % row_bytes as u64 != 0) {
                return Err(Error::NoWholeRows { input: input.name.clone(), bytes, row_bytes });
            }
            Ok(Open { name: input.name.clone(), text, bytes })
        };
        let inputs = inputs.iter().map(open).collect::<Result<_>>()?;
        let row_bytes = row_bytes.map(|bytes| bytes as u64);
        let chunk_bytes = match row_bytes {
            Some(row_bytes) => (chunk_bytes as u64 / row_bytes).max(1) * row_bytes,
            None => chunk_bytes.max(1) as u64,
        };
        Ok(Self { inputs, chunk_bytes, row_bytes, at: Mutex::default() })
    }

    pub(crate) fn name(&self, input: usize) -> &str {
        &self.inputs[input].name
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.bytes).sum()
    }

    /// The next chunk; none if there is no more.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let mut at = self.at.lock();
        // Ends: each round leaves an input behind.
        while self.inputs.get(at.input)?.bytes <= at.offset {
            at.input += 1;
            at.offset = 0;
        }
        let end = (at.offset + self.chunk_bytes).min(self.inputs[at.input].bytes);
        let claim = Claim { sequence: at.sequence, input: at.input, range: at.offset..end };
        at.offset = end;
        at.sequence += 1;
        Some(claim)
    }

    /// The rows of a chunk; of files, in `buffer`.
    pub(crate) fn rows<'b>(&'b self, claim: &Claim, buffer: &'b mut Vec<u8>) -> Result<&'b [u8]> {
        let input = &self.inputs[claim.input];
        match &input.text {
            OpenText::Memory(text) => {
                let range = claim.range.start as usize..claim.range.end as usize;
                if self.row_bytes.is_some() {
                    return Ok(&text[range]);
                }
                self.cut(claim, text, 0, range).map(|lines| &text[lines])
            }
            OpenText::File(file, path) => self.read(claim, file, path, buffer),
        }
    }

    /// Cuts to the lines that begin in `range` of `text`; `before` bytes of the input are not in it.
    fn cut(
        &self,
        claim: &Claim,
        text: &[u8],
        before: u64,
        range: Range<usize>,
    ) -> Result<Range<usize>> {
        let first = if before == 0 && range.start == 0 {
            0
        } else {
            // The line before the first one ends at the byte before the range, or later.
            match memchr::memchr(b'\n', &text[range.start - 1..range.end]) {
                Some(at) => range.start + at,
                None => return Ok(range.end..range.end),
            }
        };
        if first >= range.end {
            return Ok(first..first);
        }
        let end = match memchr::memchr(b'\n', &text[range.end - 1..]) {
            Some(at) => range.end + at,
            None => text.len(),
        };
        if end - range.end > LINE_BYTES_MAX {
            return Err(self.too_long(claim));
        }
        Ok(first..end)
    }

    #[cold]
    fn too_long(&self, claim: &Claim) -> Error {
        let place = format!("{}, after byte {}", self.name(claim.input), claim.range.end);
        Error::LineTooLong { place, limit: LINE_BYTES_MAX }
    }

    fn read<'b>(
        &self,
        claim: &Claim,
        file: &File,
        path: &Path,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        let io = |source| Error::Io { doing: "read", path: path.to_owned(), source };
        let bytes = self.inputs[claim.input].bytes;
        if self.row_bytes.is_some() {
            buffer.resize((claim.range.end - claim.range.start) as usize, 0);
            read_exact_at(file, buffer, claim.range.start).map_err(io)?;
            return Ok(buffer);
        }
        // The byte before the range tells whether a line begins with it.
        let from = claim.range.start.saturating_sub(1);
        let mut to = (claim.range.end + TAIL_BYTES as u64).min(bytes);
        buffer.resize((to - from) as usize, 0);
        read_exact_at(file, buffer, from).map_err(io)?;
        // The last byte of the range, in the buffer.
        let last = (claim.range.end - 1 - from) as usize;
        let mut searched = last;
        // Ends: each round reads twice as much, up to the file's end or the limit.
        while to < bytes && memchr::memchr(b'\n', &buffer[searched..]).is_none() {
            searched = buffer.len();
            if searched - last > LINE_BYTES_MAX {
                return Err(self.too_long(claim));
            }
            let more = ((searched - last) as u64).min(bytes - to);
            buffer.resize(searched + more as usize, 0);
            read_exact_at(file, &mut buffer[searched..], to).map_err(io)?;
            to += more;
        }
        let begin = (claim.range.start - from) as usize;
        let lines = self.cut(claim, buffer, from, begin..last + 1)?;
        Ok(&buffer[lines])
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(not(unix))]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    // A handle of its own: others read at the same time.
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}

/// A name for an error or a report, without its bytes that are no text.
pub(crate) fn shown(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn all_chunks(input: Input<'_>, chunk_bytes: usize) -> Vec<u8> {
        let chunks = Chunks::open(&[input], chunk_bytes, None).unwrap();
        let (mut all, mut buffer, mut sequence) = (Vec::new(), Vec::new(), 0);
        while let Some(claim) = chunks.claim() {
            assert_eq!(claim.sequence, sequence);
            sequence += 1;
            let lines = chunks.rows(&claim, &mut buffer).unwrap();
            assert!(
                all.is_empty() || lines.is_empty() || all.ends_with(b"\n"),
                "chunks begin with a line"
            );
            all.extend_from_slice(lines);
        }
        all
    }

    proptest! {
        #[test]
        fn every_line_is_in_one_chunk(text in "[a\n]{0,60}", chunk_bytes in 1..70_usize) {
            prop_assert_eq!(all_chunks(Input::memory("text", text.as_bytes()), chunk_bytes), text.as_bytes());
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            prop_assert_eq!(all_chunks(Input::file(file.path()), chunk_bytes), text.as_bytes());
        }
    }

    #[test]
    fn a_line_beyond_what_is_read_at_first() {
        let text = [&b"a\n"[..], &vec![b'b'; TAIL_BYTES * 5], b"\nc"].concat();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&text).unwrap();
        assert_eq!(all_chunks(Input::file(file.path()), 10), text);
    }

    #[test]
    fn a_line_that_never_ends_is_an_error() {
        let text = vec![b'x'; LINE_BYTES_MAX + 100];
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&text).unwrap();
        for input in [Input::memory("text", &text), Input::file(file.path())] {
            let chunks = Chunks::open(&[input], 10, None).unwrap();
            let claim = chunks.claim().unwrap();
            assert!(matches!(chunks.rows(&claim, &mut Vec::new()), Err(Error::LineTooLong { .. })));
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Chunks::open(&[Input::file("/not/there.tsv")], 10, None).unwrap_err();
        assert!(error.to_string().contains("/not/there.tsv"), "{error}");
    }
}
