//! Where rows come from, and how they are cut into chunks.
//!
//! A chunk is a range of bytes. Packed rows are all of one length, so ranges begin and end with them. The lines of a
//! text chunk are those that *begin* in the range. So threads claim ranges by adding to a counter, and find out on
//! their own where their first line begins and their last one ends: nobody has to read all of the input first. Inputs
//! that can't be read from any place are read by whoever claims ([`crate::stream`]).

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use embank::locks::Mutex;

use crate::error::{Error, Result};
use crate::stream::{
    Broken, Compression, Cut, LINE_BYTES_MAX, MAGIC_BYTES, Pipe, Stream, line_ends,
};

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
    /// Rows in memory; errors call them by `name`. Text may be compressed by gzip or zstd.
    #[must_use]
    pub fn memory(name: impl Into<String>, text: &'a [u8]) -> Self {
        Self { name: name.into(), from: From::Memory(text) }
    }

    /// A file, or a pipe, which can be read only once. It may be compressed by gzip or zstd: its name ends with `.gz`
    /// or `.zst`, or it is text and its first bytes say so.
    #[must_use]
    pub fn file(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        Self { name: path.display().to_string(), from: From::File(path) }
    }

    /// Whether a second run finds nothing more in it.
    pub(crate) fn is_pipe(&self) -> bool {
        match &self.from {
            From::Memory(_) => false,
            // A folder is none either: opening it says what is wrong.
            From::File(path) => {
                path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
            }
        }
    }

    /// Where it lies; `None` for rows in memory.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.from {
            From::Memory(_) => None,
            From::File(path) => Some(path),
        }
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
    cut: Cut,
    /// Of a row, for columns.
    #[cfg(feature = "parquet")]
    fields: Vec<(String, crate::decode::FieldKind)>,
    /// Waiting for a pipe ends once it is true.
    stop: Arc<AtomicBool>,
    at: Mutex<Position<'a>>,
}

#[derive(Debug)]
struct Open<'a> {
    name: String,
    text: OpenText<'a>,
    /// Its length; of a pipe, 0.
    bytes: u64,
    is_pipe: bool,
    /// If it can only be read from its beginning on.
    serial: Option<Serial>,
}

/// How an input is read that can only be read from its beginning on.
#[derive(Debug, Clone, Copy)]
enum Serial {
    Text(Option<Compression>),
    #[cfg(feature = "parquet")]
    Columns,
}

#[derive(Debug)]
enum OpenText<'a> {
    Memory(&'a [u8]),
    File(File, PathBuf),
}

#[derive(Debug, Default)]
struct Position<'a> {
    input: usize,
    offset: u64,
    sequence: u64,
    /// Bytes of the inputs before this one; of pipes, what was read of them.
    bytes_before: u64,
    /// The input, if it is serial and was begun.
    stream: Option<Stream<'a>>,
    #[cfg(feature = "parquet")]
    columns: Option<crate::columns::ColumnStream<'a>>,
}

/// A range of an input that one thread works on.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Its place in the order of all chunks.
    pub(crate) sequence: u64,
    pub(crate) input: usize,
    /// Of a compressed text, in what it expands to.
    pub(crate) range: Range<u64>,
    /// Bytes of all inputs up to its end, compressed ones as they are.
    pub(crate) input_bytes: u64,
    pub(crate) held: Held,
}

/// Where a chunk's rows are.
#[derive(Debug)]
pub(crate) enum Held {
    /// In the input.
    There,
    /// In the buffer of who claimed it.
    Buffer,
    #[cfg(feature = "parquet")]
    Columns(arrow_array::RecordBatch),
    /// Nowhere; it is the last chunk.
    Failed(Option<Error>),
}

impl<'a> Chunks<'a> {
    /// Opens all inputs, whose rows end as `cut` says.
    pub(crate) fn open(inputs: &[Input<'a>], chunk_bytes: usize, cut: Cut) -> Result<Self> {
        let open = |input: &Input<'a>| {
            let open = Open::new(input, cut)?;
            let whole = |row_bytes: usize| open.bytes % row_bytes as u64 == 0;
            match cut {
                Cut::Rows(row_bytes) if open.serial.is_none() && !whole(row_bytes) => {
                    Err(Error::NoWholeRows { input: open.name, bytes: open.bytes, row_bytes })
                }
                _ => Ok(open),
            }
        };
        let inputs = inputs.iter().map(open).collect::<Result<_>>()?;
        let chunk_bytes = match cut {
            Cut::Rows(row_bytes) => (chunk_bytes / row_bytes).max(1) * row_bytes,
            Cut::Lines | Cut::Quoted { .. } | Cut::Columns => chunk_bytes.max(1),
        };
        Ok(Self {
            inputs,
            chunk_bytes: chunk_bytes as u64,
            cut,
            #[cfg(feature = "parquet")]
            fields: Vec::new(),
            stop: Arc::default(),
            at: Mutex::default(),
        })
    }

    /// The same, and whoever waits for a pipe fails with [`Error::Stopped`] once `stop` is true.
    pub(crate) fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// The same, and inputs of columns have those of a plan.
    #[cfg(feature = "parquet")]
    pub(crate) fn with_fields(self, plan: &crate::plan::Plan) -> Self {
        let kind = |field| plan.layout.kind(field).expect("a field for each name");
        let names = plan.field_names.iter().enumerate();
        let fields = names.map(|(field, name)| (name.clone(), kind(field))).collect();
        Self { fields, ..self }
    }

    pub(crate) fn name(&self, input: usize) -> &str {
        &self.inputs[input].name
    }

    /// Bytes of all inputs; of pipes, what was read of those that came to their ends.
    pub(crate) fn bytes(&self) -> u64 {
        let at = self.at.lock();
        let to_come = self.inputs.iter().skip(at.input).map(|input| input.bytes);
        at.bytes_before + to_come.sum::<u64>()
    }

    /// The next chunk; none if there is no more. `buffer` is for those that are read at once.
    pub(crate) fn claim(&self, buffer: &mut Vec<u8>) -> Option<Claim> {
        let mut at = self.at.lock();
        let at = &mut *at;
        // Ends: each round leaves an input behind.
        loop {
            let input = self.inputs.get(at.input)?;
            let claimed = match input.serial {
                Some(Serial::Text(compression)) => self.claim_text(input, compression, at, buffer),
                #[cfg(feature = "parquet")]
                Some(Serial::Columns) => self.claim_columns(input, at),
                None if at.offset < input.bytes => {
                    let end = (at.offset + self.chunk_bytes).min(input.bytes);
                    Some((at.offset..end, at.bytes_before + end, Held::There))
                }
                None => None,
            };
            let Some((range, input_bytes, held)) = claimed else {
                let stream = at.stream.as_ref().filter(|_| input.is_pipe);
                at.bytes_before += stream.map_or(input.bytes, Stream::input_bytes);
                at.input += 1;
                at.offset = 0;
                at.stream = None;
                #[cfg(feature = "parquet")]
                {
                    at.columns = None;
                }
                continue;
            };
            let (sequence, input) = (at.sequence, at.input);
            at.sequence += 1;
            at.offset = range.end;
            if matches!(held, Held::Failed(_)) {
                at.input = self.inputs.len();
            }
            return Some(Claim { sequence, input, range, input_bytes, held });
        }
    }

    /// Reads the next piece of an input that can only be read from its beginning on.
    fn claim_text(
        &self,
        input: &Open<'a>,
        compression: Option<Compression>,
        at: &mut Position<'a>,
        buffer: &mut Vec<u8>,
    ) -> Option<(Range<u64>, u64, Held)> {
        let begin = at.offset;
        let next = match &mut at.stream {
            Some(stream) => Ok(stream),
            none => {
                let stream = input.stream(compression, self.cut, &self.stop);
                stream.map(|stream| none.insert(stream)).map_err(Broken::Io)
            }
        };
        let next = next.and_then(|stream| {
            let more = stream.next(self.cut, self.chunk_bytes as usize, buffer)?;
            Ok(more.then(|| (stream.offset(), stream.input_bytes())))
        });
        match next {
            Ok(None) => None,
            Ok(Some((end, read))) => {
                let read = if input.is_pipe { read } else { read.min(input.bytes) };
                Some((begin..end, at.bytes_before + read, Held::Buffer))
            }
            Err(broken) => {
                let known = at.stream.as_ref().map(Stream::is_compressed);
                let error = self.broken(input, known.unwrap_or(compression.is_some()), broken);
                Some((begin..begin, at.bytes_before, Held::Failed(Some(error))))
            }
        }
    }

    /// Reads the next rows of an input of columns.
    #[cfg(feature = "parquet")]
    fn claim_columns(
        &self,
        input: &Open<'a>,
        at: &mut Position<'a>,
    ) -> Option<(Range<u64>, u64, Held)> {
        use crate::columns::ColumnStream;
        let (begin, chunk_bytes) = (at.offset, self.chunk_bytes as usize);
        let stream = match &mut at.columns {
            Some(stream) => Ok(stream),
            none => match &input.text {
                OpenText::Memory(bytes) => {
                    ColumnStream::of_memory(bytes, &self.fields, chunk_bytes)
                }
                OpenText::File(file, _) => ColumnStream::of_file(file, &self.fields, chunk_bytes),
            }
            .map(|stream| none.insert(stream)),
        };
        match stream.and_then(|stream| Ok((stream.next()?, stream.input_bytes(input.bytes)))) {
            Ok((None, _)) => None,
            Ok((Some(batch), read)) => {
                let end = begin + batch.num_rows() as u64;
                Some((begin..end, at.bytes_before + read, Held::Columns(batch)))
            }
            Err(what) => {
                let error = Error::Columns { input: input.name.clone(), what };
                Some((begin..begin, at.bytes_before, Held::Failed(Some(error))))
            }
        }
    }

    #[cold]
    fn broken(&self, input: &Open<'a>, compressed: bool, broken: Broken) -> Error {
        let name = input.name.clone();
        match (broken, self.cut) {
            // Relaxed: whoever failed by it has seen it.
            (Broken::Io(_), _) if self.stop.load(Ordering::Relaxed) => Error::Stopped,
            (Broken::TooLong { lines_before }, _) => too_long(name, lines_before),
            (Broken::CutShort(bytes), Cut::Rows(row_bytes)) => {
                Error::NoWholeRows { input: name, bytes, row_bytes }
            }
            (Broken::CutShort(_), _) => unreachable!("the last line may lack its end"),
            (Broken::Io(source), _) if compressed => Error::Compressed { input: name, source },
            (Broken::Io(source), _) => Error::Io { doing: "read", path: name.into(), source },
        }
    }

    /// Reads all with so many threads, and does nothing with it.
    pub(crate) fn read_all(&self, threads: usize) -> Result<()> {
        std::thread::scope(|scope| {
            let read = || {
                let mut buffer = Vec::new();
                while let Some(mut claim) = self.claim(&mut buffer) {
                    #[cfg(feature = "parquet")]
                    if matches!(claim.held, Held::Columns(_)) {
                        continue;
                    }
                    self.rows(&mut claim, &mut buffer)?;
                }
                Ok(())
            };
            let threads: Vec<_> = (1..threads).map(|_| scope.spawn(read)).collect();
            let own = read();
            let others = threads.into_iter().map(|thread| thread.join());
            others.fold(own, |all, thread| {
                all.and(thread.unwrap_or_else(|_| Err(Error::Panicked("that reads".to_owned()))))
            })
        })
    }

    /// The rows of a chunk; of files, in `buffer`, which must be the one that it was claimed with.
    pub(crate) fn rows<'b>(
        &'b self,
        claim: &mut Claim,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        match &mut claim.held {
            Held::There => {}
            Held::Buffer => return Ok(buffer),
            #[cfg(feature = "parquet")]
            Held::Columns(_) => unreachable!("columns are no text"),
            Held::Failed(error) => return error.take().map_or(Ok(&[]), Err),
        }
        let input = &self.inputs[claim.input];
        match &input.text {
            OpenText::Memory(text) => {
                let range = claim.range.start as usize..claim.range.end as usize;
                if matches!(self.cut, Cut::Rows(_)) {
                    return Ok(&text[range]);
                }
                self.cut(claim, text, 0, range).map(|lines| &text[lines])
            }
            OpenText::File(file, path) => self.read(claim, file, path, buffer),
        }
    }

    /// Cuts to the lines that begin in `range` of `text`; `before` bytes of the input are not in it. All of the last
    /// line is in it, or more of that than a line may have.
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
        let too_long = |begin: usize| {
            let lines_before = memchr::memchr_iter(b'\n', &text[first..begin]).count();
            too_long(self.name(claim.input).to_owned(), lines_before)
        };
        let last = line_ends(text, first, first, range.end).map_err(too_long)?.unwrap_or(first);
        if last == range.end {
            return Ok(first..last);
        }
        let reach = text.len().min(last + LINE_BYTES_MAX + 1);
        match memchr::memchr(b'\n', &text[range.end..reach]) {
            Some(at) => Ok(first..range.end + at + 1),
            None if text.len() - last > LINE_BYTES_MAX => Err(too_long(last)),
            None => Ok(first..text.len()),
        }
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
        if matches!(self.cut, Cut::Rows(_)) {
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
        if claim.range.start > 0 && memchr::memchr(b'\n', &buffer[..last]).is_none() {
            // No line begins in it: how far the one goes on that is there is its own chunk's affair.
            return Ok(&[]);
        }
        let mut searched = last;
        // Ends: each round reads twice as much, up to the file's end or beyond the limit.
        while to < bytes && memchr::memchr(b'\n', &buffer[searched..]).is_none() {
            searched = buffer.len();
            if searched - last > LINE_BYTES_MAX {
                // Longer than a line may be, wherever it begins.
                break;
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

impl<'a> Open<'a> {
    fn new(input: &Input<'a>, cut: Cut) -> Result<Self> {
        let name = input.name.clone();
        // Packed rows may begin with any bytes.
        let of_bytes = |first: &[u8]| match cut {
            Cut::Rows(_) | Cut::Columns => None,
            Cut::Lines | Cut::Quoted { .. } => Compression::of_bytes(first),
        };
        let (text, bytes, compression, pipe) = match &input.from {
            From::Memory(text) => {
                (OpenText::Memory(text), text.len() as u64, of_bytes(text), false)
            }
            From::File(path) => {
                let io = |source| Error::Io { doing: "open", path: path.clone(), source };
                // Who opens a pipe, or reads it, would wait for its writer: see `Pipe`.
                let waits = if input.is_pipe() { rustix::fs::OFlags::NONBLOCK.bits() } else { 0 };
                let mut how = File::options();
                how.read(true).custom_flags(waits as i32);
                let file = how.open(path).map_err(io)?;
                let metadata = file.metadata().map_err(io)?;
                if metadata.is_dir() {
                    return Err(io(std::io::ErrorKind::IsADirectory.into()));
                }
                let (bytes, pipe) = (metadata.len(), !metadata.is_file());
                // Several threads read it by turns: without this, the system takes them for random reads at times and
                // reads little ahead. A hint, so a refusal (pipes have no such thing) changes nothing else.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
                let mut first = [0; MAGIC_BYTES];
                let known = bytes.min(MAGIC_BYTES as u64) as usize;
                if !pipe {
                    read_exact_at(&file, &mut first[..known], 0).map_err(io)?;
                }
                let compression = Compression::of_path(path).or_else(|| of_bytes(&first[..known]));
                (OpenText::File(file, path.clone()), bytes, compression, pipe)
            }
        };
        let quoted = matches!(cut, Cut::Quoted { .. });
        #[cfg(feature = "parquet")]
        if cut == Cut::Columns {
            if pipe {
                let what = "it is a pipe, and files of columns are read from several places: write it to a file first";
                return Err(Error::Columns { input: name, what: what.to_owned() });
            }
            return Ok(Self { name, text, bytes, is_pipe: pipe, serial: Some(Serial::Columns) });
        }
        let serial = compression.is_some() || quoted || pipe;
        let serial = serial.then_some(Serial::Text(compression));
        // What the system says of a pipe's length means nothing.
        let bytes = if pipe { 0 } else { bytes };
        Ok(Self { name, text, bytes, is_pipe: pipe, serial })
    }

    fn stream(
        &self,
        compression: Option<Compression>,
        cut: Cut,
        stop: &Arc<AtomicBool>,
    ) -> std::io::Result<Stream<'a>> {
        match &self.text {
            OpenText::Memory(text) => Stream::of_memory(text, compression),
            // Packed rows may begin with any bytes.
            OpenText::File(file, _) if self.is_pipe => {
                let tells = !matches!(cut, Cut::Rows(_));
                Stream::of_pipe(Pipe::new(file, stop)?, compression, tells)
            }
            OpenText::File(file, _) => Stream::of_file(file, compression),
        }
    }
}

/// The lines before it are those of its chunk; who commits that adds those before the chunk.
#[cold]
fn too_long(input: String, lines_before: usize) -> Error {
    Error::LineTooLong { input, line: lines_before as u64 + 1, limit: LINE_BYTES_MAX }
}

fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
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
        let chunks = Chunks::open(&[input], chunk_bytes, Cut::Lines).unwrap();
        let (mut all, mut buffer, mut sequence) = (Vec::new(), Vec::new(), 0);
        while let Some(mut claim) = chunks.claim(&mut buffer) {
            assert_eq!(claim.sequence, sequence);
            sequence += 1;
            let lines = chunks.rows(&mut claim, &mut buffer).unwrap();
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
            let chunks = Chunks::open(&[input], 10, Cut::Lines).unwrap();
            let mut buffer = Vec::new();
            let mut claim = chunks.claim(&mut buffer).unwrap();
            let rows = chunks.rows(&mut claim, &mut buffer);
            assert!(matches!(rows, Err(Error::LineTooLong { .. })));
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Chunks::open(&[Input::file("/not/there.tsv")], 10, Cut::Lines).unwrap_err();
        assert!(error.to_string().contains("/not/there.tsv"), "{error}");
    }
}
